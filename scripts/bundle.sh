#!/bin/sh
# Makes one archive to carry to a machine without a network: dist/spillbox-VERSION.tar.gz, with the source, all wheels, the images,
# the list of what is in it, and install.sh. IMAGES=no leaves the images out; else they are those of `make images`, with its TAG and its DIST.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
tag=${TAG:-latest}
dist=${DIST:-dist}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
name=spillbox-$version
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
say() { printf 'bundle: %s\n' "$*" >&2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$work/$name
mkdir -p "$top/images/service" "$top/sbom" "$dist"
say "wheels"
sh scripts/wheels.sh
cp -r build/wheels "$top/"
"$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' >"$top/wheels/python-version"
git archive --prefix "$name/" HEAD | gzip -n >"$top/source.tar.gz"
cp -r install.sh compose.yaml deploy README.md ARCHITECTURE.md SECURITY.md CHANGELOG.md docs "$top/"
cp images/service/seccomp.json images/service/seccomp.toml "$top/images/service/"
"$python" scripts/sbom.py spillbox-bundle "$version" --wheels build/wheels/service build/wheels/guest --output "$top/sbom/bundle.cdx.json"
if [ "${IMAGES:-yes}" != yes ]; then
    say "without images"
elif ! docker info >/dev/null 2>&1; then
    say "without images, since Docker does not answer"
else
    for image in spillbox spillbox-runtime; do
        docker image inspect "$image:$tag" >/dev/null || { say "there is no image $image:$tag: make images, or IMAGES=no"; exit 1; }
        say "the image $image:$tag"
        docker save "$image:$tag" | gzip -n >"$top/images/$image.tar.gz"
        cp "$dist/$image.cdx.json" "$top/sbom/"
    done
fi
(cd "$top" && find . -type f ! -name SHA256SUMS | LC_ALL=C sort | sed 's/^/"/; s/$/"/' | xargs sha256sum >SHA256SUMS)
tar --create --directory "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner "$name" |
    gzip -n >"$dist/$name.tar.gz"
say "$dist/$name.tar.gz, $(du -h "$dist/$name.tar.gz" | cut -f1)"
