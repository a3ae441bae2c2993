"""The rows of a workbook, read by a program of ours in a jail: a workbook may be bytes that a guest wrote."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox.documents.check import program_limits
from sandbox.errors import InvalidSource
from sandbox.guest_root import PROGRAMS
from sandbox.job import Job, Status
from sandbox.runtimes.base import Runtime
from sandbox.tables.cells import quoted
from sandbox.tables.select import listed
from sandbox.tables.source import OpenFile
from sandbox.workspace import Workspace

ROWS_AT = "$.rows"
_INPUT, _OUTPUT = "workbook.xlsx", "rows.json"


@asynccontextmanager
async def rows_of_workbook(
    runtime: Runtime, workspace: Workspace, path: str, sheet: str | None, *, run_id: str
) -> AsyncIterator[tuple[OpenFile, tuple[str, ...]]]:
    """Gives how to open a JSON document with the rows of a sheet (the first one if None) at `ROWS_AT`, and what to know of it.

    Raises `InvalidSource` for what is no workbook, or a sheet that it does not have, naming those that it has.
    """
    with workspace.scratch() as scratch:
        with workspace.open_file(path) as file:
            scratch.write(_INPUT, iter(lambda: file.read(1 << 20), b""))
        job = Job(
            script_path=f"{PROGRAMS}/sheet_rows.py",
            arguments=(_INPUT, _OUTPUT, *(() if sheet is None else (sheet,))),
            limits=program_limits(scratch, output_text_bytes=64 * 1024),
            tool="read_workbook",
        )
        execution = await runtime.run(job, scratch, run_id=f"{run_id}-rows")
        if execution.status is not Status.SUCCEEDED:
            said = execution.stderr.text.strip().rpartition("\n")[2]
            why = said or (execution.error.message if execution.error else execution.status)
            raise InvalidSource(f"{path}: {why}.")
        yield lambda: scratch.open_file(_OUTPUT), _notes(execution.stdout.text, sheet)


def _notes(printed: str, sheet: str | None) -> tuple[str, ...]:
    """Which sheet was read, if that was not said; the program prints the names, which are a guest's."""
    try:
        names = json.loads(printed)
    except ValueError:
        return ()
    if sheet is not None or not isinstance(names, list) or len(names) < 2:
        return ()
    return (
        f"Read from the sheet {quoted(str(names[0]))}; there are also: {listed(map(str, names[1:]))}. rows_at names a sheet.",
    )
