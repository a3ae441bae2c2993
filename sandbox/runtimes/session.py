"""One run in a jail that stands: the part that every runtime with a process 1 of ours shares.

fill           the workspace's files are copied in
GO             the script runs; the host reads both pipes, keeps the time and looks at the counters
DONE or kill   the script has ended by itself, and process 1 has ended all else in the jail; or process 1 is killed, and the
               kernel ends everything in the jail before it
take           nothing of the guest lives, so its tree is still: changed files are taken into the workspace
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from sandbox.guest import wire
from sandbox.job import Execution, FileChange, Job, Skipped, Status
from sandbox.runtimes.cgroups import Counters, RunCgroup
from sandbox.runtimes.jail import Jail, JailLost
from sandbox.runtimes.process_tree import proportional_memory_bytes
from sandbox.runtimes.streams import Capture, OnOutput, Reader, readable
from sandbox.workspace import Manifest, Workspace

T = TypeVar("T")

_LOOK_SECONDS = 0.1
_MAX_REPORT_BYTES = 1 << 20


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


class Session:
    """The steps of one run; each is called once, in this order. What raises before GO leaves the run not begun."""

    def __init__(self, jail: Jail, job: Job, workspace: Workspace, *, folder: str = "") -> None:
        """``folder``: the workspace's, under what a launcher has mounted; empty if the jail has the workspace's mounts."""
        self._jail = jail
        self._folder = folder
        self._job = job
        self._workspace = workspace
        self._manifest = Manifest()

    def fill(self) -> Manifest:
        """Copy the workspace's files in. Blocks."""
        self._manifest = self._workspace.copy_in(self._jail.workspace_fd, self._jail.identity, only=self._job.inputs)
        return self._manifest

    async def go(self, judge: Callable[[Outcome], Execution], *, on_output: OnOutput | None) -> Execution:
        """Let the script run to its end, and give what ``judge`` makes of the facts.

        Raises `JailLost` if the jail ended before it could be told to go. If it raises, the jail has been killed.
        """
        limits = self._job.limits
        kept = {"text_bytes": limits.output_text_bytes, "disk_bytes": limits.output_disk_bytes}
        outcome = self._outcome = Outcome(
            stdout=Capture("stdout", folder=self._workspace.spool_folder, **kept),
            stderr=Capture("stderr", folder=self._workspace.spool_folder, **kept),
        )
        channels = self._jail.channels
        readers = [
            Reader(fd, capture, on_output=on_output, on_limit=self._over_output_limit)
            for fd, capture in ((channels.stdout_fd, outcome.stdout), (channels.stderr_fd, outcome.stderr))
        ]
        try:
            await self._let_run()
            for reader in readers:
                reader.drain()
            return await uninterrupted(asyncio.to_thread(self._take, judge))
        except BaseException:
            self._jail.kill()
            await uninterrupted(readable(self._jail.pidfd))  # nothing of a cancelled run goes on
            raise
        finally:
            for reader in readers:
                reader.stop()
            outcome.close()

    async def _let_run(self) -> None:
        """GO, and then until DONE, the end of the jail, or the time; at its end nothing of the guest lives."""
        job, outcome, control = self._job, self._outcome, self._jail.channels.control
        started = time.monotonic()
        try:
            control.send(wire.encode_go(job.limits.cpu_seconds, self._folder, job.script_path, job.arguments))
        except OSError as fault:
            raise JailLost(f"The jail ended before its script could start ({fault.strerror}). Try again.") from None
        watching = asyncio.ensure_future(self._watch(self._jail.cgroup))
        try:
            async with asyncio.timeout(job.limits.wall_seconds):
                await readable(control.fileno())
            outcome.wall_seconds = time.monotonic() - started
            if done := control.recv(256):
                outcome.wait_status, outcome.cpu_seconds, outcome.max_memory_bytes = wire.decode_done(done)
        except TimeoutError:
            outcome.wall_seconds = time.monotonic() - started
            self._stop(Status.TIMED_OUT, f"It was stopped after {job.limits.wall_seconds:g} s, the limit for one run.")
        except (ConnectionError, ValueError):
            self._stop(Status.KILLED, "The jail's first process did not keep to its protocol.")
        finally:
            watching.cancel()
        if outcome.wait_status is None:
            self._jail.kill()
            await readable(self._jail.pidfd)  # the kernel lets process 1 end only after all others of its jail
        if self._jail.cgroup is not None:
            outcome.counters = self._jail.cgroup.counters()

    async def _watch(self, cgroup: RunCgroup | None) -> None:
        """Stop a run over its processor time, or over its memory: at once, and not only when its main process notices."""
        limits = self._job.limits
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if cgroup is None:
                used_bytes = await asyncio.to_thread(proportional_memory_bytes, self._jail.pid)
                if used_bytes > limits.memory_bytes:
                    self._stop(Status.OUT_OF_MEMORY, f"Its processes together used {used_bytes:,} bytes of memory.")
                continue
            try:
                counters = cgroup.counters()
            except OSError:  # the run is ending, and its group with it
                continue
            if counters.cpu_seconds > limits.cpu_seconds:
                self._stop(
                    Status.TIMED_OUT, f"It was stopped after {limits.cpu_seconds} s of processor time, the limit."
                )
            if counters.oom_kills:
                await asyncio.sleep(_LOOK_SECONDS)  # the main process may be ending by itself
                self._stop(Status.OUT_OF_MEMORY, "One of its processes was killed at the memory limit.")

    def _stop(self, status: Status, reason: str) -> None:
        """Kill the jail, and note the first reason."""
        if self._outcome.stopped is None and self._outcome.wait_status is None:
            self._outcome.stopped, self._outcome.stop_reason = status, reason
        self._jail.kill()

    def _over_output_limit(self) -> None:
        limit = self._job.limits.output_disk_bytes
        full = self._outcome.stdout.disk_is_full or self._outcome.stderr.disk_is_full
        more = "the service's disk can hold now" if full else f"{limit:,} bytes"
        self._stop(Status.OUTPUT_LIMIT, f"It printed more than {more}.")

    def _take(self, judge: Callable[[Outcome], Execution]) -> Execution:
        """Take what the run left, and judge it."""
        outcome, jail = self._outcome, self._jail
        space = os.fstatvfs(jail.workspace_fd)
        outcome.workspace_full = space.f_bavail == 0 or space.f_ffree == 0
        outcome.report = self._workspace.read_report(jail.report_fd, jail.identity, max_bytes=_MAX_REPORT_BYTES)
        if self._job.keeps_outputs:
            outcome.changes, outcome.skipped = self._workspace.commit(jail.workspace_fd, jail.identity, self._manifest)
        return judge(outcome)


async def uninterrupted(work: Awaitable[T]) -> T:
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
