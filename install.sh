#!/bin/sh
# Installs Spillbox from the unpacked bundle, without a network:
#
#   sh install.sh FOLDER      into FOLDER/venv, with its data in FOLDER/data
#   sh install.sh --docker    the images into Docker
set -eu
fail() {
    echo "install: $1" >&2
    exit 1
}

[ $# -eq 1 ] || fail "usage: sh install.sh FOLDER | sh install.sh --docker"
case $1 in /*) folder=$1 ;; *) folder=$PWD/$1 ;; esac
cd "$(dirname "$0")"
[ -f SHA256SUMS ] || fail "this is no unpacked bundle; from a clone of the project use make setup"
sha256sum --check --quiet SHA256SUMS || fail "the files are not those of the bundle: copy it again"

if [ "$1" = --docker ]; then
    [ -f images/spillbox.tar.gz ] || fail "this bundle has no images in it"
    for image in spillbox-runtime spillbox; do
        docker load --quiet --input "images/$image.tar.gz"
    done
    echo "Next, in $PWD: SPILLBOX_API_KEY=… docker compose up -d, or the docker run of README.md."
    exit 0
fi

[ "$(uname -s)" = Linux ] || fail "Spillbox needs Linux: its jail is made of Linux namespaces."
version=$(cat wheels/python-version)
python=${PYTHON:-python$version}
command -v "$python" >/dev/null || fail "there is no $python; this bundle has packages for Python $version. PYTHON=… names another program."
[ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$version" ] || fail "$python is not Python $version"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no venv module. On Debian or Ubuntu: apt-get install python3-venv"

mkdir -p "$folder"
"$python" -m venv "$folder/venv"
install() { "$folder/venv/bin/python" -m pip --isolated install --quiet --disable-pip-version-check --no-index "$@"; }
install --require-hashes --find-links wheels/service --requirement wheels/requirements.txt
install --no-deps --force-reinstall wheels/spillbox-*.whl
"$folder/venv/bin/spillbox" setup --wheels wheels/guest --data-dir "$folder/data"
cat <<NEXT

Next:
  export SPILLBOX_DATA_DIR=$folder/data
  $folder/venv/bin/spillbox doctor     # proves each wall on this machine
  $folder/venv/bin/spillbox serve      # http://127.0.0.1:8750
NEXT
