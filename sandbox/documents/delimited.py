"""A table as CSV (RFC 4180): CRLF, quotes only where they are needed, every literal as it is in the source.

Most of the work is done for some thousand rows at once, by one regular expression: joined by commas, JSON strings that have no
escape are CSV fields already, and most need nothing but to lose their quotation marks.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from sandbox.documents.written import Tally
from sandbox.tables.cells import Cell, is_formula_like, plain_text, without_lone_surrogates

BOM = "\ufeff".encode()
_ROWS_AT_ONCE = 2000

# Of fields without escapes, joined: a string that needs no quotes, one that does, and null.
_FIELD = re.compile(rb'"([^", ](?:[^",]*[^", ])?)"|("[^"]*+")|null')
_MAYBE_FORMULA = re.compile(rb'"((?:[=+\-@]|#[A-Z])[^"]*+)"')
_NEEDS_QUOTES = re.compile(r'[",\r\n]|\A[ \t]|[ \t]\Z|\A\Z')
_NESTED_OR_ESCAPED = (b"\\", b"{", b"[")


def lines_of(
    rows: Iterable[list[tuple[Cell, ...]]], headers: list[str], tally: Tally, *, excel_safe: bool
) -> Iterator[bytes]:
    """The file's content after its byte order mark, some rows at a time."""
    if headers:
        head = [_header(name, tally, is_first=index == 0, excel_safe=excel_safe) for index, name in enumerate(headers)]
        yield ((",".join(head) or '""') + "\r\n").encode()
    for some in rows:
        for batch in _batches(some):
            yield _lines(batch, tally, excel_safe=excel_safe)


def _batches(rows: list[tuple[Cell, ...]]) -> Iterator[list[tuple[Cell, ...]]]:
    left = iter(rows)
    while batch := list(islice(left, _ROWS_AT_ONCE)):
        yield batch


def _header(name: str, tally: Tally, *, is_first: bool, excel_safe: bool) -> str:
    """A first header that begins with ID makes a spreadsheet take the file for SYLK, unless it is quoted."""
    text = _text(name, tally, excel_safe=excel_safe, is_string=True)
    return _quoted(text) if is_first and text.startswith("ID") else _field(text) if text else ""


def _lines(rows: list[tuple[Cell, ...]], tally: Tally, *, excel_safe: bool) -> bytes:
    """Rows as lines. Those that have a text, an escape, something nested or a single field are written field by field."""
    if len(rows[0]) > 1:
        try:
            joined = b"\r\n".join(map(b",".join, rows))  # type: ignore[arg-type]  # a cell that is no JSON raises TypeError
        except TypeError:
            joined = None
        if joined is not None and not any(mark in joined for mark in _NESTED_OR_ESCAPED):
            formulas = sum(is_formula_like(text.decode()) for text in _MAYBE_FORMULA.findall(joined))
            if not (formulas and excel_safe):
                tally.formula_like_cells += formulas
                return b"".join(filter(None, _FIELD.split(joined))) + b"\r\n"
    if len(rows) > 16:
        half = len(rows) // 2
        return _lines(rows[:half], tally, excel_safe=excel_safe) + _lines(rows[half:], tally, excel_safe=excel_safe)
    return "".join([_line(row, tally, excel_safe=excel_safe) for row in rows]).encode()


def _line(row: tuple[Cell, ...], tally: Tally, *, excel_safe: bool) -> str:
    fields = []
    for cell in row:
        text = plain_text(cell)
        if text is None:
            fields.append("")
            continue
        is_string = isinstance(cell, str) or bytes(cell or b"")[:1] == b'"'
        text = _text(text, tally, excel_safe=excel_safe, is_string=is_string)
        fields.append(_field(text))
    if fields == [""]:
        fields = ['""']  # an empty line would be no record
    return ",".join(fields) + "\r\n"


def _text(text: str, tally: Tally, *, excel_safe: bool, is_string: bool) -> str:
    """A text as it is written, and counted."""
    if not text.isascii():
        clean = without_lone_surrogates(text)
        tally.replaced_characters += sum(map(str.__ne__, clean, text))
        text = clean
    if is_string and is_formula_like(text):
        tally.formula_like_cells += 1
        return f"'{text}" if excel_safe else text
    return text


def _field(text: str) -> str:
    return _quoted(text) if _NEEDS_QUOTES.search(text) else text


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
