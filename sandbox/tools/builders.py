"""The tools that build CSV and Excel files straight from a saved result, by its path."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, model_validator

from sandbox.documents.check import format_of
from sandbox.documents.delimited import BOM, lines_of
from sandbox.documents.excel import MAX_CELL_UNITS, MAX_COLUMNS, MAX_ROWS, Sheet, write_workbook
from sandbox.documents.workbook import ROWS_AT, rows_of_workbook
from sandbox.documents.written import Tally
from sandbox.errors import InvalidArguments
from sandbox.tables.cells import quoted, without_lone_surrogates
from sandbox.tables.select import Selected, Selection, listed
from sandbox.tables.source import OpenFile, open_source
from sandbox.tools.registry import AnyTool, Call, Tool, ToolInput
from sandbox.workspace import Workspace, name_of, segments_of

_CONDITIONS = frozenset(
    {"where", "filter", "filters", "condition", "conditions", "query", "having", "distinct", "join"}
    | {"group", "group_by", "groupby", "aggregate", "aggregates", "aggregation"}
)
_REFUSAL = (
    "`{name}` is not something that a builder does: it writes rows as they are. Query again in SQL (WHERE, GROUP BY, "
    "JOIN), or with "
    "the tool that the data came from, and build from that result."
)


def _without_conditions(data: Any) -> Any:
    if isinstance(data, dict):
        for name in data:
            if str(name).lower() in _CONDITIONS:
                raise ValueError(_REFUSAL.format(name=name))
    return data


class ColumnInput(ToolInput):
    """A column of a table to be built; a plain text is one's name."""

    name: Annotated[str, Field(description="As it is in the source.")]
    header: Annotated[str | None, Field(description="What stands above it; its name if not given.")] = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data


class TableInput(ToolInput):
    """Which rows and columns of a source."""

    source: Annotated[
        str, Field(description="Path of JSON rows, NDJSON, CSV or xlsx, such as results/0007-list_issues.json.")
    ]
    rows_at: Annotated[
        str | None,
        Field(
            max_length=1000,
            description="Where in a JSON document the rows are, such as $.issues; known of saved results. Of a "
            "workbook: the sheet.",
        ),
    ] = None
    columns: Annotated[
        list[ColumnInput] | None,
        Field(min_length=1, max_length=MAX_COLUMNS, description="Which columns, in this order; all if not given."),
    ] = None
    sort_by: Annotated[
        str | None, Field(description="One column of the source. Numbers sort by value; empty cells come last.")
    ] = None
    sort_as: Annotated[
        Literal["written", "numbers"],
        Field(description="numbers: texts that are numbers sort by their value too, as prices that came as texts."),
    ] = "written"
    descending: bool = False
    start: Annotated[int, Field(ge=0, description="The first row wanted, counted from 0, after sorting.")] = 0
    count: Annotated[int | None, Field(ge=0, description="How many rows; all if not given.")] = None

    _refuse = model_validator(mode="before")(_without_conditions)

    def headers(self, names: list[str]) -> list[str]:
        """What stands above the columns."""
        if self.columns is None:
            return names
        given = (column.name if column.header is None else column.header for column in self.columns)
        return list(map(without_lone_surrogates, given))


class BuildCsvInput(TableInput):
    """Arguments of build_csv."""

    output: Annotated[str, Field(description="Path of the file to write, such as issues.csv.")]
    audience: Annotated[
        Literal["people", "machine"],
        Field(description="people: with the mark by which spreadsheets know UTF-8; machine: without."),
    ] = "people"
    excel_safe: Annotated[
        bool,
        Field(description="Put ' before texts that a spreadsheet would take for formulas. It changes these values."),
    ] = False


class SheetInput(TableInput):
    """A sheet of a workbook."""

    sheet: Annotated[str | None, Field(max_length=200, description="Its name; the source's if not given.")] = None
    date_columns: Annotated[
        list[str],
        Field(
            max_length=MAX_COLUMNS,
            description="Columns whose texts become Excel dates, where Excel shows them exactly as they are written.",
        ),
    ] = []


class BuildExcelInput(ToolInput):
    """Arguments of build_excel."""

    sheets: Annotated[
        list[SheetInput], Field(min_length=1, max_length=100, description="One for each sheet, in order.")
    ]
    output: Annotated[str, Field(description="Path of the file to write, such as issues.xlsx.")]

    @model_validator(mode="before")
    @classmethod
    def _one_sheet(cls, data: Any) -> Any:
        """The arguments of one sheet may stand beside `output`."""
        data = _without_conditions(data)
        if isinstance(data, dict) and "sheets" not in data and "source" in data:
            return {"output": data.get("output"), "sheets": [{k: v for k, v in data.items() if k != "output"}]}
        return data


class BuiltTable(BaseModel):
    """What was written of one source."""

    source: str
    rows_written: int = Field(description="Without the header.")
    rows_total: int = Field(description="Rows of the source.")
    columns: list[str] = Field(description="The headers.")
    cells_as_text: int = Field(0, description="Numbers that are text in the workbook, since Excel would show others.")
    formula_like_cells: int = Field(0, description="Texts that begin like a formula. In a workbook they are texts.")
    replaced_characters: int = Field(0, description="Halves of surrogate pairs, which became U+FFFD.")
    dates: int = Field(0, description="Texts that became Excel dates.")
    notes: list[str] = Field([], description="What to know of this table.")
    duplicate_keys: int = Field(0, description="Keys that are twice in a record; the last of them was taken.")
    sheets: list[str] = Field(
        [], description="Names of the sheets in the workbook; several if the rows are too many for one."
    )


class BuildCsvOutput(BuiltTable):
    """A CSV file that was built."""

    path: str
    bytes: int
    change: Literal["created", "modified"]


class BuildExcelOutput(BaseModel):
    """A workbook that was built."""

    path: str
    bytes: int
    change: Literal["created", "modified"]
    tables: list[BuiltTable] = Field(description="One for each of the sheets asked for.")


async def build_csv(call: Call, given: BuildCsvInput) -> BuildCsvOutput:
    """Write a CSV file."""
    _require_extension(given.output, ".csv")

    def work(readable: Readable) -> BuildCsvOutput:
        selected = select(call.workspace, given, readable)
        tally = Tally()

        def fill(file: IO[bytes]) -> None:
            if given.audience == "people":
                file.write(BOM)
            for chunk in lines_of(selected.runs(), given.headers(selected.names), tally, excel_safe=given.excel_safe):
                file.write(chunk)
                call.progress(rows_written=selected.rows_written)

        change = call.workspace.build(given.output, fill)
        return BuildCsvOutput(**_built(given, selected, tally).model_dump(), **change.model_dump())

    async with call.queue.place(call.workspace.id), reading(call, given) as readable:
        with call.observers.watch("build", "csv") as building:
            output = await call.change(lambda: work(readable))
            building.amounts = {"bytes": output.bytes, "rows": output.rows_written}
            return output


async def build_excel(call: Call, given: BuildExcelInput) -> BuildExcelOutput:
    """Write a workbook."""
    _require_extension(given.output, ".xlsx")

    def work(sources: list[Readable]) -> BuildExcelOutput:
        tables = [select(call.workspace, one, source) for one, source in zip(given.sheets, sources, strict=True)]
        sheets = [_sheet(one, selected) for one, selected in zip(given.sheets, tables, strict=True)]
        size = sum(call.workspace.size(one.source) for one in given.sheets)

        def fill(file: IO[bytes]) -> None:
            write_workbook(file, sheets, source_bytes=size, on_rows=lambda rows: call.progress(rows_written=rows))

        change = call.workspace.build(given.output, fill)
        built = [
            _built(one, selected, sheet.tally, sheet.sheet_names)
            for one, selected, sheet in zip(given.sheets, tables, sheets, strict=True)
        ]
        return BuildExcelOutput(tables=built, **change.model_dump())

    async with call.queue.place(call.workspace.id), AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(reading(call, one)) for one in given.sheets]
        with call.observers.watch("build", "xlsx") as building:
            output = await call.change(lambda: work(sources))
            building.amounts = {"bytes": output.bytes, "rows": sum(table.rows_written for table in output.tables)}
            return output


def _require_extension(path: str, extension: str) -> None:
    if not path.lower().endswith(extension):
        raise InvalidArguments(f"output is to end in {extension}, so that people's programs open it.")


class Readable(NamedTuple):
    """A source that can be opened as what it is, or as what it was turned into."""

    open_file: OpenFile
    path: str
    rows_at: str | None
    format: str | None = None
    notes: tuple[str, ...] = ()


@asynccontextmanager
async def reading(call: Call, given: TableInput) -> AsyncIterator[Readable]:
    """The source of a table: a workbook is read in a jail first; the place of a saved result's rows is known."""
    if format_of(given.source) == "xlsx":
        async with rows_of_workbook(call.runtime, call.workspace, given.source, given.rows_at, run_id=call.id) as (
            open_file,
            note,
        ):
            yield Readable(open_file, "rows.json", ROWS_AT, "json", note)
        return
    name = name_of(segments_of(given.source))
    known = await asyncio.to_thread(call.catalog.find_saved, call.workspace.id, name)
    rows_at = known.rows_at if given.rows_at is None and known is not None else given.rows_at
    yield Readable(
        lambda: call.workspace.open_file(given.source), given.source, rows_at, None if known is None else known.format
    )


def select(workspace: Workspace, given: TableInput, readable: Readable) -> Selected:
    """The rows and columns of a source that are asked for."""
    selection = Selection(
        columns=tuple(column.name for column in given.columns) if given.columns else None,
        sort_by=given.sort_by,
        descending=given.descending,
        sort_texts_as_numbers=given.sort_as == "numbers",
        start=given.start,
        count=given.count,
    )
    source = open_source(readable.open_file, path=readable.path, rows_at=readable.rows_at, format=readable.format)
    selected = Selected(source, selection, spool_folder=workspace.spool_folder)
    selected.notes.extend(readable.notes)
    return selected


def _sheet(given: SheetInput, selected: Selected) -> Sheet:
    there = set(selected.names)
    unknown = [name for name in given.date_columns if name not in there]
    if unknown:
        raise InvalidArguments(
            f"date_columns names {quoted(unknown[0])}, which is no column of the sheet. There are: {listed(selected.names)}."
        )
    wanted = set(given.date_columns)
    dates = frozenset(index for index, name in enumerate(selected.names) if name in wanted)
    name = given.sheet if given.sheet is not None else _name_of_source(given.source)
    return Sheet(name, given.headers(selected.names), selected.runs(), dates)


def _name_of_source(path: str) -> str:
    """Such as ``list_issues`` of ``results/0007-list_issues.json``."""
    stem = Path(path).name.partition(".")[0]
    number, dash, rest = stem.partition("-")
    return rest if dash and number.isdecimal() and rest else stem


def _built(given: TableInput, selected: Selected, tally: Tally, sheets: Sequence[str] = ()) -> BuiltTable:
    return BuiltTable(
        source=given.source, rows_written=selected.rows_written, rows_total=selected.rows_total,
        columns=given.headers(selected.names), duplicate_keys=selected.source.duplicate_keys, sheets=list(sheets),
        notes=selected.notes, **asdict(tally),
    )  # fmt: skip


_SHARED = (
    "Every value is as it is in the source. Choose columns and their headers, one column to sort by, and a range of "
    "rows; there are no "
    "conditions and no grouping: for these query again in SQL and build from the new result."
)

TOOLS: tuple[AnyTool, ...] = (
    Tool(
        name="build_csv",
        description=f"Build a CSV file straight from a saved result, by its path, without reading it. {_SHARED} "
        "The answer counts the rows written: compare it with the rows of the result.",
        input=BuildCsvInput,
        output=BuildCsvOutput,
        function=build_csv,
        read_only=False,
        idempotent=True,
        destructive=True,
    ),
    Tool(
        name="build_excel",
        description="Build an Excel workbook straight from saved results, by their paths, without reading them: one "
        "sheet, or several in "
        f"`sheets`. {_SHARED} Numbers of more than 15 digits, and whatever Excel would show in another way, are "
        f"texts. A sheet has at "
        f"most {MAX_ROWS - 1:,} rows, more go to further sheets; a cell has at most {MAX_CELL_UNITS:,} characters. "
        f"For charts or "
        "formats use a script.",
        input=BuildExcelInput,
        output=BuildExcelOutput,
        function=build_excel,
        read_only=False,
        idempotent=True,
        destructive=True,
    ),
)
