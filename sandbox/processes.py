"""Processes by an identity that is safe from reuse of their numbers."""

import os
from pathlib import Path


def identity_of(pid: int) -> str:
    """The process's id and start time as ``pid-ticks``; empty if it does not run: a zombie has ended too.

    State and start time, in clock ticks since boot, are fields 3 and 22 of proc(5) stat.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{pid}-{fields[19]}"


def lives(identity: str) -> bool:
    """Whether the process of that identity still runs."""
    pid = identity.partition("-")[0]
    return pid.isdigit() and identity_of(int(pid)) == identity


def pid_namespace() -> str:
    """The number of this process's pid namespace: ids of processes mean nothing in another."""
    return str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116  no file


def has_ended(identity: str, namespace: str) -> bool:
    """Whether that process of a pid namespace is no more, as far as this one can see: of another namespace nothing is known."""
    return namespace == pid_namespace() and not lives(identity)
