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

from sandbox.errors import GuestRootMissing, JailFailed
from sandbox.guest_root import GuestRoot
from sandbox.job import Status
from sandbox.runtimes import container_image
from sandbox.runtimes.container import SERVICE_LABEL, Engine
from sandbox.runtimes.containers import ContainerSettings, DockerRuntime
from sandbox.workspace import Workspace, Workspaces
from tests.conftest import docker_runtime, make_runtime, runner


@pytest.fixture
async def docker(root: GuestRoot, tmp_path: Path) -> AsyncIterator[DockerRuntime]:
    made = await asyncio.to_thread(make_runtime, "docker", root, tmp_path)
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
