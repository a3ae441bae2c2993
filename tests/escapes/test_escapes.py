"""Each attack is held by the jail, and succeeds where the one wall is taken out that should stop it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.doctor.attacks import ATTACKS, SECRET, Attack
from sandbox.doctor.targets import Targets
from sandbox.doctor.targets import targets as make_targets
from sandbox.doctor.weakened import Weakened
from sandbox.guest import frames
from sandbox.guest_root import CONTAINER_UIDS, GuestRoot
from sandbox.job import Execution, Job, Limits, Status
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.identities import process_identities
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.policy import GUEST_UID
from sandbox.workspace import Workspace, Workspaces
from tests.conftest import make_runtime


@pytest.fixture
def targets() -> Iterator[Targets]:
    with process_identities().one() as identity:  # the one that the jail will have too
        pass
    with make_targets(identity) as made:
        yield made
        assert made.victim_lives, "an attack killed a process outside its jail"


@pytest.fixture(scope="module", params=["nsjail", "docker"])
def family(
    request: pytest.FixtureRequest, root: GuestRoot, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    """One runtime of each kind of wall."""
    made = make_runtime(request.param, root, tmp_path_factory.getbasetemp())
    yield made
    asyncio.run(made.close())


async def attack_with(runtime: Runtime, workspace: Workspace, code: str, targets: Targets | None = None) -> Execution:
    workspace.write("scripts/attack.py", code.encode())
    arguments = targets.arguments if targets else ()
    job = Job(script_path="/workspace/scripts/attack.py", arguments=arguments, limits=Limits(wall_seconds=10))
    done = await runtime.run(job, workspace, run_id="attack")
    assert done.runtime == runtime.name
    return done


EVERY = [pytest.param(attack, id=attack.name, marks=pytest.mark.case(*attack.cases)) for attack in ATTACKS]


@pytest.mark.parametrize("attack", EVERY)
async def test_the_attack_is_held(
    runtime: Runtime,
    workspaces: Workspaces,
    attack: Attack,
    targets: Targets,
    monkeypatch: pytest.MonkeyPatch,
    is_gvisor: bool,
) -> None:
    monkeypatch.setenv("SPILLBOX_SECRET", SECRET)
    workspaces.open("other").write("private.txt", SECRET.encode())
    done = await attack_with(runtime, workspaces.open("w"), attack.code, targets)
    assert attack.is_held(done) or (is_gvisor and attack.open_in_gvisor), done
    if attack.ends_process:
        assert done.signal == "SIGSYS"
        assert done.error is not None
        assert "system call" in done.error.summary


@pytest.mark.parametrize("attack", EVERY)
async def test_control_the_attack_succeeds_without_its_wall(
    family: Runtime, root: GuestRoot, workspace: Workspace, attack: Attack, targets: Targets
) -> None:
    async with Weakened(family, root, targets.secret_folder) as weakened:
        done = await attack_with(
            weakened.without_wall_of(attack), workspace, attack.control_code or attack.code, targets
        )
        assert attack.has_escaped(done), done


KILL_ALL = (
    "import os, time\nif os.fork() == 0: time.sleep(600)\n"
    "os.kill(-1, 9)\nos.kill(1, 9)\nprint('HELD', os.WTERMSIG(os.wait()[1]))"
)


@pytest.mark.case("R10")
async def test_killing_everything_ends_only_the_run(
    runtime: Runtime, workspace: Workspace, targets: Targets, is_gvisor: bool
) -> None:
    done = await attack_with(runtime, workspace, KILL_ALL, targets)
    if is_gvisor:  # its kernel would end process 1 too, so the filter refuses it
        assert "PermissionError" in done.stderr.text + str(done.error)
    else:
        assert done.stdout.text == "HELD 9\n"
        assert done.status is Status.SUCCEEDED
    after = await attack_with(runtime, workspace, "import os; print(os.getppid())")
    assert after.stdout.text == "1\n"


async def test_a_guest_can_not_speak_for_process_one(runtime: Runtime, workspace: Workspace, targets: Targets) -> None:
    """Everything that a script may write looks like a result: it changes nothing about how the run ended."""
    code = (
        "import os\n"
        "for fd in range(1, 64):\n"
        "  try: os.write(fd, b'DONE 0 0 0\\nREADY 1\\n')\n  except OSError: pass\n"
        "open('/run/report/error.json', 'w').write('{\"type\": \"Fake\"}')\n"
        "os._exit(7)"
    )
    done = await attack_with(runtime, workspace, code)
    assert (done.status, done.exit_code) == (Status.FAILED, 7)
    assert done.error is not None
    assert done.error.type == "ExitCode"


DONE = frames.encode(frames.DONE, b'{"wait_status": 0, "cpu_seconds": 0, "max_memory_bytes": 0, "oom_kills": 0}')
FORGE = (
    "import os, time\nfor n in range(64):\n"
    "  try: fd = os.open('/proc/1/fd/' + str(n), os.O_WRONLY | os.O_NONBLOCK)\n  except OSError: continue\n"
    f"  for forged in ({DONE!r}, b'DONE 0 0 0'):\n"
    "    try: os.write(fd, forged)\n    except OSError: pass\n"
    "time.sleep(0.3)\nos._exit(7)"
)


@pytest.mark.case("R10")
async def test_a_guest_that_opens_descriptors_of_process_one_can_not_speak_for_it(
    runtime: Runtime, workspace: Workspace, is_gvisor: bool
) -> None:
    """gVisor lets it write there, so that the stream is of no use any more: the run is told as ended, and the next is normal."""
    done = await attack_with(runtime, workspace, FORGE)
    if is_gvisor:
        assert done.status is Status.KILLED
        assert done.error is not None
        assert "spoke in the name" in done.error.message
    else:
        assert (done.status, done.exit_code) == (Status.FAILED, 7)
    assert (await attack_with(runtime, workspace, "print(1)")).stdout.text == "1\n"


HOLD_DESCRIPTORS = (
    "import array, socket, time\na, b = socket.socketpair(); a.setblocking(False)\n"
    "try:\n  while True: a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 250))])\n"
    "except OSError as fault: print(fault.errno)\n"
    "time.sleep(2)"
)


@pytest.mark.case("R10")
@pytest.mark.skipif(
    os.geteuid() != 0, reason="an ordinary user's guests share his id, and what the kernel counts for it"
)
async def test_a_guest_can_not_use_up_what_the_kernel_counts_for_a_user(
    root: GuestRoot, workspaces: Workspaces
) -> None:
    runtime = NsjailRuntime(root)
    holding = asyncio.create_task(attack_with(runtime, workspaces.open("a"), HOLD_DESCRIPTORS))
    await asyncio.sleep(1)
    other = await attack_with(runtime, workspaces.open("b"), "print(1)")
    assert other.stdout.text == "1\n"
    assert (await holding).stdout.text == "109\n"  # ETOOMANYREFS: it did reach its own limit
    await runtime.close()


@pytest.mark.case("R10")
async def test_what_is_counted_for_the_service_can_not_be_spent(
    runtime: Runtime, workspace: Workspace, is_gvisor: bool
) -> None:
    code = (
        "import ctypes, resource\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.inotify_init1(0), ctypes.get_errno(), resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] <= 1024)\n"
        "print([resource.getrlimit(n) for n in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_CORE)])\n"
        "print(libc.prlimit(1, resource.RLIMIT_NOFILE, None, None), ctypes.get_errno())\n"
        "import fcntl\nf = open('f', 'w')\n"
        "try: fcntl.fcntl(f, 1024, fcntl.F_WRLCK)\nexcept OSError as fault: print(fault.errno)"
    )
    done = await attack_with(runtime, workspace, code)
    queues = "(819200, 819200)" if is_gvisor else "(0, 0)"  # gVisor has no message queues, nor lets their limit be set
    assert done.stdout.text == f"-1 38 True\n[(0, 0), {queues}, (0, 0)]\n-1 1\n22\n"


@pytest.mark.case("R10", "R17")
@pytest.mark.parametrize(
    ("code", "status", "signal"),
    [
        ("os.kill(os.getpid(), 40)", Status.FAILED, "SIG40"),
        ("os.kill(os.getpid(), 15)", Status.KILLED, "SIGTERM"),
        (
            "for n in (2, 17):\n  try: os.kill(1, n)\n  except PermissionError: pass\nprint('on')",
            Status.SUCCEEDED,
            None,
        ),
        ("os.kill(0, 2); import time; time.sleep(1)", Status.FAILED, None),
    ],
)
async def test_any_signal_is_told_as_it_is(
    runtime: Runtime, workspace: Workspace, code: str, status: Status, signal: str | None
) -> None:
    done = await attack_with(runtime, workspace, f"import os\n{code}")
    assert (done.status, done.signal) == (status, signal), done


@pytest.mark.case("R16")
async def test_closed_mounts_and_a_hostile_report_lose_nothing(runtime: Runtime, workspace: Workspace) -> None:
    code = (
        "import os\nopen('kept.txt', 'w').write('kept')\n"
        "os.mkfifo('/run/report/traceback.txt'); os.symlink('/etc/passwd', '/run/report/error.json')\n"
        "open('/run/report/x', 'w').close(); os.chmod('/run/report/x', 0)\n"
        "os.chmod('/run/report', 0); os.chmod('/workspace', 0)\nos._exit(3)"
    )
    done = await attack_with(runtime, workspace, code)
    assert (done.status, done.exit_code) == (Status.FAILED, 3)
    assert workspace.read_bytes("kept.txt") == b"kept"


@pytest.mark.case("R11")
async def test_nothing_in_the_report_costs_the_service_a_descriptor(runtime: Runtime, workspace: Workspace) -> None:
    code = "import os\nfor n in range(6): os.mkdir(f'/run/report/d{n}')"
    await attack_with(runtime, workspace, code)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        assert (await attack_with(runtime, workspace, code)).status is Status.SUCCEEDED
    # Each would have cost six; an nsjail that is just being started ahead has a dozen.
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 30


@pytest.mark.case("R13")
async def test_links_and_devices_are_never_followed(
    runtime: Runtime, workspaces: Workspaces, workspace: Workspace, tmp_path: Path
) -> None:
    secret = tmp_path / "host-secret.txt"
    secret.write_text(SECRET)
    code = (
        f"import os, socket\nos.symlink({str(secret)!r}, 'to-host.txt')\nos.symlink('/etc', 'folder')\n"
        "os.symlink('../../other/files', 'results2')\nos.mkfifo('fifo.docx')\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('sock')\n"
        "open('first.txt', 'w').write('one'); os.link('first.txt', 'second.txt')\n"
        "os.rename('scripts', 'old'); os.symlink('/', 'scripts')\n"
    )
    done = await attack_with(runtime, workspace, code)
    reasons = {skipped.path: skipped.reason for skipped in done.skipped}
    assert set(reasons) == {"to-host.txt", "folder", "results2", "fifo.docx", "sock", "second.txt", "scripts"}
    assert "symbolic link" in reasons["to-host.txt"]
    assert "FIFO" in reasons["fifo.docx"]
    assert "hard link to first.txt" in reasons["second.txt"]
    assert workspace.read_bytes("first.txt") == b"one"
    # The service goes on to write where the script had put a link.
    assert workspace.write_script("print(1)").startswith("scripts/")
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.case("R13")
async def test_a_link_on_the_hosts_disk_is_not_followed_either(workspace: Workspace, tmp_path: Path) -> None:
    """No run can put one there; should another hand do so, nothing is read or written through it."""
    workspace.make()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f.txt").write_text(SECRET)
    files = tmp_path / "workspaces" / "w" / "files"
    (files / "link").symlink_to(tmp_path / "outside")
    (files / "file.txt").symlink_to(tmp_path / "outside" / "f.txt")
    for path in ("link/f.txt", "file.txt"):
        assert not workspace.exists(path)
    with pytest.raises(Exception, match="refused"):
        workspace.write("link/new.txt", b"x")
    workspace.write("file.txt", b"mine")
    assert (tmp_path / "outside" / "f.txt").read_text() == SECRET
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["f.txt"]


async def test_the_guest_is_an_unprivileged_user_of_the_host(
    runtime: Runtime, workspace: Workspace, is_gvisor: bool
) -> None:
    seen: list[str] = []

    def look(_: str, data: bytes) -> None:
        """The guest has printed that it is there: find its process on the host, and whose it is."""
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                if b"sleeper-of-the-test" in (status.parent / "cmdline").read_bytes():
                    seen.extend(line for line in status.read_text().splitlines() if line.startswith(("Uid", "Groups")))
            except OSError:
                continue

    code = (
        "import os, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(9)', 'sleeper-of-the-test'])\n"
        "time.sleep(0.5); p.kill(); print(os.getuid())"
    )
    workspace.write("scripts/attack.py", code.encode())
    job = Job(script_path="/workspace/scripts/attack.py")
    done = await runtime.run(job, workspace, run_id="ids", on_output=look)
    is_container = runtime.name.startswith("docker")
    uid = done.stdout.text.removeprefix("1\n").rstrip()
    assert int(uid) in CONTAINER_UIDS if is_container else uid == str(GUEST_UID)
    if is_gvisor:  # its processes are not the host's
        assert seen == []
        return
    with process_identities().one() as identity:
        pass
    if os.geteuid() == 0 or is_container:
        assert int(seen[0].split()[1]) >= 2_000_000_000
    else:
        assert seen[0].split()[1:] == [str(identity.uid)] * 4
    assert identity.uid != 0
    assert "0" not in seen[1].split()[1:]
