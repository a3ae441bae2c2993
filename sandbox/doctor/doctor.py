"""Proves on this host, in the runtime really used, that each wall and each limit is real: `spillbox doctor`.

Each row is tried for real, and so is its control: a case that can't fail proves nothing, and is reported as a failure.
The quick form, for the start of a service, leaves out the controls and what takes long.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pydantic import BaseModel, Field

from sandbox.doctor.attacks import ATTACKS, Attack
from sandbox.doctor.targets import Targets, targets
from sandbox.doctor.weakened import Weakened
from sandbox.errors import SpillboxError
from sandbox.guest_root import GuestRoot
from sandbox.job import MIB, Execution, Job, Limits, Status
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.containers import GVISOR
from sandbox.runtimes.identities import process_identities
from sandbox.workspace import Workspace, Workspaces


class Finding(BaseModel):
    """One row."""

    what: str
    runtime: str = Field(description="Where it was tried.")
    held: bool
    """Whether the wall, or the limit, held."""
    control: bool | None
    """Whether the same succeeded where the wall was taken out, or the limit was wide; None if that was not tried."""
    enforced_by: str
    proof: str = Field(description="What was seen.")
    weaker: bool = Field(False, description="Whether this host enforces it less strictly than promised.")
    known: str = Field("", description="Why it is known not to hold in this runtime, and what stands in its place.")
    cure: str | None = None

    @property
    def is_real(self) -> bool:
        """Whether this is proved, as far as it was tried, or told."""
        return (self.held or bool(self.known)) and self.control is not False


@dataclass(frozen=True)
class Limit:
    """A script that is over the narrow limit, and within the usual one."""

    what: str
    code: str
    narrow: dict[str, Any]
    status: Status
    enforced_by: str
    without_cgroup: str | None = None
    """By what it is enforced where there are no control groups, if they matter."""
    weaker_without: bool = False
    in_gvisor: str | None = None
    """By what it is enforced where gVisor's kernel is the guest's, if that is weaker."""
    is_quick: bool = True


_EAT_TOGETHER = """
import multiprocessing, time
def eat():
    x = bytearray(b"x") * (80 << 20)
    time.sleep(2)
processes = [multiprocessing.Process(target=eat) for _ in range(3)]
for process in processes: process.start()
for process in processes: process.join()
"""
_FORK = """
import os, time
for _ in range(30):
    if os.fork() == 0: time.sleep(60)
"""
_TMPFS_BYTES, _TMPFS_INODES = "size of a tmpfs", "inodes of a tmpfs"

LIMITS = (
    Limit(
        "memory of one process", "x = bytearray(b'x') * (150 << 20)", {"memory_bytes": 128 * MIB},
        Status.OUT_OF_MEMORY, "control group", without_cgroup="address space limit",
    ),
    Limit(
        "memory of all processes together", _EAT_TOGETHER, {"memory_bytes": 192 * MIB},
        Status.OUT_OF_MEMORY, "control group", without_cgroup="a look ten times a second", weaker_without=True, is_quick=False,
    ),
    Limit(
        "processes and threads", _FORK, {"processes": 8},
        Status.TOO_MANY_PROCESSES, "control group", without_cgroup="process limit", weaker_without=True,
    ),
    Limit(
        "processor time", "import time\nwhile time.process_time() < 2: pass", {"cpu_seconds": 1},
        Status.TIMED_OUT, "control group", without_cgroup="processor time limit of each process",
        weaker_without=True, is_quick=False,
    ),
    Limit(
        "real time", "import time\ntime.sleep(2)", {"wall_seconds": 0.5}, Status.TIMED_OUT, "the service's clock", is_quick=False
    ),
    Limit("size of one file", "open('f', 'wb').write(bytes(3 << 20))", {"file_bytes": MIB}, Status.DISK_FULL, "file size limit"),
    Limit(
        "bytes of the workspace", "for n in range(4): open(f'f{n}', 'wb').write(bytes(1 << 20))",
        {"workspace_bytes": 2 * MIB}, Status.DISK_FULL, _TMPFS_BYTES,
    ),
    Limit(
        "files of the workspace", "for n in range(100): open(f'f{n}', 'w').close()", {"workspace_files": 50},
        Status.DISK_FULL, _TMPFS_INODES, in_gvisor="a look once a second, and at the end",
    ),
    Limit(
        "bytes of /tmp", "open('/tmp/f', 'wb').write(bytes(2 << 20))", {"tmp_bytes": MIB}, Status.DISK_FULL, _TMPFS_BYTES
    ),
    Limit(
        "output", "print('x' * (1 << 20))", {"output_disk_bytes": 64 * 1024}, Status.OUTPUT_LIMIT, "the service's reader"
    ),
)  # fmt: skip


async def examine(
    root: GuestRoot | None,
    workspaces: Workspaces,
    runtime: Runtime,
    *,
    attacks: Sequence[Attack] = ATTACKS,
    limits: Sequence[Limit] = LIMITS,
) -> AsyncIterator[Finding]:
    """Try everything in each part of ``runtime``, and the controls where the one wall is lacking; see `weakened`."""
    await runtime.ready()
    with (
        process_identities().one() as identity, targets(identity) as there, workspaces.scratch() as workspace,
    ):  # fmt: skip
        async with Weakened(runtime, root, there.secret_folder) as weakened:
            for attack in attacks:
                control = await _control_of(attack, there, workspace, runtime, weakened)
                for part in runtime.parts:
                    done = await _run(part, workspace, attack.code, there.arguments, Limits(wall_seconds=10))
                    known = _known_of(attack, part)
                    yield Finding(
                        what=attack.name,
                        runtime=part.name,
                        held=isinstance(done, Execution) and attack.is_held(done),
                        weaker=bool(known),
                        known=known,
                        cure=part.warnings[0] if known else None,
                        control=isinstance(control, Execution) and attack.has_escaped(control),
                        enforced_by=attack.enforced_by,
                        proof=f"{_seen(done)}; without the wall: {_seen(control)}",
                    )
            yield _host_lives(there, runtime)
        for part in runtime.parts:
            # One after another with the same limits, since a container is made for limits.
            controls = [await _run(part, workspace, case.code, (), Limits()) for case in limits]
            for case, within in zip(limits, controls, strict=True):
                yield await _try_limit(case, workspace, part, within)


async def examine_quickly(workspaces: Workspaces, runtime: Runtime) -> list[Finding]:
    """Try, in each part of ``runtime``, all attacks that leave their process alive in one run, and the quick limits."""
    await runtime.ready()
    findings = []
    with (
        process_identities().one() as identity, targets(identity) as there, workspaces.scratch() as workspace,
    ):  # fmt: skip
        for part in runtime.parts:
            attacks = [attack for attack in ATTACKS if not attack.ends_process]
            done = await _run(part, workspace, _all_in_one(attacks), there.arguments, Limits(wall_seconds=10))
            lines = done.stdout.text.splitlines() if isinstance(done, Execution) else []
            for attack, line in zip_longest(attacks, lines[: len(attacks)], fillvalue=_seen(done)):
                assert isinstance(attack, Attack)  # noqa: S101  there are no more lines than attacks
                known = _known_of(attack, part)
                findings.append(
                    Finding(
                        what=attack.name,
                        runtime=part.name,
                        held=line == "HELD",
                        weaker=bool(known),
                        known=known,
                        control=None,
                        enforced_by=attack.enforced_by,
                        proof=str(line)[:80],
                    )
                )
            findings += [await _try_limit(case, workspace, part, None) for case in LIMITS if case.is_quick]
        findings.append(_host_lives(there, runtime))
    return findings


def _known_of(attack: Attack, runtime: Runtime) -> str:
    return attack.open_in_gvisor if GVISOR in runtime.name else ""


def _all_in_one(attacks: Sequence[Attack]) -> str:
    """A script that tries one attack after another and prints a line for each."""
    return f"codes = {[attack.code for attack in attacks]!r}\nfor code in codes: exec(code, {{}})\n"


async def _control_of(
    attack: Attack, there: Targets, workspace: Workspace, runtime: Runtime, weakened: Weakened
) -> Execution | str:
    """The attack where it must succeed."""
    control, code = runtime, attack.control_code
    if code is None:
        control, code = weakened.without_wall_of(attack), attack.code
    return await _run(control, workspace, code, there.arguments, Limits(wall_seconds=10))


def _host_lives(there: Targets, runtime: Runtime) -> Finding:
    return Finding(
        what="a process of the host after all attacks",
        runtime=runtime.name,
        held=there.victim_lives,
        control=True,
        enforced_by="pid namespace",
        proof="it lives" if there.victim_lives else "it was killed",
    )


async def _try_limit(case: Limit, workspace: Workspace, runtime: Runtime, control: Execution | str | None) -> Finding:
    has_cgroup = not any("control groups" in warning for warning in runtime.warnings)
    done = await _run(runtime, workspace, case.code, (), Limits(**case.narrow))
    in_gvisor = case.in_gvisor if GVISOR in runtime.name else None
    weaker = (case.weaker_without and not has_cgroup) or in_gvisor is not None
    # Without the kernel's counters, a refused fork is only the script's own error.
    expected = (case.status, Status.FAILED) if weaker else (case.status,)
    return Finding(
        what=f"limit: {case.what}",
        runtime=runtime.name,
        held=isinstance(done, Execution) and done.status in expected,
        control=None if control is None else isinstance(control, Execution) and control.status is Status.SUCCEEDED,
        enforced_by=in_gvisor or (not has_cgroup and case.without_cgroup) or case.enforced_by,
        proof=_seen(done) if control is None else f"{_seen(done)}; with the usual limit: {_seen(control)}",
        weaker=weaker,
        cure=runtime.warnings[0] if weaker else None,
    )


async def _run(
    runtime: Runtime, workspace: Workspace, code: str, arguments: tuple[str, ...], limits: Limits
) -> Execution | str:
    """One script, of which nothing is kept; a text says why the jail could not run it."""
    workspace.write("case.py", code.encode())
    job = Job(script_path="/workspace/case.py", arguments=arguments, limits=limits, keeps_outputs=False)
    try:
        done = await runtime.run(job, workspace, run_id="doctor")
    except SpillboxError as fault:
        return str(fault)
    return done if done.runtime == runtime.name else f"it ran in {done.runtime}"


def _seen(done: Execution | str) -> str:
    if isinstance(done, str):
        return f"no run: {done[:200]}"
    said = done.stdout.text.strip()[:80]
    return " ".join(filter(None, (done.status.value, done.signal, said)))
