#!/bin/sh
# Installs programs that are not ours, which tests run against the service: MCP clients, servers and conformance scenarios for
# Node, agent frameworks for Python, and schemathesis, which sends what the OpenAPI document allows and forbids. Where npm or an
# index is missing, their tests are skipped and say so.
set -u
PYTHON=${PYTHON:-python3}
stamp=.installed

node_programs() {
    cd tests/node || return 1
    [ "$stamp" -nt package-lock.json ] && return 0
    command -v npm >/dev/null || { echo "npm is not here"; return 1; }
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && touch "$stamp"
}

python_packages() { # the folder that has their requirements.txt
    cd "$1" || return 1
    [ "$stamp" -nt requirements.txt ] && return 0
    [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv || return 1
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt && touch "$stamp"
}

(node_programs) || echo "warning: without the programs of tests/node their tests are skipped"
for folder in tests/clients tests/fuzz; do
    (python_packages "$folder") || echo "warning: without the packages of $folder their tests are skipped"
done
