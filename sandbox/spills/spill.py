"""Saving a tool's result before a model sees it, and what the model is told of it."""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from sandbox.errors import ServiceFull, TenantFull
from sandbox.job import Value
from sandbox.spills.encode import encoded
from sandbox.spills.layout import Laid, lay_out
from sandbox.spills.shape import shape_of
from sandbox.spills.shorten import MAX_SHORT_CHARACTERS, full_text, shortened
from sandbox.spills.unwrap import Blob, Unwrapped, unwrap_json, unwrap_result, unwrap_text
from sandbox.tables.cells import without_lone_surrogates
from sandbox.tables.slices import NotJson, Slice, require_json, text_of
from sandbox.workspace import Workspace

_log = logging.getLogger(__name__)

Surface = Literal["agent", "client", "workflow", "sandbox"]

_CONTINUING = bytes(range(0x80, 0xC0))
_CHEAP = b" abcdefghijklmnopqrstuvwxyz"
_MAX_TOOL_CHARACTERS, _MAX_COLUMNS = 60, 1000
_PREVIEW_ROWS, _PREVIEW_LINE, _PREVIEW_TEXT = 3, 400, 1200
_EXTENSIONS = {
    "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp", "image/svg+xml": "svg",
    "application/pdf": "pdf", "application/zip": "zip", "audio/wav": "wav", "audio/mpeg": "mp3", "text/csv": "csv",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
}  # fmt: skip


class SpillSettings(Value):
    """When a result becomes a file, and how much of it a model gets."""

    over_characters: int = Field(1000, ge=0, description="Longer results are saved as files.")
    inline_bytes: int = Field(
        16_384, ge=0, description="Up to this a saved result is also in the answer; over it an envelope."
    )
    mcp_inline_bytes: int = Field(8000, ge=0, description="The same for MCP clients, which have less room.")
    inline_bytes_by_client: dict[str, int] = Field(
        {}, description="Other values of inline_bytes, by the name of the client."
    )
    max_tokens: int = Field(
        50_000, ge=1, description="The most that one result may cost a model, estimated on the high side."
    )
    surfaces: frozenset[Surface] = Field(
        frozenset({"agent"}),
        description="Where results become files: agent, client, workflow, sandbox. Elsewhere they stay as they are.",
    )


class SavedFile(Value):
    """A file beside the one that a result was saved as."""

    path: str
    bytes: int
    what: str = Field(description="What it is: the result as it was received, its other part, a file that was in it.")


class NextCall(Value):
    """A call to make next, ready to be made."""

    tool: str
    arguments: dict[str, Any]


class Spill(Value):
    """A result, and the file that it is in."""

    spilled: bool = Field(description="Whether the result is in a file.")
    text: str = Field(description="What to hand to the model: the result, or what stands for it.")
    is_error: bool = False
    path: str | None = None
    format: str
    bytes: int = Field(description="Of the file, or of the result if there is none.")
    characters: int = Field(description="Of the result as it was received.")
    rows: int | None = Field(None, description="Records that were really written, if it is a table.")
    columns: tuple[str, ...] | None = Field(None, description="The first 1,000, if they are more.")
    rows_at: str | None = Field(None, description="Where in the document the rows are; builders take it.")
    complete: bool = Field(True, description="False if it was cut before it was received.")
    hint: str | None = Field(None, description="What the tool says about its own large results.")
    inline: bool = Field(description="Whether the text has the result itself.")
    shape: str | None = Field(None, description="A structural map, where the result is not in the text.")
    preview: str | None = Field(None, description="Real rows, or head and tail, where the result is not in the text.")
    next_call: NextCall | None = None
    missing_characters: int = Field(0, description="How much of the result was cut from the text.")
    also: tuple[SavedFile, ...] = ()
    unwrapped: tuple[str, ...] = Field(
        (), description="What was taken off around the result, from the outside to the inside."
    )
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Received:
    """A result as it came: ``content`` is any JSON or a text, ``result`` a raw MCP tool result."""

    tool: str
    content: Slice | str | None = None
    result: Slice | None = None
    hint: str | None = None
    is_error: bool = False

    @classmethod
    def of(cls, tool: str, value: Any, *, hint: str | None = None, is_error: bool = False) -> Self:
        """Of what a tool of a program gave: a text, or whatever JSON can say, decimals, dates and ids as they are written.

        Raises `InvalidArguments` for what it can't.
        """
        return cls(
            tool, content=value if isinstance(value, str | bytes) else encoded(value), hint=hint, is_error=is_error
        )

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        given = self.content if self.result is None else self.result
        return len(given) if isinstance(given, str) else memoryview(given or b"").nbytes


@dataclass(frozen=True)
class Reader:
    """Who gets a result, and so how much of it stands in the answer itself."""

    surface: Surface = "agent"
    client: str | None = None
    """Its program's name, for sizes that the settings have for it."""
    is_mcp: bool = False
    inline_bytes: int | None = None
    """Another size than the settings have."""
    sees_pictures: bool = False
    """Whether it gets pictures and sounds of the result as they came, beside the text, so that they do not count."""


def estimate_tokens(text: str) -> int:
    """How many tokens a text may cost a model, rather too many: half of its small letters and spaces, and all other bytes.

    Tokenizers of common models make a token of about four letters of prose, of one to three digits, capitals or signs, and
    never more tokens than there are bytes.
    """
    data = text.encode("utf-8", "replace")
    others = len(data.translate(None, delete=_CHEAP))
    return (len(data) - others) // 2 + others + 1


class Spiller:
    """Saves results of tools; one for a service."""

    def __init__(
        self, settings: SpillSettings = SpillSettings(), *, count_tokens: Callable[[str], int] = estimate_tokens,  # noqa: B008  frozen
    ) -> None:  # fmt: skip
        self.settings = settings
        self._count_tokens = count_tokens

    def spill(
        self, workspace: Workspace, received: Received, reader: Reader = Reader()
    ) -> Spill:  # fmt: skip
        """Save a result if it is long, and say what to hand to the model. Where saving fails, the result is in the answer.

        Raises nothing for a full or broken disk: a failed spill is a warning, never a failed call.
        """
        taken = _take(received)
        raw, unwrapped = taken.raw, taken.unwrapped
        if reader.surface not in self.settings.surfaces:
            return _as_it_is(received, raw.decode("utf-8", "replace"), taken)
        if unwrapped.is_error:
            return self._error(workspace, received, taken)
        body = unwrapped.body or b""
        seen = [
            blob
            for blob in unwrapped.blobs
            if reader.sees_pictures and blob.media_type.startswith(("image/", "audio/"))
        ]
        characters = taken.characters - sum(-(-len(blob.content) // 3) * 4 for blob in seen)
        if characters <= self.settings.over_characters and len(seen) == len(unwrapped.blobs):
            shown = raw if unwrapped.is_heuristic and received.result is None else body
            return _as_it_is(received, shown.decode("utf-8", "replace"), taken)
        try:
            return self._save(workspace, received, taken, self._inline_bytes(reader))
        except (OSError, ServiceFull, TenantFull) as fault:
            warning = f"The result could not be saved as a file: {fault}. Work from the result itself."
            _log.warning("a result of %s in the workspace %s: %s", received.tool, workspace.id, warning)
            text, missing = self._capped((body or raw).decode("utf-8", "replace"))
            unsaved = _as_it_is(received, text, taken)
            return unsaved.model_copy(update={"missing_characters": missing, "warnings": (warning,)})

    def _inline_bytes(self, reader: Reader) -> int:
        if reader.inline_bytes is not None:
            return reader.inline_bytes
        usual = self.settings.mcp_inline_bytes if reader.is_mcp else self.settings.inline_bytes
        return self.settings.inline_bytes_by_client.get(reader.client or "", usual)

    def _save(self, workspace: Workspace, received: Received, taken: "_Taken", inline_bytes: int) -> Spill:
        unwrapped = taken.unwrapped
        main, *rest = _files_of(received, taken.raw, unwrapped)
        laid, is_text = main.laid, unwrapped.body is not None
        name = tool_name(received.tool)
        path = workspace.write_own("results", f"-{name}.{main.extension}", laid.chunks)
        also: list[SavedFile] = []
        notes = laid.notes
        for file in rest:
            try:
                beside = workspace.write_own("results", f"-{name}.{file.extension}", file.laid.chunks)
            except (OSError, ServiceFull, TenantFull) as fault:
                notes += (f"Not saved: {file.what}: {fault}.",)
            else:
                also.append(SavedFile(path=beside, bytes=workspace.size(beside), what=file.what))
        shape = preview = None
        saved = Spill(
            spilled=True, text="", path=path, format=laid.format, bytes=workspace.size(path), characters=taken.characters,
            rows=laid.rows, rows_at=laid.rows_at, columns=None if laid.columns is None else laid.columns[:_MAX_COLUMNS],
            complete=laid.complete, hint=received.hint, inline=False,
            next_call=_next_call(path, laid) if is_text else None, also=tuple(also), unwrapped=unwrapped.trail, warnings=notes,
        )  # fmt: skip
        if is_text and saved.bytes <= inline_bytes:
            text = f"{_about(saved)}\n{workspace.read_bytes(path).decode('utf-8', 'replace')}"
            text, missing = self._capped(text, whole_at=path)
            return saved.model_copy(update={"text": text, "inline": missing == 0, "missing_characters": missing})
        if unwrapped.body is not None:
            if laid.format == "json" and laid.complete:
                shape = shape_of(unwrapped.body, columns=laid.columns or (), rows_at=laid.rows_at)
            preview = _preview(workspace, path, laid)
        saved = saved.model_copy(update={"shape": shape, "preview": preview})
        text, _ = self._capped(_envelope(saved), whole_at=path)
        return saved.model_copy(update={"text": text, "missing_characters": saved.characters})

    def _error(self, workspace: Workspace, received: Received, taken: "_Taken") -> Spill:
        """The full text in a file, a short message with the line of the exception, and still an error."""
        content = taken.raw if received.result is None else full_text(received.result).encode("utf-8", "replace")
        whole = content.decode("utf-8", "replace")
        warnings: tuple[str, ...] = ()
        text, path = shortened(whole), None
        try:
            path = workspace.write_own("errors", f"-{tool_name(received.tool)}.txt", (content,))
            text = f"{text}\nFull text: {path}"
        except (OSError, ServiceFull, TenantFull) as fault:
            warnings = (f"The error could not be saved as a file: {fault}.",)
            _log.warning("an error of %s in the workspace %s: %s", received.tool, workspace.id, warnings[0])
        missing = max(0, len(whole) - MAX_SHORT_CHARACTERS)
        return Spill(
            spilled=path is not None, text=text, is_error=True, path=path, format="text", bytes=len(content),
            characters=taken.characters, inline=missing == 0, missing_characters=missing, hint=received.hint, warnings=warnings,
        )  # fmt: skip

    def _capped(self, text: str, *, whole_at: str | None = None) -> tuple[str, int]:
        """The text within the most tokens that one result may cost, and how many characters are missing."""
        most = self.settings.max_tokens
        if self._count_tokens(text) <= most:
            return text, 0
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._count_tokens(text[:middle]) <= most else (low, middle - 1)
        missing = len(text) - low
        where = f"; the whole is in {whole_at}" if whole_at else ""
        return f"{text[:low]}\n[{missing:,} of {len(text):,} characters are missing here{where}.]", missing


def _as_it_is(received: Received, text: str, taken: "_Taken") -> Spill:
    """A result that is in no file."""
    text = without_lone_surrogates(text)
    return Spill(
        spilled=False, text=text, is_error=taken.unwrapped.is_error, format="text", bytes=len(text.encode("utf-8", "replace")),
        characters=taken.characters, inline=True, hint=received.hint, unwrapped=taken.unwrapped.trail,
    )  # fmt: skip


def tool_name(name: str) -> str:
    """A tool's name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._-")[:_MAX_TOOL_CHARACTERS] or "tool"


def characters_in(text: bytes) -> int:
    """Characters of a text in UTF-8: all bytes but those that go on with one."""
    return len(text) if text.isascii() else len(text.translate(None, delete=_CONTINUING))


class _Taken(NamedTuple):
    """The result as it was received, a text in UTF-8; how long that is; and what is inside of it."""

    raw: bytes
    characters: int
    unwrapped: Unwrapped


def _take(received: Received) -> _Taken:
    content = received.content
    if received.result is not None:
        raw = bytes(received.result)
        unwrapped = unwrap_result(raw) if _is_text(raw) else Unwrapped(raw, ("bytes that are not UTF-8",))
    elif isinstance(content, str) or bytes(content or b"")[:1] == b'"':
        text = content if isinstance(content, str) else _text_in(bytes(content or b""))
        raw, unwrapped = without_lone_surrogates(text).encode(), unwrap_text(text)
    else:
        raw = bytes(content or b"null")
        try:
            unwrapped = unwrap_json(raw) if _is_text(raw) else Unwrapped(raw, ("bytes that are not UTF-8",))
        except NotJson:
            unwrapped = unwrap_text(raw.decode())
    if received.is_error and not unwrapped.is_error:
        unwrapped = replace(unwrapped, is_error=True)
    return _Taken(raw, characters_in(raw), unwrapped)


def _text_in(data: bytes) -> str:
    """The text of a JSON string, or the bytes as text if they only begin like one."""
    try:
        require_json(data)
        return text_of(data)
    except (NotJson, UnicodeDecodeError):
        return data.decode("utf-8", "replace")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _extension(blob: Blob) -> str:
    named = (blob.name or "").rpartition(".")[2]
    if blob.media_type in _EXTENSIONS:
        return _EXTENSIONS[blob.media_type]
    return named if re.fullmatch(r"[A-Za-z0-9]{1,8}", named) else "bin"


@dataclass(frozen=True)
class _File:
    laid: Laid
    extension: str
    what: str = ""


def _files_of(received: Received, raw: bytes, unwrapped: Unwrapped) -> list[_File]:
    """What is written: the result first, then what is kept beside it."""
    files = [_blob_file(blob) for blob in unwrapped.blobs]
    if unwrapped.body is not None:
        laid = lay_out(unwrapped.body)
        files.insert(0, _File(laid, laid.extension))
    if unwrapped.beside:
        files.append(_text_file(unwrapped.beside.encode("utf-8", "replace"), "text.txt", "the text beside it"))
    if unwrapped.is_heuristic:
        extension = "received.txt" if received.result is None else "received.json"
        files.append(_text_file(raw, extension, "the result as it was received"))
    return files


def _blob_file(blob: Blob) -> _File:
    extension = _extension(blob)
    what = f"a file in it, {without_lone_surrogates(blob.media_type[:100])}"
    return _File(Laid(extension, (blob.content,)), extension, what)


def _text_file(text: bytes, extension: str, what: str) -> _File:
    return _File(Laid("text", (text,)), extension, what)


def _about(spill: Spill) -> str:
    """One paragraph: where it is, and what it is."""
    rows = ""
    if spill.rows is not None:
        at = f" at {spill.rows_at}" if spill.rows_at not in (None, "$") else ""
        rows = f", {spill.rows:,} rows{at}"
    parts = [f"Saved as {spill.path}: {spill.format}, {spill.bytes:,} bytes{rows}."]
    if spill.columns:
        parts.append(f"Columns: {_listed(spill.columns)}.")
    if not spill.complete:
        parts.append("It is NOT COMPLETE.")
    parts += [f"{file.what[0].upper()}{file.what[1:]}: {file.path}." for file in spill.also]
    return " ".join([*parts, *spill.warnings])


def _envelope(spill: Spill) -> str:
    """What stands for a result that is too large for the answer."""
    lines = [_about(spill)]
    if spill.shape:
        lines.append(f"Shape: {spill.shape}")
    if spill.hint:
        lines.append(f"Hint: {spill.hint}")
    if spill.preview:
        lines.append(f"Preview:\n{spill.preview}")
    if spill.next_call is None:
        lines.append("It is a file, not text: give it to the user with attach_file, or use it by its path.")
    else:
        arguments = json.dumps(spill.next_call.arguments, ensure_ascii=False)
        lines.append(
            f"Read on with {spill.next_call.tool} {arguments}. "
            "To use the values, give the path to build_excel, build_csv, show_table or a script; never type them."
        )
    return "\n".join(lines)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names)
    return shown if len(shown) <= 2000 else f"{shown[:2000]}… ({len(names):,} columns)"


def _next_call(path: str, laid: Laid) -> NextCall:
    if laid.format == "json" and laid.complete and laid.rows_at is not None and "[*]" not in laid.rows_at:
        return NextCall(tool="extract_json_path", arguments={"path": path, "expression": f"{laid.rows_at}[0:20]"})
    return NextCall(tool="read_file", arguments={"path": path, "start_line": 1, "line_count": 50})


def _preview(workspace: Workspace, path: str, laid: Laid) -> str:
    """The first rows, each on its line, or the head and the tail of a text."""
    head = workspace.head(path, bytes=1 << 16).decode("utf-8", "replace")
    if laid.rows and laid.format in ("json", "ndjson"):
        lines = [line for line in head.splitlines() if line.startswith(("{", "[", '"')) and line not in ("[", "{")]
        return "\n".join(_cut_line(line) for line in lines[:_PREVIEW_ROWS])
    if laid.rows:
        return "\n".join(_cut_line(line) for line in head.splitlines()[: _PREVIEW_ROWS + 1])
    if workspace.size(path) <= _PREVIEW_TEXT:
        return head
    first, lines = "", head.splitlines(keepends=True)
    while lines and len(first) < _PREVIEW_TEXT:
        first += _cut_line(lines.pop(0).rstrip("\r\n")) + "\n"
    tail = workspace.tail(path, bytes=_PREVIEW_TEXT // 3).decode("utf-8", "ignore").rstrip()
    return f"{first}…\n{tail}"


def _cut_line(line: str) -> str:
    return line if len(line) <= _PREVIEW_LINE else f"{line[:_PREVIEW_LINE]}… ({len(line):,} characters)"
