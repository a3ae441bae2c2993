"""One run in a jail that stands: the part that every runtime with a process 1 of ours shares.

fill           the workspace's files are copied in, while process 1 mounts what is read-only
GO             the script runs; the host reads both pipes, keeps the time and looks at the counters
DONE or kill   the script has ended by itself, and process 1 has ended all else in the jail; or process 1 is killed, and the
               kernel ends everything in the jail before it
take           nothing of the guest lives, so its tree is still: changed files are taken into the workspace
again          if wanted, GO for a program of ours over that tree, behind the same walls; nothing more is taken

All of it on one thread of the run's own, since each change of threads takes a tenth of a millisecond of a short run.
"""

import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import dataclass, field

from sandbox.errors import JailLost, SpillboxError
from sandbox.guest import wire
from sandbox.job import Execution, FileChange, Job, Limits, Skipped, Status
from sandbox.runtimes.base import Inspection
from sandbox.runtimes.cgroups import Counters
from sandbox.runtimes.jail import Jail
from sandbox.runtimes.process_tree import proportional_memory_bytes
from sandbox.runtimes.streams import Capture, OnOutput
from sandbox.workspace import FolderTree, Manifest, Workspace

_LOOK_SECONDS = 0.1
_MAX_REPORT_BYTES = 1 << 20
_READ_BYTES = 64 * 1024  # what a pipe holds
_WAITING_READS = 16


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

    @property
    def printed(self) -> str | None:
        """Its stdout, if it ended well."""
        return self.stdout.text() if self.stopped is None and self.wait_status == 0 else None

    def close(self) -> None:
        """Give back the disk of the captured output."""
        self.stdout.close()
        self.stderr.close()


class Printed:
    """What a run prints: kept, and handed on to who follows it, on the event loop that runs at the beginning."""

    def __init__(self, workspace: Workspace, limits: Limits, on_output: OnOutput | None) -> None:
        kept = {"text_bytes": limits.output_text_bytes, "disk_bytes": limits.output_disk_bytes}
        self.stdout = Capture("stdout", folder=workspace.spool_folder, **kept)
        self.stderr = Capture("stderr", folder=workspace.spool_folder, **kept)
        self._limit_bytes = limits.output_disk_bytes
        self._on_output = on_output
        self._loop = None if on_output is None else asyncio.get_running_loop()
        self._room = threading.Semaphore(_WAITING_READS)

    def take(self, capture: Capture, data: bytes) -> str:
        """Keep more of it, from any thread; says why the run must be stopped for it, if it must."""
        fits = capture.feed(data)
        if self._on_output is not None and self._loop is not None:
            # A loop that is behind holds the script up, and not the memory; but never the run's clock for long.
            self._room.acquire(timeout=_LOOK_SECONDS)
            self._loop.call_soon_threadsafe(self._hand_on, self._on_output, capture.name, data)
        if fits:
            return ""
        is_full = self.stdout.disk_is_full or self.stderr.disk_is_full
        return f"It printed more than {'the disk of the service can hold now' if is_full else f'{self._limit_bytes:,} bytes'}."

    def _hand_on(self, on_output: OnOutput, name: str, data: bytes) -> None:
        """On the event loop."""
        try:
            on_output(name, data)
        finally:
            self._room.release()


class Session:
    """One run in one jail; used once."""

    def __init__(
        self, jail: Jail, job: Job, workspace: Workspace, *, folder: str = "", on_output: OnOutput | None = None
    ) -> None:  # fmt: skip
        """``folder``: the workspace's, under what a launcher has mounted; empty if the jail has the workspace's mounts.

        ``on_output`` is called on the running event loop.
        """
        self._jail = jail
        self._job = job
        self._workspace = workspace
        self._folder = folder
        self._cancelled = False
        self._saw_kill = False
        self._begun = False
        self._cpu_seconds_before = 0.0
        self._printed = Printed(workspace, job.limits, on_output)
        self._outcome = Outcome(stdout=self._printed.stdout, stderr=self._printed.stderr)
        channels = jail.channels
        self._streams = {channels.stdout_fd: self._outcome.stdout, channels.stderr_fd: self._outcome.stderr}

    def cancel(self) -> None:
        """Kill the run, from another thread."""
        self._cancelled = True
        self._jail.kill()

    def run(
        self, judge: Callable[[Outcome], Execution], *, unfit: Callable[[Manifest], bool] = lambda _: False,
        inspection: Inspection | None = None, has_libraries: bool = False,
    ) -> Execution:  # fmt: skip
        """Run the script, and give what ``judge`` makes of the facts. Blocks. If it raises, nothing of the run lives.

        An ``inspection`` that needs office libraries is made only in a jail that ``has_libraries``. Raises `JailLost` if the
        jail ended before it could be told to go, `Unfit` if ``unfit`` says so of the files.
        """
        try:
            if self._folder:
                self._tell(wire.encode_for(self._folder))
            with self._tree() as tree:
                manifest = self._workspace.copy_in(tree, only=self._job.inputs)
            if unfit(manifest):
                raise Unfit
            self._let_run()
            if self._cancelled:
                raise asyncio.CancelledError
            if inspection is None:
                self._dismiss()
            elif has_libraries:
                self._stand_again()  # it takes as long as taking the files does
            execution = judge(self._take(manifest))
            if inspection is not None:
                self._inspect(inspection, execution, has_libraries=has_libraries)
                self._dismiss()
        except BaseException:
            self._jail.kill()
            self._jail.wait()
            raise
        else:
            return execution
        finally:
            self._outcome.close()

    def _inspect(self, inspection: Inspection, execution: Execution, *, has_libraries: bool) -> None:
        """Run a program of ours in the jail over what lies there. A failure is none of the run's: another jail may be tried."""
        job, before = inspection.job_after(execution), self._outcome.counters
        if job is None or (job.libraries and not has_libraries):
            return
        if self._outcome.wait_status is None or (before is not None and before.oom_kills):
            return  # the jail has ended; or what the kernel kills from now on could not be told from what it has killed
        if not has_libraries:
            self._stand_again()
        again = Session(self._jail, job, self._workspace)
        again._cpu_seconds_before = before.cpu_seconds if before else 0.0
        with closing(again._outcome) as outcome, suppress(SpillboxError, OSError):
            again._let_run()
            inspection.printed = outcome.printed

    def _dismiss(self) -> None:
        """Let process 1 leave: nothing more is to be run."""
        with suppress(OSError):
            self._jail.channels.control.shutdown(socket.SHUT_WR)

    def _stand_again(self) -> None:
        """Have a process made for a program of ours."""
        if self._outcome.wait_status is not None:
            with suppress(OSError):  # it shows when the program is to run
                self._jail.channels.control.send(wire.AGAIN)

    def _let_run(self) -> None:
        """GO, and then until DONE, the end of the jail, or the time; at its end nothing of the guest lives."""
        job, outcome = self._job, self._outcome
        started = time.monotonic()
        self._tell(wire.encode_go(job.limits.cpu_seconds, wire.FORKED, job.script_path, job.arguments))
        last_word = self._attend(started)
        outcome.wall_seconds = time.monotonic() - started
        try:
            if last_word:
                outcome.wait_status, outcome.cpu_seconds, outcome.max_memory_bytes = wire.decode_done(last_word)
        except ValueError:
            self._stop(Status.KILLED, "The jail's first process did not keep to its protocol.")
        if last_word is None:
            self._stop(Status.TIMED_OUT, f"It was stopped after {job.limits.wall_seconds:g} s, the limit for one run.")
        elif not self._begun:
            raise JailLost("The jail ended before its script could start. Try again.")
        if outcome.wait_status is None:
            self._jail.kill()
            self._jail.wait()
        for fd in list(self._streams):
            while self._read(fd):
                pass
        if self._jail.cgroup is not None:
            outcome.counters = self._jail.cgroup.counters()

    def _tell(self, message: bytes) -> None:
        try:
            self._jail.channels.control.send(message)
        except OSError as fault:
            raise JailLost(f"The jail ended before its script could start ({fault.strerror}). Try again.") from None

    def _attend(self, started: float) -> bytes | None:
        """Read what is printed, and look at what is used, until the jail's last word; None if the time is over before."""
        control = self._jail.channels.control
        poll = select.poll()
        for fd in (control.fileno(), *self._streams):
            poll.register(fd, select.POLLIN)
        deadline, next_look = started + self._job.limits.wall_seconds, started + _LOOK_SECONDS
        while (now := time.monotonic()) < deadline:
            if now >= next_look:
                self._look(deadline)
                next_look = time.monotonic() + _LOOK_SECONDS
            ready = [fd for fd, _ in poll.poll(max(0, min(deadline, next_look) - now) * 1000 + 1)]
            for fd in ready:
                if fd in self._streams and not self._read(fd):
                    poll.unregister(fd)
            if control.fileno() in ready:
                word = self._hear()
                if word != wire.BEGUN or self._begun:
                    return word
                self._begun = True
        return None

    def _hear(self) -> bytes:
        """A message of process 1; empty if it has ended."""
        try:
            return self._jail.channels.control.recv(256)
        except ConnectionError:
            return b""

    def _read(self, fd: int) -> bool:
        """Take what a stream has now; False if that is nothing."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if data and (why := self._printed.take(self._streams[fd], data)):
            self._stop(Status.OUTPUT_LIMIT, why)
        return bool(data)

    def _look(self, deadline: float) -> None:
        """Stop a run over its processor time, or over its memory: at once, and not only when its main process notices."""
        limits, cgroup = self._job.limits, self._jail.cgroup
        if cgroup is None:
            enough = limits.memory_bytes + 1
            used_bytes = proportional_memory_bytes(self._jail.pid, enough_bytes=enough, until=deadline)
            if used_bytes >= enough:
                self._stop(Status.OUT_OF_MEMORY, f"Its processes together used {used_bytes:,} bytes of memory.")
            return
        counters = cgroup.counters()
        if counters.cpu_seconds - self._cpu_seconds_before > limits.cpu_seconds:
            self._stop(Status.TIMED_OUT, f"It was stopped after {limits.cpu_seconds} s of processor time, the limit.")
        if counters.oom_kills:
            if self._saw_kill:  # at the second look: the main process may have been ending by itself
                self._stop(Status.OUT_OF_MEMORY, "One of its processes was killed at the memory limit.")
            self._saw_kill = True

    def _stop(self, status: Status, reason: str) -> None:
        """Kill the jail, and note the first reason."""
        if self._outcome.stopped is None and self._outcome.wait_status is None:
            self._outcome.stopped, self._outcome.stop_reason = status, reason
        self._jail.kill()

    def _take(self, manifest: Manifest) -> Outcome:
        """Take what the run left."""
        outcome, jail = self._outcome, self._jail
        space = os.fstatvfs(jail.workspace_fd)
        outcome.workspace_full = space.f_bavail == 0 or space.f_ffree == 0
        outcome.report = self._workspace.read_report(jail.report_fd, jail.identity, max_bytes=_MAX_REPORT_BYTES)
        if self._job.keeps_outputs:
            with self._tree() as tree:
                outcome.changes, outcome.skipped = self._workspace.commit(tree, manifest)
        return outcome

    def _tree(self) -> FolderTree:
        return FolderTree(self._jail.workspace_fd, self._jail.identity)


class Unfit(Exception):
    """The jail is not fit for what the workspace holds; nothing has run."""


def let_go(threads: Executor) -> None:
    """Wait for what the threads still do, unless this is one of them, as when the garbage collector found the runtime here."""
    with suppress(RuntimeError):
        threads.shutdown()
