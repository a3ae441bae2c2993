#!/bin/sh
# Make Docker and gVisor ready for the tests, as root: install them if they are not there, start Docker's daemon if it does not
# answer, and let it know the runtime `runsc`. Prints the id of the daemon if it started one.
set -eu
say() { printf '%s\n' "$*" >&2; }

missing=
command -v dockerd >/dev/null || missing="$missing docker.io"
command -v runsc >/dev/null || missing="$missing runsc"
if [ -n "$missing" ]; then
    say "installing$missing"
    # shellcheck disable=SC2086  several words
    { apt-get update -q && apt-get install -y -q --no-install-recommends $missing; } >&2
fi

knows_gvisor() { docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q '"runsc"'; }

if ! knows_gvisor; then
    if docker info >/dev/null 2>&1; then
        say "Docker runs, and does not know the runtime runsc: name it in /etc/docker/daemon.json and restart Docker"
        exit 1
    fi
    mkdir -p /etc/docker
    # A container has no network in our use, so gVisor needs none of its own.
    [ -e /etc/docker/daemon.json ] ||
        printf '{"runtimes": {"runsc": {"path": "%s", "runtimeArgs": ["--network=none"]}}}\n' "$(command -v runsc)" >/etc/docker/daemon.json
    rm -f /var/run/docker.pid
    dockerd >/var/log/dockerd-spillbox.log 2>&1 &
    echo $!
    tries=0
    until knows_gvisor; do
        tries=$((tries + 1))
        if [ $tries -gt 60 ]; then
            say "Docker's daemon does not start, or does not know runsc:"
            tail -20 /var/log/dockerd-spillbox.log >&2
            exit 1
        fi
        sleep 1
    done
fi
