"""Fixtures: runtimes that are really there, workspaces in a temporary folder, a toolbox over both.

REQUIRE_RUNTIMES=nsjail,… turns the skip of a missing runtime into a failure; with `cgroups` in it, nsjail without control
groups is a failure too.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandbox import guest_root
from sandbox.attachments import Attachments
from sandbox.catalog import Catalog
from sandbox.documents.check import libraries_in
from sandbox.errors import SpillboxError
from sandbox.guest_root import GuestRoot
from sandbox.job import Execution, Job, Limits
from sandbox.records import Records
from sandbox.runtimes import cgroups, container_image
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.container import Engine
from sandbox.runtimes.containers import ContainerSettings, DockerRuntime
from sandbox.runtimes.none import NoRuntime
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.warm import WarmRuntime
from sandbox.tools.toolbox import Toolbox
from sandbox.workspace import Disk, Workspace, Workspaces

DATA_FOLDER = Path(os.environ.get("SPILLBOX_DATA_DIR", ".spillbox"))
REQUIRED = [name for name in os.environ.get("REQUIRE_RUNTIMES", "").split(",") if name]

# The second of each is what an ordinary user without delegated control groups gets; as root too, so that all are tested everywhere.
MAKERS: dict[str, Callable[[GuestRoot, Path], Runtime]] = {
    "nsjail": lambda root, _: NsjailRuntime(root),
    "nsjail-rlimits": lambda root, _: NsjailRuntime(root, use_cgroups=False),
    "warm": WarmRuntime,
    "warm-rlimits": lambda root, folder: WarmRuntime(root, folder, use_cgroups=False),
    "docker": lambda root, _: docker_runtime(root),
    "docker+runsc": lambda root, _: docker_runtime(root, runtime="runsc"),
}


SURFACES_OVER = os.environ.get("SURFACES_OVER", "nsjail")
"""One of `MAKERS`: what toolboxes and services of tests run scripts in."""
IMAGE = f"{container_image.IMAGE_NAME}:tests"


def docker_runtime(root: GuestRoot, **settings: Any) -> DockerRuntime:
    """Containers of an image of this guest root."""
    engine = Engine()
    need_image(engine, root)
    return DockerRuntime(ContainerSettings(image=IMAGE, **settings), engine=engine)


def need_image(engine: Engine, root: GuestRoot) -> None:
    """Make the image if it is not there."""
    with _image_lock:
        container_image.ensure(engine, IMAGE, root)


_image_lock = threading.Lock()

OTHERS = ("node", "clients", "fuzz", "browser", "images", "bundle")
"""What some tests need besides: programs that are not ours (`scripts/others.sh`; a browser is Chromium), the images, the bundle."""


def jail_pids() -> set[int]:
    """Processes of runs, on the whole machine: process 1 of each jail in which a script runs now, and the script's, its fork.

    Of a container only what it forks for a run. gVisor's are processes of another kernel, and not seen.
    """
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            is_ours = any(name in command for name in (b"/opt/spillbox/init.pyc", b"/opt/spillbox/launcher.pyc"))
            if b"/opt/spillbox/worker.pyc" in command and not _is_first_of_its_namespace(process):
                found.add(int(process.name))
            # A launcher, and a jail that stands spare, still see what is hidden from a run.
            if is_ours and " /run/launcher " not in (process / "mountinfo").read_text():
                found.add(int(process.name))
        except OSError:
            continue
    return found


def _is_first_of_its_namespace(process: Path) -> bool:
    ids = next(line for line in (process / "status").read_text().splitlines() if line.startswith("NSpid:"))
    return ids.split()[-1] == "1"


Run = Callable[..., Coroutine[Any, Any, Execution]]


def pytest_configure() -> None:
    there = (*MAKERS, "cgroups", *OTHERS)
    unknown = [name for name in REQUIRED if name not in there]
    if unknown:
        raise pytest.UsageError(f"REQUIRE_RUNTIMES names {', '.join(unknown)}; there are {', '.join(there)}")


def unavailable(name: str, why: object) -> None:
    """Skip what needs a runtime, or other programs, that are not here; fail if they are required."""
    if name in REQUIRED:
        pytest.fail(f"{name} is required and is not here: {why}")
    pytest.skip(f"{name} is not here: {why}")


@pytest.fixture(scope="session")
def root() -> GuestRoot:
    try:
        return guest_root.load(DATA_FOLDER / "guest-root")
    except SpillboxError as why:
        unavailable("nsjail", why)
        raise


@pytest.fixture(scope="session", params=MAKERS)
def runtime(
    request: pytest.FixtureRequest, root: GuestRoot, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    """Every runtime that this machine has."""
    made = make_runtime(request.param, root, tmp_path_factory.getbasetemp())
    yield made
    asyncio.run(made.close())


def make_runtime(name: str, root: GuestRoot, folder: Path) -> Runtime:
    """One of `MAKERS`, ready; what needs it is skipped, or fails, where it can't be."""
    if name.endswith("-rlimits"):
        host, _ = cgroups.find_for_service()
        if host is None:
            pytest.skip(f"without control groups {name} is {name.removesuffix('-rlimits')}, which is tested")
        host.close()
    try:
        made = MAKERS[name](root, folder)
    except SpillboxError as why:
        unavailable(name, why)
        raise
    asyncio.run(made.ready())
    if made not in made.parts:
        unavailable(name, made.warnings)
    if "cgroups" in REQUIRED and "rlimits" not in name and "runsc" not in name and made.warnings:
        pytest.fail(f"control groups are required and are not here: {made.warnings[0]}")
    return made


@pytest.fixture(scope="session")
def has_cgroups(runtime: Runtime) -> bool:
    return not any("control groups" in warning for warning in runtime.warnings)


@pytest.fixture(scope="session")
def is_gvisor(runtime: Runtime) -> bool:
    """Whether guests run on another kernel, which has ways of its own; SECURITY.md lists them."""
    return "runsc" in runtime.name


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    return Workspaces(tmp_path / "workspaces")


@pytest.fixture
def workspace(workspaces: Workspaces) -> Workspace:
    return workspaces.open("w")


@pytest.fixture
def run(runtime: Runtime, workspace: Workspace) -> Run:
    """Run a script's text in the one workspace: ``await run("print(1)", "argument", wall_seconds=5)``."""
    return runner(runtime, workspace)


def runner(runtime: Runtime, workspace: Workspace) -> Run:
    async def run_text(
        code: str | bytes, *arguments: str, name: str = "scripts/script.py", on_output: Any = None,
        may_be_cold: bool = False, **limits: Any,
    ) -> Execution:  # fmt: skip
        source = code if isinstance(code, bytes) else code.encode()
        workspace.write(name, source)
        job = Job(
            script_path=f"/workspace/{name}",
            arguments=arguments,
            limits=Limits(**limits),
            libraries=libraries_in(source),
        )
        done = await runtime.run(job, workspace, run_id="r", on_output=on_output)
        assert may_be_cold or done.runtime == runtime.name
        return done

    return run_text


@pytest.fixture
async def toolbox(root: GuestRoot, tmp_path: Path) -> AsyncIterator[Toolbox]:
    async with make_toolbox(root, tmp_path) as box:
        yield box


def make_toolbox(root: GuestRoot, folder: Path, *, limits: Limits | None = None, **settings: Any) -> Toolbox:
    """A toolbox over a folder, with runs in what is asked for."""
    place = folder / "workspaces"
    place.mkdir(parents=True, exist_ok=True)  # the launchers of warm jails mount it
    runtime = MAKERS[SURFACES_OVER](root, place)
    with ThreadPoolExecutor(
        1
    ) as apart:  # there may be a loop here already; until it is ready a warm one runs in nsjail
        apart.submit(lambda: asyncio.run(runtime.ready())).result()
    return box_over(folder, runtime=runtime, guest=root, limits=limits, **settings)


def box_over(
    folder: Path, *, runtime: Runtime | None = None, guest: GuestRoot | None = None, limits: Limits | None = None,
    disk: Disk | None = None, **settings: Any,
) -> Toolbox:  # fmt: skip
    """A toolbox over a folder with any runtime; without one it runs no scripts."""
    records = Records.in_folder(folder)
    catalog = Catalog(records.database)
    disk = disk or Disk(folder)
    return Toolbox(
        workspaces=Workspaces(
            folder / "workspaces", limits=limits or Limits(), disk=disk, expired_at=catalog.expired_at
        ),
        runtime=runtime or NoRuntime(),
        records=records,
        catalog=catalog,
        attachments=Attachments(folder / "attachments", catalog, disk),
        guest=guest,
        **settings,
    )


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Toolbox]:
    """A toolbox that runs no scripts."""
    async with box_over(tmp_path) as made:
        yield made
