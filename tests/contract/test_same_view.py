"""One policy: what a guest sees of its jail and of its interpreter is the same in the cold runtime and in the warm one."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.guest_root import GuestRoot
from sandbox.job import Job
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.warm import WarmRuntime
from sandbox.workspace import Workspaces

OFFICE = ("docx", "openpyxl", "pptx", "xlsxwriter")


@pytest.fixture(scope="module", params=[True, False], ids=["cgroups", "rlimits"])
def both(
    request: pytest.FixtureRequest, root: GuestRoot, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Runtime]]:
    runtimes: dict[str, Runtime] = {
        "cold": NsjailRuntime(root, use_cgroups=request.param),
        "warm": WarmRuntime(root, tmp_path_factory.getbasetemp(), use_cgroups=request.param),
    }
    asyncio.run(runtimes["warm"].ready())
    yield runtimes
    for runtime in runtimes.values():
        asyncio.run(runtime.close())


async def seen(
    runtimes: dict[str, Runtime], workspaces: Workspaces, code: str, libraries: tuple[str, ...] = ()
) -> dict[str, Any]:
    found = {}
    for name, runtime in runtimes.items():
        workspace = workspaces.open("w")
        workspace.write("scripts/look.py", code.encode())
        job = Job(script_path="/workspace/scripts/look.py", arguments=("a b", "ü"), libraries=libraries)
        done = await runtime.run(job, workspace, run_id="look")
        assert done.runtime == runtime.name
        assert done.error is None, done.error
        found[name] = json.loads(done.stdout.text)
    return found


JAIL = """
import ctypes, json, os, resource, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
kept = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters")
mounts = {}
for line in open("/proc/self/mountinfo"):
    fields, _, system = line.partition(" - ")
    place, flags = fields.split()[4:6]
    kind, source, options = system.split()
    sizes = sorted(o for o in options.split(",") if o.startswith(("size", "nr_inodes")))
    mounts[place] = [kind, sorted(f for f in flags.split(",") if f != "relatime"), sizes]
limits = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")}
# Counted from where the script begins: a warm interpreter has more of an address space by then, and its process 1 is counted
# elsewhere. What a script can have more is the same, as the tests of the limits show.
for name in ("RLIMIT_AS", "RLIMIT_NPROC"): limits.pop(name)
fds = {n: os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in sorted(os.listdir("/proc/self/fd"))[:3]}
numbers = [n for n in range(64) if n not in (0, 1, 2)]
def is_open(n):
    try: os.fstat(n)
    except OSError: return False
    return True
print(json.dumps({
    "status": {k: status[k].split() for k in kept if k != "Seccomp_filters"}, "mounts": mounts, "limits": limits, "fds": fds,
    "open": [n for n in numbers if is_open(n)], "environment": dict(os.environ), "cwd": os.getcwd(), "umask": os.umask(0),
    "ids": [os.getpid(), os.getppid(), os.getsid(0), os.getpgrp(), os.getresuid(), os.getresgid(), os.getgroups()],
    "processes": sorted(n for n in os.listdir("/proc") if n.isdigit()), "host": list(os.uname())[:2],
    "interfaces": open("/proc/net/dev").read().splitlines()[2:], "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
    "top": sorted(os.listdir("/")), "run": sorted(os.listdir("/run")), "dev": sorted(os.listdir("/dev")), "tmp": os.listdir("/tmp"),
    "workspace": [[n, oct(os.stat(n).st_mode), os.access(n, os.W_OK)] for n in sorted(os.listdir("."))],
    "maps": [open(f"/proc/self/{m}").read().split() for m in ("uid_map", "gid_map")][0][:1], "nice": os.getpriority(0, 0),
    "ipc": len(open("/proc/sysvipc/shm").readlines()), "affinity": sorted(os.sched_getaffinity(0)),
}))
"""


async def test_the_jail_looks_the_same(both: dict[str, Runtime], workspaces: Workspaces) -> None:
    workspaces.open("w").write("kept/a.txt", b"a")
    found = await seen(both, workspaces, JAIL)
    assert found["warm"] == found["cold"]
    assert found["warm"]["open"] == []
    assert found["warm"]["status"]["CapBnd"] == ["0" * 16]
    assert set(found["warm"]["mounts"]) == {
        "/", "/proc", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/shm", "/tmp", "/run/report", "/workspace",
        "/workspace/results", "/workspace/errors",
    }  # fmt: skip


INTERPRETER = """
import sys
modules = sorted(sys.modules)
import atexit, builtins, gc, json, locale, signal, threading, time, traceback, warnings
print(json.dumps({
    "name": [__name__, __file__, __spec__, __doc__, __package__, sorted(globals())],
    "argv": [sys.argv, sys.orig_argv, sys.executable, sys.prefix, sys.exec_prefix, sys.base_prefix], "path": sys.path,
    "flags": list(sys.flags), "hooks": [len(sys.meta_path), len(sys.path_hooks), sys.excepthook is sys.__excepthook__],
    "streams": [[s.encoding, s.errors, s.line_buffering, s.name, s.fileno()] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": {s.name: str(signal.getsignal(s)) for s in signal.Signals}, "mask": sorted(signal.pthread_sigmask(0, [])),
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()], "threads": [t.name for t in threading.enumerate()],
    "main": threading.current_thread() is threading.main_thread(), "native": threading.main_thread().native_id,
    "warnings": [str(f) for f in warnings.filters], "locale": locale.setlocale(locale.LC_ALL), "zone": time.tzname,
    "recursion": sys.getrecursionlimit(), "switch": sys.getswitchinterval(), "builtins": sorted(dir(builtins)),
    "atexit": atexit._ncallbacks() if "docx" not in modules else 0, "thread_switch": sys.gettrace() is None,
    "modules": modules, "audit": hasattr(sys, "last_type"),
}))
"""


@pytest.mark.parametrize("libraries", [(), OFFICE], ids=["plain", "office"])
async def test_the_interpreter_looks_as_if_it_were_fresh(
    both: dict[str, Runtime], workspaces: Workspaces, libraries: tuple[str, ...]
) -> None:
    found = await seen(both, workspaces, INTERPRETER, libraries)
    cold, warm = set(found["cold"].pop("modules")), set(found["warm"].pop("modules"))
    assert found["warm"] == found["cold"]
    assert cold - warm == set()
    preloaded = {name.partition(".")[0] for name in warm - cold}
    assert preloaded >= {"json", "csv", "datetime"}
    assert (preloaded >= set(OFFICE)) == bool(libraries)
    assert not preloaded & {path.stem for path in Path("sandbox/guest").glob("*.py")}


RANDOM = """
import json, os, random, secrets, tempfile, uuid
print(json.dumps([random.random(), random.getrandbits(64), secrets.token_hex(8), str(uuid.uuid4()), tempfile.mkdtemp(), os.urandom(8).hex()]))
"""


@pytest.mark.parametrize("libraries", [(), OFFICE], ids=["plain", "office"])
async def test_no_two_runs_draw_the_same(
    both: dict[str, Runtime], workspaces: Workspaces, libraries: tuple[str, ...]
) -> None:
    runs = [(await seen({"warm": both["warm"]}, workspaces, RANDOM, libraries))["warm"] for _ in range(12)]
    for drawn in zip(*runs, strict=True):
        assert len(set(drawn)) == len(runs)


async def test_a_run_can_not_change_what_the_next_one_finds(both: dict[str, Runtime], workspaces: Workspaces) -> None:
    """Each run poisons all that it can reach in its interpreter; a launcher and the jails after it have nothing of it."""
    poison = (
        "import builtins, json, os, sys\n"
        "seen = [hasattr(builtins, 'poisoned'), json.dumps(1), 'POISON' in os.environ, len(sys.path), os.path.exists('/tmp/p')]\n"
        "sys.stdout.write(str(seen).replace('False', 'false').replace(\"'\", '\"'))\n"
        "builtins.poisoned = True; json.dumps = lambda _: '2'; os.environ['POISON'] = '1'; sys.path.append('x')\n"
        "open('/tmp/p', 'w').close(); builtins.open = None; builtins.print = None\n"
        "for module in list(sys.modules.values()):\n"
        "  for name in list(vars(module) or ()):\n"
        "    if callable(vars(module)[name]) and name not in ('write', 'flush') and module.__name__ in ('json', 'csv', 'docx'):\n"
        "      setattr(module, name, None)\n"
    )
    runs = [(await seen({"warm": both["warm"]}, workspaces, poison))["warm"] for _ in range(8)]
    assert all(run == runs[0] for run in runs)
    assert runs[0][:3] == [False, "1", False]
    assert runs[0][4] is False
