"""A file as a table: its columns, and its rows in runs that have the same columns.

A source is read anew for each pass, in memory that does not grow with it, so that it can be looked over before it is used.
"""

import csv
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import StringIO, TextIOWrapper
from itertools import chain, groupby, islice
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec
from msgspec import Raw

from sandbox.errors import InvalidSource
from sandbox.tables.cells import Cell, is_canonical_number, quoted, without_lone_surrogates
from sandbox.tables.place import HEADER_KEYS, LOOKED_AT_ROWS, Place, find_place, header_row, names_in, parse_place
from sandbox.tables.slices import REFUSED, NotJson, Slice, by_key, elements, members
from sandbox.tables.stream import PIECE_BYTES, Window, lines, pieces

Format = Literal["json", "ndjson", "csv", "tsv"]

_UNFIT_FOR_A_FIELD = re.compile('["\\\\\x00-\x1f]')
_SNIFFED_LINES, _SNIFFED_CHARACTERS = 50, 64 << 10
_HEADER_NAME = re.compile(r"\S(?:[^\r\n]{0,98}\S)?")
_ROWS_OF_A_RUN = 10_000
_MAX_SEARCHED_BYTES = 512 << 20

_records = msgspec.json.Decoder(list[dict[str, Raw]])
_arrays = msgspec.json.Decoder(list[list[Raw]])

OpenFile = Callable[[], BinaryIO]


class Run(NamedTuple):
    """Rows one after another that have the same columns, cell by cell."""

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


@dataclass
class Survey:
    """What is known of a source after a pass over it."""

    columns: list[str] = field(default_factory=list)
    """In the order in which they were first seen; of a source with a header, the header."""
    rows: int = 0
    numeric: frozenset[int] = frozenset()
    """The columns of a source without types in which every field that is not empty is a canonical number."""


class Source(ABC):
    """A table in a file. ``duplicate_keys`` counts keys that are twice in a record, once a pass has ended: the last one holds."""

    format: Format
    has_header = False
    """Whether the columns are those of a header, which may have equal names."""

    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file
        self.duplicate_keys = 0

    @abstractmethod
    def runs(self) -> Iterator[Run]:
        """All rows, in order; raises `InvalidSource`, naming the byte."""

    def survey(self) -> Survey:
        """A pass over all rows."""
        found = Survey()
        columns: dict[str, None] = {}
        widest: tuple[str, ...] = ()
        for run in self.runs():
            columns.update(dict.fromkeys(run.columns))
            widest = max(widest, run.columns, key=len)
            found.rows += len(run.rows)
        found.columns = list(widest) if self.has_header else list(columns)
        return found


class _JsonSource(Source):
    """Arrays of JSON values, one after another."""

    def __init__(self, open_file: OpenFile, *, inside: str | None = None) -> None:
        super().__init__(open_file)
        self._inside = inside
        self._header: list[str] | None = None
        self._is_header_row = False
        self._is_counted = False
        self._uniform: _Uniform | None = None

    @abstractmethod
    def _pieces(self, window: Window) -> Iterator[tuple[int, bytes]]: ...

    def runs(self) -> Iterator[Run]:
        if not self._is_counted:
            self.duplicate_keys = 0
        if self._header:
            yield Run(tuple(self._header), [])
        with self._open() as file:
            window = Window(file)
            try:
                for number, (at, piece) in enumerate(self._pieces(window)):
                    yield from self._runs_of(piece, at, is_first=number == 0)
            except NotJson as fault:
                raise InvalidSource(f"The file can't be read as JSON: {fault}.") from None
            except UnicodeDecodeError:
                raise InvalidSource(f"The file is not valid UTF-8, near byte {window.start:,}.") from None
        self._is_counted = True

    def _runs_of(self, piece: bytes, at: int, *, is_first: bool) -> Iterator[Run]:
        try:
            piece.decode()
        except UnicodeDecodeError as fault:
            raise InvalidSource(f"The file is not valid UTF-8 at byte {at + fault.start:,}.") from None
        if self._header is not None:
            rows: list[list[Raw]] | list[list[Slice]]
            try:
                rows = _arrays.decode(piece)
            except REFUSED:
                rows = [self._cells_of(element) for element in elements(piece)]
            yield from self._positional(rows[1:] if is_first and self._is_header_row else rows)
            return
        if self._inside is not None:
            piece = self._without_wrappers(piece)
        if self._uniform is not None and (uniform := self._uniform.read(piece)) is not None:
            if not self._is_counted:
                self._look_for_duplicates(piece, uniform, len(self._uniform.columns) * len(uniform))
            yield Run(self._uniform.columns, list(uniform))
            return
        records: list[dict[str, Raw]] | list[dict[str, Slice]]
        try:
            records = _records.decode(piece)
        except REFUSED:
            records = [self._record(element) for element in elements(piece)]
        else:
            if records and self._uniform is None:
                self._uniform = _Uniform(tuple(records[0]))
            if not self._is_counted:
                self._look_for_duplicates(piece, map(dict.values, records), sum(map(len, records)))
        for columns, same in groupby(records, key=tuple):
            yield Run(columns, list(map(tuple, map(dict.values, same))))

    def _positional(self, rows: list[list[Slice]] | list[list[Raw]]) -> Iterator[Run]:
        header = self._header or []
        for width, same in groupby(rows, key=len):
            yield Run((*header[:width], *([""] * (width - len(header)))), list(map(tuple, same)))

    def _cells_of(self, element: Slice) -> list[Slice]:
        """The cells of a row that should be an array: of an object its values by the names, of anything else it alone."""
        first = bytes(element)[:1]
        if first == b"[":
            return elements(element)
        if first == b"{":
            left = by_key(element)
            known = [left.pop(name, b"null") for name in self._header or ()]
            return [*known, *left.values()]
        return [element]

    def _without_wrappers(self, piece: bytes) -> bytes:
        """The records that stand in a member of their elements; null where there is none."""
        inside = self._inside or ""
        try:
            wrappers: Iterator[dict[str, Any]] = iter(_records.decode(piece))
        except REFUSED:
            all_of_them = (bytes(element) for element in elements(piece))
            wrappers = (by_key(one) if one[:1] == b"{" else {} for one in all_of_them)
        return b"[" + b",".join(wrapper.get(inside, b"null") for wrapper in wrappers) + b"]"

    def _record(self, element: Slice) -> dict[str, Slice]:
        """Any element as a record: null has no cells, a scalar is the one cell of a column `value`, an array has numbered ones."""
        first = bytes(element)[:1]
        if first == b"{":
            inner = members(element)
            record = {without_lone_surrogates(member.key): member.value for member in inner}
            if not self._is_counted:
                self.duplicate_keys += len(inner) - len(record)
            return record
        if first == b"[":
            return {f"column_{number}": value for number, value in enumerate(elements(element), 1)}
        return {} if bytes(element) == b"null" else {"value": element}

    def _look_for_duplicates(self, piece: bytes, rows: Iterable[Iterable[Raw]], keys: int) -> None:
        """Count keys that are twice in a record: a record's quotation marks are those of its keys and of its values."""
        in_values = b"".join(chain.from_iterable(rows)).count(b'"')
        if piece.count(b'"') != in_values + 2 * keys:
            all_of_them = (members(element) for element in elements(piece))
            self.duplicate_keys += sum(len(inner) - len({member.key for member in inner}) for inner in all_of_them)


class _Uniform:
    """Reads records that all have the same keys, in half of the time that dictionaries take."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if not columns or any(_UNFIT_FOR_A_FIELD.search(column) for column in columns):
            return  # msgspec has no fields of such names
        names = {f"f{index}": column for index, column in enumerate(columns)}
        record = msgspec.defstruct(
            "Record", [(name, Raw) for name in names], rename=names, forbid_unknown_fields=True, gc=False
        )
        self._decoder = msgspec.json.Decoder(list[record])  # type: ignore[valid-type]

    def read(self, piece: bytes) -> list[tuple[Raw, ...]] | None:
        """The rows of an array of records; None if one has other keys, or is no record."""
        if self._decoder is None:
            return None
        try:
            return list(map(msgspec.structs.astuple, self._decoder.decode(piece)))
        except REFUSED:
            return None


class JsonSource(_JsonSource):
    """The rows of one JSON document."""

    format: Format = "json"

    def __init__(self, open_file: OpenFile, place: Place) -> None:
        super().__init__(open_file, inside=place.inside)
        self.place = place
        self._find_header()

    def _enter(self, window: Window, keys: tuple[str, ...]) -> None:
        for depth, key in enumerate(keys):
            if window.next_byte() != b"{" or not window.enter(key):
                above = Place(self.place.keys[:depth])
                raise InvalidSource(f"There is no array at {self.place}: {above} has no key {quoted(key)}.")

    def _pieces(self, window: Window) -> Iterator[tuple[int, bytes]]:
        self._enter(window, self.place.keys)
        if window.next_byte() != b"[":
            raise InvalidSource(f"What is at {self.place} is no array, so it has no rows.")
        yield from pieces(window)
        if not self.place.keys and window.next_byte():
            raise NotJson(window.start, truncated=False)

    def _find_header(self) -> None:
        """The names beside rows that are arrays, or in the first of them."""
        if self.place.inside is not None:
            return
        try:
            self._header, self._is_header_row = self._names()
        except (NotJson, UnicodeDecodeError):
            return  # reading the rows will say it
        self.has_header = self._header is not None

    def _names(self) -> tuple[list[str] | None, bool]:
        """The names, and whether they are the first row."""
        with self._open() as file:
            window = Window(file)
            self._enter(window, self.place.keys)
            rows = list(islice(chain.from_iterable(elements(piece) for _, piece in pieces(window)), LOOKED_AT_ROWS))
            if rows and bytes(rows[0])[:1] != b"[":
                return None, False
        if self.place.keys:
            with self._open() as file:
                window = Window(file)
                self._enter(window, self.place.keys[:-1])
                for key in window.each_key():
                    if key not in HEADER_KEYS or key == self.place.keys[-1]:
                        window.skip_value()
                    elif (names := names_in(window.take())) is not None:
                        return names, False
        names = header_row(rows, key=self.place.keys[-1] if self.place.keys else "")
        return names, names is not None


class LinesSource(_JsonSource):
    """One JSON value a line."""

    format: Format = "ndjson"

    def _pieces(self, window: Window) -> Iterator[tuple[int, bytes]]:
        return lines(window)


class DelimitedSource(Source):
    """CSV (RFC 4180), with any delimiter. Its first record is the header; fields are texts, and an empty one is nothing."""

    has_header = True

    def __init__(self, open_file: OpenFile, *, delimiter: str) -> None:
        super().__init__(open_file)
        self.format = "tsv" if delimiter == "\t" else "csv"
        self._delimiter = delimiter
        self._numeric: frozenset[int] = frozenset()

    def survey(self) -> Survey:
        """A pass over all rows, after which numbers are given as numbers."""
        self._numeric = frozenset()
        found, candidates, seen = Survey(), set(range(1 << 16)), set[int]()
        for run in self.runs():
            found.columns = list(run.columns) if len(run.columns) > len(found.columns) else found.columns
            found.rows += len(run.rows)
            for index, column in enumerate(zip(*run.rows, strict=True)):
                if index in candidates and any(column):
                    seen.add(index)
                    if not all(is_canonical_number(str(cell)) for cell in column if cell):
                        candidates.discard(index)
        self._numeric = found.numeric = frozenset(candidates & seen)
        return found

    def runs(self) -> Iterator[Run]:
        csv.field_size_limit(sys.maxsize)
        with self._open() as file, TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=self._delimiter, strict=True)
            try:
                header = next((record for record in reader if record), [])
                if header:
                    yield Run(tuple(header), [])
                rows: list[list[str]] = []
                for row in reader:
                    if row:
                        rows.append(row)
                    if len(rows) == _ROWS_OF_A_RUN:
                        yield from self._runs(header, rows)
                        rows = []
                yield from self._runs(header, rows)
            except UnicodeDecodeError:
                raise InvalidSource(f"The file is not valid UTF-8 at byte {self._first_bad_byte():,}.") from None
            except csv.Error as fault:
                raise InvalidSource(
                    f"The file can't be read as CSV: {fault}, near line {reader.line_num:,}. A field with a quotation mark is "
                    'written "in quotes", with each mark in it doubled.'
                ) from None

    def _runs(self, header: list[str], rows: list[list[str]]) -> Iterator[Run]:
        """Rows with as many fields each; short ones are not filled up, which would make a small file large."""
        for width, same in groupby(rows, key=len):
            columns = (*header[:width], *([""] * (width - len(header))))
            yield Run(columns, list(map(self._cells, same)))

    def _cells(self, row: list[str]) -> tuple[Cell, ...]:
        numeric = self._numeric
        return tuple((field.encode() if n in numeric else field) if field else None for n, field in enumerate(row))

    def _first_bad_byte(self) -> int:
        offset = 0
        with self._open() as file:
            while chunk := file.read(PIECE_BYTES):
                chunk += file.readline()  # so that no character is cut
                try:
                    chunk.decode()
                except UnicodeDecodeError as fault:
                    return offset + fault.start
                offset += len(chunk)
        return offset


def open_source(open_file: OpenFile, *, path: str, rows_at: str | None, format: str | None = None) -> Source:
    """The table in a file, by what the file begins with and by the end of its name, or by ``format`` if that is known.

    ``rows_at`` is the place of the rows in a JSON document; without it, the largest array of records is taken. Raises
    `InvalidSource` for what is no table, with what to do.
    """
    with open_file() as file:
        window = Window(file)
        first = window.next_byte()
        is_json = first in (b"[", b"{") and not path.lower().endswith((".csv", ".tsv"))
        if not is_json:
            if rows_at not in (None, "$"):
                raise InvalidSource(f"{path} is no JSON document: leave rows_at out.")
            return DelimitedSource(open_file, delimiter=_delimiter(window.rest(), path))
        is_lines = format == "ndjson" or path.lower().endswith((".ndjson", ".jsonl"))
        if rows_at is None and (is_lines or (first == b"{" and _has_more_values(window))):
            return LinesSource(open_file)
    if rows_at is not None:
        try:
            return JsonSource(open_file, parse_place(rows_at))
        except ValueError as fault:
            raise InvalidSource(str(fault)) from None
    if first == b"[":
        with open_file() as file:
            return JsonSource(open_file, find_place(_first_record(file)) or Place())
    return JsonSource(open_file, _find_in(open_file, path))


def _has_more_values(window: Window) -> bool:
    """Whether another value follows the object that is next."""
    try:
        window.skip_value()
        return bool(window.next_byte())
    except NotJson:
        return False  # reading will say it


def _first_record(file: BinaryIO) -> bytes:
    """The array with nothing but its first piece."""
    try:
        piece = next((piece for _, piece in pieces(Window(file))), b"[]")
        piece.decode()
    except (NotJson, UnicodeDecodeError):
        return b"[]"  # reading will say it
    return piece


def _find_in(open_file: OpenFile, path: str) -> Place:
    with open_file() as file:
        document = file.read(_MAX_SEARCHED_BYTES + 1)
    if len(document) > _MAX_SEARCHED_BYTES:
        raise InvalidSource(f"{path} is large: say with rows_at where its rows are, such as $.result.rows.")
    try:
        document.decode()
        place = find_place(document.removeprefix(b"\xef\xbb\xbf"))
    except UnicodeDecodeError as fault:
        raise InvalidSource(f"{path} is not valid UTF-8 at byte {fault.start:,}.") from None
    except NotJson as fault:
        raise InvalidSource(f"{path} can't be read as JSON: {fault}.") from None
    if place is None:
        raise InvalidSource(
            f"{path} has no array of records. Say with rows_at where its rows are, or reshape it in a script."
        )
    return place


def delimiter_of(text: str, *, is_whole: bool) -> str | None:
    """What separates the fields of a text, if its first lines have as many each, under a header of names; None for other text."""
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)[: _SNIFFED_LINES + 1]
    if not is_whole or len(lines) > _SNIFFED_LINES:
        lines = lines[:-1]
    for delimiter in "\t,;|":
        if not lines or delimiter not in lines[0]:
            continue
        try:
            records = list(
                csv.reader(StringIO("".join(lines).rstrip("\r\n"), newline=""), delimiter=delimiter, strict=True)
            )
        except csv.Error:
            continue
        header = records[0]
        is_named = header[0][:1].isalpha() or header[0][:1] in ("_", "#")  # a log begins with a date
        is_header = is_named and all(map(_HEADER_NAME.fullmatch, header)) and len(set(header)) == len(header) > 1
        if is_header and len(records) > 1 and {len(record) for record in records} == {len(header)}:
            return delimiter
    return None


def _delimiter(head: bytes, path: str) -> str:
    """Of a file that is named or recognised as delimited text; raises `InvalidSource` for any other."""
    if path.lower().endswith(".tsv"):
        return "\t"
    text = head.decode("utf-8", "replace")
    found = delimiter_of(text[:_SNIFFED_CHARACTERS], is_whole=len(text) <= _SNIFFED_CHARACTERS)
    if found is None and not path.lower().endswith(".csv"):
        raise InvalidSource(
            f"{path} is no table: neither JSON, nor text with a header and as many fields in each line. Read it with read_file or "
            "search_output, or make a table of it in a script."
        )
    first_line = [text.lstrip("\ufeff\r\n").partition("\n")[0]]
    return found or max(",;\t|", key=lambda one: (len(next(csv.reader(first_line, delimiter=one), [])), one == ","))
