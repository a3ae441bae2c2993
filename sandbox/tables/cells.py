"""What a cell of a table is, and its text.

A cell is a JSON value as it stands in its source (`Slice`), a text of a source without types such as CSV (`str`), or
nothing (`None`: a missing key, an empty field).
"""

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Self

from sandbox.tables.slices import Slice, text_of

Cell = Slice | str | None


class LiteralFloat(float):
    """A number that was read from JSON, with how it was written; ``parse_float`` of `json.loads` takes this class."""

    literal: str

    def __new__(cls, literal: str) -> Self:
        """Of a JSON number."""
        self = super().__new__(cls, literal)
        self.literal = literal
        return self


MAX_EXACT_DIGITS = 15
"""Decimal digits that a double, and so a spreadsheet, surely keeps."""

_CANONICAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_FORMULA_LIKE = re.compile(r"[=+\-@\t\r]|#(?:N/A|REF!|NAME\?|VALUE!|DIV/0!|NUM!|NULL!|SPILL!|CALC!|GETTING_DATA)")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBERS, _STRINGS, _BOOLEANS, _NESTED = range(4)

SortKey = tuple[int, Decimal | str]


def is_canonical_number(text: str) -> bool:
    """Whether a text is a number that every program writes the same way, and that a double keeps."""
    return is_number(text) and sum(map(str.isdigit, text)) <= MAX_EXACT_DIGITS


def is_number(text: str) -> bool:
    """Whether a text is a decimal number, however long."""
    return _CANONICAL.fullmatch(text) is not None


def is_formula_like(text: str) -> bool:
    """Whether a spreadsheet that opens a CSV would take a text for a formula or an error, if it is no plain number."""
    return _FORMULA_LIKE.match(text) is not None and not is_number(text)


def quoted(text: str, most: int = 60) -> str:
    """A name for a message, in quotation marks, cut if it is long; only what can't be shown is escaped."""
    shown = json.dumps(text if len(text) <= most else text[:most] + "…", ensure_ascii=False)
    return shown.encode("utf-8", "backslashreplace").decode()


def without_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which no UTF-8 can carry."""
    return _LONE_SURROGATE.sub("�", text)


def plain_text(cell: Cell) -> str | None:
    """A cell's text: of a JSON string its value, of any other JSON value its source; None for null and nothing."""
    if cell is None or isinstance(cell, str):
        return cell
    data = bytes(cell)
    if data == b"null":
        return None
    return text_of(data) if data[:1] == b'"' else data.decode()


def sort_key(cell: Cell, *, texts_as_numbers: bool = False) -> SortKey | None:
    """Orders numbers by their exact value, before strings by code point, booleans, and nested values; None for nothing.

    ``texts_as_numbers``: texts that are numbers sort as such.
    """
    text = plain_text(cell)
    if not text:
        return None
    if texts_as_numbers and is_number(text):
        return (_NUMBERS, Decimal(text))
    if cell is None or isinstance(cell, str):
        return (_STRINGS, text)
    first = bytes(cell)[:1]
    if first in b"-0123456789":
        try:
            number = Decimal(text)
        except InvalidOperation:
            return (_STRINGS, text)
        return (_NUMBERS, number) if number.is_finite() else (_STRINGS, text)
    if first in b"tf":
        return (_BOOLEANS, text)
    return (_NESTED if first in b"[{" else _STRINGS, text)
