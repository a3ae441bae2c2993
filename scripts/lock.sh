#!/bin/sh
# Locks what the service, its development and the guest need, with hashes and without the address of any index.
set -eu
lock() {
    uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
        --no-annotate "$@"
}
lock pyproject.toml --output-file requirements.txt
lock pyproject.toml --group dev --constraints requirements.txt --output-file requirements-dev.txt
lock images/runtime/requirements.in --output-file images/runtime/requirements.txt
lock tests/clients/requirements.in --output-file tests/clients/requirements.txt
lock tests/fuzz/requirements.in --output-file tests/fuzz/requirements.txt
(cd tests/node && npm install --package-lock-only --ignore-scripts)
