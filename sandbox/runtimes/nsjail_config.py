"""The configuration of one jail, as the text that nsjail reads (its config.proto): the reviewed file, and what differs."""

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from sandbox import guest_root
from sandbox.guest_root import IMAGE
from sandbox.job import MIB, Job
from sandbox.runtimes import seccomp
from sandbox.workspace import GUEST_PATH, READ_ONLY_FOLDERS, Identity

CONFIG_FILE = IMAGE / "nsjail.cfg"
GUEST_UID = 1000
_SECOND_CLOCK_SECONDS = 60

ENVIRONMENT = {
    "PATH": "/opt/venv/bin",
    "HOME": "/tmp",  # noqa: S108  the jail's own
    "TMPDIR": "/tmp",  # noqa: S108  the jail's own
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONUTF8": "1",
    "PYTHONIOENCODING": "utf-8:backslashreplace",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""All that a guest sees of an environment."""


@dataclass(frozen=True)
class Walls:
    """What the configuration of a jail is made from, besides its job and its ids."""

    root: Path
    with_cgroup: bool
    root_is_known: bool
    config_file: Path = CONFIG_FILE
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    seccomp: str = field(default_factory=seccomp.kafel)

    @cached_property
    def reviewed(self) -> str:
        """The part that is the same for every run."""
        return self.config_file.read_text()


def build_config(walls: Walls, job: Job, identity: Identity, *, control_fd: int, read_only: dict[str, Path]) -> str:
    """The configuration of one jail. Pure; nothing that a guest chose is in it: its script travels by the wire."""
    limits = job.limits
    # Some inodes are not the guest's: the root of the tmpfs and the places for the mounts.
    inodes = limits.workspace_files + 1 + len(READ_ONLY_FOLDERS)
    tmp = f"size={limits.tmp_bytes},nr_inodes={limits.workspace_files},mode=1777"
    lines = [
        f"mount {{ src: {_quoted(walls.root)} dst: '/' is_bind: true }}",
        walls.reviewed,
        f"pass_fd: {control_fd}",
        *_ids(GUEST_UID, identity.uid, identity.gid),
    ]
    if walls.root_is_known:
        # The jail is built with the guest's ids and capabilities that count only for owners known in its user namespace.
        # With root known there, it can pass through the service's own folders, such as /root, to what it mounts.
        # The guest itself gets neither root's id nor a capability.
        lines += _ids(0, 0, 0)
    lines += [
        f"time_limit: {math.ceil(limits.wall_seconds) + _SECOND_CLOCK_SECONDS}",
        _tmpfs(GUEST_PATH, f"size={limits.workspace_bytes},nr_inodes={inodes},mode=0755"),
        _tmpfs("/tmp", tmp),  # noqa: S108  the jail's own
        _tmpfs("/dev/shm", tmp),  # noqa: S108  the jail's own
    ]
    for name, folder in read_only.items():
        lines.append(f"mount {{ src: {_quoted(folder)} dst: '{GUEST_PATH}/{name}' is_bind: true }}")
    lines += _limit("fsize", limits.file_bytes // MIB) + _limit("cpu", limits.cpu_seconds)
    # Control groups count all processes of a run together. Without them, each process is bounded by itself, and the
    # kernel counts the processes of the jail's user in the jail's user namespace, process 1 included.
    lines += _limit("as", None if walls.with_cgroup else limits.memory_bytes // MIB)
    lines += _limit("nproc", None if walls.with_cgroup else limits.processes + 1)
    lines.append(f"seccomp_string: {_quoted(walls.seccomp)}")
    lines += [f"envar: {_quoted(f'{name}={value}')}" for name, value in walls.environment.items()]
    arguments = ("-S", f"{guest_root.PROGRAMS}/init.pyc", str(control_fd), *job.preload)
    lines.append(f"exec_bin {{ path: '{guest_root.PYTHON}' {' '.join(f'arg: {_quoted(a)}' for a in arguments)} }}")
    return "\n".join(lines) + "\n"


def _ids(inside: int, uid: int, gid: int) -> list[str]:
    pairs = (("uidmap", uid), ("gidmap", gid))
    return [f"{kind} {{ inside_id: '{inside}' outside_id: '{outside}' count: 1 }}" for kind, outside in pairs]


def _tmpfs(place: str, options: str) -> str:
    return f"mount {{ dst: '{place}' fstype: 'tmpfs' options: '{options}' rw: true nosuid: true nodev: true }}"


def _limit(name: str, value: int | None) -> list[str]:
    """A resource limit, or the caller's own hard limit for None."""
    if value is None:
        return [f"rlimit_{name}_type: HARD"]
    return [f"rlimit_{name}: {value}", f"rlimit_{name}_type: VALUE"]


@lru_cache(maxsize=256)
def _quoted(text: object) -> str:
    """A string of the text format: printable ASCII as it is, all other bytes as octal escapes."""
    raw = str(text).encode("utf-8", "surrogateescape")
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in raw) + '"'
