"""The configurations of jails, as the text that nsjail reads (its config.proto): a reviewed file, and what differs."""

import math
from collections.abc import Iterable, Iterator
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
PROGRAM_CONFIG_FILE = IMAGE / "program.cfg"
_SECOND_CLOCK_SECONDS = 60
_IN_MIB = ("as", "core", "fsize", "memlock", "stack")
"""The limits that nsjail takes in MiB."""
_OF_THE_MACHINE = tuple(
    Path(place)
    for place in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
)
"""What a `Program` sees of the machine, read-only: its programs and their libraries."""
_PROGRAM_FILES = 4096
"""That a `Program` may have open."""
_SHELF = "/run/spillbox"
"""Where a `Program` has the guest root."""


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
        lines.append(_bound(folder, f"{GUEST_PATH}/{name}"))
    lines += _rlimits(policy.resource_limits(limits, with_cgroup=walls.with_cgroup, own_processes=1))
    lines.append(_program("init", str(control_fd), *preload))
    return "\n".join(lines) + "\n"


def build_launcher_config(walls: Walls, workspaces: Path, kind: str, *, link_fd: int, ids: Iterable[IdRange]) -> str:
    """The configuration of the jail around a launcher of a kind; the first of ``ids`` is its own. Pure."""
    lines = [
        *_common(walls),
        f"pass_fd: {link_fd}",
        *(line for one in ids for line in _ids(one.inside, one.uid, one.gid, one.count)),
        _bound(workspaces, "/run/launcher/workspaces"),
        _program("launcher", str(link_fd), kind),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Program:
    """A program of the operator's choice, that walls stand around for as long as it runs."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: Path
    """That it starts in."""
    read: tuple[Path, ...]
    write: tuple[Path, ...]
    memory_bytes: int
    processes: int


def build_program_config(
    program: Program, walls: Walls, identity: Identity, *, filter_fd: int, life_fd: int
) -> str:  # fmt: skip
    """The configuration of the jail around a program; the guest root, on a shelf, is there for process 1 only."""
    lines = [walls.reviewed, f"pass_fd: {filter_fd}", f"pass_fd: {life_fd}", f"cwd: {_quoted(program.folder)}"]
    lines += [f"envar: {_quoted(f'{name}={value}')}" for name, value in program.environment.items()]
    lines += _ids(policy.GUEST_UID, identity.uid, identity.gid)
    if walls.root_is_known:
        lines += _ids(0, 0, 0)  # as for a cold jail
    # Address space is not bounded, since engines of JavaScript reserve far more of it than they use.
    own_limit = {} if walls.with_cgroup else {"nproc": program.processes + 1}
    lines += _rlimits(policy.FIXED_RESOURCE_LIMITS | {"nofile": _PROGRAM_FILES} | own_limit)
    for place in _OF_THE_MACHINE:
        if place.is_symlink():
            lines.append(f"mount {{ src: {_quoted(place.readlink())} dst: {_quoted(place)} is_symlink: true }}")
        elif place.exists():
            lines.append(_bound(place, place))
    lines += [_bound(walls.root / "etc" / name, f"/etc/{name}") for name in guest_root.ACCOUNTS]
    lines.append(_bound(walls.root, _SHELF))
    shown = {**dict.fromkeys(program.read, False), **dict.fromkeys(program.write, True)}
    outer_first = sorted(shown)
    lines += [_bound(folder, folder, writable=shown[folder]) for folder in outer_first]
    # By the loader that belongs to the libraries of the guest root, which need not be those of the machine any more.
    loader = next((walls.root / guest_root.LIBRARIES[1:]).glob("ld-linux*"))
    words = (
        f"{_SHELF}{guest_root.LIBRARIES}/{loader.name}", "--library-path", f"{_SHELF}{guest_root.LIBRARIES}",
        f"{_SHELF}{guest_root.BARE_PYTHON}", "-E", "-s", "-S", f"{_SHELF}{guest_root.PROGRAMS}/enter.pyc", str(filter_fd),
        str(life_fd), *program.command,
    )  # fmt: skip
    lines.append(f"exec_bin {{ path: {_quoted(words[0])} {' '.join(f'arg: {_quoted(word)}' for word in words[1:])} }}")
    return "\n".join(lines) + "\n"


def _common(walls: Walls) -> list[str]:
    return [
        f"mount {{ src: {_quoted(walls.root)} dst: '/' is_bind: true }}",
        walls.reviewed,
        *(f"envar: {_quoted(f'{name}={value}')}" for name, value in walls.environment.items()),
    ]


def _bound(source: Path, place: Path | str, *, writable: bool = False) -> str:
    rights = " rw: true" if writable else ""
    return f"mount {{ src: {_quoted(source)} dst: {_quoted(place)} is_bind: true nosuid: true nodev: true{rights} }}"


def _rlimits(values: dict[str, int]) -> Iterator[str]:
    """Of what has no value, the caller's own limit stays."""
    for name in ("as", "nproc", "cpu", "fsize"):
        if name not in values:
            yield f"rlimit_{name}_type: HARD"
    for name, value in values.items():
        yield f"rlimit_{name}: {value // MIB if name in _IN_MIB else value}"
        yield f"rlimit_{name}_type: VALUE"


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
