"""Launchers and spare jails: what dies is replaced, nothing is lost, nothing is left over."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path

import pytest

from sandbox.guest import wire
from sandbox.guest_root import GuestRoot
from sandbox.job import MIB, Execution, Job, Limits, Status
from sandbox.runtimes import seccomp
from sandbox.runtimes.policy import NAMESPACES
from sandbox.runtimes.streams import OnOutput
from sandbox.runtimes.warm import WarmRuntime
from sandbox.workspace import Workspaces


def processes_of(runtime: WarmRuntime) -> set[int]:
    """The processes of its launchers: themselves, the jails that stand spare, and those in which a script runs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = set(runtime.launcher_pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def living(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        await asyncio.sleep(0.02)


@pytest.fixture
async def warm(root: GuestRoot, workspaces: Workspaces) -> AsyncIterator[WarmRuntime]:
    runtime = WarmRuntime(root, workspaces.root, launchers=2)
    await runtime.ready()
    yield runtime
    await runtime.close()


async def run(
    runtime: WarmRuntime, workspaces: Workspaces, code: str, *, workspace: str = "w", name: str = "s.py",
    on_output: OnOutput | None = None, **limits: float,
) -> Execution:  # fmt: skip
    workspaces.open(workspace).write(name, code.encode())
    job = Job(script_path=f"/workspace/{name}", limits=Limits.model_validate(limits))
    return await runtime.run(job, workspaces.open(workspace), run_id=workspace, on_output=on_output)


async def test_a_killed_launcher_loses_no_queued_run_and_leaves_no_process(
    warm: WarmRuntime, workspaces: Workspaces
) -> None:
    """Half of the runs are going on when all launchers are killed, the other half is asked for while there is none."""
    begun: set[int] = set()
    code = "import time\nprint(1)\ntime.sleep(60)"

    def running(n: int) -> Coroutine[None, None, Execution]:
        return run(warm, workspaces, code, workspace=f"g{n}", on_output=lambda *_: begun.add(n))

    going = [asyncio.create_task(running(n)) for n in range(4)]
    await until(lambda: len(begun) == 4)
    before = processes_of(warm)
    for pid in warm.launcher_pids:
        os.kill(pid, signal.SIGKILL)
    queued = [asyncio.create_task(run(warm, workspaces, f"print({n})", workspace=f"q{n}")) for n in range(16)]
    done = await asyncio.wait_for(asyncio.gather(*queued), 30)
    assert [execution.stdout.text for execution in done] == [f"{n}\n" for n in range(16)]
    for execution in await asyncio.wait_for(asyncio.gather(*going), 30):
        assert execution.status is Status.KILLED
        assert execution.error is not None
        assert "ended from outside" in execution.error.summary
        assert execution.stdout.text == "1\n"
    await until(lambda: not living(before))
    await warm.ready()
    again = await run(warm, workspaces, "print('again')")
    assert (again.runtime, again.stdout.text) == ("warm", "again\n")


async def test_the_death_of_one_launcher_under_load_is_not_noticed_by_those_who_wait(
    warm: WarmRuntime, workspaces: Workspaces
) -> None:
    async def kill_now_and_then() -> None:
        for _ in range(3):
            await asyncio.sleep(0.4)
            if pids := warm.launcher_pids:
                os.kill(pids[0], signal.SIGKILL)

    killing = asyncio.create_task(kill_now_and_then())
    statuses = []
    for start in range(0, 160, 8):
        batch = [run(warm, workspaces, f"print({start + n})", workspace=f"w{n}") for n in range(8)]
        for n, done in enumerate(await asyncio.gather(*batch)):
            statuses.append(done.status)
            if done.status is Status.SUCCEEDED:
                assert done.stdout.text == f"{start + n}\n"
    await killing
    # A script that was running in a launcher that was killed was killed with it, and its answer says so.
    assert set(statuses) <= {Status.SUCCEEDED, Status.KILLED}
    assert statuses.count(Status.SUCCEEDED) >= 140


async def test_a_launcher_that_says_what_it_should_not_is_replaced(warm: WarmRuntime, workspaces: Workspaces) -> None:
    # Two of each kind; all spare jails may stand before the last of them is up.
    await until(lambda: len(warm.launcher_pids) == 4)
    pool = warm._pools["plain"]
    surprised = next(iter(pool._up))
    # The service's own end of the wire stands in for a launcher that has gone mad: what it sends, it will not understand.
    surprised.link.send(b"NONSENSE")
    await until(lambda: surprised.pid not in warm.launcher_pids)
    await until(lambda: len(warm.launcher_pids) == 4)
    assert (await run(warm, workspaces, "print(1)")).stdout.text == "1\n"


async def test_a_spare_jail_that_died_is_not_used(warm: WarmRuntime, workspaces: Workspaces) -> None:
    for jail in warm._pools["plain"]._spares:
        os.kill(jail.pid, signal.SIGKILL)
    done = await asyncio.gather(*(run(warm, workspaces, f"print({n})", workspace=f"w{n}") for n in range(6)))
    assert [execution.stdout.text for execution in done] == [f"{n}\n" for n in range(6)]
    assert {execution.runtime for execution in done} == {"warm"}


async def test_other_limits_get_a_jail_of_their_own(warm: WarmRuntime, workspaces: Workspaces) -> None:
    code = "import os, resource\nprint(os.statvfs('.').f_blocks * 4096, resource.getrlimit(resource.RLIMIT_FSIZE)[0])"
    usual = await run(warm, workspaces, code)
    narrow = await run(warm, workspaces, code, workspace_bytes=8 * MIB, file_bytes=2 * MIB)
    assert usual.stdout.text == f"{256 * MIB} {64 * MIB}\n"
    assert narrow.stdout.text == f"{8 * MIB} {2 * MIB}\n"
    assert narrow.runtime == "warm"


async def test_a_shadowed_module_gets_a_fresh_interpreter_and_only_then(
    warm: WarmRuntime, workspaces: Workspaces
) -> None:
    code = "import json\nprint(json.__name__, hasattr(json, 'mine'))"
    for name, content, runtime, mine in (
        ("json.py", "mine = 1", "nsjail", True),
        ("json/__init__.py", "mine = 1", "nsjail", True),
        ("json/other.py", "mine = 1", "warm", False),  # no package, and the library comes first
        ("lib/json.py", "mine = 1", "warm", False),  # not beside the script
        ("jsonx.py", "mine = 1", "warm", False),
        ("json.txt", "mine = 1", "warm", False),
    ):
        workspace = workspaces.open(f"w-{abs(hash(name))}")
        workspace.write(name, content.encode())
        done = await run(warm, workspaces, code, workspace=workspace.id)
        assert (done.runtime, done.stdout.text) == (runtime, f"json {mine}\n"), name
    workspaces.open("in-folder").write("scripts/json.py", b"mine = 1")
    inside = await run(warm, workspaces, code, workspace="in-folder", name="scripts/s.py")
    beside = await run(warm, workspaces, code, workspace="in-folder", name="s.py")
    assert (inside.stdout.text, beside.stdout.text) == ("json True\n", "json False\n")


async def test_a_workspace_of_another_folder_is_run_cold(
    warm: WarmRuntime, workspaces: Workspaces, tmp_path: Path
) -> None:
    elsewhere = Workspaces(tmp_path / "elsewhere")
    done = await run(warm, elsewhere, "print(1)")
    assert (done.runtime, done.stdout.text) == ("nsjail", "1\n")


async def test_where_no_launcher_starts_runs_are_cold_and_say_why(
    root: GuestRoot, workspaces: Workspaces, tmp_path: Path
) -> None:
    runtime = WarmRuntime(root, workspaces.root, walls={"root": tmp_path / "nothing"})
    await runtime.ready()
    done = await run(runtime, workspaces, "print(1)")
    assert (done.runtime, done.stdout.text) == ("nsjail", "1\n")
    assert "no warm jail can be made" in runtime.warnings[-1]
    assert "nsjail said" in runtime.warnings[-1]
    assert [part.name for part in runtime.parts] == ["nsjail"]
    assert runtime.starts_cold
    await runtime.close()


async def test_a_launcher_from_which_no_jail_comes_is_told_and_not_waited_for(
    root: GuestRoot, workspaces: Workspaces
) -> None:
    """It starts, but the kernel does not take the filter of its jails: nothing must go on without one."""
    runtime = WarmRuntime(root, workspaces.root, launchers=1, walls={"seccomp": bytes(8)})
    await asyncio.wait_for(runtime.ready(), 60)
    done = await asyncio.wait_for(run(runtime, workspaces, "print(1)"), 20)
    assert (done.runtime, done.stdout.text) == ("nsjail", "1\n")
    assert "the script's process did not come to stand" in runtime.warnings[-1]
    assert [part.name for part in runtime.parts] == ["nsjail"]
    await runtime.close()


async def test_a_cancelled_caller_that_waits_for_a_jail_costs_none(warm: WarmRuntime, workspaces: Workspaces) -> None:
    pool = warm._pools["plain"]
    for _ in range(3):
        waiting = [
            asyncio.create_task(run(warm, workspaces, "print(1)", workspace=f"w{n}", file_bytes=MIB)) for n in range(6)
        ]
        await asyncio.sleep(0.01)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert (await run(warm, workspaces, "print(2)")).stdout.text == "2\n"
    await until(lambda: len(pool._spares) == pool._wanted)
    spares = sum(len(pool._spares) for pool in warm._pools.values())
    # A launcher is its nsjail and itself, and a jail is two processes.
    await until(lambda: len(processes_of(warm)) == 2 * len(warm.launcher_pids) + 2 * spares)


async def test_closing_leaves_no_process_mount_or_group(root: GuestRoot, workspaces: Workspaces) -> None:
    fds = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        runtime = WarmRuntime(root, workspaces.root, launchers=1)
        await runtime.ready()
        assert (await run(runtime, workspaces, "print(1)")).runtime == "warm"
        processes = processes_of(runtime)
        assert len(processes) >= 8
        await runtime.close()
        assert not living(processes)
    assert len(list(Path("/proc/self/fd").iterdir())) <= fds + 2
    assert not any("/run/launcher" in line for line in Path("/proc/self/mountinfo").read_text().splitlines())


async def test_a_launcher_is_a_process_without_a_name_for_secrets(
    warm: WarmRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLBOX_API_KEY", "the-key-of-the-service")
    read = 0
    for pid in processes_of(warm) - set(warm.launcher_pids):
        with suppress(PermissionError):  # a process 1 lets nobody read it but root
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"SPILLBOX" not in environment
            assert environment.count(b"\0") == 13
            read += 1
    assert read >= len(warm.launcher_pids)


@pytest.mark.parametrize(
    ("walls", "look", "held"),
    [
        ({}, "open('/proc/self/status').read().count('Seccomp:\\t2')", "1"),
        ({"seccomp": seccomp.NO_FILTER}, "open('/proc/self/status').read().count('Seccomp:\\t2')", "0"),
        ({}, "__import__('os').uname().nodename", "spillbox"),
    ],
)
async def test_a_wall_can_be_taken_out_for_a_control(
    root: GuestRoot, workspaces: Workspaces, walls: dict[str, object], look: str, held: str
) -> None:
    runtime = WarmRuntime(root, workspaces.root, launchers=1, walls=walls)
    await runtime.ready()
    done = await run(runtime, workspaces, f"print({look})")
    assert (done.runtime, done.stdout.text) == ("warm", f"{held}\n")
    await runtime.close()


def test_every_namespace_is_a_fresh_one() -> None:
    assert set(NAMESPACES) == {"mnt", "cgroup", "uts", "ipc", "net"}  # and user and pid, each by a step of its own


@pytest.mark.parametrize("message", [b"", b"READY 1", b"UP", b"SPAWN {}"])
def test_no_other_message_passes_for_another(message: bytes) -> None:
    for decode in (wire.decode_done, wire.decode_filters, wire.decode_up):
        with pytest.raises(ValueError, match=r"not an? (DONE|FILTERS|UP) message"):
            decode(message)
