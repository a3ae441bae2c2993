"""The warm runtime: an interpreter that has imported the libraries is forked into a fresh jail, for every run.

A few launchers keep spare jails standing. A run takes one, and it is never used again. A job for which no launcher will do
(none is up, or a file beside its script has the name of an imported module) runs in the cold runtime, and says so.
"""

import asyncio
import os
import weakref
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sandbox.errors import JailLost
from sandbox.guest_root import GuestRoot
from sandbox.job import Execution, Job, Limits
from sandbox.runtimes import cgroups
from sandbox.runtimes.answer import answer
from sandbox.runtimes.base import Inspection, Runtime, Standing
from sandbox.runtimes.cgroups import CgroupHost
from sandbox.runtimes.identities import MAX_JAILS, process_identities
from sandbox.runtimes.launcher import Launcher
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.nsjail_config import LAUNCHER_CONFIG_FILE, Walls
from sandbox.runtimes.nsjail_process import find_nsjail
from sandbox.runtimes.pool import Down, Pool
from sandbox.runtimes.session import Session, Unfit, let_go
from sandbox.runtimes.shadows import shadows
from sandbox.runtimes.streams import OnOutput
from sandbox.threads import on_thread
from sandbox.workspace import Workspace

KINDS = ("plain", "office")
"""Of launchers: a script that names no office library gets a jail without them, which is smaller and so faster still."""

_TRIES = 5


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
            kind: Pool(partial(Launcher, kind, *parts), self._cgroups, limits, launchers=count, spares=2 * count)
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
    def standing(self) -> Mapping[str, Standing]:
        """Of each kind of launchers."""
        return {kind: pool.standing for kind, pool in self._pools.items()}

    @property
    def parts(self) -> tuple[Runtime, ...]:
        return (self._cold,) if self.starts_cold else (self, self._cold)

    async def ready(self) -> None:
        """Wait until all spare jails stand, or it is clear that there will be none."""
        for pool in self._pools.values():
            await asyncio.to_thread(pool.wait_until_known)

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        run_cold = partial(self._cold.run, run_id=run_id, on_output=on_output, inspection=inspection)
        pool = self._pools["office" if job.libraries else "plain"]
        if not pool.is_up or not workspace.files_folder.is_relative_to(self._workspaces):
            return await run_cold(job, workspace, final=final)
        if final is not None:  # nothing has to be got ready: a jail with the libraries stands there already
            job = await final
        for _ in range(_TRIES):
            try:
                return await self._run_in(pool, job, workspace, run_id, on_output, inspection)
            except Unfit:
                break
            except JailLost:  # its launcher died before the script could start
                continue
            except Down:
                break
        return await run_cold(job, workspace)

    async def _run_in(
        self, pool: Pool, job: Job, workspace: Workspace, run_id: str, on_output: OnOutput | None,
        inspection: Inspection | None,
    ) -> Execution:  # fmt: skip
        judge = partial(
            answer, job=job, workspace=workspace, run_id=run_id, runtime=self.name, libraries=self._root.libraries,
            warnings=self.warnings,
        )  # fmt: skip
        folder = str(workspace.files_folder.relative_to(self._workspaces))
        jail = await pool.take(job.limits)
        try:
            session = Session(jail, job, workspace, folder=folder, on_output=on_output)
            unfit = partial(shadows, job.script_path, pool.modules)
            work = partial(session.run, judge, unfit=unfit, inspection=inspection, has_libraries=bool(job.libraries))
            return await on_thread(work, threads=self._threads, cancel=session.cancel)
        finally:
            pool.bury(jail)

    async def close(self) -> None:
        await self._cold.close()
        await asyncio.to_thread(self._close)


def _close(threads: ThreadPoolExecutor, pools: tuple[Pool, ...], groups: CgroupHost | None) -> None:
    let_go(threads)
    for pool in pools:
        pool.close()
    if groups is not None:
        groups.close()
