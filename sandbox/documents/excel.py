"""Tables as an Excel workbook (ECMA-376), written as a stream: memory does not grow with the rows.

A cell is a number, a boolean or a date only where the text that Excel shows for it is the text of the source; else it is
text. Text stands in the cell itself and not in a table of shared strings, which would have to be held until the end.
"""

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import chain, islice
from typing import IO
from xml.sax.saxutils import escape

from sandbox.documents.written import Tally
from sandbox.errors import TooLarge
from sandbox.tables.cells import MAX_EXACT_DIGITS, Cell, is_formula_like, plain_text, quoted, without_lone_surrogates

MAX_ROWS, MAX_COLUMNS = 1_048_576, 16_384
MAX_CELL_UNITS = 32_767
"""UTF-16 code units of a text in a cell; Excel's limits, from its specification."""

_MAX_SHEET_NAME_UNITS = 31
_COMPRESSION = 1  # a third of the time of the usual 6, for files a quarter larger
_WIDTH_ROWS, _MIN_WIDTH, _MAX_WIDTH = 200, 8, 60
_WRITTEN_AT_ONCE = 256 << 10
_MAX_KNOWN, _MAX_KNOWN_LENGTH = 20_000, 100
_GENERAL_DIGITS = 11  # General shows more as an exponent
_MAX_DECIMALS = 15
_ZIP64_BYTES = 1 << 30

# Positions in cellXfs of the styles part.
_TEXT, _QUOTED, _AS_TEXT, _HEADER, _LONG_INTEGER = 1, 2, 3, 4, 5
_DECIMALS = _LONG_INTEGER  # plus the number of decimals
_DATES = {
    "%Y-%m-%d": "yyyy\\-mm\\-dd",
    "%Y-%m-%d %H:%M:%S": "yyyy\\-mm\\-dd\\ hh:mm:ss",
    "%Y-%m-%dT%H:%M:%S": "yyyy\\-mm\\-dd\\Thh:mm:ss",
    "%d.%m.%Y": "dd\\.mm\\.yyyy",
    "%d/%m/%Y": "dd\\/mm\\/yyyy",
}
"""How a date is written, and the number format under which Excel shows it so."""
_FIRST_DATE = _DECIMALS + _MAX_DECIMALS + 1
_FIRST_TRUE_DAY = date(1900, 3, 1)  # before it Excel counts a 29 February 1900, which never was
_EPOCH = datetime(1899, 12, 30)  # noqa: DTZ001  Excel has no time zones

_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)(?:\.([0-9]+))?")
_SIMPLE_TEXT = re.compile(rb'"[A-Za-z0-9][^"\\&<>\x7f-\xff]{0,1000}(?<! )"')
_SIMPLE_NUMBER = re.compile(rb"-?[1-9][0-9]{0,10}")
_SPECIAL = re.compile('[&<>"\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)')
_UNFIT_FOR_A_NAME = re.compile(r"[\[\]:*?/\\\x00-\x1f]")

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'


@dataclass
class Sheet:
    """A table to be written, and, when it is, what came of it."""

    name: str
    headers: list[str]
    runs: Iterable[list[tuple[Cell, ...]]]
    dates: frozenset[int] = frozenset()
    """Columns whose texts become dates where Excel shows these as they are written."""
    tally: Tally = field(default_factory=Tally)
    sheet_names: list[str] = field(default_factory=list)
    """What it is called in the workbook; more than one if its rows are more than a sheet can have."""


def write_workbook(
    target: IO[bytes], sheets: Sequence[Sheet], *, source_bytes: int, on_rows: Callable[[int], None] = lambda _: None
) -> None:
    """Write a workbook; ``on_rows`` is told how many rows are written, now and then.

    ``source_bytes`` is about the size of the sources. Raises `TooLarge` for what no sheet can hold, naming row and column.
    """
    parts: list[_Part] = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive:
        archive.writestr("[Content_Types].xml", _content_types())
        archive.writestr("_rels/.rels", _relationships({"rId1": ("officeDocument", "xl/workbook.xml")}))
        archive.writestr("xl/styles.xml", _styles())
        written = 0
        for sheet in sheets:
            _require_columns(sheet)
            _require_headers(sheet)
            rows = chain.from_iterable(sheet.runs)
            is_more = True
            while is_more:
                name = _free_name(sheet.name, len(sheet.sheet_names), {part.name.casefold() for part in parts})
                sheet.sheet_names.append(name)
                with archive.open(
                    f"xl/worksheets/sheet{len(parts) + 1}.xml", "w", force_zip64=source_bytes * 16 > _ZIP64_BYTES
                ) as file:
                    count = _write_sheet(file, sheet, islice(rows, MAX_ROWS - 1), written, on_rows)
                written += count
                parts.append(_Part(name, _range(len(sheet.headers), count + 1)))
                following = list(islice(rows, 1)) if count == MAX_ROWS - 1 else []
                is_more, rows = bool(following), chain(following, rows)
        archive.writestr("xl/workbook.xml", _workbook(parts))
        links = {f"rId{number}": ("worksheet", f"worksheets/sheet{number}.xml") for number in range(1, len(parts) + 1)}
        archive.writestr("xl/_rels/workbook.xml.rels", _relationships({**links, "rId0": ("styles", "styles.xml")}))


@dataclass(frozen=True)
class _Part:
    name: str
    used: str
    """Such as ``A1:C17``; empty if there is no column."""


def _require_columns(sheet: Sheet) -> None:
    if len(sheet.headers) > MAX_COLUMNS:
        raise TooLarge(
            f"{len(sheet.headers):,} columns are more than the {MAX_COLUMNS:,} of a sheet. Choose some, or build a CSV."
        )


def _require_headers(sheet: Sheet) -> None:
    for name in sheet.headers:
        if _units(name) > MAX_CELL_UNITS:
            raise TooLarge(
                f"The header {quoted(name)} has {_units(name):,} characters; Excel holds {MAX_CELL_UNITS:,}. "
                "Give it another with columns."
            )


def _write_sheet(
    file: IO[bytes], sheet: Sheet, rows: Iterator[tuple[Cell, ...]], before: int, on_rows: Callable[[int], None]
) -> int:
    """One sheet; gives the number of its rows without the header."""
    first = list(islice(rows, _WIDTH_ROWS))
    letters = [_letters(index) for index in range(len(sheet.headers))]
    file.write(_sheet_head(_widths(sheet.headers, first)).encode())
    known = _Fragments(sheet.tally)
    if letters:
        cells = [
            f'<c r="{letter}1"{known.text(name, _HEADER)}' for letter, name in zip(letters, sheet.headers, strict=True)
        ]
        file.write(f'<row r="1">{"".join(cells)}</row>'.encode())
    fragments: list[_Fragments] | _Fragments = known
    if sheet.dates:
        dated = _DateFragments(sheet.tally)
        fragments = [dated if index in sheet.dates else known for index in range(len(letters))]
    count = size = 0
    texts: list[str] = []

    def flush() -> None:
        nonlocal size
        text = "".join(texts)
        sheet.tally.cells_as_text += text.count(f' s="{_AS_TEXT}"')
        sheet.tally.formula_like_cells += text.count(f' s="{_QUOTED}"')
        if sheet.dates:
            sheet.tally.dates += sum(text.count(f' s="{_FIRST_DATE + index}"') for index in range(len(_DATES)))
        file.write(text.encode())
        texts.clear()
        size = 0
        on_rows(before + count)

    for row in chain(first, rows):
        number = count + 2
        try:
            xml = "".join(
                [
                    f'<c r="{letter}{number}"{fragment}'
                    for letter, fragment in zip(letters, _row(row, fragments), strict=True)
                    if fragment
                ]
            )
        except _CellTooLong:
            raise _name_the_cell(row, sheet, before + count + 1) from None
        count += 1
        texts.append(f'<row r="{number}">{xml}</row>')
        size += len(xml)
        if size > _WRITTEN_AT_ONCE:
            flush()
    flush()
    file.write(_sheet_tail(_range(len(letters), count + 1)).encode())
    return count


class _CellTooLong(Exception):
    """A text is longer than a cell can hold."""


class _Fragments(dict[bytes | str | None, str]):
    """The XML of a cell after its place, by the cell; empty for no cell. Those seen before are kept, up to a bound."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally

    def __missing__(self, cell: bytes | str | None) -> str:
        if cell is None:
            return ""
        if isinstance(cell, str):
            fragment = self._text_of(cell)
        elif _SIMPLE_NUMBER.fullmatch(cell):
            fragment = f"><v>{cell.decode()}</v></c>"
        else:
            fragment = self._text_of(cell) if cell[:1] == b'"' else _literal(cell)
        if len(self) < _MAX_KNOWN and len(cell) <= _MAX_KNOWN_LENGTH and "\ufffd" not in fragment:
            self[cell] = fragment
        return fragment

    def _text_of(self, cell: bytes | str) -> str:
        if (
            isinstance(cell, bytes) and b"_x" not in cell and _SIMPLE_TEXT.fullmatch(cell)
        ):  # most are; else the same is decided in more steps
            return f' s="{_TEXT}" t="inlineStr"><is><t>{cell[1:-1].decode()}</t></is></c>'
        text = plain_text(cell) or ""
        return self.text(text, _QUOTED if is_formula_like(text) else _TEXT)

    def text(self, text: str, style: int) -> str:
        if not text.isascii():
            clean = without_lone_surrogates(text)
            self.tally.replaced_characters += sum(map(str.__ne__, clean, text))
            text = clean
        if len(text) > MAX_CELL_UNITS // 2 and _units(text) > MAX_CELL_UNITS:
            raise _CellTooLong
        if _SPECIAL.search(text):
            text = _SPECIAL.sub(_escaped, text)
        space = ' xml:space="preserve"' if text[:1].isspace() or text[-1:].isspace() else ""
        return f' s="{style}" t="inlineStr"><is><t{space}>{text}</t></is></c>'


class _DateFragments(_Fragments):
    """As `_Fragments`, but with texts as dates where Excel shows them as they are written."""

    def _text_of(self, cell: bytes | str) -> str:
        text = plain_text(cell) or ""
        for index, pattern in enumerate(_DATES):
            try:
                moment = datetime.strptime(text, pattern)  # noqa: DTZ007  Excel has no time zones
            except ValueError:
                continue
            if moment.date() >= _FIRST_TRUE_DAY and moment.strftime(pattern) == text:
                since = moment - _EPOCH
                serial = f"{since.days + since.seconds / 86400:.10f}".rstrip("0").rstrip(".")
                return f' s="{_FIRST_DATE + index}"><v>{serial}</v></c>'
        return super()._text_of(cell)


def _row(row: tuple[Cell, ...], fragments: list[_Fragments] | _Fragments) -> list[str]:
    """The fragments of a row, by one dictionary for all columns or by one for each."""
    if isinstance(fragments, list):
        return [one[_plain(cell)] for one, cell in zip(fragments, row, strict=True)]
    try:
        return [fragments[cell] for cell in map(bytes, row)]  # type: ignore[arg-type]  # others raise TypeError
    except TypeError:
        return [fragments[_plain(cell)] for cell in row]


def _plain(cell: Cell) -> bytes | str | None:
    return cell if cell is None or isinstance(cell, str) else bytes(cell)


def _literal(cell: bytes) -> str:
    """A JSON value that is no string."""
    if cell == b"null":
        return ""
    if cell in (b"true", b"false"):
        return f' t="b"><v>{int(cell == b"true")}</v></c>'
    number = _NUMBER.fullmatch(cell)
    text = cell.decode()
    if number is not None:
        decimals = len(number[2] or b"")
        digits = len(text.replace(".", "").lstrip("-0")) or 1
        is_negative_zero = text[0] == "-" and not text.strip("-0.")
        if digits <= MAX_EXACT_DIGITS and decimals <= _MAX_DECIMALS and not is_negative_zero:
            style = _DECIMALS + decimals if decimals or digits > _GENERAL_DIGITS else 0
            return f' s="{style}"><v>{text}</v></c>' if style else f"><v>{text}</v></c>"
    if len(text) > MAX_CELL_UNITS // 2 and _units(text) > MAX_CELL_UNITS:
        raise _CellTooLong
    if cell[0] in b"[{":
        text = _SPECIAL.sub(_escaped, text)
    return f' s="{_AS_TEXT}" t="inlineStr"><is><t>{text}</t></is></c>'


def _escaped(found: re.Match[str]) -> str:
    """For XML, and for ST_Xstring (ECMA-376 part 1, 22.9.2.19), in which ``_xHHHH_`` is a character that XML can't have."""
    text = found[0]
    if text in '&<>"':
        return escape(text, {'"': "&quot;"})
    return f"_x{ord(text):04X}_"


def _units(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


def _name_the_cell(row: tuple[Cell, ...], sheet: Sheet, number: int) -> TooLarge:
    for name, cell in zip(sheet.headers, row, strict=True):
        units = _units(plain_text(cell) or "")
        if units > MAX_CELL_UNITS:
            return TooLarge(
                f"The cell in data row {number:,}, column {quoted(name)}, has {units:,} characters; Excel holds "
                f"{MAX_CELL_UNITS:,}. Leave the column out with columns, shorten it in the query, or build a CSV, which holds any."
            )
    raise AssertionError("no cell is too long")  # the caller met one


# Names, ranges, widths


def _letters(index: int) -> str:
    """The name of a column counted from 0: A, B, … Z, AA, …"""
    name = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def _range(columns: int, rows: int) -> str:
    return f"A1:{_letters(columns - 1)}{rows}" if columns else ""


def _free_name(wanted: str, number: int, taken: set[str]) -> str:
    """A name that Excel takes, and that no other sheet has; with a number from the second part of a table on."""
    fit = _UNFIT_FOR_A_NAME.sub("_", without_lone_surrogates(wanted[: 4 * _MAX_SHEET_NAME_UNITS]))
    base = fit.strip("'").strip() or "Sheet"
    if base.casefold() == "history":  # Excel keeps this name for itself
        base += "_"
    suffix = f" ({number + 1})" if number else ""
    name = _cut(base, suffix)
    while name.casefold() in taken:
        number += 1
        name = _cut(base, f" ({number + 1})")
    return name


def _cut(base: str, suffix: str) -> str:
    while _units(base) + len(suffix) > _MAX_SHEET_NAME_UNITS:
        base = base[:-1]
    return base.rstrip("'") + suffix


def _widths(headers: list[str], rows: list[tuple[Cell, ...]]) -> list[int]:
    """Column widths in characters, after the first rows; wide characters count twice."""
    widths = [_shown_width(name) + 3 for name in headers]  # room for the filter's button
    for row in rows:
        for index, cell in enumerate(row):
            text = plain_text(cell)
            if text:
                widths[index] = max(widths[index], _shown_width(text.partition("\n")[0][: _MAX_WIDTH + 1]) + 1)
    return [min(_MAX_WIDTH, max(_MIN_WIDTH, width)) for width in widths]


def _shown_width(text: str) -> int:
    return len(text) + sum(character >= "\u1100" for character in text)


# Parts


def _sheet_head(widths: list[int]) -> str:
    columns = "".join(
        f'<col min="{number}" max="{number}" width="{width}" customWidth="1"/>'
        for number, width in enumerate(widths, 1)
    )
    pane = '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
    return (
        f'{_HEAD}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">{pane}</sheetView></sheetViews>'
        f'<sheetFormatPr defaultRowHeight="15"/>{f"<cols>{columns}</cols>" if columns else ""}<sheetData>'
    )


def _sheet_tail(used: str) -> str:
    if not used:
        return "</sheetData></worksheet>"
    return (
        f'</sheetData><autoFilter ref="{used}"/>'
        f'<ignoredErrors><ignoredError sqref="{used}" numberStoredAsText="1"/></ignoredErrors></worksheet>'
    )


def _workbook(parts: list[_Part]) -> str:
    sheets = "".join(
        f'<sheet name="{_SPECIAL.sub(_escaped, part.name)}" sheetId="{number}" r:id="rId{number}"/>'
        for number, part in enumerate(parts, 1)
    )
    filters = "".join(
        f'<definedName name="_xlnm._FilterDatabase" localSheetId="{index}" hidden="1">{_reference(part)}</definedName>'
        for index, part in enumerate(parts)
        if part.used
    )
    names = f"<definedNames>{filters}</definedNames>" if filters else ""
    return f'{_HEAD}<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{sheets}</sheets>{names}</workbook>'


def _reference(part: _Part) -> str:
    used = re.sub(r"([A-Z]+)([0-9]+)", r"$\1$\2", part.used)
    name = part.name.replace("'", "''")
    return f"'{_SPECIAL.sub(_escaped, name)}'!{used}"


def _content_types() -> str:
    """Sheets have the default type, since their number is not known yet."""
    return (
        f'{_HEAD}<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="{_TYPE}.worksheet+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
        f'<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/></Types>'
    )


def _relationships(targets: dict[str, tuple[str, str]]) -> str:
    links = "".join(
        f'<Relationship Id="{key}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for key, (kind, target) in targets.items()
    )
    return f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">{links}</Relationships>'


def _styles() -> str:
    text, whole = 49, 1  # the built-in formats @ and 0
    formats = ["0." + "0" * decimals for decimals in range(1, _MAX_DECIMALS + 1)] + list(_DATES.values())
    own = "".join(f'<numFmt numFmtId="{164 + index}" formatCode="{code}"/>' for index, code in enumerate(formats))
    plain, bold = 'fontId="0"', 'fontId="1" applyFont="1"'
    cells = [(0, plain), (text, plain), (text, f'{plain} quotePrefix="1"'), (text, plain), (text, bold), (whole, plain)]
    cells += [(164 + index, plain) for index in range(len(formats))]
    xfs = "".join(
        f'<xf numFmtId="{number}" {more} fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>'
        for number, more in cells
    )
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    return (
        f'{_HEAD}<styleSheet xmlns="{_MAIN}"><numFmts count="{len(formats)}">{own}</numFmts>'
        f'<fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
        '<fills count="2"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill></fills>'
        '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
        '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
        f'<cellXfs count="{len(cells)}">{xfs}</cellXfs>'
        '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
    )
