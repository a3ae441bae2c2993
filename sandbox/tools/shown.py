"""The tools for what the user gets: a file attached, a table shown."""

import asyncio
import json
import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from sandbox.attachments import attachment_name
from sandbox.catalog import Attachment, ShownTable
from sandbox.documents.check import CHECKED_FORMATS, checking, format_of
from sandbox.errors import InvalidArguments, TooLarge
from sandbox.job import DocumentCheck, FileChange
from sandbox.tables.cells import Cell, plain_text, quoted, without_lone_surrogates
from sandbox.tables.literal_json import dump
from sandbox.tables.select import listed
from sandbox.tools.builders import ColumnInput, Readable, TableInput, reading, select
from sandbox.tools.files import PathField
from sandbox.tools.registry import AnyTool, Call, Tool, ToolInput
from sandbox.workspace import Workspace

MAX_SHOWN_ROWS = 2000
_FIRST_ROWS = 5
_MAX_TABLE_BYTES = 8 << 20
_MAX_FIRST_CHARACTERS = 4000
_OF_SOURCE = {"source", "rows_at", "columns", "sort_by", "sort_as", "descending", "start", "count"}


class AttachFileInput(ToolInput):
    """Arguments of attach_file."""

    path: PathField
    name: Annotated[
        str | None, Field(description="The name under which it is downloaded; the file's own if not given.")
    ] = None


class AttachFileOutput(BaseModel):
    """A file that was attached."""

    id: str
    name: str
    bytes: int
    sha256: str
    media_type: str
    url: str = Field(description="Where the user downloads it.")
    check: DocumentCheck | None = Field(
        None, description="Of a document: whether it opens. Never hand on one that does not."
    )


async def attach_file(call: Call, given: AttachFileInput) -> AttachFileOutput:
    """Keep a file as it is, for download."""
    name = attachment_name(given.path, given.name)

    def attach() -> Attachment:
        return call.attachments.attach(call.workspace, given.path, name)

    found = None
    if format_of(given.path) not in CHECKED_FORMATS:
        made = await call.change(attach)
    else:
        async with call.queue.place(call.workspace.id):  # no run may change it between its check and its copy
            size = await asyncio.to_thread(call.workspace.size, given.path)
            file = FileChange(path=given.path, bytes=size, change="created")
            async with checking(call.runtime, call.workspace, (), run_id=call.id) as check:
                (found,) = await check.of((file,))
            made = await call.change(attach)
    return AttachFileOutput(
        id=made.id, name=made.name, bytes=made.bytes, sha256=made.sha256, media_type=made.media_type, check=found,
        url=call.sign(f"/v1/workspaces/{call.workspace.id}/attachments/{made.id}"),
    )  # fmt: skip


class ShowTableInput(ToolInput):
    """Arguments of show_table."""

    title: Annotated[str, Field(max_length=200)] = ""
    source: Annotated[str | None, Field(description="Path of JSON rows, NDJSON, CSV or xlsx; or give rows.")] = None
    rows_at: Annotated[str | None, Field(description="As of build_csv.")] = None
    columns: Annotated[
        list[ColumnInput] | None, Field(min_length=1, description="Which columns, in this order; all if not given.")
    ] = None
    sort_by: str | None = None
    sort_as: Literal["written", "numbers"] = "written"
    descending: bool = False
    start: Annotated[int, Field(ge=0)] = 0
    count: Annotated[int | None, Field(ge=0, le=MAX_SHOWN_ROWS)] = None
    rows: Annotated[
        list[dict[str, Any]] | None,
        Field(max_length=MAX_SHOWN_ROWS, description="Instead of a source: a few rows of your own, by column."),
    ] = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.source is None) == (self.rows is None):
            raise ValueError("give either `source` (a path) or `rows`, not both")
        return self


class ShowTableOutput(BaseModel):
    """A table that the user sees."""

    id: str
    title: str
    row_count: int
    columns: list[str]
    first_rows: str = Field(description="JSON of the first rows, for you; the user sees all of them.")
    url: str = Field(description="Where the user sees it.")


async def show_table(call: Call, given: ShowTableInput) -> ShowTableOutput:
    """Keep a table for the user's screen."""
    if given.rows is not None:
        columns, rows = _given_table(given.rows, given.columns)
    else:
        chosen: dict[str, Any] = given.model_dump(include=_OF_SOURCE)
        table_input = TableInput.model_validate(chosen)
        async with call.queue.slot(call.workspace.id), reading(call, table_input) as readable:
            columns, rows = await asyncio.to_thread(_read, call.workspace, table_input, readable)
    encoded = [_row_json(row) for row in rows]
    text = "[" + ",\n".join(encoded) + "]"
    if len(text.encode()) > _MAX_TABLE_BYTES:
        raise TooLarge(
            f"The table has over {_MAX_TABLE_BYTES:,} bytes. Choose fewer columns, or build a CSV from the path."
        )
    table = ShownTable(
        id=secrets.token_hex(12), workspace=call.workspace.id, call=call.id, title=given.title, row_count=len(rows),
        columns=tuple(columns), rows=text, shown_at=datetime.now(UTC),
    )  # fmt: skip
    await call.change(lambda: call.catalog.add_table(table))
    first = "[" + ",\n".join(encoded[:_FIRST_ROWS]) + "]"
    if len(first) > _MAX_FIRST_CHARACTERS:
        first = f"{first[:_MAX_FIRST_CHARACTERS]}… (cut)"
    return ShowTableOutput(
        id=table.id, title=table.title, row_count=len(rows), columns=columns, first_rows=first,
        url=call.sign(f"/v1/workspaces/{call.workspace.id}/tables/{table.id}.html"),
    )  # fmt: skip


Table = tuple[list[str], list[tuple[Cell, ...]]]


def _given_table(rows: list[dict[str, Any]], columns: list[ColumnInput] | None) -> Table:
    _require_few(len(rows))
    there = dict.fromkeys(name for row in rows for name in row)
    names = [column.name for column in columns or ()] or list(there)
    unknown = [name for name in names if name not in there]
    if unknown and rows:
        raise InvalidArguments(f"No row has a column {quoted(unknown[0])}. There are: {listed(there)}.")
    headers = [column.header or column.name for column in columns or ()] or names
    cells = [tuple(_given_cell(row[name]) if name in row else None for name in names) for row in rows]
    return list(map(without_lone_surrogates, headers)), cells


def _read(workspace: Workspace, given: TableInput, readable: Readable) -> Table:
    selected = select(workspace, given, readable)
    rows: list[tuple[Cell, ...]] = []
    for some in selected.runs():
        rows += some
        _require_few(len(rows))
    return given.headers(selected.names), rows


def _require_few(count: int) -> None:
    if count > MAX_SHOWN_ROWS:
        raise TooLarge(
            f"A table shows at most {MAX_SHOWN_ROWS:,} rows, and these are more. Show those that matter with `count`, "
            f"or build a CSV of all "
            "of them with build_csv from the path, and attach it."
        )


def _given_cell(value: Any) -> Cell:
    """A value that the model wrote, as it wrote it."""
    return dump(value).encode("utf-8", "backslashreplace")  # half of a surrogate pair becomes its escape


def _row_json(row: tuple[Cell, ...]) -> str:
    return "[" + ",".join(map(_cell_json, row)) + "]"


def _cell_json(cell: Cell) -> str:
    """A cell as strict JSON; NaN, which many sources have and JSON has not, as a text."""
    if cell is None:
        return "null"
    text = json.dumps(cell, ensure_ascii=False) if isinstance(cell, str) else bytes(cell).decode()
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return json.dumps(plain_text(cell))
    return text


def _no_constant(name: str) -> None:
    raise ValueError(name)


TOOLS: tuple[AnyTool, ...] = (
    Tool(
        name="attach_file",
        description="Give a file of the workspace to the user as it is: a copy that never changes, is kept when "
        "saved results expire, and "
        "can be downloaded. Attach documents when they are done and checked.",
        input=AttachFileInput,
        output=AttachFileOutput,
        function=attach_file,
        read_only=False,
    ),
    Tool(
        name="show_table",
        description=f"Show a table to the user in the answer, from a saved result by its path: at most "
        f"{MAX_SHOWN_ROWS:,} rows. Show only the "
        "rows that the user needs to see; for the rest build a CSV from the path with build_csv and attach it. You "
        "get the count and the "
        "first rows.",
        input=ShowTableInput,
        output=ShowTableOutput,
        function=show_table,
        read_only=False,
    ),
)
