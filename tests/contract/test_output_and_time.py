"""What a run prints and how long it may take: the same for every runtime."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from sandbox.job import Execution, Status
from sandbox.workspace import Workspace
from tests.conftest import Run, jail_pids

MIB = 1024 * 1024


async def test_gives_what_the_script_printed(run: Run) -> None:
    done = await run("import sys; print('out', sys.argv[1:]); print('err', file=sys.stderr)", "a b", "")
    assert (done.status, done.exit_code) == (Status.SUCCEEDED, 0)
    assert done.stdout.text == "out ['a b', '']\n"
    assert done.stderr.text == "err\n"
    assert done.error is None


def _resident_bytes() -> int:
    """Of this process, which is the service here: field 2 of proc(5) statm."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.case("R1")
async def test_printing_200_mib_is_bounded_in_memory_and_kept_on_disk_up_to_the_limit(
    run: Run, workspace: Workspace
) -> None:
    await run("print('warm')")
    before, most = _resident_bytes(), 0

    def look(*_: object) -> None:
        nonlocal most
        most = max(most, _resident_bytes())

    done = await run(
        "line = 'x' * 1023\nfor n in range(200 * 1024): print(n if n % 1024 == 0 else line)", on_output=look
    )
    assert most > 0, "nobody looked"
    assert most - before < 20 * MIB
    assert done.stdout.truncated
    assert done.stdout.text.startswith("0\nxxx")
    assert "bytes left out" in done.stdout.text
    assert len(done.stdout.text) < 70 * 1024
    assert done.status is Status.OUTPUT_LIMIT
    assert done.stdout.path is not None
    assert done.error is not None
    assert "Write large results to a file" in done.error.summary
    with workspace.open_file(done.stdout.path) as file:
        kept = file.seek(0, 2)
    assert 60 * MIB < kept <= 64 * MIB


async def test_a_long_output_below_the_disk_limit_is_kept_whole_and_the_run_succeeds(
    run: Run, workspace: Workspace
) -> None:
    done = await run("for n in range(40_000): print(f'{n:07}')")
    assert done.status is Status.SUCCEEDED
    assert done.stdout.truncated
    assert done.stdout.path is not None
    assert workspace.read_bytes(done.stdout.path) == b"".join(b"%07d\n" % n for n in range(40_000))
    assert done.stdout.text.endswith("0039999\n")


@pytest.mark.case("R2")
async def test_a_flood_of_stderr_alone_does_not_block(run: Run) -> None:
    done = await run("import sys\nfor n in range(20_000): sys.stderr.write('e' * 99 + '\\n')\nprint('end')")
    assert done.status is Status.SUCCEEDED
    assert done.stdout.text == "end\n"
    assert done.stderr.bytes == 20_000 * 100
    assert done.stderr.truncated
    assert done.stderr.path is not None


@pytest.mark.case("R3")
async def test_a_run_over_its_time_is_stopped_and_its_output_so_far_is_there(run: Run) -> None:
    started = time.monotonic()
    done = await run("print('a')\nimport time\ntime.sleep(60)", wall_seconds=1)
    assert time.monotonic() - started < 10
    assert done.status is Status.TIMED_OUT
    assert done.stdout.text == "a\n"
    assert done.exit_code is None
    assert done.error is not None
    assert "1 s" in done.error.message


@pytest.mark.case("R4")
async def test_a_child_left_behind_does_not_hold_the_answer_and_is_dead(run: Run, is_gvisor: bool) -> None:
    before, during = jail_pids(), set[int]()
    started = time.monotonic()
    done = await run(
        "import os, time\nif os.fork() == 0: time.sleep(3600)\nprint('left one')\ntime.sleep(0.5)",
        on_output=lambda *_: during.update(jail_pids()),
    )
    assert time.monotonic() - started < 5
    assert done.status is Status.SUCCEEDED
    assert is_gvisor or len(during - before) >= 2  # the script and the child
    assert not (during - before) & jail_pids()
    seen = await run(
        "import os; print([n for n in os.listdir('/proc') if n.isdigit() and n not in ('1', str(os.getpid()))])"
    )
    assert seen.stdout.text == "[]\n"


@pytest.mark.case("R5")
@pytest.mark.parametrize(
    "code",
    ["while True: pass", "import time\nwhile True:\n  try:\n    time.sleep(9)\n  except BaseException: pass"],
    ids=["busy", "swallows"],
)
async def test_an_endless_script_is_stopped_and_others_are_served_meanwhile(
    run: Run, code: str, workspace: Workspace
) -> None:
    endless = asyncio.create_task(run(code, name="scripts/endless.py", wall_seconds=2))
    await asyncio.sleep(0.3)
    other = await run("print('other')")
    assert other.stdout.text == "other\n"
    assert not endless.done()
    assert (await endless).status is Status.TIMED_OUT


async def test_processor_time_is_bounded_too(run: Run) -> None:
    done = await run("while True: pass", wall_seconds=20, cpu_seconds=1)
    assert done.status is Status.TIMED_OUT
    assert done.usage.wall_seconds < 10
    assert done.error is not None
    assert "1 s of processor time" in done.error.message


@pytest.mark.case("R23")
async def test_reading_stdin_fails_at_once_and_says_why(run: Run) -> None:
    done = await run("input()")
    assert done.error is not None
    assert done.error.type == "EOFError"
    assert "no stdin" in (done.error.hint or "")


@pytest.mark.case("R27")
async def test_output_is_utf_8_whatever_is_printed(run: Run) -> None:
    done = await run(
        "print('\\U0001f600 \\u4e2d\\u6587'); print('\\ud800'); import sys; sys.stdout.buffer.write(b'\\xff')"
    )
    assert done.status is Status.SUCCEEDED
    assert done.stdout.text.startswith("😀 中文\n")
    assert json.loads(done.model_dump_json())["stdout"]["text"] == done.stdout.text


async def test_output_can_be_followed(run: Run) -> None:
    seen: list[tuple[str, bytes]] = []
    done = await run(
        "import sys\nprint('one')\nprint('two', file=sys.stderr)", on_output=lambda *what: seen.append(what)
    )
    assert isinstance(done, Execution)
    assert b"".join(data for name, data in seen if name == "stdout") == b"one\n"
    assert b"".join(data for name, data in seen if name == "stderr") == b"two\n"


async def test_a_cancelled_run_is_stopped_and_the_workspace_stays_usable(run: Run, is_gvisor: bool) -> None:
    before, began = jail_pids(), asyncio.Event()
    running = asyncio.create_task(
        run("import time\nprint('here', flush=True)\ntime.sleep(3600)", on_output=lambda *_: began.set())
    )
    await asyncio.wait_for(began.wait(), 60)
    during = jail_pids() - before
    assert during or is_gvisor
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not during & jail_pids()
    assert (await run("print('again')")).stdout.text == "again\n"
