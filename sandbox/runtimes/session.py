"""One run, from the jail's READY to the changes taken: the part that every runtime with a process 1 of ours shares.

spawn          the runtime starts process 1 in fresh namespaces, with the wire and two output pipes
READY          process 1 hands over its tmpfs folders; no guest code has run yet
fill           the workspace's files are copied in, process 1 is put into the run's control group
GO             the script runs; the host reads both pipes, keeps the time and looks at the counters
DONE or kill   the script has ended by itself, or process 1 is killed, and with it everything in the jail
quiet          process 1 has ended, and the kernel has ended everything else in the jail before it
take           changed files are taken into the workspace
gone           the runtime's own process has been waited for
"""

import asyncio
import os
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from sandbox.errors import JailFailed
from sandbox.guest import wire
from sandbox.job import Execution, FileChange, Job, Skipped, Status
from sandbox.runtimes.cgroups import Counters, RunCgroup
from sandbox.runtimes.process_tree import proportional_memory_bytes
from sandbox.runtimes.streams import Capture, OnOutput, Reader, readable
from sandbox.workspace import Identity, Workspace

T = TypeVar("T")

_START_SECONDS = 20
_GONE_SECONDS = 10
_LOOK_SECONDS = 0.1
_EARLY_LOOKS = 50
_MAX_REPORT_BYTES = 1 << 20
_MAX_SAID_CHARACTERS = 500


class Spawned(Protocol):
    """What a runtime started: the service's ends of the wire and of the pipes, and the outer process."""

    control: socket.socket
    stdout_fd: int
    stderr_fd: int
    outer_pid: int
    """The parent of process 1."""

    async def gone(self) -> None:
        """Wait for the outer process, and let go of it."""

    def kill(self) -> None:
        """Kill the outer process."""

    def log(self) -> str:
        """What the jail itself, not the guest, had to say."""


@dataclass
class Outcome:
    """The bare facts of a run, before anyone has judged them."""

    stdout: Capture
    stderr: Capture
    wait_status: int | None = None
    stopped: Status | None = None
    """Why the host killed the run, if it did."""
    stop_reason: str = ""
    wall_seconds: float = 0
    cpu_seconds: float = 0
    max_memory_bytes: int = 0
    counters: Counters | None = None
    workspace_full: bool = False
    report: dict[str, bytes] = field(default_factory=dict)
    changes: list[FileChange] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def close(self) -> None:
        """Give back the disk of the captured output."""
        self.stdout.close()
        self.stderr.close()


async def run_session(
    spawn: Callable[[], Spawned],
    judge: Callable[[Outcome], Execution],
    job: Job,
    workspace: Workspace,
    *,
    identity: Identity,
    make_cgroup: Callable[[], RunCgroup] | None,
    on_output: OnOutput | None,
    final: Awaitable[Job] | None = None,
) -> Execution:
    """Run ``job`` and give what ``judge`` makes of the facts. Where ``make_cgroup`` is None, memory is watched from outside."""
    kept = {"text_bytes": job.limits.output_text_bytes, "disk_bytes": job.limits.output_disk_bytes}
    outcome = Outcome(
        stdout=Capture("stdout", folder=workspace.spool_folder, **kept),
        stderr=Capture("stderr", folder=workspace.spool_folder, **kept),
    )
    with ExitStack() as cleanup:
        cleanup.callback(outcome.close)
        spawned = spawn()
        try:
            session = _Session(spawned, job, workspace, outcome, identity, on_output, cleanup)
            await session.go_through(make_cgroup, final)
            return await _uninterrupted(asyncio.to_thread(session.take, judge))
        finally:
            await _uninterrupted(spawned.gone())


class _Session:
    """The steps between the start of a jail and the answer. ``cleanup`` undoes them, last first."""

    def __init__(
        self, spawned: Spawned, job: Job, workspace: Workspace, outcome: Outcome, identity: Identity,
        on_output: OnOutput | None, cleanup: ExitStack,
    ) -> None:  # fmt: skip
        self._spawned = spawned
        self._job = job
        self._workspace = workspace
        self._outcome = outcome
        self._identity = identity
        self._cleanup = cleanup
        self._stop = _Stop(spawned, outcome)
        cleanup.callback(spawned.control.close)
        self._readers = [
            Reader(fd, capture, on_output=on_output, on_limit=self._over_output_limit)
            for fd, capture in ((spawned.stdout_fd, outcome.stdout), (spawned.stderr_fd, outcome.stderr))
        ]
        for reader in self._readers:
            cleanup.callback(reader.close)

    async def go_through(self, make_cgroup: Callable[[], RunCgroup] | None, final: Awaitable[Job] | None) -> None:
        """From READY until the jail is quiet. If it raises, the jail has been killed."""
        try:
            entering = asyncio.ensure_future(asyncio.to_thread(_enter_group, self._spawned.outer_pid, make_cgroup))
            try:
                jail = await _ready(self._spawned)
                self._cleanup.callback(jail.close)
                self._jail = jail
                self._stop.pidfd = jail.pidfd
            finally:
                cgroup, entered = await _uninterrupted(entering)
                if cgroup is not None:
                    self._cleanup.callback(cgroup.remove)
            if final is not None:
                self._job = await final
            await _uninterrupted(asyncio.to_thread(self._fill))
            if cgroup is not None and entered != jail.pid:
                _join(cgroup, jail.pid)
            await _let_run(self._spawned, jail, self._job, self._outcome, self._stop, cgroup)
            await _until_quiet(jail, self._stop)
        except JailFailed as fault:
            self._spawned.kill()
            await self._spawned.gone()
            self._drain()
            said = self._outcome.stderr.text()[:_MAX_SAID_CHARACTERS]  # by the interpreter: no guest code has run
            raise JailFailed(f"{fault} It said: {said}" if said else str(fault)) from None
        except BaseException:
            self._stop(Status.KILLED, "The call was cancelled.")
            if self._stop.pidfd is not None:  # its ids may go to another jail only when nothing of this one lives
                await _uninterrupted(_until_quiet(self._jail, self._stop))
            self._spawned.kill()
            raise
        self._drain()
        if cgroup is not None:
            self._outcome.counters = cgroup.counters()

    def _drain(self) -> None:
        for reader in self._readers:
            reader.drain()

    def take(self, judge: Callable[[Outcome], Execution]) -> Execution:
        """Take what the run left, and judge it."""
        outcome, jail = self._outcome, self._jail
        space = os.fstatvfs(jail.workspace_fd)
        outcome.workspace_full = space.f_bavail == 0 or space.f_ffree == 0
        outcome.report = self._workspace.read_report(jail.report_fd, self._identity, max_bytes=_MAX_REPORT_BYTES)
        if self._job.keeps_outputs:
            outcome.changes, outcome.skipped = self._workspace.commit(jail.workspace_fd, self._identity, self._manifest)
        return judge(outcome)

    def _fill(self) -> None:
        self._manifest = self._workspace.copy_in(self._jail.workspace_fd, self._identity, only=self._job.inputs)

    def _over_output_limit(self) -> None:
        limit = self._job.limits.output_disk_bytes
        full = self._outcome.stdout.disk_is_full or self._outcome.stderr.disk_is_full
        more = "the service's disk can hold now" if full else f"{limit:,} bytes"
        self._stop(Status.OUTPUT_LIMIT, f"It printed more than {more}.")


async def _uninterrupted(work: Awaitable[T]) -> T:
    """Wait for work that must not be left alone: a cancelled caller waits too, and is told afterwards.

    A thread goes on when its waiter is cancelled, and would use descriptors that are closed, or another's, by then.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


@dataclass
class _Jail:
    """What READY brought."""

    pid: int
    pidfd: int
    workspace_fd: int
    report_fd: int

    def close(self) -> None:
        for fd in (self.pidfd, self.workspace_fd, self.report_fd):
            os.close(fd)


class _Stop:
    """Kills the jail, and notes the first reason; a pidfd can't hit a later process of the same number."""

    def __init__(self, spawned: Spawned, outcome: Outcome) -> None:
        self._spawned = spawned
        self._outcome = outcome
        self.pidfd: int | None = None

    def __call__(self, status: Status, reason: str) -> None:
        if self._outcome.stopped is None and self._outcome.wait_status is None:
            self._outcome.stopped, self._outcome.stop_reason = status, reason
        if self.pidfd is None:
            self._spawned.kill()
        else:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


async def _ready(spawned: Spawned) -> _Jail:
    """Wait for READY and take the descriptors that it carries; raises `JailFailed`."""
    ancillary_bytes = socket.CMSG_SPACE(2 * 4) + socket.CMSG_SPACE(struct.calcsize("3i"))
    try:
        async with asyncio.timeout(_START_SECONDS):
            await readable(spawned.control.fileno())
    except TimeoutError:
        raise JailFailed(f"The jail did not start within {_START_SECONDS} s. {spawned.log()}") from None
    message, ancillary, _, _ = spawned.control.recvmsg(64, ancillary_bytes)
    fds, pid = [], 0
    for _level, kind, data in ancillary:
        if kind == socket.SCM_RIGHTS:
            fds = list(struct.unpack(f"{len(data) // 4}i", data))
        elif kind == socket.SCM_CREDENTIALS:
            pid = struct.unpack("3i", data)[0]
    if message != wire.READY or len(fds) != 2 or pid <= 0:
        for fd in fds:
            os.close(fd)
        raise JailFailed(f"The jail did not start. {spawned.log()}")
    return _Jail(pid=pid, pidfd=os.pidfd_open(pid), workspace_fd=fds[0], report_fd=fds[1])


def _enter_group(outer_pid: int, make_cgroup: Callable[[], RunCgroup] | None) -> tuple[RunCgroup | None, int]:
    """Make the run's group and put process 1 in while its interpreter starts; its id, or 0 if it was not to be seen yet.

    The kernel lets a first process change its group only after a grace period, 8 ms on the test machines, and others that
    follow at once in no time. So its parent goes in first, as soon as it is there, while it still builds the jail.
    """
    if make_cgroup is None:
        return None, 0
    cgroup = make_cgroup()
    children = Path(f"/proc/{outer_pid}/task/{outer_pid}/children")
    with suppress(OSError):
        cgroup.join(outer_pid)
        for _ in range(_EARLY_LOOKS):
            if pids := children.read_text().split():
                cgroup.join(int(pids[0]))
                return cgroup, int(pids[0])
            time.sleep(0.001)
    return cgroup, 0


def _join(cgroup: RunCgroup, pid: int) -> None:
    try:
        cgroup.join(pid)
    except OSError as fault:
        raise JailFailed(f"The run could not be put into its control group: {fault}.") from None


async def _let_run(
    spawned: Spawned, jail: _Jail, job: Job, outcome: Outcome, stop: _Stop, cgroup: RunCgroup | None
) -> None:
    """GO, and then until DONE, the end of the jail, or the time."""
    started = time.monotonic()
    try:
        spawned.control.send(wire.encode_go(job.script_path, job.arguments))
    except OSError as fault:
        raise JailFailed(f"The jail ended before its script could start ({fault.strerror}). Try again.") from None
    watching = asyncio.ensure_future(_watch(jail.pid, job, stop, cgroup))
    try:
        async with asyncio.timeout(job.limits.wall_seconds):
            await readable(spawned.control.fileno())
        outcome.wall_seconds = time.monotonic() - started
        done = spawned.control.recv(256)
        if done:
            outcome.wait_status, outcome.cpu_seconds, outcome.max_memory_bytes = wire.decode_done(done)
    except TimeoutError:
        outcome.wall_seconds = time.monotonic() - started
        stop(Status.TIMED_OUT, f"It was stopped after {job.limits.wall_seconds:g} s, the limit for one run.")
    except (ConnectionError, ValueError):
        stop(Status.KILLED, "The jail's first process did not keep to its protocol.")
    finally:
        watching.cancel()


async def _watch(pid: int, job: Job, stop: _Stop, cgroup: RunCgroup | None) -> None:
    """Stop a run over its processor time, or over its memory: at once, and not only when its main process notices."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if cgroup is None:
            used_bytes = await asyncio.to_thread(proportional_memory_bytes, pid)
            if used_bytes > job.limits.memory_bytes:
                stop(Status.OUT_OF_MEMORY, f"Its processes together used {used_bytes:,} bytes of memory.")
            continue
        try:
            counters = cgroup.counters()
        except OSError:  # the run is ending, and its group with it
            continue
        if counters.cpu_seconds > job.limits.cpu_seconds:
            stop(Status.TIMED_OUT, f"It was stopped after {job.limits.cpu_seconds} s of processor time, the limit.")
        if counters.oom_kills:
            await asyncio.sleep(_LOOK_SECONDS)  # the main process may be ending by itself
            stop(Status.OUT_OF_MEMORY, "One of its processes was killed at the memory limit.")


async def _until_quiet(jail: _Jail, stop: "_Stop") -> None:
    """Wait for the end of process 1, which the kernel lets end only after every other process of the jail has."""
    try:
        async with asyncio.timeout(_GONE_SECONDS):
            await readable(jail.pidfd)
    except TimeoutError:
        stop(Status.KILLED, "The jail did not end by itself.")
        await readable(jail.pidfd)
