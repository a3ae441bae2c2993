"""What a result is, and its lines: JSON laid out so that one record is one line, everything else as it was received."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import islice

import re2

from sandbox.errors import InvalidSource
from sandbox.tables.place import find_place
from sandbox.tables.slices import NotJson, Slice, elements, members, require_json, values
from sandbox.tables.source import DelimitedSource, JsonSource, LinesSource, Source, delimiter_of

_SHORT_BYTES = 100
_ELEMENTS_AT_ONCE = 10_000
_MAX_INDENTED = 12
_LINE_BREAK = re.compile(rb"[\r\n]++[ \t]*+")
_SNIFFED_CHARACTERS = 64 << 10
_BOM = "\ufeff".encode()
_XML = re.compile(rb"<(?:\?xml|[A-Za-z_][\w.-]*(?::[\w.-]+)?(?=[\s>/]))")
_HTML = re.compile(rb"<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)
_MARKDOWN = re2.compile(r"(?m)^(?:#{1,6} \S|\|[ :|-]*-{3}[ :|-]*$|```)")
_EXTENSIONS = {"markdown": "md", "text": "txt"}


@dataclass(frozen=True)
class Laid:
    """A result that is ready to be written."""

    format: str
    """json, ndjson, csv, tsv, xml, html, markdown, text."""
    chunks: Iterable[bytes]
    rows: int | None = None
    columns: tuple[str, ...] | None = None
    rows_at: str | None = None
    complete: bool = True
    """False for JSON that ends too early, as a server cuts it."""
    notes: tuple[str, ...] = ()

    @property
    def extension(self) -> str:
        """The end of the file's name."""
        return _EXTENSIONS.get(self.format, self.format)


def lay_out(body: bytes) -> Laid:
    """Find out what a result is, count its rows, and lay it out."""
    try:
        body.decode()
    except UnicodeDecodeError as fault:
        return Laid(
            "text", (body,), notes=(f"It is not valid UTF-8 at byte {fault.start:,}; it is kept as it was received.",)
        )
    start = body.removeprefix(_BOM).lstrip()
    if start[:1] in (b"{", b"["):
        return _json(body)
    if _HTML.match(start):
        return Laid("html", (body,))
    if _XML.match(start) and body.rstrip().endswith(b">"):
        return Laid("xml", (body,))
    text = body[:_SNIFFED_CHARACTERS].decode("utf-8", "replace")
    delimiter = delimiter_of(text, is_whole=len(body) <= _SNIFFED_CHARACTERS)
    if delimiter is not None:
        source = DelimitedSource(lambda: BytesIO(body), delimiter=delimiter)
        return _surveyed(source, Laid(source.format, (body,)))
    return Laid("markdown" if _MARKDOWN.search(text) else "text", (body,))


def _surveyed(source: Source, laid: Laid, rows_at: str | None = None) -> Laid:
    """With what a pass over its rows tells."""
    try:
        survey = source.survey()
    except InvalidSource as fault:
        return replace(laid, notes=(*laid.notes, str(fault)))
    notes = laid.notes
    if source.duplicate_keys:
        notes += (f"{source.duplicate_keys:,} keys are twice in their record; builders take the last of them.",)
    return replace(laid, rows=survey.rows, columns=tuple(survey.columns), rows_at=rows_at, notes=notes)


# JSON


def _json(body: bytes) -> Laid:
    data = body.removeprefix(_BOM).strip()
    notes: tuple[str, ...] = ("A byte order mark at the beginning was left out.",) if body.startswith(_BOM) else ()
    try:
        require_json(data)
    except NotJson as fault:
        return _not_one_value(body, data, fault, notes)
    laid = Laid("json", _lines(data), notes=notes)
    place = find_place(data)
    if place is None:
        return laid
    return _surveyed(JsonSource(lambda: BytesIO(data), place), laid, str(place))


def _not_one_value(body: bytes, data: bytes, fault: NotJson, notes: tuple[str, ...]) -> Laid:
    """JSON that is cut, values one after another, or text that only begins like JSON."""
    if fault.truncated:
        return Laid(
            "json", (body,), complete=False, notes=(f"It is JSON that was cut before it was received: {fault}.",)
        )
    found: list[bytes] = []
    complete = True
    try:
        for start, end in values(data):
            found.append(data[start:end])
    except NotJson as stop:
        complete = False
        if not stop.truncated or len(found) < 2:
            note = f"It begins like JSON, but {stop}. It is kept as it was received."
            return Laid("text", (body,), notes=(note,))
    if any(one[:1] not in (b"{", b"[") for one in found):
        return Laid("text", (body,), notes=(f"It begins like JSON, but {fault}. It is kept as it was received.",))
    if not complete:
        return Laid("ndjson", (body,), complete=False, notes=("Its last record was cut before it was received.",))
    lines = b"".join(_one_line(one) + b"\n" for one in found)
    return _surveyed(LinesSource(lambda: BytesIO(lines)), Laid("ndjson", (lines,), notes=notes))


def _lines(data: bytes) -> Iterator[bytes]:
    yield from _laid(data, 0)
    yield b"\n"


def _laid(value: Slice, depth: int) -> Iterator[bytes]:
    """A value over lines, its first line not indented: members one a line, elements one a line."""
    data = bytes(value)
    first = data[:1]
    if first not in (b"{", b"[") or (len(data) <= _SHORT_BYTES and b"\n" not in data) or depth == _MAX_INDENTED:
        yield _one_line(data)
    elif first == b"{":
        indent = b"  " * (depth + 1)
        separator = b"{\n" + indent
        for member in members(data):
            yield separator + member.raw_key + b": "
            yield from _laid(member.value, depth + 1)
            separator = b",\n" + indent
        yield b"{}" if separator.startswith(b"{") else b"\n" + b"  " * depth + b"}"
    else:
        inner = elements(data)
        if not inner:
            yield b"[]"
            return
        separator = b"[\n"
        left = iter(inner)
        while batch := list(islice(left, _ELEMENTS_AT_ONCE)):
            yield separator
            joined = b",\n".join(batch)
            if joined.count(b"\n") >= len(batch) or b"\r" in joined:
                joined = b",\n".join([_one_line(bytes(element)) for element in batch])
            yield joined
            separator = b",\n"
        yield b"\n" + b"  " * depth + b"]"


def _one_line(data: bytes) -> bytes:
    """Without its line breaks: valid JSON has them between its tokens only."""
    return _LINE_BREAK.sub(b" ", data) if b"\n" in data or b"\r" in data else data
