"""Checks the documents of a run and reads their text: by programs of ours in a jail, never in the service's process.

A document is bytes that a guest wrote, and office libraries are large parsers of such bytes.
"""

import json
from collections.abc import Iterable, Sequence

from sandbox.errors import BadRequest
from sandbox.guest_root import PROGRAMS
from sandbox.job import MIB, DocumentCheck, Execution, FileChange, Job, Limits, Status
from sandbox.runtimes.base import Runtime
from sandbox.workspace import Workspace, guest_name

OFFICE_FORMATS = ("docx", "pptx", "xlsx")
CHECKED_FORMATS = (*OFFICE_FORMATS, "csv")
_MAX_CHECKED = 50
_CHECK_LIMITS = Limits(wall_seconds=60, cpu_seconds=60, output_text_bytes=MIB)
_TEXT_LIMITS = Limits(output_text_bytes=32 * MIB)


def format_of(path: str) -> str:
    """The lower-case ending of a file's name, without the dot; empty if it has none."""
    name = path.rsplit("/", 1)[-1]
    return name.rsplit(".", 1)[-1].lower() if "." in name else ""


async def check_documents(
    runtime: Runtime, workspace: Workspace, changes: Iterable[FileChange], *, run_id: str
) -> tuple[DocumentCheck, ...]:
    """Re-open each document among ``changes``; one that could not be checked is not ok, with the reason."""
    paths = [c.path for c in changes if c.change != "deleted" and format_of(c.path) in CHECKED_FORMATS]
    if not paths:
        return ()
    checked = paths[:_MAX_CHECKED]
    execution = await _run(runtime, workspace, "check.py", checked, _CHECK_LIMITS, run_id=f"{run_id}-check")
    results = _parse(execution, checked)
    reason = (
        f"it could not be checked: {execution.error.message if execution.error else 'the check gave no result for it'}"
    )
    reasons = dict.fromkeys(paths[_MAX_CHECKED:], f"it was not checked: only {_MAX_CHECKED} documents of a run are")
    return tuple(
        results.get(path)
        or DocumentCheck(path=path, ok=False, format=format_of(path), problem=reasons.get(path, reason))
        for path in paths
    )


async def text_of(runtime: Runtime, workspace: Workspace, path: str, *, run_id: str) -> str:
    """The text of an office document by lines; raises `BadRequest` if it can't be opened."""
    execution = await _run(runtime, workspace, "office_text.py", [path], _TEXT_LIMITS, run_id=f"{run_id}-text")
    if execution.status is not Status.SUCCEEDED:
        why = execution.error.message if execution.error else execution.status
        raise BadRequest(f"{path} can't be opened as a .{format_of(path)} document: {why}")
    return execution.stdout.text


async def _run(
    runtime: Runtime, workspace: Workspace, program: str, paths: Sequence[str], limits: Limits, *, run_id: str
) -> Execution:
    job = Job(
        script_path=f"{PROGRAMS}/{program}",
        arguments=tuple(guest_name(path) for path in paths),
        limits=limits,
        inputs=tuple(paths),
        keeps_outputs=False,
        tool=program.removesuffix(".py"),
    )
    return await runtime.run(job, workspace, run_id=run_id)


def _parse(execution: Execution, paths: Sequence[str]) -> dict[str, DocumentCheck]:
    """The program's results, which come in the order of its arguments; nothing if they are not what it prints."""
    if execution.status is not Status.SUCCEEDED:
        return {}
    try:
        results = json.loads(execution.stdout.text)
        return {
            path: DocumentCheck.model_validate({**one, "path": path}) for path, one in zip(paths, results, strict=True)
        }
    except (TypeError, ValueError):
        return {}


def describe_problem(result: DocumentCheck) -> str:
    """The warning about a broken document, which a model must not miss."""
    return (
        f"BROKEN DOCUMENT: {result.path} will not open as it is: {result.problem}. Mend the script and run it again; do not "
        "tell the user that this file is ready."
    )
