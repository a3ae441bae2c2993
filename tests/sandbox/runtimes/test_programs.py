"""Programs behind walls: what they see, what they may use, what is left of them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.errors import SetupFailed
from sandbox.guest_root import GuestRoot
from sandbox.job import MIB
from sandbox.runtimes.nsjail_config import Program
from sandbox.runtimes.programs import ENVIRONMENT, Programs

ACCOUNT = 12_345
PROBE = """
import json, os, socket, sys
def tried(what):
    try:
        return what() or "done"
    except OSError as fault:
        return type(fault).__name__
def connect(family, address):
    socket.socket(family).connect(address)
secret, host_pid, port, own = sys.argv[1:]
status = open("/proc/self/status").read()
print(json.dumps({
    "secret": tried(lambda: open(secret).read()),
    "other process": tried(lambda: os.kill(int(host_pid), 0)),
    "network": tried(lambda: connect(socket.AF_INET, ("127.0.0.1", int(port)))),
    "write to /usr": tried(lambda: open("/usr/spillbox-probe", "w").close()),
    "write to /": tried(lambda: os.mkdir("/spillbox-probe")),
    "write to its own": tried(lambda: open(own + "/probe", "w").write("x") and None),
    "environment": "SPILLBOX_PROBE" in os.environ,
    "capabilities": int(status.split("CapEff:")[1].split()[0], 16) != 0,
    "privileges to gain": status.split("NoNewPrivs:")[1].split()[0] == "0",
    "no filter": status.split("Seccomp:")[1].split()[0] == "0",
}))
"""


def _program(*command: str, write: tuple[Path, ...] = (), read: tuple[Path, ...] = (), processes: int = 64) -> Program:
    return Program(
        command=command, environment=ENVIRONMENT, folder=Path("/tmp"), read=read, write=write, memory_bytes=64 * MIB,
        processes=processes,
    )  # fmt: skip


@contextmanager
def _started(programs: Programs, program: Program) -> Iterator[subprocess.Popen[str]]:
    programs.check(program)
    with (
        programs.behind_walls(program) as start,
        subprocess.Popen(
            start.command, pass_fds=start.fds, env={}, cwd="/", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process,
    ):  # fmt: skip
        start.begin(process.pid)
        yield process
        process.kill()


def _run(programs: Programs, program: Program) -> tuple[int, str, str]:
    with _started(programs, program) as process:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


@pytest.fixture(params=[True, False], ids=["cgroups", "rlimits"])
def programs(root: GuestRoot, request: pytest.FixtureRequest) -> Iterator[Programs]:
    made = Programs(root, use_cgroups=request.param)
    yield made
    made.close()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder that a program may write to."""
    folder = tmp_path / "own"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, ACCOUNT, ACCOUNT)
    return folder


def test_every_wall_stands_and_none_does_without_them(programs: Programs, own: Path, tmp_path: Path) -> None:
    import socket

    secret = tmp_path / "secret"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = ("-c", PROBE, str(secret), str(os.getpid()), str(server.getsockname()[1]), str(own))
        status, out, err = _run(programs, _program("python3", *arguments, write=(own,)))
        outside = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=True,
            env={"PATH": os.environ["PATH"], "SPILLBOX_PROBE": "1"},
        )  # fmt: skip
    assert status == 0, err
    is_root = os.geteuid() == 0
    assert json.loads(out) == {
        "secret": "FileNotFoundError", "other process": "ProcessLookupError", "network": "OSError",
        "write to /usr": "OSError", "write to /": "OSError", "write to its own": "done",
        "environment": False, "capabilities": False, "privileges to gain": False, "no filter": False,
    }  # fmt: skip
    control = json.loads(outside.stdout)
    made_outside = [Path("/usr/spillbox-probe"), Path("/spillbox-probe")]
    assert [path.exists() for path in made_outside] == [is_root, is_root]
    if is_root:
        made_outside[0].unlink()
        made_outside[1].rmdir()
    assert {name for name, value in control.items() if value in ("done", "secret", True)} >= {
        "secret", "other process", "network", "write to its own", "environment", "privileges to gain", "no filter",
    }  # fmt: skip


def test_what_it_writes_is_on_the_disk_as_its_accounts_own(programs: Programs, own: Path, tmp_path: Path) -> None:
    readable = tmp_path / "readable"
    readable.mkdir()
    (readable / "notes.txt").write_text("notes é")
    code = (
        "import os,sys; f=open(sys.argv[2]+'/copy','w'); f.write(open(sys.argv[1]+'/notes.txt').read()); f.flush(); os.fsync(f);"
        "open(sys.argv[1]+'/notes.txt','w')"
    )
    program = _program("python3", "-c", code, str(readable), str(own), read=(readable,), write=(own,))
    status, _, err = _run(programs, program)
    assert status == 1
    assert "Read-only file system" in err
    assert (own / "copy").read_text() == "notes é"
    assert (own / "copy").stat().st_uid == (ACCOUNT if os.geteuid() == 0 else os.geteuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="is of a service that is root")
def test_nothing_is_written_as_root(programs: Programs, tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="chown -R ACCOUNT"):
        programs.check(_program("true", write=(tmp_path,)))


@pytest.mark.skipif(os.geteuid() != 0, reason="is of a service that is root")
def test_a_folder_of_roots_group_is_refused_when_it_is_used_too(programs: Programs, own: Path) -> None:
    program = _program("true", write=(own,))
    programs.check(program)
    os.chown(own, ACCOUNT, 0)
    with pytest.raises(SetupFailed, match="root's group"), programs.behind_walls(program):
        raise AssertionError


@pytest.mark.parametrize("inner_is_writable", [True, False])
def test_a_folder_within_another_has_its_own_right(programs: Programs, own: Path, *, inner_is_writable: bool) -> None:
    inner = own / "inner"
    inner.mkdir()
    if os.geteuid() == 0:
        os.chown(inner, ACCOUNT, ACCOUNT)
    code = f"touch {own}/a; touch {inner}/b"
    writable, readable = (inner, own) if inner_is_writable else (own, inner)
    _run(programs, _program("sh", "-c", code, write=(writable,), read=(readable,)))
    assert (inner / "b").exists() == inner_is_writable
    assert (own / "a").exists() != inner_is_writable


@pytest.mark.parametrize("folder", ["/", "relative", "/no/such/folder"])
def test_a_folder_that_can_not_be_shown_is_said_before_anything_starts(programs: Programs, folder: str) -> None:
    with pytest.raises(SetupFailed, match="Give the full path"):
        programs.check(_program("true", read=(Path(folder),)))


def test_a_command_that_is_not_there_is_named_with_the_cure(programs: Programs) -> None:
    status, _, err = _run(programs, _program("no-such-command"))
    assert status == 127
    assert "no-such-command: No such file or directory. Behind its walls there are only" in err


def test_more_memory_than_allowed_ends_it(root: GuestRoot) -> None:
    programs = Programs(root)
    if not programs.bounds_memory:
        pytest.skip("without control groups the memory of programs is not bounded, and the log says so")
    use = "import sys; a = bytearray(int(sys.argv[1]) << 20); print(len(a))"
    assert _run(programs, _program("python3", "-c", use, "16"))[0] == 0
    assert _run(programs, _program("python3", "-c", use, "80"))[0] == 128 + 9
    programs.close()


def test_more_processes_than_allowed_are_refused(programs: Programs) -> None:
    fork = "import os,sys,time\nfor n in range(12):\n    if os.fork() == 0:\n        time.sleep(60)\nprint('all')"
    assert _run(programs, _program("timeout", "2", "python3", "-c", fork, processes=64))[1] == "all\n"
    _, out, err = _run(programs, _program("timeout", "2", "python3", "-c", fork, processes=8))
    assert out == ""
    assert "BlockingIOError" in err


def test_nothing_is_left_when_it_is_killed(programs: Programs, own: Path) -> None:
    code = f"import os,time\nif os.fork() == 0:\n    os.setsid()\nopen('{own}/beat','w')\nprint('up', flush=True)\n"
    code += f"while True:\n    os.utime('{own}/beat')\n    time.sleep(0.01)"
    with _started(programs, _program("python3", "-c", code, write=(own,))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        first = (own / "beat").stat().st_mtime_ns
        time.sleep(0.2)
        assert (own / "beat").stat().st_mtime_ns > first
    time.sleep(0.2)
    last = (own / "beat").stat().st_mtime_ns
    time.sleep(0.2)
    assert (own / "beat").stat().st_mtime_ns == last


SERVICE = """
import subprocess, sys
from pathlib import Path
from sandbox import guest_root
from sandbox.runtimes.nsjail_config import Program
from sandbox.runtimes.programs import ENVIRONMENT, Programs
root, own, code = sys.argv[1:]
program = Program(("python3", "-c", code), ENVIRONMENT, Path("/tmp"), (), (Path(own),), 1 << 26, 64)
with Programs(guest_root.load(Path(root))).behind_walls(program) as start:
    process = subprocess.Popen(start.command, pass_fds=start.fds, env={}, cwd="/", start_new_session=True)
    start.begin(process.pid)
    process.wait()
"""


def test_nothing_is_left_when_the_service_is_killed(root: GuestRoot, own: Path) -> None:
    beat = own / "beat"
    code = (
        "import os,signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor fd in (0,1,2):\n    os.close(fd)\n"
    )
    code += f"os.fork() or os.setsid()\nwhile True:\n    open('{beat}', 'w').close()\n    time.sleep(0.01)"
    service = subprocess.Popen([sys.executable, "-c", SERVICE, str(root.path), str(own), code])
    ends = time.monotonic() + 20
    while not beat.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    first = beat.stat().st_mtime_ns
    time.sleep(0.3)
    assert beat.stat().st_mtime_ns > first
    service.kill()
    service.wait()
    time.sleep(0.5)
    last = beat.stat().st_mtime_ns
    time.sleep(0.5)
    assert beat.stat().st_mtime_ns == last
