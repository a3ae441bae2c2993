#!/bin/sh
# Puts together what an installation without a network needs, in build/wheels: the wheels of the service and of the guest by the
# locked, hash-checked requirements, and the project's own. PYTHON_VERSION (3.12) is for another interpreter than PYTHON.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

rm -rf build/wheels
mkdir -p build/wheels
cp requirements.txt build/wheels/
download() {
    "$python" -m pip download --quiet --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
        ${PYTHON_VERSION:+--python-version "$PYTHON_VERSION"} --requirement "$1" --dest "build/wheels/$2"
}
download requirements.txt service
download images/runtime/requirements.txt guest
"$python" -m hatchling build --target wheel --directory "$PWD/build/wheels" >/dev/null
