"""Memory, processes and disk: bounded, and the reason is told. The same for every runtime."""

import pytest

from sandbox.job import Status
from sandbox.workspace import Workspace, Workspaces
from tests.conftest import Run, runner

MIB = 1024 * 1024


@pytest.mark.case("R6")
async def test_an_endless_fork_is_contained_and_the_next_run_is_normal(run: Run, has_cgroups: bool) -> None:
    done = await run(
        "import os, time\nwhile True:\n  try:\n    if os.fork() == 0: time.sleep(60)\n  except BaseException: pass",
        wall_seconds=3,
    )
    assert done.status is (Status.TOO_MANY_PROCESSES if has_cgroups else Status.TIMED_OUT)
    assert (await run("print(1)")).stdout.text == "1\n"


@pytest.mark.case("R6")
async def test_no_more_processes_than_allowed_can_be_made(run: Run) -> None:
    done = await run(
        "import os, time\nmade = 0\ntry:\n"
        "  for _ in range(500):\n    if os.fork() == 0: time.sleep(60)\n    made += 1\n"
        "except OSError as fault:\n  print(made, fault.errno)",
        processes=16,
    )
    made, number = map(int, done.stdout.text.split())
    assert made == 15  # and the script itself is the sixteenth
    assert number == 11  # EAGAIN


@pytest.mark.case("R7")
async def test_a_script_over_its_memory_is_told_so(run: Run) -> None:
    done = await run("x = bytearray(700 << 20)\nprint(len(x))")
    assert done.status is Status.OUT_OF_MEMORY
    assert done.error is not None
    assert "536,870,912 bytes" in done.error.summary or "MemoryError" in done.error.summary
    assert "Read large files in parts" in (done.error.hint or "")


@pytest.mark.case("R7")
async def test_children_that_only_together_are_over_the_memory_are_stopped(run: Run) -> None:
    done = await run(
        "import multiprocessing, time\n"
        "def eat(n):\n  x = bytearray(b'x') * (n << 20)\n  time.sleep(20)\n"
        "ps = [multiprocessing.Process(target=eat, args=(290,)) for _ in range(2)]\n"
        "[p.start() for p in ps]\n[p.join() for p in ps]\n"
    )
    assert done.status is Status.OUT_OF_MEMORY
    assert done.usage.wall_seconds < 15


async def test_usage_is_the_runs_own(run: Run) -> None:
    small = await run("print(1)")
    large = await run("import time\nx = bytearray(b'x') * (100 << 20)\nt = time.process_time()\n"
                      "while time.process_time() - t < 0.3: pass")  # fmt: skip
    assert large.usage.max_memory_bytes is not None
    assert small.usage.max_memory_bytes is not None
    assert large.usage.cpu_seconds is not None
    assert small.usage.cpu_seconds is not None
    assert large.usage.max_memory_bytes - small.usage.max_memory_bytes > 90 * MIB
    assert large.usage.cpu_seconds > 0.3 > small.usage.cpu_seconds


@pytest.mark.case("R8")
@pytest.mark.parametrize(
    "path", ["/x", "/etc/x", "/usr/x", "/workspace/results/x", "/workspace/errors/x", "/opt/spillbox/x"]
)
async def test_what_is_read_only_can_not_be_written(run: Run, path: str, is_gvisor: bool) -> None:
    done = await run(f"open({path!r}, 'w')")
    assert done.status is Status.FAILED
    assert done.error is not None
    # gVisor looks at who owns a folder before it looks at how it is mounted.
    type_, message = ("PermissionError", "Permission denied") if is_gvisor else ("OSError", "Read-only file system")
    assert done.error.type == type_
    assert message in done.error.message
    assert done.error.source_line == f"open({path!r}, 'w')"
    assert "Only /workspace" in (done.error.hint or "")


@pytest.mark.case("R8")
async def test_writing_past_the_quota_fails_in_the_script_and_is_told(runtime, workspaces: Workspaces) -> None:  # type: ignore[no-untyped-def]
    workspace = workspaces.open("small")
    run = runner(runtime, workspace)
    done = await run(
        "for n in range(9):\n  with open(f'f{n}', 'wb') as f: f.write(b'x' * (4 << 20))", workspace_bytes=16 * MIB
    )
    assert done.status is Status.DISK_FULL
    assert done.error is not None
    assert done.error.type == "OSError"
    assert "No space left" in done.error.message
    used, _ = workspace.usage()
    assert used <= 16 * MIB
    assert (await run("print(1)")).stdout.text == "1\n"


@pytest.mark.case("R8")
async def test_no_file_can_be_larger_than_its_limit(run: Run) -> None:
    done = await run("import os\nf = open('big', 'wb')\nos.posix_fallocate(f.fileno(), 0, 200 << 20)")
    assert done.status is Status.DISK_FULL
    assert done.error is not None
    assert "File too large" in done.error.message


@pytest.mark.case("R16")
async def test_no_more_files_than_allowed_can_be_made(run: Run, workspace: Workspace) -> None:
    done = await run("for n in range(1_000_000): open(f't{n}', 'w').close()", wall_seconds=60)
    assert done.status is Status.DISK_FULL
    if "runsc" in done.runtime:  # stopped at a look, when there were more already than may be taken: nothing is
        assert done.files == ()
        assert [file.path for file in workspace.list_files() if not file.path.startswith(("errors/", "scripts/"))] == []
        assert (await run("import os\nprint(len(os.listdir()))")).status is Status.SUCCEEDED
        return
    assert len(done.files) == 1000
    assert any("first 1,000 of" in warning for warning in done.warnings)
    _, files = workspace.usage()
    assert 9_900 < files <= 10_000
    cleaned = await run("import glob, os\nfor f in glob.glob('t*'): os.unlink(f)\nprint(len(os.listdir()))")
    assert cleaned.stdout.text == "3\n"  # results, errors, scripts


@pytest.mark.case("R28")
async def test_weaker_limits_are_in_every_answer(run: Run, has_cgroups: bool) -> None:
    done = await run("print(1)")
    assert has_cgroups == (not any("Weaker limits" in warning and "To mend it" in warning for warning in done.warnings))
