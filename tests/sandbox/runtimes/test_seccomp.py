"""The filter's program answers as the policy says: run here call by call, as the kernel runs it."""

import errno
import json
import struct
import tomllib
from pathlib import Path
from typing import Any

import pytest
from system_calls import NotSupportedSystemCall, syscalls

from sandbox.runtimes import seccomp
from sandbox.runtimes.seccomp import ALLOW, ERRNO, KILL_PROCESS

POLICY: dict[str, Any] = tomllib.loads(seccomp.POLICY_FILE.read_text())
MACHINES = {"x86_64": ("x86_64", 0xC000003E), "aarch64": ("arm64", 0xC00000B7)}
UNKNOWN = ERRNO | errno.ENOSYS


def answer(program: bytes, number: int, *arguments: int, architecture: int) -> int:
    """What the kernel would do: classic BPF (linux/filter.h), as far as such a filter uses it."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    code = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("=I", data, constant)
        elif operation == 0x15:
            at += if_true if value == constant else if_false
        elif operation == 0x45:
            at += if_true if value & constant else if_false
        else:
            assert operation == 0x06
            return int(constant)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def numbers(machine: str) -> dict[str, int]:
    found = {}
    for name in syscalls().names():
        try:
            found[name] = syscalls().get(name, MACHINES[machine][0])
        except NotSupportedSystemCall:
            continue
    return found


def test_every_call_is_answered_as_the_policy_says(machine: str) -> None:
    program = seccomp.program(machine)
    by_argument = {"clone": ALLOW} | {
        call: ERRNO | getattr(errno, rule["error"]) for rule in POLICY["argument"] for call in rule["calls"]
    }
    seen = set()
    for name, number in numbers(machine).items():
        if name in (*POLICY["allow"], *POLICY.get(f"allow_{machine}", ())):
            expected = ALLOW
        elif name in (*POLICY["kill"], *POLICY.get(f"kill_{machine}", ())):
            expected = KILL_PROCESS
        elif name in POLICY["ignored"]:
            expected = ERRNO
        elif error := [error for error, calls in POLICY["errors"].items() if name in calls]:
            expected = ERRNO | getattr(errno, error[0])
        else:
            expected = by_argument.get(name, UNKNOWN)
        arguments = () if name == "clone" else (0xFFFF,) * 6
        assert answer(program, number, *arguments, architecture=MACHINES[machine][1]) == expected, name
        seen.add(expected)
    assert {ALLOW, KILL_PROCESS, UNKNOWN, ERRNO | errno.EPERM} <= seen


@pytest.mark.parametrize("rule", POLICY["argument"], ids=lambda rule: "/".join(rule["calls"]))
def test_an_argument_that_is_allowed_is_let_through(machine: str, rule: dict[str, Any]) -> None:
    program, known = seccomp.program(machine), numbers(machine)
    for call in rule["calls"]:
        for value in rule["allow"]:
            arguments = [0xFFFF] * 6
            arguments[rule["index"]] = value
            assert answer(program, known[call], *arguments, architecture=MACHINES[machine][1]) == ALLOW


@pytest.mark.parametrize("flag", [0x2000, 0x8000, 0x20000, 0x2000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_namespace_can_be_made_by_clone(machine: str, flag: int) -> None:
    program, number = seccomp.program(machine), numbers(machine)["clone"]
    assert answer(program, number, flag | 17, architecture=MACHINES[machine][1]) == KILL_PROCESS
    assert answer(program, number, 0x3D0F00, architecture=MACHINES[machine][1]) == ALLOW  # a thread


def test_calls_of_another_architecture_end_the_process(machine: str) -> None:
    assert answer(seccomp.program(machine), 1, architecture=0x40000003) == KILL_PROCESS  # 32-bit x86
    x32 = 0x40000000 | 1
    assert answer(seccomp.program(machine), x32, architecture=MACHINES[machine][1]) == UNKNOWN


def test_a_launcher_may_do_more_and_a_script_may_not() -> None:
    launcher, script = seccomp.program("x86_64", also=seccomp.FOR_LAUNCHERS), seccomp.program("x86_64")
    for name in seccomp.FOR_LAUNCHERS:
        number = numbers("x86_64")[name]
        assert answer(launcher, number, 22, architecture=0xC000003E) == ALLOW
        assert answer(script, number, 22, architecture=0xC000003E) in (KILL_PROCESS, ERRNO | errno.EPERM)
    assert answer(launcher, numbers("x86_64")["ptrace"], architecture=0xC000003E) == KILL_PROCESS


def test_a_call_that_no_kernel_has_is_refused_in_a_policy(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        'allow = ["openatt"]\nkill = []\nignored = []\nargument = []\n[errors]\n[clone]\nforbidden_flags = 1\n'
    )
    with pytest.raises(ValueError, match="no system call openatt"):
        seccomp.program("x86_64", tmp_path / "policy.toml")


def test_nothing_ends_a_program_that_only_tries_what_the_kernel_has(machine: str) -> None:
    numbers, architecture = MACHINES[machine]
    program = seccomp.program(machine, also=seccomp.FOR_PROGRAMS, kills=False)
    for name in POLICY["kill"]:
        try:
            number = syscalls().get(name, numbers)
        except NotSupportedSystemCall:
            continue
        assert answer(program, number, architecture=architecture) == UNKNOWN, name
    clone = syscalls().get("clone", numbers)
    assert answer(program, clone, POLICY["clone"]["forbidden_flags"], architecture=architecture) == UNKNOWN
    assert answer(program, clone, 0, architecture=architecture) == ALLOW
    assert answer(program, syscalls().get("fsync", numbers), architecture=architecture) == ALLOW
    assert answer(program, clone, architecture=architecture + 1) == KILL_PROCESS


def test_the_profile_of_the_services_container_is_the_one_that_is_generated() -> None:
    written = json.loads(seccomp.SERVICE_FILE.with_suffix(".json").read_text())
    assert written == seccomp.service_profile(), "run: python -m sandbox.runtimes.seccomp > images/service/seccomp.json"


def test_the_services_container_may_do_what_guests_may_and_what_is_named_besides() -> None:
    service: dict[str, Any] = tomllib.loads(seccomp.SERVICE_FILE.read_text())
    profile = seccomp.service_profile()
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    whole = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    assert whole == {*POLICY["allow"], *POLICY["allow_x86_64"], *service["allow"]}
    sockets = {rule["args"][0]["value"] for rule in profile["syscalls"] if "socket" in rule["names"]}
    assert sockets == {1, 2, 10, 16}
    in_part = {name for rule in profile["syscalls"] if "args" in rule for name in rule["names"]}
    assert not in_part & whole
    assert not {"ptrace", "bpf", "keyctl", "io_uring_setup", "userfaultfd", "open_by_handle_at", "perf_event_open"} & (
        whole | in_part
    )
