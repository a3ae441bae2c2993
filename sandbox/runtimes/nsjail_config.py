"""The configurations of jails, as the text that nsjail reads (its config.proto): a reviewed file, and what differs."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from sandbox import guest_root
from sandbox.guest_root import IMAGE
from sandbox.job import MIB, Limits
from sandbox.runtimes import policy, seccomp
from sandbox.runtimes.identities import IdRange
from sandbox.workspace import GUEST_PATH, Identity

CONFIG_FILE = IMAGE / "nsjail.cfg"
LAUNCHER_CONFIG_FILE = IMAGE / "launcher.cfg"
_SECOND_CLOCK_SECONDS = 60
_IN_MIB = ("as", "core", "fsize", "memlock", "stack")
"""The limits that nsjail takes in MiB."""


@dataclass(frozen=True)
class Walls:
    """What jails are made from, besides the job and the ids."""

    root: Path
    with_cgroup: bool
    root_is_known: bool = False
    config_file: Path = CONFIG_FILE
    environment: dict[str, str] = field(default_factory=lambda: dict(policy.ENVIRONMENT))
    seccomp: bytes = field(default_factory=seccomp.program)
    namespaces: tuple[str, ...] = tuple(policy.NAMESPACES)
    """That a launcher gives to each jail; those of a cold one stand in its file."""

    @cached_property
    def reviewed(self) -> str:
        """The part that is the same for every run."""
        return self.config_file.read_text()


def build_config(
    walls: Walls, limits: Limits, identity: Identity, *,
    control_fd: int, read_only: dict[str, Path], preload: tuple[str, ...] = (),
) -> str:  # fmt: skip
    """The configuration of one jail. Pure; nothing that a guest chose is in it: its script travels by the wire."""
    lines = [*_common(walls), f"pass_fd: {control_fd}", *_ids(policy.GUEST_UID, identity.uid, identity.gid)]
    if walls.root_is_known:
        # The jail is built with the guest's ids and capabilities that count only for owners known in its user namespace.
        # With root known there, it can pass through the service's own folders, such as /root, to what it mounts.
        # The guest itself gets neither root's id nor a capability.
        lines += _ids(0, 0, 0)
    lines.append(f"time_limit: {math.ceil(limits.wall_seconds) + _SECOND_CLOCK_SECONDS}")
    for mount in policy.tmpfs_mounts(limits):
        noexec = "" if mount.executable else " noexec: true"
        lines.append(
            f"mount {{ dst: '{mount.place}' fstype: 'tmpfs' options: '{mount.options}' rw: true nosuid: true nodev: true{noexec} }}"
        )
    for name, folder in read_only.items():
        lines.append(
            f"mount {{ src: {_quoted(folder)} dst: '{GUEST_PATH}/{name}' is_bind: true nosuid: true nodev: true }}"
        )
    values = policy.resource_limits(limits, with_cgroup=walls.with_cgroup, own_processes=1)
    for name in ("as", "nproc", "cpu"):
        if name not in values:
            lines.append(f"rlimit_{name}_type: HARD")  # the caller's own
    for name, value in values.items():
        lines += [f"rlimit_{name}: {value // MIB if name in _IN_MIB else value}", f"rlimit_{name}_type: VALUE"]
    lines.append(_program("init", str(control_fd), *preload))
    return "\n".join(lines) + "\n"


def build_launcher_config(walls: Walls, workspaces: Path, kind: str, *, link_fd: int, ids: Iterable[IdRange]) -> str:
    """The configuration of the jail around a launcher of a kind; the first of ``ids`` is its own. Pure."""
    lines = [
        *_common(walls),
        f"pass_fd: {link_fd}",
        *(line for one in ids for line in _ids(one.inside, one.uid, one.gid, one.count)),
        f"mount {{ src: {_quoted(workspaces)} dst: '/run/launcher/workspaces' is_bind: true nosuid: true nodev: true }}",
        _program("launcher", str(link_fd), kind),
    ]
    return "\n".join(lines) + "\n"


def _common(walls: Walls) -> list[str]:
    return [
        f"mount {{ src: {_quoted(walls.root)} dst: '/' is_bind: true }}",
        walls.reviewed,
        *(f"envar: {_quoted(f'{name}={value}')}" for name, value in walls.environment.items()),
    ]


def _program(name: str, *arguments: str) -> str:
    words = ("-S", f"{guest_root.PROGRAMS}/{name}.pyc", *arguments)
    return f"exec_bin {{ path: '{guest_root.PYTHON}' {' '.join(f'arg: {_quoted(word)}' for word in words)} }}"


def _ids(inside: int, uid: int, gid: int, count: int = 1) -> list[str]:
    pairs = (("uidmap", uid), ("gidmap", gid))
    return [f"{kind} {{ inside_id: '{inside}' outside_id: '{outside}' count: {count} }}" for kind, outside in pairs]


@lru_cache(maxsize=256)
def _quoted(text: object) -> str:
    """A string of the text format: printable ASCII as it is, all other bytes as octal escapes."""
    raw = str(text).encode("utf-8", "surrogateescape")
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in raw) + '"'
