"""The warm runtime: an interpreter that has imported the libraries is forked into a fresh jail, for every run.

A few launchers keep spare jails standing. A run takes one, and it is never used again. A job for which no launcher will do
(none is up, or a file beside its script has the name of an imported module) runs in the cold runtime, and says so.
"""

import asyncio
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sandbox.errors import JailFailed, JailLost
from sandbox.guest_root import GuestRoot
from sandbox.job import Execution, Job, Limits
from sandbox.runtimes import cgroups
from sandbox.runtimes.answer import answer
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.cgroups import CgroupHost
from sandbox.runtimes.identities import MAX_JAILS, process_identities
from sandbox.runtimes.jail import Jail
from sandbox.runtimes.launcher import Launcher
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.nsjail_config import LAUNCHER_CONFIG_FILE, Walls
from sandbox.runtimes.nsjail_process import find_nsjail
from sandbox.runtimes.session import Session, Unfit, on_thread
from sandbox.runtimes.streams import OnOutput
from sandbox.workspace import GUEST_PATH, Manifest, Workspace

_log = logging.getLogger(__name__)

KINDS = ("plain", "office")
"""Of launchers: a script that names no office library gets a jail without them, which is smaller and so faster still."""

_OWN_PROCESSES = 1  # process 1 is in the group of the run too
_TRIES = 5
_AFTER_SECONDS = 0.003
"""After a run, before there is work for the next: until then the answer of this one needs the processors."""
_PAUSE_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 5, 30)
"""Before a launcher is started, or asked, again, by how often in a row it failed."""


class WarmRuntime:
    """Runs each job in a jail that stands already, forked from an interpreter that has the libraries.

    Same answers, limits and walls as the cold runtime. ``name`` is what an `Execution` says that ran in a warm jail.
    """

    name = "warm"

    def __init__(
        self, root: GuestRoot, workspaces: Path, *, limits: Limits = Limits(), launchers: int | None = None,  # noqa: B008
        use_cgroups: bool = True, walls: dict[str, Any] | None = None, nsjail: Path | None = None,
    ) -> None:  # fmt: skip
        """``workspaces``: the folder that every workspace is in; ``limits``: those of the jails that are kept standing.

        ``use_cgroups`` and ``walls`` are for tests and for `doctor`, as in `NsjailRuntime`. Nothing is waited for: until the
        first launcher is up, jobs run in the cold runtime.
        """
        self._cgroups, self._weaker = cgroups.find_for_service(wanted=use_cgroups)
        standing = Walls(
            root=root.path.resolve(), with_cgroup=self._cgroups is not None, config_file=LAUNCHER_CONFIG_FILE
        )
        self._root = root
        self._workspaces = workspaces.resolve()
        self._cold = NsjailRuntime(root, use_cgroups=use_cgroups, nsjail=nsjail)
        parts = (nsjail or find_nsjail(), replace(standing, **(walls or {})), self._workspaces, process_identities())
        count = launchers or max(2, min(4, os.cpu_count() or 1))
        self._pools = {
            kind: _Pool(partial(Launcher, kind, *parts), self._cgroups, limits, launchers=count, spares=2 * count)
            for kind in KINDS
        }
        self._threads = ThreadPoolExecutor(MAX_JAILS, thread_name_prefix="warm-run")
        self._close = weakref.finalize(self, _close, self._threads, tuple(self._pools.values()), self._cgroups)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Limits that are weaker here than promised; that every run is a cold one, if no launcher starts."""
        why = next(filter(None, (pool.why_down for pool in self._pools.values())), "")
        return (*self._weaker, f"Runs are slower here: no warm jail can be made. {why}") if why else self._weaker

    @property
    def launcher_pids(self) -> list[int]:
        """The launchers that are up, by the ids of their nsjails on the host."""
        return sorted(pid for pool in self._pools.values() for pid in pool.launcher_pids)

    @property
    def starts_cold(self) -> bool:
        """Whether launchers are missing."""
        return not all(pool.is_up for pool in self._pools.values())

    @property
    def parts(self) -> tuple[Runtime, ...]:
        return (self._cold,) if self.starts_cold else (self, self._cold)

    async def ready(self) -> None:
        """Wait until all spare jails stand, or it is clear that there will be none."""
        for pool in self._pools.values():
            await asyncio.to_thread(pool.wait_until_known)

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None,
    ) -> Execution:  # fmt: skip
        run_cold = partial(self._cold.run, run_id=run_id, on_output=on_output)
        pool = self._pools["office" if job.libraries else "plain"]
        if not pool.is_up or not workspace.files_folder.is_relative_to(self._workspaces):
            return await run_cold(job, workspace, final=final)
        if final is not None:  # nothing has to be got ready: a jail with the libraries stands there already
            job = await final
        for _ in range(_TRIES):
            try:
                return await self._run_in(pool, job, workspace, run_id, on_output)
            except Unfit:
                break
            except JailLost:  # its launcher died before the script could start
                continue
            except _Down:
                break
        return await run_cold(job, workspace)

    async def _run_in(
        self, pool: "_Pool", job: Job, workspace: Workspace, run_id: str, on_output: OnOutput | None
    ) -> Execution:
        judge = partial(
            answer, job=job, workspace=workspace, run_id=run_id, runtime=self.name, libraries=self._root.libraries,
            warnings=self.warnings,
        )  # fmt: skip
        jail = await pool.take(job.limits)
        folder = str(workspace.files_folder.relative_to(self._workspaces))
        try:
            session = Session(jail, job, workspace, folder=folder, on_output=on_output)
            work = partial(session.run, judge, unfit=partial(_shadows, job.script_path, pool.modules))
            return await on_thread(self._threads, work, cancel=session.cancel)
        finally:
            pool.bury(jail)

    async def close(self) -> None:
        await self._cold.close()
        await asyncio.to_thread(self._close)


class _Down(Exception):
    """No launcher is up."""


def _shadows(script_path: str, modules: frozenset[str], manifest: Manifest) -> bool:
    """Whether an import in the script could mean a file of the workspace, where a fresh interpreter would find it first."""
    if not script_path.startswith(f"{GUEST_PATH}/"):
        return False
    *folder, _ = os.fsencode(script_path.removeprefix(f"{GUEST_PATH}/")).split(b"/")
    depth = len(folder)
    for segments in manifest.files:
        if list(segments[:depth]) != folder or len(segments) > depth + 2:
            continue
        name, _, kind = segments[-1].partition(b".")
        if len(segments) == depth + 2:
            name = segments[-2] if name == b"__init__" else b""
        if kind.rpartition(b".")[2] in (b"py", b"pyc", b"so") and os.fsdecode(name) in modules:
            return True
    return False


def _close(threads: ThreadPoolExecutor, pools: "tuple[_Pool, ...]", groups: CgroupHost | None) -> None:
    threads.shutdown()
    for pool in pools:
        pool.close()
    if groups is not None:
        groups.close()


@dataclass
class _Order:
    """A jail that is wanted: by a run that waits for it, or to stand spare."""

    limits: Limits
    waiting: "Future[Jail] | None" = None
    failures: int = 0


class _Pool:
    """Launchers, each on a thread of its own that makes one jail at a time, and the spare jails.

    A launcher that ends, or with which a jail could not be made, is replaced; meanwhile the others go on.
    """

    def __init__(
        self, start: Callable[[], Launcher], groups: CgroupHost | None, limits: Limits, *, launchers: int, spares: int
    ) -> None:
        self._start = start
        self._groups = groups
        self._limits = limits
        self._wanted = spares
        self._changed = threading.Condition()  # guards all that follows
        self._spares: deque[Jail] = deque()
        self._waiting: deque[_Order] = deque()
        self._in_the_making = 0
        self._up: set[Launcher] = set()
        self._failed: dict[int, str] = {}
        self._closed = False
        self.modules: frozenset[str] = frozenset()
        self._undertaker = ThreadPoolExecutor(1, thread_name_prefix="warm-bury")
        self._wakes = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(launchers)]
        self._threads = [
            threading.Thread(target=self._keep, args=(number,), name=f"launcher-{number}", daemon=True)
            for number in range(launchers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_up(self) -> bool:
        """Whether a launcher is there, and jails come from it as far as one knows."""
        return bool(self._up) and not self._is_down()

    @property
    def why_down(self) -> str:
        """Why no jail can be had; empty if one can, or if that is not known yet."""
        with self._changed:
            return next(iter(self._failed.values())) if self._is_down() else ""

    @property
    def launcher_pids(self) -> list[int]:
        """As of the runtime."""
        with self._changed:
            return [launcher.pid for launcher in self._up]

    def _is_down(self) -> bool:
        return self._closed or len(self._failed) == len(self._threads)

    def wait_until_known(self) -> None:
        """Block until all spare jails stand, or it is clear that there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._spares) == self._wanted or self._is_down())

    async def take(self, limits: Limits) -> Jail:
        """A jail for these limits: a spare one, or a new one. Raises `_Down` if there can be none."""
        order = _Order(limits, Future())
        assert order.waiting is not None  # noqa: S101  for the type checker
        with self._changed:
            while self._spares and _shape(limits) == _shape(self._limits):
                jail = self._spares.popleft()
                if jail.is_alive:
                    return jail
                self._undertaker.submit(jail.bury)
            if self._is_down():
                raise _Down
            self._waiting.append(order)
        self._wake()
        try:
            return await asyncio.wrap_future(order.waiting)
        except asyncio.CancelledError:
            if not order.waiting.cancelled() and order.waiting.exception() is None:
                self.bury(order.waiting.result())
            raise

    def bury(self, jail: Jail) -> None:
        """Take back a jail that was used, and make a new one for it."""
        with suppress(RuntimeError):  # closed meanwhile, and with its launcher the jail has ended
            self._undertaker.submit(self._tidy, jail)

    def _tidy(self, jail: Jail) -> None:
        time.sleep(_AFTER_SECONDS)
        jail.bury()
        self._wake()

    def close(self) -> None:
        """End all launchers, and with them every jail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._wake()
        for thread in self._threads:
            thread.join()
        self._undertaker.shutdown()
        for jail in self._spares:
            jail.bury()
        for wake in self._wakes:
            os.close(wake)
        self._wakes = []

    def _wake(self) -> None:
        for wake in self._wakes:
            os.eventfd_write(wake, 1)

    # On a launcher's thread

    def _keep(self, number: int) -> None:
        """Keep one launcher up until the end."""
        failures = 0
        while not self._closed:
            try:
                launcher = self._start()
            except JailFailed as fault:
                self._note_down(number, str(fault))
                self._pause(failures)
                failures += 1
                continue
            with self._changed:
                self._up.add(launcher)
                self.modules = launcher.modules
            try:
                made, why = self._serve(number, launcher)
            finally:
                with self._changed:
                    self._up.remove(launcher)
                launcher.close()
            failures = 0 if made else failures + 1
            if not made and not self._closed:
                self._note_down(number, why)
                self._pause(failures)

    def _pause(self, failures: int) -> None:
        with self._changed:
            seconds = _PAUSE_SECONDS[min(failures, len(_PAUSE_SECONDS) - 1)]
            self._changed.wait_for(lambda: self._closed, seconds)

    def _note_down(self, number: int, why: str) -> None:
        """Note that no jail comes from this place; those who wait get nothing if it was the last."""
        with self._changed:
            if number not in self._failed:
                _log.warning("%s", why)
            self._failed[number] = why
            if self._is_down():
                while self._waiting:
                    _give(self._waiting.popleft(), _Down())
            self._changed.notify_all()

    def _serve(self, number: int, launcher: Launcher) -> tuple[int, str]:
        """Make jails until the launcher ends, or seems to be no good; gives how many were made, and what went wrong last.

        A launcher that has made jails is let alone whatever fails later: scripts may be running in them.
        """
        poll = select.poll()
        poll.register(launcher.link, select.POLLIN)
        poll.register(self._wakes[number], select.POLLIN)
        made = failed = 0
        why = ""
        while launcher.is_alive:
            if order := self._next_order():
                jail, fault = self._make(launcher, order)
                if jail is not None:
                    made, failed = made + 1, 0
                    self._deliver(number, jail, order)
                    continue
                why, failed = fault, failed + 1
                self._put_back(order)
                if made == 0 and failed == _TRIES:
                    return 0, why
                self._pause(failed - 1)
            elif self._closed:
                break
            else:
                poll.poll()
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wakes[number])
        if not self._closed:
            _log.warning("a launcher of warm jails has ended; another is started")
        return made, why

    def _next_order(self) -> _Order | None:
        with self._changed:
            if self._closed:
                return None
            if self._waiting:
                return self._waiting.popleft()
            if len(self._spares) + self._in_the_making < self._wanted:
                self._in_the_making += 1
                return _Order(self._limits)
            return None

    def _make(self, launcher: Launcher, order: _Order) -> tuple[Jail | None, str]:
        make_cgroup = None
        if self._groups is not None:
            make_cgroup = partial(cgroups.for_run, self._groups, order.limits, own_processes=_OWN_PROCESSES)
        try:
            return launcher.spawn(order.limits, make_cgroup=make_cgroup), ""
        except (JailFailed, OSError) as fault:
            _log.warning("a warm jail could not be made: %s", fault)
            return None, str(fault)

    def _deliver(self, number: int, jail: Jail, order: _Order) -> None:
        with self._changed:
            self._failed.pop(number, None)
            if order.waiting is None:
                self._in_the_making -= 1
                self._spares.append(jail)
                self._changed.notify_all()
                return
        if not _give(order, jail):
            self._undertaker.submit(jail.bury)

    def _put_back(self, order: _Order) -> None:
        """For another launcher to try; who has waited for too many gets none, and runs cold."""
        with self._changed:
            order.failures += 1
            if order.waiting is None:
                self._in_the_making -= 1
            elif order.failures == _TRIES:
                _give(order, _Down())
            else:
                self._waiting.appendleft(order)
        self._wake()


def _give(order: _Order, result: Jail | BaseException) -> bool:
    """Answer who waits; False if nobody does any more."""
    assert order.waiting is not None  # noqa: S101  for the type checker
    try:
        if isinstance(result, BaseException):
            order.waiting.set_exception(result)
        else:
            order.waiting.set_result(result)
    except InvalidStateError:  # cancelled
        return False
    return True


def _shape(limits: Limits) -> tuple[int, ...]:
    """Of the limits, those that a jail is made with; the others are kept by the service, or come with GO."""
    return (
        limits.memory_bytes, limits.processes, limits.file_bytes, limits.workspace_bytes, limits.workspace_files, limits.tmp_bytes
    )  # fmt: skip
