"""Containers of the Docker runtime: kept while they are used, gone after, and a script runs once whatever happens to them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import GuestRootMissing, JailFailed, JailLost
from sandbox.guest import frames
from sandbox.guest_root import GuestRoot
from sandbox.job import Status
from sandbox.runtimes import container_image, container_session
from sandbox.runtimes.container import SERVICE_LABEL, Container, Engine
from sandbox.runtimes.containers import ContainerSettings, DockerRuntime
from sandbox.workspace import Workspace, Workspaces
from tests.conftest import docker_runtime, make_runtime, runner


@pytest.fixture
async def docker(root: GuestRoot, tmp_path: Path) -> AsyncIterator[DockerRuntime]:
    made = await asyncio.to_thread(make_runtime, "docker", root, tmp_path)
    assert isinstance(made, DockerRuntime)
    yield made
    await made.close()


@pytest.fixture(params=["docker", "docker+runsc"])
async def kind(request: pytest.FixtureRequest, root: GuestRoot, tmp_path: Path) -> AsyncIterator[DockerRuntime]:
    """With Linux's kernel below the containers, and with gVisor's."""
    made = await asyncio.to_thread(make_runtime, request.param, root, tmp_path)
    assert isinstance(made, DockerRuntime)
    yield made
    await made.close()


def containers_of(runtime: DockerRuntime) -> set[str]:
    """Those that belong to this process."""
    found = runtime._engine.ask("containers", all=True, filters={"label": SERVICE_LABEL})
    return {one["Id"] for one in found if one["Labels"][SERVICE_LABEL].rpartition("/")[2].startswith(f"{os.getpid()}-")}


async def until(holds: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_a_container_is_kept_for_its_workspace_and_goes_after_idling(
    root: GuestRoot, docker: DockerRuntime, workspaces: Workspaces
) -> None:
    before = containers_of(docker)
    runtime = docker_runtime(root, idle_seconds=3)
    one, other = runner(runtime, workspaces.open("one")), runner(runtime, workspaces.open("other"))
    await one("print(1)")
    mine = containers_of(docker) - before
    assert len(mine) == 1
    assert (await one("print(2)")).stdout.text == "2\n"
    assert containers_of(docker) - before == mine
    await other("print(3)")
    assert len(containers_of(docker) - before) == 2
    await until(lambda: containers_of(docker) == before)
    assert (await one("print(4)")).stdout.text == "4\n"
    await runtime.close()
    assert containers_of(docker) == before


async def test_no_more_containers_stand_than_allowed(
    root: GuestRoot, docker: DockerRuntime, workspaces: Workspaces
) -> None:
    before = containers_of(docker)
    runtime = docker_runtime(root, containers=2)
    for number in range(4):
        done = await runner(runtime, workspaces.open(f"w{number}"))("print(1)")
        assert done.status is Status.SUCCEEDED
        await until(lambda: len(containers_of(docker) - before) <= 2)
    await runtime.close()


async def test_a_container_that_was_killed_while_idle_costs_no_run(docker: DockerRuntime, workspace: Workspace) -> None:
    run = runner(docker, workspace)
    before = containers_of(docker)
    await run("print(1)")
    for mine in containers_of(docker) - before:
        docker._engine.remove(mine)
    assert (await run("print(2)")).stdout.text == "2\n"


async def test_a_container_that_is_killed_under_a_run_ends_it_and_the_script_is_not_run_again(
    docker: DockerRuntime, workspace: Workspace
) -> None:
    before, began = containers_of(docker), asyncio.Event()
    seen: list[bytes] = []

    def look(_: str, data: bytes) -> None:
        seen.append(data)
        began.set()

    running = asyncio.create_task(
        runner(docker, workspace)("import time\nprint('here', flush=True)\ntime.sleep(60)", on_output=look)
    )
    await asyncio.wait_for(began.wait(), 30)
    for mine in containers_of(docker) - before:
        docker._engine.remove(mine)
    done = await running
    assert done.status is Status.KILLED
    assert b"".join(seen) == b"here\n"


async def test_a_cancelled_run_leaves_no_container_behind(docker: DockerRuntime, workspace: Workspace) -> None:
    before = containers_of(docker)
    for seconds in (0.01, 0.2, 0.6):
        running = asyncio.create_task(runner(docker, workspace)("import time\ntime.sleep(60)"))
        await asyncio.sleep(seconds)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await until(lambda: containers_of(docker) == before)


async def test_a_cancel_waits_for_no_engine_on_the_event_loop(
    docker: DockerRuntime, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(container_id: str) -> None:
        time.sleep(2)
        real(container_id)

    real = docker._engine.api.kill
    monkeypatch.setattr(docker._engine.api, "kill", kill)
    began = asyncio.Event()
    running = asyncio.create_task(
        runner(docker, workspace)("print(1, flush=True)\nwhile True: pass", on_output=lambda *_: began.set())
    )
    await asyncio.wait_for(began.wait(), 30)
    running.cancel()
    slowest, last = 0.0, time.monotonic()
    while not running.done():
        await asyncio.sleep(0.02)
        slowest, last = max(slowest, time.monotonic() - last), time.monotonic()
    assert running.cancelled()
    assert slowest < 1


FILES = "for n in range(60): open(f'{n}', 'w').write(str(n))\nopen('old', 'w').write('new')"


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_files_are_taken_all_or_none(
    docker: DockerRuntime, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    loop, ends = asyncio.get_running_loop(), 0

    def receive(container: Container, seconds: float) -> tuple[int, bytes]:
        nonlocal ends
        kind, payload = real(container, seconds)
        ends += kind == frames.END
        if ends == 30 and kind == frames.END:  # in the middle of the files
            if is_cancelled:
                loop.call_soon_threadsafe(running.cancel)
                time.sleep(0.2)
            else:
                docker._engine.remove(container.id)
        return kind, payload

    workspace.write("old", b"old")
    real = Container.receive
    monkeypatch.setattr(Container, "receive", receive)
    running = asyncio.create_task(runner(docker, workspace)(FILES))
    await asyncio.wait([running], timeout=60)
    assert ends >= 30
    left = {info.path for info in workspace.list_files()} - {"scripts/script.py"}
    assert workspace.read_bytes("old") == b"old"
    assert list(workspace.spool_folder.iterdir()) == []
    if is_cancelled:
        assert running.cancelled()
        assert left == {"old"}
    else:
        done = running.result()
        assert (done.status, done.files) == (Status.KILLED, ())
        assert done.error is not None
        assert "all files are as before" in done.error.message
        assert left == {"old", done.error.traceback_path}


@pytest.mark.parametrize("size", [2, 4])
async def test_a_file_that_does_not_come_as_it_was_listed_is_not_taken(
    docker: DockerRuntime, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def receive(container: Container, seconds: float) -> tuple[int, bytes]:
        kind, payload = real(container, seconds)
        return kind, payload.ljust(size, b"-")[:size] if (kind, payload) == (frames.DATA, b"new") else payload

    workspace.write("old", b"old")
    real = Container.receive
    monkeypatch.setattr(Container, "receive", receive)
    done = await runner(docker, workspace)("open('old', 'w').write('new')")
    assert (done.status, done.files) == (Status.KILLED, ())
    assert workspace.read_bytes("old") == b"old"


async def test_a_container_that_is_lost_after_a_stop_is_told(
    docker: DockerRuntime, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(container: Container, seconds: float) -> tuple[int, bytes]:
        kind, payload = real(container, seconds)
        return kind, b"off" if kind == frames.DONE else payload

    real = Container.receive
    monkeypatch.setattr(Container, "receive", receive)
    done = await runner(docker, workspace)("import time\nopen('a', 'w').close()\ntime.sleep(60)", wall_seconds=1)
    assert (done.status, done.files) == (Status.TIMED_OUT, ())
    assert done.error is not None
    assert "The container was lost too: nothing that it wrote was taken." in done.error.message


async def test_gvisor_lets_nobody_write_to_stderr_of_process_1_unseen(
    root: GuestRoot, tmp_path: Path, workspace: Workspace
) -> None:
    runtime = await asyncio.to_thread(make_runtime, "docker+runsc", root, tmp_path)
    done = await runner(runtime, workspace)(
        "import os, time\ntry: os.write(os.open('/proc/1/fd/2', os.O_WRONLY), b'mine')\n"
        "except OSError: print('refused')\ntime.sleep(2)"
    )
    await runtime.close()
    assert done.status is Status.KILLED or done.stdout.text == "refused\n"


@pytest.mark.parametrize("way", ["mode", "path"])
async def test_no_folder_hides_files_from_being_counted(kind: DockerRuntime, workspace: Workspace, way: str) -> None:
    workspace.write("z.txt", b"old")
    hide = "os.mkdir('in'); os.chdir('in')"
    if way == "path":
        hide = "\nfor n in range(20): os.mkdir('d' * 250); os.chdir('d' * 250)"
    done = await runner(kind, workspace)(
        f"import os\n{hide}\nfor n in range(10_500):\n  try: os.close(os.open(f'{{n}}', os.O_CREAT))\n"
        "  except OSError as fault: print(fault.errno); break\nos.chmod('.', 0o300)"
    )
    assert done.status is Status.DISK_FULL or done.stdout.text == "28\n"
    assert workspace.read_bytes("z.txt") == b"old"
    assert len(workspace.list_files()) <= workspace.limits.workspace_files


@pytest.mark.parametrize(
    "path", [b"results/0001-x.json", b"errors", b"a/__pycache__/x.pyc", b"../x", b"/x", b"a//b", b"a\0", b"n" * 256]
)
def test_a_path_that_no_run_may_change_is_refused_whoever_names_it(path: bytes) -> None:
    leave_out = frozenset({b"results", b"errors"})
    with pytest.raises(JailLost, match="a path that no run may change"):
        container_session._checked(frames.encode_entry(0o100644, 1, 1, 1, path), leave_out)
    assert container_session._checked(frames.encode_entry(0o100644, 1, 1, 1, b"a/results"), leave_out)[0] == (
        b"a",
        b"results",
    )


_DONE = (
    '{"wait_status": 0, "cpu_seconds": 0.1, "max_memory_bytes": 1, "stopped": "", "oom_kills": 0, "refused_forks": 0, '
    '"has_too_many_files": false, "is_full": false}'
)


def _saying(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """Have every run's last word be this."""

    def receive(container: Container, seconds: float) -> tuple[int, bytes]:
        kind, payload = real(container, seconds)
        return kind, said if kind == frames.DONE else payload

    real = Container.receive
    monkeypatch.setattr(Container, "receive", receive)


@pytest.mark.parametrize(
    "said",
    [
        "[" * 100_000, "[]", "{}", "1" * 5000, _DONE.replace("0.1", "Infinity"), _DONE.replace("0.1", "1e400"),
        _DONE.replace('"wait_status": 0', '"wait_status": 65536'), _DONE.replace('"oom_kills": 0', '"oom_kills": -1'),
        _DONE.replace(": 1,", ": -1,"), _DONE.replace('"has_too_many_files": false, ', ""),
    ],
)  # fmt: skip
async def test_what_no_worker_says_at_the_end_of_a_run_ends_it_as_killed(
    docker: DockerRuntime, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    assert said != _DONE
    _saying(monkeypatch, said.encode())
    done = await runner(docker, workspace)("print(1)")
    assert (done.status, done.stdout.text) == (Status.KILLED, "1\n")


async def test_what_a_worker_says_at_the_end_of_a_run_is_taken(
    docker: DockerRuntime, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _saying(monkeypatch, _DONE.encode())
    done = await runner(docker, workspace)("print(1)")
    assert (done.status, done.usage.cpu_seconds) == (Status.SUCCEEDED, 0.1)


async def test_a_limit_is_told_as_such_though_no_file_could_be_taken(
    docker: DockerRuntime, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entries(*_: Any) -> Any:
        raise JailLost("It is gone.")

    workspace.write("a.txt", b"old")
    monkeypatch.setattr(container_session.ContainerTree, "entries", entries)
    code = "open('a.txt', 'w').write('new')\n"
    done = await runner(docker, workspace)(code + "while True: pass", wall_seconds=1)
    assert (done.status, done.files) == (Status.TIMED_OUT, ())
    assert done.error is not None
    assert "after 1 s" in done.error.message
    assert "What it wrote could not be taken, and all files are as before. It is gone." in done.error.message
    done = await runner(docker, workspace)(code)
    assert done.status is Status.KILLED
    assert done.error is not None
    assert done.error.message.startswith("It ended. What it wrote could not be taken, and all files are as before.")
    assert workspace.read_bytes("a.txt") == b"old"


async def test_a_run_stopped_for_its_time_with_too_many_files_is_told_both(
    kind: DockerRuntime, workspace: Workspace
) -> None:
    workspace.write("z.txt", b"old")
    done = await runner(kind, workspace)(
        "import os\nos.mkdir('in'); os.chmod('in', 0o300); os.chdir('in')\nfor n in range(10_500):\n"
        "  try: os.close(os.open(f'{n}', os.O_CREAT))\n  except OSError: break\nwhile True: pass",
        wall_seconds=8,
    )
    assert done.error is not None
    assert "after 8 s" in done.error.message
    if "more than 10,000 files" in done.error.message:  # with Linux's kernel there is no room for them
        assert (done.status, done.files) == (Status.TIMED_OUT, ())
    assert workspace.read_bytes("z.txt") == b"old"
    assert len(workspace.list_files()) <= workspace.limits.workspace_files


def test_a_container_that_can_not_be_removed_keeps_no_service_from_its_start(
    docker: DockerRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def remove(container_id: str) -> None:
        if container_id == "stuck":
            raise JailFailed("Docker could not remove a container: it is stuck")
        removed.append(container_id)

    removed: list[str] = []
    found = [{"Id": name, "Labels": {SERVICE_LABEL: "gone"}} for name in ("stuck", "left")]
    monkeypatch.setattr(docker._engine, "ask", lambda *_, **__: found)
    monkeypatch.setattr(docker._engine, "remove", remove)
    assert docker._engine.reap(lambda _: False) == 1
    assert removed == ["left"]
    assert "it is stuck" in caplog.text


LARGE_REPORT = (
    "import os\nfor name in ('error.json', 'a', 'b', 'c', 'd', 'e'):\n"
    "  fd = os.open('/run/report/' + name, os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 60 << 20)\nos._exit(3)"
)


async def test_a_large_report_is_cut_and_holds_nobody_up(kind: DockerRuntime, workspaces: Workspaces) -> None:
    one, other = (runner(kind, workspaces.open(name)) for name in ("one", "other"))
    await other("print(1)")
    began = time.monotonic()
    done, others = await asyncio.gather(one(LARGE_REPORT), other("print(2)"))
    assert (done.status, done.exit_code, others.stdout.text) == (Status.FAILED, 3, "2\n")
    assert time.monotonic() - began < 30


async def test_a_container_that_is_lost_with_output_unread_ends_its_run_at_once(
    docker: DockerRuntime, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(container: Container, seconds: float) -> tuple[int, bytes]:
        kind, payload = real(container, seconds)
        if kind == frames.OUT:
            time.sleep(1)  # what the script prints meanwhile fills the engine's buffers
            raise JailLost("It did not keep to its protocol.")
        return kind, payload

    real = Container.receive
    monkeypatch.setattr(Container, "receive", receive)
    began = time.monotonic()
    done = await runner(docker, workspace)("while True: print('x' * 100_000)")
    assert (done.status, time.monotonic() - began < 20) == (Status.KILLED, True)


async def test_a_place_that_stays_taken_after_the_wipe_costs_the_next_run_nothing(
    kind: DockerRuntime, workspace: Workspace
) -> None:
    run = runner(kind, workspace)
    await run(
        "import os, socket\nfile = os.open('/tmp/large', os.O_CREAT | os.O_RDWR); os.unlink('/tmp/large')\n"
        "for _ in range(60): os.write(file, b'y' * (1 << 20))\n"
        "a, b = socket.socketpair()\n"
        "for _ in range(5):\n"
        "  for one in (a, b): socket.send_fds(one, [b'x'], [a.fileno(), b.fileno(), file])"
    )
    free = await run("import os\nprint(os.statvfs('/tmp').f_bavail)")
    assert int(free.stdout.text) == (64 << 20) // 4096


async def test_files_are_bounded_everywhere(kind: DockerRuntime, workspace: Workspace) -> None:
    run = runner(kind, workspace)
    code = (
        "import time\nfor n in range(200_000):\n  try: open(f'/tmp/{n}', 'w').close()\n"
        "  except OSError as fault: print(fault.errno); time.sleep(1); break"
    )
    done = await run(code)
    assert done.status is Status.DISK_FULL or done.stdout.text == "28\n"
    assert (await run("print(2)")).stdout.text == "2\n"


async def test_a_run_that_makes_too_many_files_costs_no_older_file(kind: DockerRuntime, workspace: Workspace) -> None:
    for path in ("a/old.txt", "z.txt"):
        workspace.write(path, b"old")
    done = await runner(kind, workspace)(
        "import time\nfor n in range(10_500):\n  try: open(f'a/{n}', 'w').close()\n"
        "  except OSError as fault: print(fault.errno); break\ntime.sleep(2)"
    )
    assert done.status is Status.DISK_FULL or done.stdout.text == "28\n"
    assert [workspace.read_bytes(path) for path in ("a/old.txt", "z.txt")] == [b"old", b"old"]


async def test_processor_time_of_children_that_nobody_waits_for_is_counted(
    docker: DockerRuntime, workspace: Workspace
) -> None:
    done = await runner(docker, workspace)(
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n  while time.process_time() < 1: pass\n  os._exit(0)\n"
        "try: os.wait()\nexcept ChildProcessError: pass"
    )
    assert (done.usage.cpu_seconds or 0) > 0.9


async def test_two_services_of_one_engine_never_have_one_uid(
    root: GuestRoot, docker: DockerRuntime, workspaces: Workspaces
) -> None:
    other = docker_runtime(root)
    await runner(docker, workspaces.open("one"))("print(1)")
    await runner(other, workspaces.open("other"))("print(1)")
    ask = docker._engine.ask
    users = [
        ask("inspect_container", one["Id"])["Config"]["User"]
        for one in ask("containers", filters={"label": SERVICE_LABEL})
    ]
    assert len(users) == len(set(users)) >= 2
    await other.close()


async def test_there_are_no_terminals_and_no_queues(docker: DockerRuntime, workspace: Workspace) -> None:
    done = await runner(docker, workspace)(
        "import os\nprint(os.listdir('/dev/pts'), os.listdir('/dev/mqueue'))\n"
        "for path in ('/dev/ptmx', '/dev/pts/a', '/dev/mqueue/a'):\n"
        "  try: os.open(path, os.O_RDWR | os.O_CREAT); print(path)\n"
        "  except OSError: pass"
    )
    assert done.stdout.text == "[] []\n"


SERVICE = """
import asyncio, sys, time
from pathlib import Path
from sandbox import guest_root
from sandbox.workspace import Workspaces
from tests.conftest import docker_runtime, runner
runtime = docker_runtime(guest_root.load(Path(sys.argv[1])))
said = lambda *_: print("here", flush=True)
run = runner(runtime, Workspaces(Path(sys.argv[2])).open("w"))
asyncio.run(run("import time\\nprint(1, flush=True)\\ntime.sleep(600)", wall_seconds=600, on_output=said))
"""


async def test_a_killed_service_leaves_nothing_running_and_the_next_one_removes_the_rest(
    root: GuestRoot, docker: DockerRuntime, tmp_path: Path
) -> None:
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(root.path), str(tmp_path / "workspaces")], stdout=subprocess.PIPE
    )
    assert service.stdout is not None
    with service.stdout:
        assert service.stdout.readline() == b"here\n"
    engine = Engine()

    def theirs() -> list[dict[str, Any]]:
        found = engine.ask("containers", all=True, filters={"label": SERVICE_LABEL})
        return [one for one in found if f"/{service.pid}-" in one["Labels"][SERVICE_LABEL]]

    assert [one["State"] for one in theirs()] == ["running"]
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    await until(lambda: [one["State"] for one in theirs()] == ["exited"])
    await docker_runtime(root).close()
    assert theirs() == []
    engine.close()


def test_an_oci_runtime_that_docker_does_not_know_is_never_replaced(docker: DockerRuntime) -> None:
    settings = docker.settings.model_copy(update={"runtime": "no-such-runtime"})
    with pytest.raises(JailFailed, match=r"does not know the runtime 'no-such-runtime'.*no falling back"):
        DockerRuntime(settings)


@pytest.mark.parametrize(
    ("name", "repository", "tag"),
    [
        ("spillbox-runtime", "spillbox-runtime", "latest"),
        ("spillbox-runtime:2", "spillbox-runtime", "2"),
        ("registry.example:5000/x/runtime", "registry.example:5000/x/runtime", "latest"),
        ("registry.example:5000/x/runtime:2", "registry.example:5000/x/runtime", "2"),
    ],
)
def test_an_image_may_be_a_registrys(name: str, repository: str, tag: str) -> None:
    assert container_image._parts_of(name) == (repository, tag)


def test_an_image_that_is_made_anew_leaves_none_behind_but_what_has_another_name(
    docker: DockerRuntime, tmp_path: Path
) -> None:
    engine, name = docker._engine, "spillbox-runtime:replaced"
    small = GuestRoot(path=tmp_path, python_version="3", libraries={})
    (tmp_path / "file").touch()
    try:
        made = []
        for _ in range(3):
            container_image.make(engine, name, small)
            made += engine.ask("images", name=name, quiet=True)
            if len(made) == 2:
                engine.ask("tag", made[1], "spillbox-runtime", tag="replaced-kept")
        left = set(engine.ask("images", quiet=True))
        assert [one in left for one in made] == [False, True, True]
    finally:
        for tag in (name, f"{name}-kept"):
            engine.ask("remove_image", tag)


def test_a_missing_image_and_a_missing_engine_are_told_with_the_cure(docker: DockerRuntime, tmp_path: Path) -> None:
    with pytest.raises(GuestRootMissing, match="spillbox setup"):
        DockerRuntime(ContainerSettings(image="spillbox-runtime:never-made"), engine=docker._engine)
    with pytest.raises(JailFailed, match="Start its daemon"):
        DockerRuntime(docker.settings, engine=Engine(f"unix://{tmp_path}/none.sock"))
