"""From the bare facts of a run to its `Execution`: which status, what is written to files, what the caller is told.

The cause of a kill is read from what the host did, from the wait status and from the kernel's counters, never from
words that the guest printed.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from sandbox import failures
from sandbox.errors import ServiceFull, SpillboxError, TenantFull
from sandbox.failures import GuestReport, Surroundings
from sandbox.job import Execution, FileChange, Job, Limits, Skipped, Status, Stream, Usage
from sandbox.runtimes.session import Outcome
from sandbox.runtimes.streams import GAP_END, Capture
from sandbox.workspace import Workspace, tool_path

Listed = TypeVar("Listed", FileChange, Skipped)

_TRACEBACK_START = 300
_MAX_LISTED = 1000
_MAX_LISTED_CHARACTERS = 128 * 1024
_ALWAYS_KEPT_BYTES = 64 * 1024
_CHUNK_BYTES = 1 << 20


def answer(
    outcome: Outcome,
    job: Job,
    workspace: Workspace,
    *,
    run_id: str,
    runtime: str,
    libraries: dict[str, str],
    warnings: tuple[str, ...],
) -> Execution:
    """Judge ``outcome``, write what must be kept under ``results/`` and ``errors/``."""
    report = failures.parse_report(outcome.report.get("error.json"))
    verdict = _judge(outcome, report, job.limits)
    if verdict.status is Status.SUCCEEDED:
        report = None
    notes = list(warnings)
    room = _Room(workspace, open=job.keeps_outputs)
    error = kept_stdout = kept_stderr = None
    if verdict.status is not Status.SUCCEEDED:
        kept_stderr = room.keep("errors", f"-{job.tool}.txt", _full_text(outcome, job, verdict))
        hint = _hint(workspace, job, report, verdict, libraries)
        error = failures.explain(report, otherwise=verdict.reason, traceback_path=kept_stderr, hint=hint)
    elif outcome.stderr.truncated:
        kept_stderr = room.keep("errors", f"-{job.tool}.stderr.txt", _chunks(outcome.stderr))
    if outcome.stdout.truncated:
        kept_stdout = room.keep("results", f"-{job.tool}.stdout.txt", _chunks(outcome.stdout))
    stdout, stderr = _stream(outcome.stdout, kept_stdout), _stream(outcome.stderr, kept_stderr)
    if report is not None:
        stderr = _without_traceback(stderr, outcome)
    if room.was_short:
        notes.append(
            "Some output was not kept: results/ and errors/ hold as much as they may. Ask the operator for a clean-up."
        )
    files, skipped = _first(outcome.changes), _first(outcome.skipped)
    for what, shown, found in (("files", files, outcome.changes), ("skipped", skipped, outcome.skipped)):
        if len(shown) < len(found):
            notes.append(f"{what} lists the first {len(shown):,} of {len(found):,}; list_files shows all files.")
    if outcome.skipped:
        notes.append(f"{len(outcome.skipped):,} of the things that the script left were not kept: see skipped.")
    return Execution(
        id=run_id,
        status=verdict.status,
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        stdout=stdout,
        stderr=stderr,
        error=error,
        files=files,
        skipped=skipped,
        warnings=tuple(notes),
        usage=_usage(outcome),
        script_path=tool_path(job.script_path),
        runtime=runtime,
    )


class _Room:
    """What ``results/`` and ``errors/`` can still take: output of runs must not fill the host's disk run by run.

    Closed for programs of ours, which leave nothing in a workspace.
    """

    def __init__(self, workspace: Workspace, *, open: bool) -> None:
        self._workspace = workspace
        self._open = open
        self.was_short = False

    def keep(self, folder: str, name: str, chunks: Iterator[bytes]) -> str | None:
        """Write a file of them; gives its path."""
        if not self._open:
            return None
        try:
            return self._workspace.write_own(folder, name, self._within(chunks))
        except (ServiceFull, TenantFull):
            self.was_short = True
            return None

    def _within(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks as far as they fit; a little always does, so that an error is never without its text."""
        left = max(_ALWAYS_KEPT_BYTES, self._workspace.limits.results_bytes - self._workspace.own_bytes())
        for chunk in chunks:
            self.was_short = self.was_short or len(chunk) > left
            yield chunk[:left]
            left = max(0, left - len(chunk))


def _first(found: Sequence[Listed]) -> tuple[Listed, ...]:
    """The first few, bounded in number and in the length of their names."""
    shown: list[Listed] = []
    left = _MAX_LISTED_CHARACTERS
    for one in found[:_MAX_LISTED]:
        left -= len(one.path)
        if left < 0:
            break
        shown.append(one)
    return tuple(shown)


class _Verdict(NamedTuple):
    """How the run ended, and, for a run without a report of an exception, its type and message."""

    status: Status
    exit_code: int | None
    signal: str | None
    reason: tuple[str, str]


def _judge(outcome: Outcome, report: GuestReport | None, limits: Limits) -> _Verdict:
    exit_code = signal_name = None
    if outcome.wait_status is not None:
        if os.WIFSIGNALED(outcome.wait_status):
            signal_name = _name_of_signal(os.WTERMSIG(outcome.wait_status))
        else:
            exit_code = os.WEXITSTATUS(outcome.wait_status)
    status = _status(outcome, report, limits, exit_code, signal_name)
    return _Verdict(status, exit_code, signal_name, _reason(outcome, limits, status, exit_code, signal_name))


def _status(
    outcome: Outcome, report: GuestReport | None, limits: Limits, exit_code: int | None, signal_name: str | None
) -> Status:
    counters = outcome.counters
    if outcome.stopped is Status.KILLED:
        return Status.KILLED
    if counters is not None and counters.oom_kills:
        return Status.OUT_OF_MEMORY
    if counters is not None and counters.refused_forks:
        return Status.TOO_MANY_PROCESSES
    if outcome.stopped is not None:
        return outcome.stopped
    if exit_code == 0:
        return Status.SUCCEEDED
    if exit_code is not None:
        if report is not None and report.is_memory_error:
            return Status.OUT_OF_MEMORY
        is_full = outcome.workspace_full or (report is not None and report.is_disk_error)
        return Status.DISK_FULL if is_full else Status.FAILED
    if signal_name == "SIGSYS":
        return Status.BLOCKED_SYSCALL
    cpu_seconds = _usage(outcome).cpu_seconds or 0
    # At the resource limit of one process the kernel sends SIGXCPU, and counts in ticks, which may be too many; then SIGKILL.
    # A script may send itself either.
    if (signal_name == "SIGXCPU" and cpu_seconds > limits.cpu_seconds / 2) or (
        signal_name == "SIGKILL" and cpu_seconds > limits.cpu_seconds
    ):
        return Status.TIMED_OUT
    return Status.KILLED if signal_name in (None, "SIGKILL", "SIGTERM") else Status.FAILED


def _reason(
    outcome: Outcome, limits: Limits, status: Status, exit_code: int | None, signal_name: str | None
) -> tuple[str, str]:
    """Type and message."""
    if status is Status.OUT_OF_MEMORY:
        needed = f"It needed more than {limits.memory_bytes:,} bytes of memory, the limit for one run."
        return status.value, f"{needed} {outcome.stop_reason}".rstrip()
    if status is Status.TOO_MANY_PROCESSES:
        tried = f"It tried to have more than {limits.processes} processes and threads at once."
        return status.value, f"{tried} {outcome.stop_reason}".rstrip()
    if outcome.stopped is not None:
        return status.value, outcome.stop_reason
    if status is Status.TIMED_OUT:
        return status.value, f"It used {limits.cpu_seconds} s of processor time, the limit."
    if signal_name == "SIGSYS":
        return signal_name, "The script was ended for a system call that the sandbox forbids."
    if signal_name is not None:
        meaning = f" ({_SIGNALS[signal_name]})" if signal_name in _SIGNALS else ""
        return signal_name, f"The script was ended by {signal_name}{meaning}."
    if exit_code is not None:
        return "ExitCode", f"The script ended with exit code {exit_code} and no exception."
    return status.value, "The run was ended from outside."


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name of its own
        return f"SIG{number}"


_SIGNALS = {
    "SIGSEGV": "an invalid memory access",
    "SIGABRT": "abort",
    "SIGFPE": "an arithmetic fault",
    "SIGBUS": "an invalid memory access",
    "SIGILL": "an illegal instruction",
}

_HINTS = {
    Status.TIMED_OUT: "Do less in one run, or write part results to files and go on from them.",
    Status.OUT_OF_MEMORY: "Read large files in parts, line by line or row by row; for workbooks use openpyxl's "
    "read_only and write_only modes. Files that a run writes count as memory.",
    Status.TOO_MANY_PROCESSES: "Use fewer processes and threads, for example Pool(2).",
    Status.DISK_FULL: "Delete files that are no longer needed with delete_file, or write less.",
    Status.OUTPUT_LIMIT: "Write large results to a file instead of printing them, and print only a summary.",
    Status.BLOCKED_SYSCALL: "The sandbox forbids that system call. Use the standard library in ordinary ways.",
    Status.KILLED: "Run it again; if it is killed again, do less in one run.",
}


def _hint(
    workspace: Workspace, job: Job, report: GuestReport | None, verdict: _Verdict, libraries: dict[str, str]
) -> str | None:
    """What to do next."""
    if report is not None:
        files = [info.path for info in workspace.list_files()]
        hint = failures.hint_for(report, Surroundings(libraries=libraries, files=files))
        if hint is not None:
            return hint
    if verdict.status is Status.TIMED_OUT and _mentions_docx(workspace, job):
        return failures.SLOW_TABLE
    return _HINTS.get(verdict.status)


def _mentions_docx(workspace: Workspace, job: Job) -> bool:
    with suppress(SpillboxError):
        return b"docx" in workspace.read_bytes(tool_path(job.script_path), max_bytes=_CHUNK_BYTES)
    return False


def _full_text(outcome: Outcome, job: Job, verdict: _Verdict) -> Iterator[bytes]:
    """All of stderr; the traceback too, if the script kept it from stderr."""
    script = tool_path(job.script_path)
    why = "" if "error.json" in outcome.report else f": {verdict.reason[1]}"
    yield f"{script}: {verdict.status.value}{why}\n".encode()
    tail = b""
    for chunk in _chunks(outcome.stderr):
        tail = (tail + chunk)[-2 * _CHUNK_BYTES :]
        yield chunk
    traceback = outcome.report.get("traceback.txt", b"")
    if traceback and traceback.strip() not in tail:
        yield b"\n\n--- the traceback, which the script kept from stderr ---\n" + traceback


def _chunks(capture: Capture) -> Iterator[bytes]:
    whole = capture.whole()
    if isinstance(whole, bytes):
        yield whole
        return
    while chunk := whole.read(_CHUNK_BYTES):
        yield chunk


def _stream(capture: Capture, path: str | None) -> Stream:
    return Stream(text=capture.text(), bytes=capture.total_bytes, truncated=capture.truncated, path=path)


def _without_traceback(stderr: Stream, outcome: Outcome) -> Stream:
    """The model gets the traceback once, in short, as the error; the whole of it is in the file."""
    traceback = outcome.report.get("traceback.txt", b"").decode("utf-8", "replace")
    note = f"[traceback left out: see {stderr.path}]\n"
    if traceback and traceback in stderr.text:
        return stderr.model_copy(update={"text": note.join(stderr.text.rsplit(traceback, 1)), "truncated": True})
    # What is left of a long stderr may have only the beginning of it, or only the end.
    start = stderr.text.rfind(traceback[:_TRACEBACK_START])
    if start < 0:
        start = stderr.text.rfind(GAP_END) if stderr.truncated else -1
    if not traceback or start < 0:
        return stderr
    return stderr.model_copy(update={"text": stderr.text[:start] + note, "truncated": True})


def _usage(outcome: Outcome) -> Usage:
    counters, is_known = outcome.counters, outcome.counters is not None or outcome.wait_status is not None
    cpu_seconds = counters.cpu_seconds if counters else outcome.cpu_seconds
    memory_bytes = counters.max_memory_bytes if counters else outcome.max_memory_bytes
    return Usage(
        wall_seconds=round(outcome.wall_seconds, 6),
        cpu_seconds=round(cpu_seconds, 6) if is_known else None,
        max_memory_bytes=memory_bytes if is_known else None,
    )
