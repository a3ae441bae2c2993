"""Checks the documents of a run and reads their text: by programs of ours in a jail, never in the service's process.

A document is bytes that a guest wrote, and office libraries are large parsers of such bytes.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

from sandbox.errors import BadRequest, JailFailed, SpillboxError, TooLarge
from sandbox.guest_root import PROGRAMS
from sandbox.job import MIB, DocumentCheck, Execution, FileChange, Job, Limits, Status
from sandbox.runtimes.base import Inspection, Runtime
from sandbox.workspace import Workspace, guest_name

OFFICE_FORMATS = ("docx", "pptx", "xlsx")
CHECKED_FORMATS = (*OFFICE_FORMATS, "csv")
_MAX_CHECKED = 50
_MAX_CHECKED_BYTES = 64 * 1024
_MAX_TEXT_BYTES = 32 * MIB
_PROGRAM_SECONDS = 60
_NO_RESULT = "the check gave no result for it"
_LIBRARIES = re.compile(rb"\b(docx|lxml|openpyxl|PIL|pptx|xlsxwriter)\b")
OFFICE_LIBRARIES = ("docx", "openpyxl", "pptx")
_CHECKED_WITH = {"docx": "docx", "openpyxl": "openpyxl", "xlsxwriter": "openpyxl", "pptx": "pptx"}


def libraries_in(script: bytes) -> tuple[str, ...]:
    """The office libraries that a script names, by the names of their modules."""
    return tuple(sorted({name.decode() for name in _LIBRARIES.findall(script)}))


def format_of(path: str) -> str:
    """The lower-case ending of a file's name, without the dot; empty if it has none."""
    name = path.rsplit("/", 1)[-1]
    return name.rsplit(".", 1)[-1].lower() if "." in name else ""


class Check:
    """The check of the documents among the changes of one run."""

    def __init__(self, runtime: Runtime, workspace: Workspace, libraries: tuple[str, ...], *, run_id: str) -> None:
        needed = tuple(dict.fromkeys(_CHECKED_WITH[name] for name in libraries if name in _CHECKED_WITH))
        self._runtime = runtime
        self._workspace = workspace
        self._run_id = f"{run_id}-check"
        self._job = Job(
            script_path=f"{PROGRAMS}/check.py", limits=program_limits(workspace, output_text_bytes=MIB),
            libraries=needed or OFFICE_LIBRARIES, keeps_outputs=False, tool="check",
        )  # fmt: skip
        self._began: float | None = None
        self._ahead: asyncio.Task[Execution] | None = None
        self._final: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self.inspection = Inspection(self._job_after)
        """For the run of the script: where it can be made, the check needs no jail of its own."""
        if needed and runtime.starts_cold:
            start = runtime.run(self._job, workspace, run_id=self._run_id, final=self._final)
            self._ahead = asyncio.create_task(start)

    @property
    def seconds(self) -> float:
        """Real time since the script's end."""
        return 0 if self._began is None else time.monotonic() - self._began

    async def of(self, changes: Iterable[FileChange]) -> tuple[DocumentCheck, ...]:
        """The results, of documents that were made or changed."""
        self._began = self._began or time.monotonic()
        paths = _documents_in(changes)
        if not paths:
            return ()
        checked = _first_that_fit(paths)
        if self.inspection.printed is not None:
            return tuple(_results(_parse(self.inspection.printed, checked), _NO_RESULT, checked, paths))
        try:
            execution = await self._run_over(self._over(checked))
        except (SpillboxError, OSError) as fault:  # the run is done, and its answer must not be lost with its check
            return tuple(_results({}, str(fault), checked, paths))
        why = execution.error.message if execution.error else _NO_RESULT
        printed = execution.stdout.text if execution.status is Status.SUCCEEDED else ""
        return tuple(_results(_parse(printed, checked), why, checked, paths))

    def _job_after(self, execution: Execution) -> Job | None:
        self._began = time.monotonic()
        paths = _documents_in(execution.files)
        return self._over(_first_that_fit(paths)) if paths else None

    def _over(self, paths: Sequence[str]) -> Job:
        libraries = self._job.libraries if any(format_of(path) != "csv" for path in paths) else ()
        return _over(self._job.model_copy(update={"libraries": libraries}), paths)

    async def _run_over(self, job: Job) -> Execution:
        if self._ahead is not None:
            self._final.set_result(job)
            with suppress(JailFailed):  # it may have waited longer than its own clock allows
                return await self._ahead
        return await self._runtime.run(job, self._workspace, run_id=self._run_id)

    async def close(self) -> None:
        """Let go of the jail that was got ready."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)


@asynccontextmanager
async def checking(
    runtime: Runtime, workspace: Workspace, libraries: tuple[str, ...], *, run_id: str
) -> AsyncIterator[Check]:
    """Gives the check of what a run makes; use it around the run of a script, with its ``inspection``.

    Where jails start cold, and the script names ``libraries`` that make documents, the check's jail starts, and imports what
    it needs, while the script runs.
    """
    check = Check(runtime, workspace, libraries, run_id=run_id)
    try:
        yield check
    finally:
        await check.close()


def _documents_in(changes: Iterable[FileChange]) -> list[str]:
    return [c.path for c in changes if c.change != "deleted" and format_of(c.path) in CHECKED_FORMATS]


def _first_that_fit(paths: Sequence[str]) -> list[str]:
    """As many as one message of the wire can name, and one run should check."""
    fitting, left = [], _MAX_CHECKED_BYTES
    for path in paths[:_MAX_CHECKED]:
        left -= len(path.encode()) + 1
        if left >= 0:
            fitting.append(path)
    return fitting


def program_limits(workspace: Workspace, *, output_text_bytes: int) -> Limits:
    """The service's limits, with time of their own: the clock of a jail that waits runs from its start."""
    seconds = workspace.limits.wall_seconds + _PROGRAM_SECONDS
    return workspace.limits.model_copy(
        update={"wall_seconds": seconds, "cpu_seconds": _PROGRAM_SECONDS, "output_text_bytes": output_text_bytes}
    )


def _over(job: Job, paths: Sequence[str]) -> Job:
    """The job over these files of the workspace: they go in, and are its arguments."""
    return job.model_copy(update={"inputs": tuple(paths), "arguments": tuple(guest_name(path) for path in paths)})


def _results(
    results: dict[str, DocumentCheck], why: str, checked: Sequence[str], paths: Sequence[str]
) -> Iterator[DocumentCheck]:
    """One for each path; of one that could not be checked nothing is known, and the reason is given."""
    for path in paths:
        problem = f"it could not be checked: {why}"
        if path not in checked:
            problem = f"at most {_MAX_CHECKED} documents of a run are checked"
        yield results.get(path) or DocumentCheck(path=path, ok=None, format=format_of(path), problem=problem)


async def text_of(runtime: Runtime, workspace: Workspace, path: str, *, run_id: str) -> str:
    """The text of an office document by lines; raises `BadRequest` if it can't be opened."""
    limits = program_limits(workspace, output_text_bytes=_MAX_TEXT_BYTES)
    job = Job(
        script_path=f"{PROGRAMS}/office_text.py",
        limits=limits,
        libraries=OFFICE_LIBRARIES,
        keeps_outputs=False,
        tool="read_file",
    )
    execution = await runtime.run(_over(job, [path]), workspace, run_id=f"{run_id}-text")
    if execution.status is not Status.SUCCEEDED:
        why = execution.error.message if execution.error else execution.status
        raise BadRequest(f"{path} can't be opened as a .{format_of(path)} document: {why}")
    if execution.stdout.truncated:
        raise TooLarge(f"The text of {path} is over {_MAX_TEXT_BYTES:,} bytes. Read it in a script with run_python.")
    return execution.stdout.text


def _parse(printed: str, paths: Sequence[str]) -> dict[str, DocumentCheck]:
    """The program's results, which come in the order of its arguments; nothing if they are not what it prints."""
    try:
        results = json.loads(printed)
        return {
            path: DocumentCheck.model_validate({**one, "path": path}) for path, one in zip(paths, results, strict=True)
        }
    except (TypeError, ValueError):
        return {}


def describe_problem(result: DocumentCheck) -> str:
    """The warning about a document that is broken, which a model must not miss, or of which nothing is known."""
    if result.ok is None:
        return f"NOT CHECKED: {result.path}: {result.problem}. Open it yourself before you say that it is ready."
    return (
        f"BROKEN DOCUMENT: {result.path} is not as it should be: {result.problem}. Mend the script and run it again; do not "
        "tell the user that this file is ready."
    )
