"""The tools that look into saved results: a part by a path, lines by a pattern. Read-only, and bounded."""

import asyncio
from typing import Annotated

from pydantic import BaseModel, Field

from sandbox.errors import InvalidArguments, TooLarge
from sandbox.job import MIB
from sandbox.spills import extract, search
from sandbox.tools.files import PathField
from sandbox.tools.registry import AnyTool, Call, Tool, ToolInput

_MAX_DOCUMENT_BYTES = 512 * MIB
_SNIFFED_BYTES = 8192


class ExtractInput(ToolInput):
    """Arguments of extract_json_path."""

    path: PathField
    expression: Annotated[
        str,
        Field(max_length=2000, description='Such as $.issues[0], $.rows[10:20].title, $.rows[*].id, $["a key"].'),
    ]
    max_items: Annotated[int, Field(ge=1, le=1000, description="Elements of an array, or keys, at most.")] = 50
    max_depth: Annotated[int, Field(ge=1, le=20, description="Levels below what the path leads to.")] = 5


class CutPart(BaseModel):
    """Something of the data that is not in the text."""

    at: str
    what: str


class ExtractOutput(BaseModel):
    """A part of a JSON document."""

    path: str
    text: str = Field(description="JSON, with every number as it is written in the file.")
    total: int = Field(description="Elements that the path leads to.")
    returned: int = Field(description="Elements that are in the text; for the next ones use a slice.")
    missing: int = Field(
        description="Elements of the total that lack what the path asks for; they stand as null, in line."
    )
    cut: list[CutPart] = Field(description="What is not in the text, or shortened there.")


async def extract_json_path(call: Call, given: ExtractInput) -> ExtractOutput:
    """A part of a JSON document, by a path."""

    size = await asyncio.to_thread(call.workspace.size, given.path)
    if size > _MAX_DOCUMENT_BYTES:
        raise TooLarge(f"{given.path} has {size:,} bytes; paths are followed in at most {_MAX_DOCUMENT_BYTES:,}.")

    def work() -> extract.Extract:
        document = call.workspace.read_bytes(given.path, max_bytes=_MAX_DOCUMENT_BYTES)
        return extract.extract(document, given.expression, max_items=given.max_items, max_depth=given.max_depth)

    async with call.queue.memory(call.workspace.id, size), call.queue.look(call.workspace.id):
        found = await asyncio.to_thread(work)
    return ExtractOutput(
        path=given.path, text=found.text, total=found.total, returned=found.returned, missing=found.missing,
        cut=[CutPart(at=one.at, what=one.what) for one in found.cut],
    )  # fmt: skip


class SearchInput(ToolInput):
    """Arguments of search_output."""

    path: PathField
    pattern: Annotated[
        str, Field(min_length=1, max_length=2000, description="A regular expression (RE2), for single lines.")
    ]
    literal: Annotated[bool, Field(description="Take the pattern as text, not as an expression.")] = False
    ignore_case: bool = False
    context_lines: Annotated[int, Field(ge=0, le=20, description="Lines before and after each match.")] = 0
    offset: Annotated[int, Field(ge=0, description="Matches to pass over; for the next page.")] = 0
    max_matches: Annotated[int, Field(ge=1, le=200)] = 20


class FoundLine(BaseModel):
    """A line that matches."""

    line: int = Field(description="Its number in the file, from 1.")
    text: str = Field(description="The line, or the part of a long line around the match.")
    start_character: int = Field(
        description="Where the text begins in the line: read_file takes it, to read on in a long line."
    )
    line_characters: int = Field(description="Characters of the whole line.")
    before: list[str] = []
    after: list[str] = []


class SearchOutput(BaseModel):
    """A page of the lines that match."""

    path: str
    matches: list[FoundLine]
    total_matches: int = Field(description="Lines that match, in the whole file.")
    has_more: bool
    next_offset: int | None = Field(None, description="For the next page, if there is one.")


async def search_output(call: Call, given: SearchInput) -> SearchOutput:
    """Lines of a file that match a pattern."""
    pattern = search.compiled(given.pattern, literal=given.literal, ignore_case=given.ignore_case)

    def work() -> search.Found:
        with call.workspace.open_file(given.path) as file:
            if b"\0" in file.read(_SNIFFED_BYTES):
                raise InvalidArguments(
                    f"{given.path} is a binary file: it has no lines. attach_file gives it to the user."
                )
            file.seek(0)
            return search.search(
                file, pattern, context_lines=given.context_lines, offset=given.offset, max_matches=given.max_matches
            )

    async with call.queue.look(call.workspace.id):
        found = await asyncio.to_thread(work)
    end = given.offset + len(found.matches)
    return SearchOutput(
        path=given.path,
        matches=[FoundLine(**match._asdict()) for match in found.matches],
        total_matches=found.total,
        has_more=end < found.total,
        next_offset=end if end < found.total else None,
    )


TOOLS: tuple[AnyTool, ...] = (
    Tool(
        name="extract_json_path",
        description="Get a part of a saved JSON result by its path, for example one record, or one field of all records "
        f"($.issues[*].title). At most max_items and {extract.MAX_TEXT_CHARACTERS:,} characters come back, with how "
        f"many there are; "
        "what is cut is listed. It only reads: there are no filters. To bring values into a document, give the file's path to "
        "build_excel, build_csv or a script; do not copy them.",
        input=ExtractInput,
        output=ExtractOutput,
        function=extract_json_path,
        read_only=True,
    ),
    Tool(
        name="search_output",
        description="Find the lines of a saved result or any text file that match a pattern, with line numbers for read_file. "
        "JSON tables have one record a line. `total_matches` counts all of them; page with `offset`.",
        input=SearchInput,
        output=SearchOutput,
        function=search_output,
        read_only=True,
    ),
)
