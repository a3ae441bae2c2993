#!/bin/sh
# Makes the service's virtual environment from the locked, hash-checked requirements.
set -eu
python=${PYTHON:-python3}
venv=${VENV:-.venv}

fail() {
    echo "setup: $1" >&2
    exit 1
}

[ "$(uname -s)" = Linux ] || fail "Spillbox needs Linux: its jail is made of Linux namespaces."
command -v "$python" >/dev/null || fail "There is no $python. On Debian or Ubuntu: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is $("$python" --version); 3.11 or newer is needed. Try: make PYTHON=python3.12 setup"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python has no venv module. On Debian or Ubuntu: apt-get install python3-venv"

"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-dev.txt
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
