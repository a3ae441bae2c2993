#!/bin/sh
# Makes the base of both images from Debian's packages, without a container registry: what Debian calls essential, Python with
# venv, what compiled wheels need of C++, and the authorities of TLS. Packages come from where this machine's apt has its own, through the same proxy.
# The same packages give the same layer: no file is younger than SOURCE_DATE_EPOCH, the time of the last commit if not set.
set -eu
image=${BASE_IMAGE:-spillbox-base}
cd "$(dirname "$0")/.."
say() { printf 'base image: %s\n' "$*" >&2; }

missing=
for program in docker mmdebstrap; do command -v $program >/dev/null || missing="$missing $program"; done
if [ -n "$missing" ]; then
    say "install$missing first (apt-get install docker.io mmdebstrap)"
    exit 1
fi
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")

# Only the distribution's own sources: what else an operator has there is no part of a base.
set --
for sources in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
    [ ! -s $sources ] || set -- "$@" $sources
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
apt-config dump --no-empty --format '%F "%v";%n' Acquire::http Acquire::https >"$work/apt.conf"

say "from the packages of $suite"
# Without apt's own package, sources and lists: the image is used, not administered. The hook spares it Perl, which a conversion of
# /usr would need.
mmdebstrap --quiet --variant=essential --include=ca-certificates,libstdc++6,python3,python3-venv \
    --hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr --aptopt="$work/apt.conf" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/i18n/*' \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list* "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap' \
    --customize-hook='rm -rf "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/var/cache/debconf/* "$1"/var/lib/apt/lists "$1"/var/log/*' \
    "$suite" "$work/base.tar" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
docker import --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' "$work/base.tar" "$image" >/dev/null
say "$image, $(docker image inspect --format '{{.Size}}' "$image" | awk '{printf "%.0f MB", $1 / 1e6}'), layer" \
    "$(docker image inspect --format '{{index .RootFS.Layers 0}}' "$image")"
