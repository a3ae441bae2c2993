"""The seccomp filter of `images/runtime/seccomp.toml`, in the language of the jail that loads it."""

import errno
import platform
import tomllib
from functools import cache
from pathlib import Path

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
    flags = policy["clone"]["forbidden_flags"]
    allowed = _names(*policy["allow"], *policy.get(f"allow_{machine}", ()), f"clone(a) {{ (a & {flags:#x}) == 0 }}")
    killed = _names(*policy["kill"], *policy.get(f"kill_{machine}", ()), f"clone(a) {{ (a & {flags:#x}) != 0 }}")
    refused = [f"ERRNO({_number(name)}) {{ {', '.join(_names(*calls))} }}" for name, calls in policy["errors"].items()]
    for rule in policy["argument"]:
        parameters = ", ".join("abcdef"[: rule["index"] + 1])
        name = parameters[-1]
        fits = " || ".join(f"{name} == {value:#x}" for value in rule["allow"])
        fails = " && ".join(f"{name} != {value:#x}" for value in rule["allow"])
        for call in rule["calls"]:
            allowed.append(f"{call}({parameters}) {{ {fits} }}")
            refused.append(f"ERRNO({_number(rule['error'])}) {{ {call}({parameters}) {{ {fails} }} }}")
    actions = [f"ALLOW {{ {', '.join(allowed)} }}", f"KILL_PROCESS {{ {', '.join(killed)} }}", *refused]
    return f"POLICY guest {{ {', '.join(actions)} }} USE guest DEFAULT ERRNO({errno.ENOSYS})"


def _names(*calls: str) -> list[str]:
    return [_KAFEL_NAMES.get(call, call) for call in calls]


def _number(name: str) -> int:
    value: int = getattr(errno, name)
    return value
