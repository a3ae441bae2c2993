"""A program of ours looks at what a script left, where it left it: behind the same walls, and with nothing of the script alive."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from sandbox.job import MIB, Execution, Job, Limits, Status
from sandbox.runtimes.base import Inspection, Runtime
from sandbox.workspace import Workspace
from tests.conftest import jail_pids
from tests.contract.test_same_view import JAIL

LIMITS = Limits(wall_seconds=20)


@dataclass
class Inspected:
    """What came of a script, and what the program printed."""

    script: Execution
    printed: str | None


async def inspected(
    runtime: Runtime, workspace: Workspace, script: str, program: str, *, limits: Limits = LIMITS,
    program_limits: Limits = LIMITS, begun: asyncio.Event | None = None,
) -> Inspected:  # fmt: skip
    """Run a script, and a program as its inspection; both are files of the workspace here."""
    workspace.write("scripts/script.py", script.encode())
    workspace.write("scripts/program.py", program.encode())
    job = Job(script_path="/workspace/scripts/script.py", limits=limits)
    over = Job(script_path="/workspace/scripts/program.py", limits=program_limits, keeps_outputs=False)
    asked: list[Execution] = []
    loop = asyncio.get_running_loop()

    def job_after(execution: Execution) -> Job:
        asked.append(execution)
        if begun is not None:
            loop.call_soon_threadsafe(begun.set)
        return over

    inspection = Inspection(job_after)
    done = await runtime.run(job, workspace, run_id="r", inspection=inspection)
    assert asked == [done]
    return Inspected(done, inspection.printed)


CONTAINER = """
import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "status": {k: status.get(k, "").split() for k in ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")},
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    "environment": dict(os.environ), "cwd": os.getcwd(), "umask": os.umask(0), "fds": sorted(os.listdir("/proc/self/fd"))[:3],
    "ids": [os.getpid(), os.getppid(), os.getresuid(), os.getresgid(), os.getgroups()],
    "processes": sorted(n for n in os.listdir("/proc") if n.isdigit()),
}))
"""
"""As `JAIL`, of what gVisor's kernel tells too."""


async def test_it_sees_what_the_script_saw(runtime: Runtime, workspace: Workspace) -> None:
    look = CONTAINER if runtime.name.startswith("docker") else JAIL
    found = await inspected(runtime, workspace, look, look)
    script, program = json.loads(found.script.stdout.text), json.loads(found.printed or "null")
    for view in (script, program):
        own = view["ids"].pop(0)
        assert view.pop("processes") == sorted(["1", str(own)])
    assert program == script


LEAVES = """
import os, pathlib, time
for name in ("json", "csv", "openpyxl", "sitecustomize", "usercustomize"):
    for folder in ("/workspace", "/tmp", "/workspace/scripts"):
        pathlib.Path(folder, f"{name}.py").write_text("open('/workspace/taken', 'w').close()")
pathlib.Path("a.csv").write_text("as the script left it")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            pathlib.Path("a.csv").write_text("changed by what it left running")
            pathlib.Path("beats").write_text(str(time.monotonic()))
    os._exit(0)
os.wait()
while not os.path.exists("beats"): time.sleep(0.001)
"""

LOOKS = """
import os, sys, time
sys.path.remove("/workspace/scripts")  # where this program is, as a script of the user's; ours lie elsewhere
import csv, json
def beats(): return open("/workspace/beats").read()
before = beats()
time.sleep(0.05)
print(json.dumps({
    "processes": sorted(n for n in os.listdir("/proc") if n.isdigit()), "me": os.getpid(), "stands_still": beats() == before,
    "modules": [m.__file__.partition("/lib/")[0] for m in (csv, json)], "taken": os.path.exists("/workspace/taken"),
    "path": [p for p in sys.path if p.startswith(("/workspace", "/tmp"))], "a": open("/workspace/a.csv").read(),
}))
"""


async def test_nothing_of_the_script_lives_or_is_imported(runtime: Runtime, workspace: Workspace) -> None:
    found = await inspected(runtime, workspace, LEAVES, LOOKS)
    seen = json.loads(found.printed or "null")
    assert seen["processes"] == sorted(["1", str(seen["me"])])
    assert seen["stands_still"]
    assert not any("workspace" in place for place in seen["modules"])
    assert not seen["taken"]
    assert seen["path"] == []
    assert seen["a"] == workspace.read_bytes("a.csv").decode()
    # The control: beside such files a script of the user's imports them, as `python script.py` does.
    workspace.write("scripts/again.py", b"import json")
    await runtime.run(Job(script_path="/workspace/scripts/again.py", limits=LIMITS), workspace, run_id="c")
    assert workspace.exists("taken")


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(3)",
        "import os\nos.abort()",
        "while True: pass",
        "import time\ntime.sleep(60)",
        "while True: print('x' * 65536)",
        "kept = bytearray(256 << 20)",
        "import os\nwhile True: os.write(1, b'x' * 65536)",
    ],
)
async def test_one_that_fails_costs_the_script_nothing(runtime: Runtime, workspace: Workspace, program: str) -> None:
    short = LIMITS.model_copy(update={"wall_seconds": 0.5, "output_disk_bytes": MIB})
    small = LIMITS.model_copy(update={"memory_bytes": 128 * MIB})
    script = "open('made.txt', 'w').write('x')\nprint('done')"
    found = await inspected(runtime, workspace, script, program, limits=small, program_limits=short)
    assert found.printed is None
    assert (found.script.status, found.script.stdout.text) == (Status.SUCCEEDED, "done\n")
    assert workspace.read_bytes("made.txt") == b"x"


async def test_what_the_script_used_is_not_counted_again(runtime: Runtime, workspace: Workspace) -> None:
    script = "import time\nwhile time.process_time() < 1.2: pass"
    one_second = LIMITS.model_copy(update={"cpu_seconds": 1})
    program = (
        "import time\nuntil = time.monotonic() + 0.4\nwhile time.monotonic() < until: time.sleep(0.05)\nprint('looked')"
    )
    found = await inspected(runtime, workspace, script, program, program_limits=one_second)
    assert found.printed == "looked\n"
    assert 1.2 <= (found.script.usage.cpu_seconds or 0) < 5


async def test_nothing_that_it_writes_is_taken(runtime: Runtime, workspace: Workspace) -> None:
    program = (
        "open('/workspace/a.csv', 'w').write('forged')\nopen('/workspace/b.csv', 'w').write('new')\nprint('wrote')"
    )
    found = await inspected(runtime, workspace, "open('a.csv', 'w').write('true')", program)
    assert found.printed == "wrote\n"
    assert workspace.read_bytes("a.csv") == b"true"
    assert not workspace.exists("b.csv")


async def test_a_cancelled_one_leaves_nothing_running(runtime: Runtime, workspace: Workspace) -> None:
    before = jail_pids()
    program = "import time\ntime.sleep(60)"
    begun = asyncio.Event()
    script = "open('made.txt', 'w').close()"
    task = asyncio.ensure_future(inspected(runtime, workspace, script, program, begun=begun))
    async with asyncio.timeout(60):
        await begun.wait()
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not jail_pids() - before
    assert workspace.exists("made.txt")
