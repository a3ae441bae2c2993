"""The seccomp filter of `images/runtime/seccomp.toml`, as the program that the kernel runs for each system call.

The format is that of linux/filter.h and linux/seccomp.h: instructions of 8 bytes over a `struct seccomp_data`. Every rule is
"if the call is this one, answer so"; a call that no rule names gets ENOSYS. The kernel remembers which calls are always
allowed, so the length of the list costs them nothing.
"""

import errno
import json
import platform
import struct
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from system_calls import NoSuchSystemCall, NotSupportedSystemCall, syscalls

from sandbox.guest_root import IMAGE

POLICY_FILE = IMAGE / "seccomp.toml"
SERVICE_FILE = IMAGE.parent / "service" / "seccomp.toml"

NO_FILTER = b""
"""A program for controls: nothing is filtered."""

ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000

# machine: the name that the table of numbers has for it, and AUDIT_ARCH_… of linux/audit.h (the second is untested).
_MACHINES = {"x86_64": ("x86_64", 0xC000003E), "aarch64": ("arm64", 0xC00000B7)}

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_SIGNALLING = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_EVERY_PROCESS = 0xFFFFFFFF  # kill(2): a pid of -1
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


FOR_LAUNCHERS = (
    "capset", "mount", "prctl", "sethostname", "setns", "setresgid", "setresuid", "umount2", "unshare",
)  # fmt: skip
"""What a launcher, and process 1 of its jails, need besides: to make namespaces and mounts, and to give up their rights."""

FOR_WORKERS = ("prctl", "setresuid", "setresgid")
"""What process 1 of a container needs besides: to load the script's filter, which is stricter again."""

FOR_PROGRAMS = ("fdatasync", "fsync", "msync")
"""What programs that write to the host's own disk need besides: to know that it is written."""


@cache
def program(
    machine: str = platform.machine(),
    policy_file: Path = POLICY_FILE,
    *,
    also: tuple[str, ...] = (),
    kills: bool = True,
    shields_first: bool = False,
) -> bytes:
    """The policy as a program, and ``also`` those calls. Known machines are ``x86_64`` and ``aarch64``.

    ``shields_first`` refuses signals to process 1, and to all processes at once, where the kernel does not shield it by itself.

    Without ``kills``, what would end the process gets ENOSYS as well: engines of other languages try what the kernel has.

    Raises ValueError for a call in the policy that the table of numbers does not know on any machine.
    """
    policy = tomllib.loads(policy_file.read_text())
    architecture = _MACHINES[machine][1]
    code = [*_load(_ARCHITECTURE), *_unless_equal(architecture, KILL_PROCESS), *_load(_NUMBER)]
    kill = KILL_PROCESS if kills else _error("ENOSYS")
    for name in _SIGNALLING if shields_first else ():
        fits = [(_JUMP_IF_EQUAL, pid, _error("EPERM")) for pid in (1, _EVERY_PROCESS)]
        code += _by_argument(_number(name, machine), 0, fits, otherwise=ALLOW)
    for action, names in ((ALLOW, also), *_plain_rules(policy, machine, kill)):
        for name in names:
            code += _if_equal(_number(name, machine), action)
    flags = policy["clone"]["forbidden_flags"]
    code += _by_argument(_number("clone", machine), 0, [(_JUMP_IF_SET, flags, kill)], otherwise=ALLOW)
    for rule in policy["argument"]:
        fits = [(_JUMP_IF_EQUAL, value, ALLOW) for value in rule["allow"]]
        for name in rule["calls"]:
            code += _by_argument(_number(name, machine), rule["index"], fits, otherwise=_error(rule["error"]))
    code += _return(_error("ENOSYS"))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def container_profile(policy_file: Path = POLICY_FILE) -> dict[str, Any]:
    """The policy as a seccomp profile of the engine of containers, and what process 1 of one needs besides.

    The format is that of Docker's `profile.json`: a call that no rule names gets the default error. What the policy would end
    a process for gets that error here: the engine's own programs, which the profile binds too, try what the kernel has.
    """
    policy = tomllib.loads(policy_file.read_text())
    rules: list[dict[str, Any]] = [
        {"names": [*_allowed_on_any_machine(policy), *FOR_WORKERS], "action": "SCMP_ACT_ALLOW"}
    ]
    rules += [
        {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": getattr(errno, name)}
        for name, names in policy["errors"].items()
    ]
    mask = policy["clone"]["forbidden_flags"]
    unmasked = {"index": 0, "value": mask, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules.append({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [unmasked]})
    rules += _allowed_by_argument(policy, but_for=FOR_WORKERS)
    return _profile(rules)


def service_profile(policy_file: Path = POLICY_FILE, service_file: Path = SERVICE_FILE) -> dict[str, Any]:
    """A profile for the container of a service that makes jails inside: what guests may, and what ``service_file`` names."""
    policy, service = tomllib.loads(policy_file.read_text()), tomllib.loads(service_file.read_text())
    allowed = dict.fromkeys([*_allowed_on_any_machine(policy), *service["allow"]])
    rules: list[dict[str, Any]] = [{"names": list(allowed), "action": "SCMP_ACT_ALLOW"}]
    for one in (policy, service):
        rules += _allowed_by_argument(one, but_for=service["allow"])
    return _profile(rules)


def _allowed_on_any_machine(policy: dict[str, Any]) -> list[str]:
    return [*policy["allow"], *(name for key in policy if key.startswith("allow_") for name in policy[key])]


def _allowed_by_argument(policy: dict[str, Any], *, but_for: Sequence[str]) -> Iterator[dict[str, Any]]:
    for rule in policy["argument"]:
        names = [name for name in rule["calls"] if name not in but_for]
        for value in rule["allow"] if names else ():
            args = [{"index": rule["index"], "value": value, "op": "SCMP_CMP_EQ"}]
            yield {"names": names, "action": "SCMP_ACT_ALLOW", "args": args}


def _profile(rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": rules,
    }


_Code = list[tuple[int, int, int, int]]


def _plain_rules(policy: dict[str, Any], machine: str, kill: int) -> Iterator[tuple[int, list[str]]]:
    """Actions, and the calls that they are the answer to whatever their arguments are."""
    yield ALLOW, [*policy["allow"], *policy.get(f"allow_{machine}", ())]
    yield kill, [*policy["kill"], *policy.get(f"kill_{machine}", ())]
    yield ERRNO, policy["ignored"]  # error 0: success
    for name, calls in policy["errors"].items():
        yield _error(name), calls


def _number(name: str, machine: str) -> int:
    try:
        number: int = syscalls().get(name, _MACHINES[machine][0])
    except (NoSuchSystemCall, NotSupportedSystemCall):
        raise ValueError(f"{POLICY_FILE.name}: there is no system call {name} on {machine}") from None
    return number


def _error(name: str) -> int:
    value: int = getattr(errno, name)
    return ERRNO | value


def _load(offset: int) -> _Code:
    return [(_LOAD, 0, 0, offset)]


def _return(action: int) -> _Code:
    return [(_RETURN, 0, 0, action)]


def _if_equal(value: int, action: int) -> _Code:
    return [(_JUMP_IF_EQUAL, 0, 1, value), *_return(action)]


def _unless_equal(value: int, action: int) -> _Code:
    return [(_JUMP_IF_EQUAL, 1, 0, value), *_return(action)]


def _by_argument(number: int, index: int, tests: list[tuple[int, int, int]], *, otherwise: int) -> _Code:
    """The answer to one call by an argument's lower 32 bits, which is all that the kernel looks at in those of the policy."""
    low = _ARGUMENTS + 8 * index + (0 if sys.byteorder == "little" else 4)
    body = _load(low)
    for jump, value, action in tests:
        body += [(jump, 0, 1, value), *_return(action)]
    body += _return(otherwise)
    return [(_JUMP_IF_EQUAL, 0, len(body), number), *body]


if __name__ == "__main__":
    print(json.dumps(service_profile(), indent=1))
