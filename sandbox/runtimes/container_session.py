"""One run in a container that is up: the same steps as in a jail, by the stream to its process 1.

What process 1 says is not a guest's word, yet nothing rests on it: names are looked at as if a guest had sent them, and sizes
are bounded.
"""

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from pydantic import Field

from sandbox.errors import JailLost, SpillboxError
from sandbox.guest import frames, wire
from sandbox.job import Execution, Job, Limits, Skipped, Status, Value
from sandbox.runtimes.base import Inspection
from sandbox.runtimes.cgroups import Counters
from sandbox.runtimes.container import Container, off_protocol, parts_of
from sandbox.runtimes.session import Outcome, Printed
from sandbox.runtimes.streams import OnOutput
from sandbox.workspace import MAX_DEPTH, NEVER_KEPT, Entry, Manifest, Segments, Workspace, pages, too_deep, write_all

_log = logging.getLogger(__name__)

_ANSWER_SECONDS = 60
_TAKE_SECONDS = 600
"""For all that a run left, however slowly it comes."""
_LAST_ERROR_NUMBER = 4095  # the kernel's MAX_ERRNO
_KILL_SECONDS = 3
_MAX_NAME_BYTES = 255
_STOPPED = {
    "cpu": (Status.TIMED_OUT, "It was stopped after {limits.cpu_seconds} s of processor time, the limit."),
    "memory": (Status.OUT_OF_MEMORY, "Its processes together used too much memory."),
    "files": (
        Status.DISK_FULL,
        "It made more than {limits.workspace_files:,} files and folders, or more folders in each other than can be counted.",
    ),
}


class _Done(Value):
    """What process 1 says at the end of a run."""

    wait_status: int = Field(ge=0, le=0xFFFF)
    cpu_seconds: float = Field(allow_inf_nan=False)  # a difference of two sums may come to a little below 0
    max_memory_bytes: int = Field(ge=0)
    stopped: str
    oom_kills: int = Field(ge=0)
    refused_forks: int = Field(ge=0)
    has_too_many_files: bool
    is_full: bool


class ContainerTree:
    """The `GuestTree` of a container."""

    def __init__(self, container: Container, limits: Limits, spool_folder: Path) -> None:
        self._container = container
        self._limits = limits
        self._spool_folder = spool_folder
        self._taken_until = 0.0
        self._sizes: dict[Segments, int] = {}
        self.filled_bytes = 0

    def make_folder(self, segments: Segments) -> None:
        self._container.send(frames.FOLDER, b"/".join(segments))

    def put(self, segments: Segments, source: int, status: os.stat_result) -> None:
        self.filled_bytes += pages(status.st_size)
        entry = frames.encode_entry(status.st_mode, status.st_size, 0, status.st_mtime_ns, b"/".join(segments))
        self._container.send(frames.FILE, entry)
        for part in parts_of(source, status.st_size):
            self._container.send(frames.DATA, part)

    def filled(self) -> None:
        self._container.send(frames.FILLED)
        try:
            number = int(self._container.expect(frames.FILLED, within_seconds=_ANSWER_SECONDS))
        except ValueError:
            raise off_protocol() from None
        if not 0 <= number <= _LAST_ERROR_NUMBER:
            raise off_protocol()
        if number:
            raise OSError(number, os.strerror(number))

    def entries(self, leave_out: frozenset[bytes], skipped: list[Skipped]) -> list[Entry]:
        self._taken_until = time.monotonic() + _TAKE_SECONDS
        found: dict[Segments, os.stat_result] = {}
        self._container.send(frames.LIST)
        while True:
            kind, payload = self._receive()
            if kind == frames.END:
                break
            if kind != frames.ENTRY:
                raise off_protocol()
            if len(found) == self._limits.workspace_files:
                raise off_protocol()  # such a run was stopped; of a cut list the rest would be taken for deleted
            segments, status = _checked(payload, leave_out)
            if len(segments) >= MAX_DEPTH and status.st_mode & 0o170000 == 0o040000:
                skipped.append(too_deep(segments))
            else:
                found[segments] = status
        self._sizes = {segments: status.st_size for segments, status in found.items()}
        return sorted(found.items(), key=lambda entry: entry[0])

    def opened(self, files: list[Segments]) -> Iterator[int]:
        for at in range(0, len(files), frames.MAX_FILES_AT_ONCE):
            some = files[at : at + frames.MAX_FILES_AT_ONCE]
            self._container.send(frames.GET, b"\0".join(b"/".join(segments) for segments in some))
            for segments in some:
                yield self._spooled(self._sizes[segments])

    def _spooled(self, size: int) -> int:
        """A descriptor of a file on the host's disk with the next content that comes, which has ``size`` bytes."""
        left = size
        with tempfile.TemporaryFile(dir=self._spool_folder, buffering=0) as spool:
            while True:
                kind, payload = self._receive()
                if kind == frames.END:
                    break
                left -= len(payload)
                if kind != frames.DATA or left < 0:
                    raise off_protocol()
                write_all(spool.fileno(), payload)
            if left:
                raise off_protocol()
            spool.seek(0)
            return os.dup(spool.fileno())

    def _receive(self) -> tuple[int, bytes]:
        return self._container.receive(min(_ANSWER_SECONDS, self._taken_until - time.monotonic()))


def _checked(payload: bytes, leave_out: frozenset[bytes]) -> Entry:
    """A path that can only lead to what a run may change, and what is known of what is there; raises `JailLost`."""
    try:
        mode, size, inode, modified_ns, path = frames.decode_entry(payload)
    except ValueError:
        raise off_protocol() from None
    segments = tuple(path.split(b"/"))
    if (
        len(segments) > MAX_DEPTH
        or b"\0" in path
        or any(name in (b"", b".", b"..", NEVER_KEPT) or len(name) > _MAX_NAME_BYTES for name in segments)
        or segments[0] in leave_out
    ):
        raise JailLost("The container's first process named a path that no run may change.")
    return segments, os.stat_result((mode, inode, 0, 1, 0, 0, size, 0, 0, 0), {"st_mtime_ns": modified_ns})


class ContainerSession:
    """One run in one container."""

    def __init__(
        self, container: Container, job: Job, workspace: Workspace, *, on_output: OnOutput | None = None
    ) -> None:  # fmt: skip
        """``on_output`` is called on the running event loop."""
        self._container = container
        self._job = job
        self._workspace = workspace
        self._printed = Printed(workspace, job.limits, on_output)
        self._outcome = Outcome(stdout=self._printed.stdout, stderr=self._printed.stderr)
        self._tree = ContainerTree(container, job.limits, workspace.spool_folder)
        self._report_name = ""
        self._cancelled = False
        self._is_done = False
        self._has_too_many_files = False

    def cancel(self) -> None:
        """Have `run` give up, from another thread."""
        self._cancelled = True
        self._container.interrupt()

    def run(
        self, judge: Callable[[Outcome], Execution], *, is_fresh: Callable[[Manifest], bool] = lambda _: False,
        inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        """Run the script, and give what ``judge`` makes of the facts. Blocks.

        ``is_fresh`` says of the files whether the script must have an interpreter that has imported nothing. An ``inspection``
        that needs office libraries is made only after a script for which they were imported. Raises `JailLost` if the
        container ended before the script began.
        """
        try:
            try:
                manifest = self._workspace.copy_in(self._tree, only=self._job.inputs)
                self._container.make_room(self._tree.filled_bytes)
                self._let_run(wire.FRESH if is_fresh(manifest) else wire.FORKED)
            except TimeoutError:
                raise JailLost("The container did not answer.") from None
            if self._is_done and self._job.keeps_outputs and not self._has_too_many_files:
                self._take(manifest)
            execution = judge(self._outcome)
            if inspection is not None:
                self._inspect(inspection, execution)
            return execution
        finally:
            self._outcome.close()

    def _inspect(self, inspection: Inspection, execution: Execution) -> None:
        """Run a program of ours in the container over what lies there. A failure is none of the run's: another may be tried."""
        job = inspection.job_after(execution)
        if job is None or (job.libraries and not self._job.libraries) or not self._can_be_tidied:
            return
        again = ContainerSession(self._container, job, self._workspace)
        with closing(again._outcome) as outcome, suppress(SpillboxError, OSError):
            again._let_run(wire.FORKED)
            inspection.printed = outcome.printed
        self._is_done = again._can_be_tidied

    def _take(self, manifest: Manifest) -> None:
        """Take what the run left. If the container is lost now, the script is not run again: it has run."""
        try:
            self._outcome.changes, self._outcome.skipped = self._workspace.commit(self._tree, manifest)
        except (JailLost, TimeoutError) as fault:
            self._is_done = False
            self._require_not_cancelled()
            lost = f"What it wrote could not be taken, and all files are as before. {str(fault) or 'It took too long.'}"
            self._note_stop(Status.KILLED, f"It ended. {lost}", also=lost)

    def tidy(self) -> bool:
        """Make the container ready for the next run; gives whether it can be. Raises `JailLost` and TimeoutError."""
        if self._can_be_tidied:
            self._container.send(frames.WIPE)
            is_clean = self._container.expect(frames.WIPED, within_seconds=_ANSWER_SECONDS) == b"1"
            self._container.unseal()
            return is_clean
        return False

    @property
    def _can_be_tidied(self) -> bool:
        """The engine says for ever of a container whose script ran out of memory that it did."""
        return self._is_done and not (self._outcome.counters and self._outcome.counters.oom_kills)

    def _let_run(self, interpreter: str) -> None:
        """GO, and then until DONE, the end of the container, or the time; at its end nothing of the guest lives."""
        job, outcome = self._job, self._outcome
        self._container.send(
            frames.GO, wire.encode_go(job.limits.cpu_seconds, interpreter, job.script_path, job.arguments)
        )
        self._container.expect(frames.STANDS, within_seconds=_ANSWER_SECONDS)
        started = time.monotonic()
        self._container.seal()
        try:
            if not self._attend(started + job.limits.wall_seconds):
                self._stop(
                    Status.TIMED_OUT, f"It was stopped after {job.limits.wall_seconds:g} s, the limit for one run."
                )
                if not self._attend(time.monotonic() + _KILL_SECONDS):
                    raise JailLost("It did not end in time.")
        except JailLost as fault:
            if not self._cancelled:
                self._note_end(str(fault))
        self._require_not_cancelled()
        outcome.wall_seconds = time.monotonic() - started

    def _require_not_cancelled(self) -> None:
        """Raises CancelledError if it was, and nothing of the run lives then."""
        if self._cancelled:
            self._container.kill()
            raise asyncio.CancelledError

    def _note_end(self, why: str) -> None:
        """The container has ended under the run, or is no good any more; all that the run wrote goes with it."""
        _log.warning("a container was lost under a run: %s %s", why, self._container.what_it_said())
        if self._container.end_out_of_memory():
            self._outcome.counters = Counters(0, 0, 1, 0)
        else:
            self._note_stop(Status.KILLED, why, also="The container was lost too: nothing that it wrote was taken.")

    def _note_stop(self, status: Status, reason: str, *, also: str) -> None:
        """Note why the run came to nothing; if there is a reason already, ``also`` stands behind it."""
        outcome = self._outcome
        if outcome.stopped is None:
            outcome.stopped, outcome.stop_reason = status, reason
        else:
            outcome.stop_reason = f"{outcome.stop_reason} {also}"

    def _attend(self, deadline: float) -> bool:
        """Take what comes until DONE; False if the time is over before. Raises `JailLost` if the container has ended."""
        report = self._outcome.report
        while True:
            try:
                kind, payload = self._container.receive(max(0, deadline - time.monotonic()))
            except TimeoutError:
                return False
            if kind in (frames.OUT, frames.ERR):
                capture = self._outcome.stdout if kind == frames.OUT else self._outcome.stderr
                if why := self._printed.take(capture, payload):
                    self._stop(Status.OUTPUT_LIMIT, why)
            elif kind == frames.FILE and len(report) < frames.MAX_REPORT_FILES:
                self._report_name = _name_in(payload)
                report[self._report_name] = b""
            elif kind == frames.DATA and report:
                report[self._report_name] = (report[self._report_name] + payload)[: frames.MAX_REPORT_BYTES]
            elif kind == frames.DONE:
                self._take_done(payload)
                return True
            else:
                raise off_protocol()

    def _take_done(self, payload: bytes) -> None:
        outcome = self._outcome
        try:
            done = _Done.model_validate_json(payload)
        except ValueError:
            raise off_protocol() from None
        outcome.counters = Counters(
            max(0.0, done.cpu_seconds), done.max_memory_bytes, done.oom_kills, done.refused_forks
        )
        outcome.workspace_full = done.is_full
        self._has_too_many_files = done.has_too_many_files
        for why in dict.fromkeys((done.stopped, "files" if done.has_too_many_files else "")):
            if known := _STOPPED.get(why):
                reason = known[1].format(limits=self._job.limits)
                self._note_stop(known[0], reason, also=reason)
        if outcome.stopped is None:
            outcome.wait_status = done.wait_status
        self._is_done = True

    def _stop(self, status: Status, reason: str) -> None:
        """Have everything killed, and note the first reason."""
        if self._outcome.stopped is None:
            self._outcome.stopped, self._outcome.stop_reason = status, reason
            self._container.send(frames.KILL)


def _name_in(payload: bytes) -> str:
    try:
        return os.fsdecode(frames.decode_entry(payload)[-1])
    except ValueError:
        raise off_protocol() from None
