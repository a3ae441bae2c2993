#!/bin/sh
# Builds the images spillbox-runtime and spillbox over BASE_IMAGE, without a network inside, and writes the list of what is in
# each to DIST. Wheels come from where pip takes its own; the base, if it is ours and not there, from scripts/base-image.sh.
set -eu
cd "$(dirname "$0")/.."
base=${BASE_IMAGE:-spillbox-base}
tag=${TAG:-latest}
dist=${DIST:-dist}
python=${PYTHON:-.venv/bin/python}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
say() { printf 'images: %s\n' "$*" >&2; }

docker image inspect "$base" >/dev/null 2>&1 || [ "$base" != spillbox-base ] || sh scripts/base-image.sh
PYTHON_VERSION=$(docker run --rm --network none "$base" python3 -c 'import platform; print(".".join(platform.python_version_tuple()[:2]))')
export PYTHON_VERSION
say "wheels for Python $PYTHON_VERSION"
sh scripts/wheels.sh

wheel=$(sha256sum build/wheels/spillbox-*.whl | cut -d' ' -f1)

build() { # the folder of the Dockerfile, further arguments
    folder=$1
    shift
    docker build --quiet --network none --build-arg "BASE_IMAGE=$base" --file "images/$folder/Dockerfile" \
        --label "org.opencontainers.image.version=$version" --label "spillbox.wheel=$wheel" \
        --label "org.opencontainers.image.revision=$(git rev-parse HEAD)" "$@" .
}

say "spillbox-runtime:$tag"
stage=$(build runtime --target build)
labels=$(docker run --rm --network none "$stage" /build/bin/python -m sandbox.runtimes.container_image /guest-root)
set --
while IFS= read -r label; do
    set -- "$@" --label "$label"
done <<LABELS
$labels
LABELS
build runtime --tag "spillbox-runtime:$tag" "$@" >/dev/null

say "spillbox:$tag"
build service --tag "spillbox:$tag" >/dev/null

mkdir -p build/debian
# Packages of Debian: all that the base has, and for the runtime those whose files the guest root has copies of.
if docker run --rm --network none "$base" sh -c 'command -v dpkg-query' >/dev/null; then
    docker run --rm --network none "$base" dpkg-query --show >build/debian/service.tsv
    docker run --rm --network none --entrypoint sh "$stage" -c '
        for file in $(cd /guest-root/usr && find bin lib -maxdepth 1 -type f) "python3*/os.py" "python3*/json/decoder.py"; do
            dpkg-query --search "*/$file" 2>/dev/null || dpkg-query --search "*/${file##*/}" 2>/dev/null
        done | sed "s/:.*//; s/, .*//" | sort -u | xargs dpkg-query --show' >build/debian/runtime.tsv
else
    : >build/debian/service.tsv
    : >build/debian/runtime.tsv
fi
mkdir -p "$dist"
"$python" scripts/sbom.py spillbox-runtime "$version" --wheels build/wheels/guest --debian build/debian/runtime.tsv \
    --output "$dist/spillbox-runtime.cdx.json"
"$python" scripts/sbom.py spillbox "$version" --wheels build/wheels/service build/wheels/guest --debian build/debian/service.tsv \
    --output "$dist/spillbox.cdx.json"
docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep -E "^(spillbox|spillbox-runtime):$tag " >&2
