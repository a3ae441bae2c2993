"""The cold runtime: a fresh nsjail, with a fresh interpreter in it, for every run."""

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from sandbox.errors import JailFailed, JailLost
from sandbox.guest_root import GuestRoot
from sandbox.job import Execution, Job
from sandbox.runtimes import cgroups
from sandbox.runtimes.answer import answer
from sandbox.runtimes.base import Inspection, Runtime, Standing
from sandbox.runtimes.cgroups import CgroupHost, RunCgroup, find_for_service
from sandbox.runtimes.identities import MAX_JAILS, process_identities
from sandbox.runtimes.jail import Channels, Jail, join
from sandbox.runtimes.nsjail_config import Walls, build_config
from sandbox.runtimes.nsjail_process import NsjailProcess, find_nsjail
from sandbox.runtimes.session import Session, let_go
from sandbox.runtimes.streams import OnOutput
from sandbox.threads import on_thread
from sandbox.workspace import READ_ONLY_FOLDERS, Workspace

_OWN_PROCESSES = 2  # process 1 and its parent are in the group of the run too
_EARLY_LOOKS = 50
_GONE_SECONDS = 10


class NsjailRuntime:
    """Runs each job in a jail of its own. As root each guest has a host uid of its own, else the caller's."""

    name = "nsjail"
    starts_cold = True
    standing: Mapping[str, Standing] = {}

    def __init__(
        self,
        root: GuestRoot,
        *,
        use_cgroups: bool = True,
        walls: dict[str, Any] | None = None,
        nsjail: Path | None = None,
    ) -> None:
        """``use_cgroups`` off gives the weaker limits of a host without them; ``walls`` are fields of `Walls` to replace.

        Both are for tests and for `doctor`: a case that can't fail proves nothing.
        """
        self._cgroups, self.warnings = find_for_service(wanted=use_cgroups)
        self._identities = process_identities()
        standing = Walls(
            root=root.path.resolve(),
            with_cgroup=self._cgroups is not None,
            root_is_known=self._identities.are_own,
        )
        self._walls = replace(standing, **(walls or {}))
        self._root = root
        self._ahead = _Ahead(nsjail or find_nsjail())
        self._threads = ThreadPoolExecutor(MAX_JAILS, thread_name_prefix="nsjail-run")
        self._undertaker = ThreadPoolExecutor(1, thread_name_prefix="nsjail-bury")
        self._close = weakref.finalize(self, _close, self._ahead, self._threads, self._undertaker, self._cgroups)

    @property
    def parts(self) -> tuple[Runtime, ...]:
        return (self,)

    async def ready(self) -> None:
        """It always is."""

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        opened: list[Jail] = []
        preload = () if final is None else job.libraries
        try:
            await on_thread(lambda: opened.append(self._open(job, workspace, preload)), threads=self._threads)
            if final is not None:
                job = await final
            session = Session(opened[0], job, workspace, on_output=on_output)
            judge = partial(
                answer, job=job, workspace=workspace, run_id=run_id, runtime=self.name, libraries=self._root.libraries,
                warnings=self.warnings,
            )  # fmt: skip
            work = partial(session.run, judge, inspection=inspection)
            return await on_thread(work, threads=self._threads, cancel=session.cancel)
        except BaseException:
            for jail in opened:  # nothing of a run that was cancelled, even before it began, goes on
                jail.kill()
                await on_thread(jail.wait, threads=self._threads)
            raise
        finally:
            for jail in opened:
                self._undertaker.submit(jail.bury)
            self._ahead.refill()  # now, and not sooner: it would have taken the processor that this run needed

    def _open(self, job: Job, workspace: Workspace, preload: tuple[str, ...]) -> Jail:
        """A jail that is READY; blocks. Raises `JailFailed` with why there is none."""
        read_only = {name: workspace.files_folder / name for name in READ_ONLY_FOLDERS}
        with ExitStack() as holds:
            identity = holds.enter_context(self._identities.one())
            cgroup = None
            if self._cgroups is not None:
                cgroup = cgroups.for_run(self._cgroups, job.limits, own_processes=_OWN_PROCESSES)
                holds.callback(cgroup.remove)
            started = self._start(
                partial(build_config, self._walls, job.limits, identity, read_only=read_only, preload=preload)
            )
            holds.callback(started.process.close, within_seconds=_GONE_SECONDS)
            try:
                started.channels.send_filters(self._walls.seccomp)
                entered = 0 if cgroup is None else _enter_group(cgroup, started.process.pid)
                jail = Jail.when_ready(started.channels, identity, cgroup, holds)
            except JailLost as fault:
                why = started.process.log()
                started.channels.close()
                raise JailFailed(f"{fault} {why}") from None
            except BaseException:
                started.channels.close()
                raise
        if cgroup is not None and entered != jail.pid:
            try:
                join(cgroup, jail.pid)
            except JailLost:
                jail.bury()
                raise
        return jail

    def _start(self, config_for: Callable[..., str]) -> "_Started":
        for take in (self._ahead.take, self._ahead.start):
            started = take()
            if started.process.begin(config_for(control_fd=started.wire_fd)):
                return started
            started.discard()
        raise JailFailed("nsjail ended as soon as it was started. Run `make setup` again.")

    async def close(self) -> None:
        await asyncio.to_thread(self._close)


def _close(
    ahead: "_Ahead", threads: ThreadPoolExecutor, undertaker: ThreadPoolExecutor, groups: CgroupHost | None
) -> None:
    let_go(threads)
    ahead.close()
    let_go(undertaker)
    if groups is not None:
        groups.close()


def _enter_group(cgroup: RunCgroup, nsjail_pid: int) -> int:
    """Put process 1 into the run's group while its interpreter starts; its id, or 0 if it was not to be seen yet.

    The kernel lets a first process change its group only after a grace period, 8 ms on the test machines, and others that
    follow at once in no time. So its parent goes in first, as soon as it is there, while it still builds the jail.
    """
    children = Path(f"/proc/{nsjail_pid}/task/{nsjail_pid}/children")
    with suppress(OSError):
        cgroup.join(nsjail_pid)
        for _ in range(_EARLY_LOOKS):
            if pids := children.read_text().split():
                cgroup.join(int(pids[0]))
                return int(pids[0])
            time.sleep(0.001)
    return 0


class _Started(NamedTuple):
    """An nsjail that waits for its configuration, and the channels of the jail that it will make."""

    process: NsjailProcess
    channels: Channels
    wire_fd: int
    """The number of the wire in the jail."""

    @classmethod
    def new(cls, nsjail: Path) -> Self:
        channels = Channels()
        wire_fd, stdout, stderr = channels.jail_fds
        try:
            process = NsjailProcess(nsjail, pass_fds=(wire_fd,), stdout=stdout, stderr=stderr)
        except JailFailed:
            channels.close()
            raise
        finally:
            channels.close_jail_ends()
        return cls(process, channels, wire_fd)

    def discard(self) -> None:
        """Let go of one that was never used."""
        self.process.close()
        self.channels.close()


class _Ahead:
    """Keeps one nsjail started: its own start takes 4 ms, a fifth of a short run. It knows nothing of any job yet."""

    def __init__(self, nsjail: Path) -> None:
        self._nsjail = nsjail
        self._lock = threading.Lock()
        self._waiting: _Started | None = None
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="nsjail-ahead")
        self._closed = False

    def start(self) -> _Started:
        """A new one."""
        return _Started.new(self._nsjail)

    def take(self) -> _Started:
        """The one that waits, or a new one."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        return waiting or self.start()

    def refill(self) -> None:
        """Start one for the next jail, on a thread of its own."""
        with suppress(RuntimeError):  # closed meanwhile
            self._starter.submit(self._refill)

    def _refill(self) -> None:
        with self._lock:
            if self._waiting is None and not self._closed:
                self._waiting = self.start()

    def close(self) -> None:
        """Kill the one that waits."""
        self._closed = True
        let_go(self._starter)
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.discard()
