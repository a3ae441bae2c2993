"""The tools that list, read, write, mend and delete files of the workspace."""

import asyncio
import codecs
import io
from datetime import datetime
from typing import Annotated, BinaryIO

from pydantic import BaseModel, Field

from sandbox.catalog import SavedFileInfo
from sandbox.documents.check import OFFICE_FORMATS, format_of, text_of
from sandbox.errors import BadRequest, EditMismatch, InvalidArguments
from sandbox.job import MIB, FileChange
from sandbox.tools.registry import AnyTool, Call, Tool, ToolInput
from sandbox.workspace import GUEST_PATH, FileInfo, name_of, segments_of

MAX_READ_CHARACTERS = 20_000
_MAX_LISTED, _MAX_LISTED_COLUMNS = 500, 20
_CHUNK_BYTES = 1 << 20
_MAX_EDITED_BYTES = 16 * MIB

PathField = Annotated[str, Field(description="Relative to /workspace, or absolute under it.")]


class ListFilesInput(ToolInput):
    """Arguments of list_files."""

    prefix: Annotated[str, Field(description="Only paths that start with this, such as 'results/'.")] = ""
    offset: Annotated[int, Field(ge=0, description="How many to pass over; for the next page.")] = 0


class ListedFile(BaseModel):
    """A file of the workspace."""

    path: str
    bytes: int
    modified_at: datetime
    tool: str | None = Field(None, description="Of a saved result: the tool that gave it.")
    rows: int | None = None
    columns: list[str] | None = Field(None, description="Of a saved table; the first ones, if they are many.")
    rows_at: str | None = None


class ListFilesOutput(BaseModel):
    """Files by path."""

    files: list[ListedFile]
    total: int = Field(description="How many there are with this prefix.")
    next_offset: int | None = Field(None, description="For the next page, if there is one.")


async def list_files(call: Call, given: ListFilesInput) -> ListFilesOutput:
    """The workspace's files whose paths start with the prefix, a page of them."""
    prefix = given.prefix.removeprefix(GUEST_PATH).lstrip("/").removeprefix("./")
    prefix = "" if prefix == "." else prefix

    def look() -> tuple[list[FileInfo], dict[str, SavedFileInfo]]:
        return call.workspace.list_files(), call.catalog.saved(call.workspace.id)

    listed, saved = await asyncio.to_thread(look)
    found = [info for info in listed if info.path.startswith(prefix)]
    page = _page(found[given.offset : given.offset + _MAX_LISTED])
    end = given.offset + len(page)
    return ListFilesOutput(
        files=[_described(info, saved.get(info.path)) for info in page],
        total=len(found),
        next_offset=end if end < len(found) else None,
    )


def _described(info: FileInfo, saved: SavedFileInfo | None) -> ListedFile:
    if saved is None:
        return ListedFile(**info._asdict())
    columns = None if saved.columns is None else list(saved.columns[:_MAX_LISTED_COLUMNS])
    return ListedFile(**info._asdict(), tool=saved.tool, rows=saved.rows, columns=columns, rows_at=saved.rows_at)


def _page(found: list[FileInfo]) -> list[FileInfo]:
    """As many as fit an answer; at least one."""
    left = MAX_READ_CHARACTERS
    for number, info in enumerate(found):
        left -= len(info.path)
        if left < 0 and number:
            return found[:number]
    return found


class ReadFileInput(ToolInput):
    """Arguments of read_file."""

    path: PathField
    start_line: Annotated[int, Field(ge=1, description="The first line wanted; lines count from 1.")] = 1
    line_count: Annotated[int, Field(ge=1, le=10_000, description="How many lines at most.")] = 200
    start_character: Annotated[
        int, Field(ge=0, description="Where to begin inside the first line, to page through a very long line.")
    ] = 0


class Position(BaseModel):
    """Where to read on."""

    start_line: int
    start_character: int


class ReadFileOutput(BaseModel):
    """A part of a file."""

    path: str
    text: str
    start_line: int
    total_lines: int
    total_bytes: int
    next: Position | None = Field(None, description="Arguments for the next part; null if this was the last.")
    note: str | None = None


async def read_file(call: Call, given: ReadFileInput) -> ReadFileOutput:
    """Lines of a text file, or of an office document's text."""
    note = None
    if format_of(given.path) in OFFICE_FORMATS:
        (await asyncio.to_thread(call.workspace.open_file, given.path)).close()
        async with call.queue.slot(call.workspace.id):
            text = await text_of(call.runtime, call.workspace, given.path, run_id=call.id)
        file: BinaryIO = io.BytesIO(text.encode("utf-8", "replace"))
        note = f"This is the text of the .{format_of(given.path)} document; lines and bytes are those of the text."
    else:
        file = await asyncio.to_thread(call.workspace.open_file, given.path)
    with file:
        return await asyncio.to_thread(_read_part, file, given, note)


def _read_part(file: BinaryIO, given: ReadFileInput, note: str | None) -> ReadFileOutput:
    start_byte, total_lines, total_bytes, has_nul = _survey(file, given.start_line)
    if has_nul:
        raise BadRequest(
            f"{given.path} is a binary file of {total_bytes:,} bytes. Open it in a script with run_python."
        )
    if total_lines and given.start_line > total_lines:
        raise InvalidArguments(
            f"{given.path} has {total_lines:,} lines; start_line {given.start_line:,} is past its end."
        )
    file.seek(start_byte)
    text, next_position, replaced = _collect(file, given)
    if replaced:
        note = " ".join(filter(None, (note, "Bytes that are not UTF-8 are shown as U+FFFD.")))
    return ReadFileOutput(
        path=name_of(segments_of(given.path)),
        text=text,
        start_line=given.start_line,
        total_lines=total_lines,
        total_bytes=total_bytes,
        next=next_position,
        note=note,
    )


def _survey(file: BinaryIO, start_line: int) -> tuple[int, int, int, bool]:
    """Byte where the line starts, number of lines, size, and whether there is a NUL; only ``\\n`` ends a line."""
    newlines = size = start_byte = 0
    has_nul = False
    last = b""
    while chunk := file.read(_CHUNK_BYTES):
        has_nul = has_nul or b"\0" in chunk
        here = chunk.count(b"\n")
        if newlines < start_line - 1 <= newlines + here:
            at = -1
            for _ in range(start_line - 1 - newlines):
                at = chunk.index(b"\n", at + 1)
            start_byte = size + at + 1
        newlines += here
        size += len(chunk)
        last = chunk[-1:]
    return start_byte, newlines + (last not in (b"", b"\n")), size, has_nul


def _collect(file: BinaryIO, given: ReadFileInput) -> tuple[str, Position | None, bool]:
    """The text, where to read on, and whether bytes had to be replaced. Each call makes progress."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts: list[str] = []
    room, line, at_character, replaced = MAX_READ_CHARACTERS, given.start_line, 0, False
    to_skip, last_line = given.start_character, given.start_line + given.line_count
    while True:
        chunk = file.read(_CHUNK_BYTES)
        text = decoder.decode(chunk, final=not chunk)
        position = 0
        while position < len(text):
            newline = text.find("\n", position)
            end = len(text) if newline < 0 else newline + 1
            piece = text[position:end]
            if to_skip:
                skipped = min(to_skip, len(piece))
                to_skip, at_character, piece = to_skip - skipped, at_character + skipped, piece[skipped:]
                if newline >= 0 and to_skip:
                    raise InvalidArguments(f"Line {line:,} of {given.path} has only {at_character:,} characters.")
            taken = piece[:room]
            parts.append(taken)
            replaced = replaced or "�" in taken
            room -= len(taken)
            at_character += len(taken)
            if len(taken) < len(piece):
                return "".join(parts), Position(start_line=line, start_character=at_character), replaced
            if newline >= 0:
                line, at_character = line + 1, 0
                if line == last_line or room == 0:
                    more = end < len(text) or bool(file.read(1))
                    following = Position(start_line=line, start_character=0) if more else None
                    return "".join(parts), following, replaced
            position = end
        if not chunk:
            if to_skip:
                raise InvalidArguments(f"Line {line:,} of {given.path} has only {at_character:,} characters.")
            return "".join(parts), None, replaced


class WriteFileInput(ToolInput):
    """Arguments of write_file."""

    path: PathField
    content: Annotated[str, Field(description="The whole text, written as UTF-8. An older file is replaced.")]


async def write_file(call: Call, given: WriteFileInput) -> FileChange:
    """Write a text file."""
    content = _encoded("content", given.content)
    async with call.queue.turn(call.workspace.id):
        return await call.change(lambda: call.workspace.write(given.path, content))


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArguments(f"{name} is not valid Unicode text: it has half of a surrogate pair.") from None


class EditFileInput(ToolInput):
    """Arguments of edit_file."""

    path: PathField
    old_text: Annotated[str, Field(min_length=1, description="Exact text that stands in the file once.")]
    new_text: Annotated[str, Field(description="What to put in its place.")]


async def edit_file(call: Call, given: EditFileInput) -> FileChange:
    """Replace one exact text."""
    old, new = _encoded("old_text", given.old_text), _encoded("new_text", given.new_text)

    def edit() -> FileChange:
        content = call.workspace.read_bytes(given.path, max_bytes=_MAX_EDITED_BYTES)
        count = content.count(old)
        if count != 1:
            raise EditMismatch(
                f"old_text stands in {given.path} {count:,} times, not once. {_advice(content, old, count)}"
            )
        return call.workspace.write(given.path, content.replace(old, new))

    async with call.queue.turn(call.workspace.id):
        return await call.change(edit)


def _advice(content: bytes, old: bytes, count: int) -> str:
    if count > 1:
        return "Give more of the lines around it, so that it is the only one."
    if b"\r\n" in content and old.replace(b"\n", b"\r\n") in content:
        return r"The file's lines end in \r\n: write them so in old_text and new_text."
    if old.strip() and old.strip() in content:
        return "It stands there with other spaces or line ends around it. Read the lines with read_file and copy them exactly."
    return "Read the lines with read_file and copy them exactly, with all spaces."


class DeleteFileInput(ToolInput):
    """Arguments of delete_file."""

    path: PathField


async def delete_file(call: Call, given: DeleteFileInput) -> FileChange:
    """Delete a file or a folder."""
    async with call.queue.turn(call.workspace.id):
        return await call.change(lambda: call.workspace.delete(given.path))


TOOLS: tuple[AnyTool, ...] = (
    Tool(
        name="list_files",
        description="List the files of the workspace, with sizes and times. Tool results are under results/, with "
        "tool, rows and columns; full "
        "error texts are under errors/, saved scripts under scripts/; documents are where the script wrote them.",
        input=ListFilesInput,
        output=ListFilesOutput,
        function=list_files,
        read_only=True,
    ),
    Tool(
        name="read_file",
        description=f"Read a file by lines: `line_count` lines from `start_line`, at most {MAX_READ_CHARACTERS:,} characters. "
        "`next` in the answer has the arguments for the next part, also inside a very long line. Word, Excel and PowerPoint "
        "files give their text. Do not read a large file through to copy its values: process it by path in a script.",
        input=ReadFileInput,
        output=ReadFileOutput,
        function=read_file,
        read_only=True,
    ),
    Tool(
        name="write_file",
        description="Write a whole text file, for example a script to be run by path with run_python. To change a "
        "part of a file "
        "that is there, use edit_file.",
        input=WriteFileInput,
        output=FileChange,
        function=write_file,
        read_only=False,
        idempotent=True,
        destructive=True,
    ),
    Tool(
        name="edit_file",
        description="Replace one exact text in a file by another, for example to mend a script that failed, without typing it "
        "again. `old_text` must stand in the file exactly once; add lines around it until it does.",
        input=EditFileInput,
        output=FileChange,
        function=edit_file,
        read_only=False,
        destructive=True,
    ),
    Tool(
        name="delete_file",
        description="Delete a file, or a folder with all that is in it. results/ and errors/ are read-only.",
        input=DeleteFileInput,
        output=FileChange,
        function=delete_file,
        read_only=False,
        idempotent=True,
        destructive=True,
    ),
)
