"""The seccomp filter of `images/runtime/seccomp.toml`, in the language of the jail that loads it."""

import errno
import platform
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from sandbox.guest_root import IMAGE

POLICY_FILE = IMAGE / "seccomp.toml"

# Where Kafel calls a system call by the name of its kernel function.
_KAFEL_NAMES = {
    "fstat": "newfstat", "lstat": "newlstat", "stat": "newstat",
    "sendfile": "sendfile64", "umount2": "umount", "uname": "newuname",
}  # fmt: skip


@cache
def kafel(machine: str = platform.machine(), policy_file: Path = POLICY_FILE) -> str:
    """The policy as Kafel text, which nsjail compiles. Known machines are ``x86_64`` and ``aarch64`` (the second untested)."""
    policy = tomllib.loads(policy_file.read_text())
    clone_flags = policy["clone"]["forbidden_flags"]
    filtered = {
        "socket": policy["socket_domains"],
        "socketpair": policy["socket_domains"],
        "prctl": policy["prctl_options"],
    }
    allowed = _names(*policy["allow"], *policy.get(f"allow_{machine}", ()))
    allowed.append(f"clone(flags) {{ (flags & {clone_flags:#x}) == 0 }}")
    allowed += [f"{call}(a) {{ {_any('a', rule)} }}" for call, rule in filtered.items()]
    allowed.append(f"ioctl(fd, a) {{ {_any('a', policy['ioctl_requests'])} }}")
    killed = _names(*policy["kill"], *policy.get(f"kill_{machine}", ()))
    killed.append(f"clone(flags) {{ (flags & {clone_flags:#x}) != 0 }}")
    actions = [f"ALLOW {{ {', '.join(allowed)} }}", f"KILL_PROCESS {{ {', '.join(killed)} }}"]
    for name, calls in policy["errors"].items():
        actions.append(f"ERRNO({_number(name)}) {{ {', '.join(_names(*calls))} }}")
    for call, rule in filtered.items():
        actions.append(f"ERRNO({_number(rule['error'])}) {{ {call}(a) {{ {_none('a', rule)} }} }}")
    ioctl = policy["ioctl_requests"]
    actions.append(f"ERRNO({_number(ioctl['error'])}) {{ ioctl(fd, a) {{ {_none('a', ioctl)} }} }}")
    return f"POLICY guest {{ {', '.join(actions)} }} USE guest DEFAULT ERRNO({errno.ENOSYS})"


def _names(*calls: str) -> list[str]:
    return [_KAFEL_NAMES.get(call, call) for call in calls]


def _any(name: str, rule: dict[str, Any]) -> str:
    return " || ".join(f"{name} == {value:#x}" for value in _values(rule))


def _none(name: str, rule: dict[str, Any]) -> str:
    return " && ".join(f"{name} != {value:#x}" for value in _values(rule))


def _values(rule: dict[str, Any]) -> Iterable[int]:
    values: list[int] = rule["allow"]
    return values


def _number(name: str) -> int:
    value: int = getattr(errno, name)
    return value
