"""One run, from the jail's READY to the changes taken: the part that every runtime with a process 1 of ours shares.

spawn          the runtime starts process 1 in fresh namespaces, with the wire and two output pipes
READY          process 1 hands over its tmpfs folders; no guest code has run yet
fill           the workspace's files are copied in, process 1 is put into the run's control group
GO             the script runs; the host reads both pipes, keeps the time and looks at the counters
DONE or kill   the script has ended by itself, or process 1 is killed, and with it everything in the jail
gone           the runtime's process has been waited for: nothing of the guest is alive
take           changed files are taken into the workspace
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
from typing import Protocol

from sandbox.errors import JailFailed
from sandbox.guest import wire
from sandbox.job import FileChange, Job, Skipped, Status
from sandbox.runtimes.cgroups import Counters, RunCgroup
from sandbox.runtimes.process_tree import proportional_memory_bytes
from sandbox.runtimes.streams import Capture, OnOutput, Reader, readable
from sandbox.workspace import Identity, Manifest, Workspace

_START_SECONDS = 20
_GONE_SECONDS = 10
_LOOK_SECONDS = 0.1
_EARLY_LOOKS = 50
_MAX_REPORT_BYTES = 1 << 20


class Spawned(Protocol):
    """What a runtime started: the service's ends of the wire and of the pipes, and the outer process."""

    control: socket.socket
    stdout_fd: int
    stderr_fd: int
    outer_pid: int
    """The parent of process 1."""

    async def gone(self) -> None:
        """Wait until every process of the jail is gone."""

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


async def run_session(
    spawn: Callable[[], Awaitable[Spawned]],
    job: Job,
    workspace: Workspace,
    *,
    identity: Identity,
    cgroup: RunCgroup | None,
    on_output: OnOutput | None,
) -> Outcome:
    """Run ``job``. ``cgroup`` is removed at the end; where it is None, memory is watched from outside."""
    limits = job.limits
    kept = {"text_bytes": limits.output_text_bytes, "disk_bytes": limits.output_disk_bytes}
    outcome = Outcome(
        stdout=Capture("stdout", folder=workspace.spool_folder, **kept),
        stderr=Capture("stderr", folder=workspace.spool_folder, **kept),
    )
    with ExitStack() as cleanup:
        if cgroup is not None:
            cleanup.callback(cgroup.remove)
        spawned = await spawn()
        cleanup.callback(spawned.control.close)
        stop = _Stop(spawned, outcome)

        def over_limit() -> None:
            stop(Status.OUTPUT_LIMIT, f"It printed more than {limits.output_disk_bytes:,} bytes.")

        readers = [
            Reader(fd, capture, on_output=on_output, on_limit=over_limit)
            for fd, capture in ((spawned.stdout_fd, outcome.stdout), (spawned.stderr_fd, outcome.stderr))
        ]
        for reader in readers:
            cleanup.callback(reader.close)
        try:
            joining = asyncio.ensure_future(asyncio.to_thread(_join_early, spawned.outer_pid, cgroup))
            try:
                jail = await _ready(spawned)
            finally:
                joined = await joining
            cleanup.callback(jail.close)
            stop.pidfd = jail.pidfd
            # A cancelled wait does not stop the thread, so wait for it all the same before the descriptors are closed.
            filling = asyncio.ensure_future(
                asyncio.to_thread(workspace.copy_in, jail.workspace_fd, identity, only=job.inputs)
            )
            try:
                manifest = await asyncio.shield(filling)
            except asyncio.CancelledError:
                await asyncio.wait([filling])
                raise
            if cgroup is not None and joined != jail.pid:
                cgroup.join(jail.pid)
            await _let_run(spawned, jail, job, outcome, stop, cgroup)
        except BaseException:
            stop(Status.KILLED, "The call was cancelled.")
            spawned.kill()
            raise
        finally:
            await _until_gone(spawned)
        for reader in readers:
            await reader.ended(timeout_seconds=2)
        if cgroup is not None:
            outcome.counters = cgroup.counters()
        await asyncio.shield(asyncio.to_thread(_take, outcome, job, workspace, jail, identity, manifest))
    return outcome


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


def _join_early(outer_pid: int, cgroup: RunCgroup | None) -> int:
    """Put process 1 into its group while its interpreter starts, and give its id, or 0 if it was not to be seen.

    The kernel lets a first process change its group only after a grace period, 8 ms on the test machines, and others that
    follow at once in no time. So its parent goes in first, as soon as it is there, while it still builds the jail.
    """
    if cgroup is None:
        return 0
    children = Path(f"/proc/{outer_pid}/task/{outer_pid}/children")
    with suppress(OSError):
        cgroup.join(outer_pid)
        for _ in range(_EARLY_LOOKS):
            if pids := children.read_text().split():
                cgroup.join(int(pids[0]))
                return int(pids[0])
            time.sleep(0.001)
    return 0


async def _let_run(
    spawned: Spawned, jail: _Jail, job: Job, outcome: Outcome, stop: _Stop, cgroup: RunCgroup | None
) -> None:
    """GO, and then until DONE, the end of the jail, or the time."""
    started = time.monotonic()
    spawned.control.send(wire.encode_go(job.script_path, job.arguments))
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
        counters = cgroup.counters()
        if counters.cpu_seconds > job.limits.cpu_seconds:
            stop(Status.TIMED_OUT, f"It was stopped after {job.limits.cpu_seconds} s of processor time, the limit.")
        if counters.oom_kills:
            await asyncio.sleep(_LOOK_SECONDS)  # the main process may be ending by itself
            stop(Status.OUT_OF_MEMORY, "One of its processes was killed at the memory limit.")


async def _until_gone(spawned: Spawned) -> None:
    """Wait for the end of the outer process; a cancelled caller waits too, since the files are not quiet before."""
    waiting = asyncio.ensure_future(spawned.gone())
    deadline = time.monotonic() + _GONE_SECONDS
    cancelled = None
    while not waiting.done():
        try:
            await asyncio.wait([waiting], timeout=max(0.1, deadline - time.monotonic()))
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
        if not waiting.done() and time.monotonic() > deadline:
            spawned.kill()
            deadline += _GONE_SECONDS
    waiting.result()
    if cancelled is not None:
        raise cancelled


def _take(
    outcome: Outcome, job: Job, workspace: Workspace, jail: _Jail, identity: Identity, manifest: Manifest
) -> None:
    space = os.fstatvfs(jail.workspace_fd)
    outcome.workspace_full = space.f_bavail == 0 or space.f_ffree == 0
    outcome.report = workspace.read_report(jail.report_fd, identity, max_bytes=_MAX_REPORT_BYTES)
    if job.keeps_outputs:
        outcome.changes, outcome.skipped = workspace.commit(jail.workspace_fd, identity, manifest)
