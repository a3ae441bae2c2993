"""The Docker runtime: a container for each workspace that is in use, with a warm interpreter that forks for each run.

A container is made at the first run in a workspace, kept while there are more, and removed after idling. It is the wall of
its runs. With gVisor as the engine's OCI runtime, another kernel stands between it and the host's.
"""

import asyncio
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from sandbox.errors import JailFailed, JailLost
from sandbox.guest_root import CONTAINER_UIDS
from sandbox.job import Execution, Job, Limits, Value
from sandbox.runtimes import container_image, seccomp
from sandbox.runtimes.answer import answer
from sandbox.runtimes.base import Inspection, Runtime, Standing
from sandbox.runtimes.container import Container, ContainerWalls, Engine, UidTaken, label_lives
from sandbox.runtimes.container_session import ContainerSession
from sandbox.runtimes.session import Outcome, let_go
from sandbox.runtimes.shadows import shadows
from sandbox.runtimes.streams import OnOutput
from sandbox.threads import on_thread
from sandbox.workspace import READ_ONLY_FOLDERS, Workspace

_log = logging.getLogger(__name__)

GVISOR = "runsc"
_MAX_RUNS = 64
_TRIES = 3
_TIDY_SECONDS = 2
"""How long a run waits for the container of the one before, rather than for a new one."""
_ROOTLESS_UIDS = range(65_534 - len(CONTAINER_UIDS), 65_534)
"""An engine without privilege has no more ids than these."""
_OF_GVISOR = (
    "Weaker limits: gVisor's kernel counts no processes and no processor time of a container for us, so who went over a process "
    "limit is not counted, processor time is bounded for each process by itself, and the memory of all of a run's processes and "
    "the number of files are bounded by a look at them now and then. To mend it, use the runtime warm or docker, whose kernel "
    "control groups hold them."
)


class ContainerSettings(Value):
    """How containers are made and kept; see `api/settings.py` for what each means."""

    image: str = f"{container_image.IMAGE_NAME}:latest"
    runtime: str | None = None
    idle_seconds: float = Field(120, gt=0)
    containers: int = Field(32, ge=1, le=len(CONTAINER_UIDS))
    cpus: float = Field(1, gt=0)


class DockerRuntime:
    """Runs each job in a container of its workspace. Same answers, limits and walls as the other runtimes."""

    starts_cold = False

    def __init__(
        self, settings: ContainerSettings = ContainerSettings(), *, engine: Engine | None = None,  # noqa: B008  frozen
        changes: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``changes`` are fields of `ContainerWalls` to replace, for tests and for `doctor`, whose controls lack one wall.

        Raises `JailFailed` where there is no Docker, or not this runtime; `GuestRootMissing` without the image.
        """
        self.name = "docker" if settings.runtime is None else f"docker+{settings.runtime}"
        self.settings = settings
        self._engine = engine or Engine()
        self._engine.require(settings.runtime)
        image_id, self.guest = container_image.find(self._engine, settings.image)
        is_gvisor = settings.runtime is not None and GVISOR in settings.runtime
        self.warnings: tuple[str, ...] = (_OF_GVISOR,) if is_gvisor else ()
        standing = ContainerWalls(
            image_id, settings.runtime, is_gvisor, cpus=settings.cpus, seccomp=seccomp.program(shields_first=is_gvisor)
        )
        self._walls = replace(standing, **(changes or {}))
        self._uids = list(reversed(_ROOTLESS_UIDS if self._engine.is_rootless else CONTAINER_UIDS))
        self._lock = threading.Condition()  # guards what follows, and the uids
        self._idle: dict[Path, list[tuple[float, Container]]] = {}
        """By workspace, with the time since when."""
        self._in_tidying: Counter[Path] = Counter()
        self._count = 0
        self._threads = ThreadPoolExecutor(_MAX_RUNS, thread_name_prefix="docker-run")
        # Threads of their own: runs that wait for a container to be tidied must not keep it from being tidied.
        self._tidiers = ThreadPoolExecutor(_MAX_RUNS, thread_name_prefix="docker-tidy")
        self._ending = threading.Event()
        if removed := self._engine.reap(label_lives):
            _log.warning("%d containers of services that are no more were removed", removed)
        self._sweeper = threading.Thread(target=_sweep, args=(weakref.ref(self), self._ending), daemon=True)
        self._sweeper.start()

    def weakened(self, changes: dict[str, Any]) -> "DockerRuntime":
        """Another one over the same image that lacks a wall, by Docker's own OCI runtime: for controls."""
        return DockerRuntime(self.settings.model_copy(update={"runtime": None}), changes=changes)

    @property
    def standing(self) -> Mapping[str, Standing]:
        with self._lock:
            idle = sum(len(containers) for containers in self._idle.values())
            return {"container": Standing(launchers=self._count, spares=idle)}

    @property
    def parts(self) -> tuple[Runtime, ...]:
        return (self,)

    async def ready(self) -> None:
        """It always is."""

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        if final is not None:
            job = await final
        judge = partial(
            answer, job=job, workspace=workspace, run_id=run_id, runtime=self.name, libraries=self.guest.libraries,
            warnings=self.warnings,
        )  # fmt: skip
        for _ in range(_TRIES - 1):
            with suppress(JailLost):  # it may have idled for too long, or have been killed from outside
                return await self._run_once(job, workspace, judge, on_output, inspection)
        return await self._run_once(job, workspace, judge, on_output, inspection)

    async def _run_once(
        self, job: Job, workspace: Workspace, judge: Callable[[Outcome], Execution], on_output: OnOutput | None,
        inspection: Inspection | None,
    ) -> Execution:  # fmt: skip
        key = workspace.files_folder
        taken: list[Container] = []
        session: ContainerSession | None = None
        is_over = False
        try:
            await on_thread(lambda: taken.append(self._take(key, job.limits)), threads=self._threads)
            container = taken[0]
            if job.libraries:
                await on_thread(partial(container.preload, "office"), threads=self._threads, cancel=container.interrupt)
            session = ContainerSession(container, job, workspace, on_output=on_output)
            is_fresh = partial(shadows, job.script_path, container.modules)
            work = partial(session.run, judge, is_fresh=is_fresh, inspection=inspection)
            done = await on_thread(work, threads=self._threads, cancel=session.cancel)
            is_over = True
            return done
        finally:
            for container in taken:
                # After the answer; the next run in this workspace waits for it, if it comes at once.
                with self._lock:
                    self._in_tidying[key] += 1
                self._tidiers.submit(self._give_back, key, container, session if is_over else None)

    # Containers, from any thread

    def _take(self, key: Path, limits: Limits) -> Container:
        """A container of the workspace for these limits: one that is idle, or a new one."""
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._idle.get(key) or not self._in_tidying[key], timeout=_TIDY_SECONDS)
                idle = self._idle.get(key)
                container = idle.pop()[1] if idle else None
            if container is None:
                return self._start(key, limits)
            if container.limits.shape == limits.shape:
                return container
            self._remove(container)

    def _start(self, key: Path, limits: Limits) -> Container:
        with self._lock:
            over = self._count >= self.settings.containers
            self._count += 1
        try:
            if over:
                self._remove_longest_idle()
            read_only = {name: key / name for name in READ_ONLY_FOLDERS}
            return self._with_uid(partial(Container, self._engine, self._walls, limits, read_only=read_only))
        except BaseException:
            with self._lock:
                self._count -= 1
            raise

    def _with_uid(self, make: Callable[..., Container]) -> Container:
        """A container with a uid that none has, of another service's neither: the engine knows them by their names."""
        for _ in CONTAINER_UIDS:
            with self._lock:
                uid = self._uids.pop() if self._uids else None
            if uid is None:
                break
            try:
                return make(uid=uid)
            except UidTaken:
                with self._lock:
                    self._uids.insert(0, uid)
            except BaseException:
                with self._lock:
                    self._uids.append(uid)
                raise
        raise JailFailed(f"More than {len(CONTAINER_UIDS)} containers at once are not supported. Use fewer slots.")

    def _give_back(self, key: Path, container: Container, session: ContainerSession | None) -> None:
        is_fit = False
        try:
            if session is not None and not self._ending.is_set():
                is_fit = session.tidy()
        except (JailFailed, TimeoutError) as fault:
            _log.warning("a container could not be made ready for another run: %s", fault)
        finally:
            with self._lock:
                if is_fit:
                    self._idle.setdefault(key, []).append((time.monotonic(), container))
                self._in_tidying[key] -= 1
                if not self._in_tidying[key]:
                    del self._in_tidying[key]
                self._lock.notify_all()
        if not is_fit:
            self._remove(container)

    def _remove(self, container: Container) -> None:
        try:
            container.remove()
        except JailFailed as fault:
            _log.warning("%s", fault)
        with self._lock:  # and not sooner: no two containers that live have one uid
            self._count -= 1
            self._uids.append(container.uid)

    def _remove_longest_idle(self) -> None:
        with self._lock:
            longest = min(((idle[0][0], key) for key, idle in self._idle.items() if idle), default=None)
            if longest is None:
                return
            container = self._idle[longest[1]].pop(0)[1]
        self._remove(container)

    def sweep(self, *, all_of_them: bool = False) -> None:
        """Remove what has idled for too long."""
        oldest = time.monotonic() - self.settings.idle_seconds
        old: list[Container] = []
        with self._lock:
            for key, idle in list(self._idle.items()):
                old += [container for since, container in idle if all_of_them or since < oldest]
                idle[:] = [one for one in idle if not (all_of_them or one[0] < oldest)]
                if not idle:
                    del self._idle[key]
        for container in old:
            self._remove(container)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._ending.set()
        let_go(self._threads)
        let_go(self._tidiers)
        self.sweep(all_of_them=True)
        self._engine.close()


def _sweep(runtime: "weakref.ref[DockerRuntime]", ending: threading.Event) -> None:
    """Now and then, until the runtime ends."""
    while not ending.wait(1):
        here = runtime()
        if here is None:
            return
        here.sweep()
        del here
