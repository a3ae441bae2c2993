"""What each value becomes in CSV and in Excel, one row a value, read back by libraries that are not ours."""

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import openpyxl
import pytest
import python_calamine
from openpyxl.utils.escape import unescape

from sandbox.documents.delimited import lines_of
from sandbox.documents.excel import Sheet, write_workbook
from sandbox.documents.written import Tally
from sandbox.errors import InvalidSource, TooLarge
from sandbox.tables.select import Selected, Selection
from sandbox.tables.source import open_source

TEXT, QUOTED = "@", "@ quoted"


class Case(NamedTuple):
    """A JSON literal, the field of the CSV's record, and value and number format of the cell; None for no cell."""

    source: str
    field: str
    cell: Any
    format: str | None
    """Number format; `QUOTED` for one with quotePrefix."""


def text(source: str, value: str, *, format: str = TEXT) -> Case:
    """A value that is text in both."""
    return Case(source, value, value, format)


CASES = [
    # JSON strings are never guessed into anything
    *(
        text(json.dumps(value), value)
        for value in ("007", "1e5", "1-2", "MAR1", "TRUE", "1,000", "12345678901234567890")
    ),
    # numbers
    Case("0", "0", 0, "General"),
    Case("12345", "12345", 12345, "General"),
    Case("-5", "-5", -5, "General"),
    Case("12345678901", "12345678901", 12345678901, "General"),
    Case("123456789012", "123456789012", 123456789012, "0"),
    Case("-123456789012345", "-123456789012345", -123456789012345, "0"),
    text("1234567890123456", "1234567890123456"),
    text("9007199254740993", "9007199254740993"),
    text("947871269024436488", "947871269024436488"),
    text("1234567890123456789012345678901234567890", "1234567890123456789012345678901234567890"),
    text("9" * 5000, "9" * 5000),
    Case("3.14", "3.14", 3.14, "0.00"),
    Case("1.10", "1.10", 1.10, "0.00"),
    Case("2.500", "2.500", 2.5, "0.000"),
    Case("-0.02", "-0.02", -0.02, "0.00"),
    Case("0.0", "0.0", 0.0, "0.0"),
    Case("21631706.9893399", "21631706.9893399", 21631706.9893399, "0.0000000"),
    text("0.1234567890123456", "0.1234567890123456"),
    text("1.0000000000000000", "1.0000000000000000"),
    *(text(value, value) for value in ("1E5", "1e-7", "-0", "-0.0", "1e400", "NaN", "Infinity", "-Infinity")),
    # booleans and nothing
    Case("true", "true", True, "General"),
    Case("false", "false", False, "General"),
    Case("null", "", None, None),
    Case('""', "", "", TEXT),
    # dates are texts
    *(
        text(json.dumps(value), value)
        for value in ("2024-01-02", "02.01.2024", "2024-01-02T03:04:05Z", "2024-01-02T03:04:05+09:00", "1899-01-01")
    ),
    # nested values are the source's bytes
    text('{"a": [1.10, "x"],"b":null}', '{"a": [1.10, "x"],"b":null}'),
    text("[1,  2]", "[1,  2]"),
    text('{"k": "a<b&c\\""}', '{"k": "a<b&c\\""}'),
    # what a spreadsheet might take for a formula or an error
    *(
        text(json.dumps(value), value, format=QUOTED)
        for value in ("=1+1", "=== x ===", "+1", "@x", "#N/A", "-x", "=transformer", "#REF!", "\ttab")
    ),
    text('"-0.02"', "-0.02"),
    text('"#hashtag"', "#hashtag"),
    # links are texts
    *(
        text(json.dumps(value), value)
        for value in ("http://example.org/a?b=c&d=e", "mailto:a@b", "https://x.org/" + "y" * 2100)
    ),
    # characters
    *(
        text(json.dumps(value), value)
        for value in ("a\u0001b", "\u0000", "\ufffe", "\uffff", "_x000D_", "_xD83D_", "__x0041__", "x_x")
    ),
    *(text(json.dumps(value), value) for value in ("a\r\nb", "a\nb", "a\rb", " lead", "trail ", "tab\t", "\n", " ")),
    *(
        text(json.dumps(value, ensure_ascii=False), value)
        for value in ("한국어", "é,ü", "😀 astral", '"quoted"', "a,b", "<&>", "']]>")
    ),
    Case('"\\ud800x"', "\ufffdx", "\ufffdx", TEXT),
    Case('"\\ud83d\\ude00"', "😀", "😀", TEXT),
    text(json.dumps("x" * 32767), "x" * 32767),
    text(json.dumps("😀" * 16383), "😀" * 16383),
]


def selected(source: bytes, tmp_path: Path, *, path: str = "f.json", **selection: Any) -> Selected:
    """Rows of a source that is in memory."""
    found = open_source(lambda: io.BytesIO(source), path=path, rows_at=None)
    return Selected(found, Selection(**selection), spool_folder=tmp_path)


def built_csv(rows: Selected, *, excel_safe: bool = False) -> tuple[bytes, Tally]:
    """A CSV without byte order mark."""
    tally = Tally()
    return b"".join(lines_of(rows.runs(), rows.names, tally, excel_safe=excel_safe)), tally


def built_excel(rows: Selected, **sheet: Any) -> tuple[bytes, Sheet]:
    """A workbook of one sheet."""
    target = io.BytesIO()
    made = Sheet(sheet.pop("name", "Sheet"), rows.names, rows.runs(), **sheet)
    write_workbook(target, [made], source_bytes=1)
    return target.getvalue(), made


def read_cells(workbook: bytes) -> list[list[Any]]:
    """The cells of the first sheet as openpyxl has them: (value, number format) or None. Control characters are unescaped."""
    sheet = openpyxl.load_workbook(io.BytesIO(workbook)).worksheets[0]
    rows = []
    for row in sheet.iter_rows():
        cells = []
        for cell in row:
            value = unescape(cell.value) if isinstance(cell.value, str) else cell.value
            cells.append((value, cell.number_format + (" quoted" if cell.quotePrefix else "")))
        rows.append(cells)
    return rows


def as_rows(cases: list[Case]) -> bytes:
    return ("[" + ",\n".join(f'{{"n": {n}, "v": {case.source}}}' for n, case in enumerate(cases)) + "]").encode()


@pytest.mark.case("D1", "D2", "S10")
@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case.source[:40]))
def test_a_value_becomes_what_is_promised(case: Case, tmp_path: Path) -> None:
    content, _ = built_csv(selected(as_rows([case]), tmp_path))
    (_, (number, field)) = csv.reader(io.StringIO(content.decode(), newline=""))
    assert (number, field) == ("0", case.field)
    workbook, _ = built_excel(selected(as_rows([case]), tmp_path))
    sheet = openpyxl.load_workbook(io.BytesIO(workbook)).worksheets[0]
    cell = sheet.cell(2, 2)
    if case.format is None:
        assert b'r="B2"' not in _part(workbook, "xl/worksheets/sheet1.xml")
        return
    found = cell.value
    if isinstance(case.cell, str):
        found = unescape(found or "")
    assert (type(found), found) == (type(case.cell), case.cell)
    assert cell.number_format + (" quoted" if cell.quotePrefix else "") == case.format


@pytest.mark.case("D1", "D2")
def test_all_values_together_are_the_same_by_another_reader(tmp_path: Path) -> None:
    content, tally = built_csv(selected(as_rows(CASES), tmp_path))
    assert [row[1] for row in csv.reader(io.StringIO(content.decode(), newline=""))][1:] == [
        case.field for case in CASES
    ]
    workbook, sheet = built_excel(selected(as_rows(CASES), tmp_path))
    read = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(workbook)).get_sheet_by_index(0).to_python()
    for case, (_, found) in zip(CASES, read[1:], strict=True):
        expected = "" if case.cell is None else case.cell
        if expected in ("\ufffe", "\uffff"):  # this reader leaves these two as they are written
            found = unescape(str(found))
        assert found == expected, case.source[:40]
    quoted = sum(case.format == QUOTED for case in CASES)
    assert (tally.formula_like_cells, sheet.tally.formula_like_cells) == (quoted, quoted)
    numbers_as_text = sum(case.format == TEXT and case.source[0] != '"' for case in CASES)
    assert (tally.cells_as_text, sheet.tally.cells_as_text) == (0, numbers_as_text)
    assert (tally.replaced_characters, sheet.tally.replaced_characters) == (1, 1)


def _part(workbook: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(workbook)) as archive:
        return archive.read(name)


@pytest.mark.case("D1")
def test_a_missing_key_is_no_cell_and_columns_are_the_union_in_their_order(tmp_path: Path) -> None:
    source = b'[{"a": 1}, {"c": "x", "a": null}, null, {"b": true}]'
    content, _ = built_csv(selected(source, tmp_path))
    assert content == b"a,c,b\r\n1,,\r\n,x,\r\n,,\r\n,,true\r\n"
    workbook, _ = built_excel(selected(source, tmp_path))
    cells = _part(workbook, "xl/worksheets/sheet1.xml").count(b"<c r=")
    assert cells == 3 + 3


@pytest.mark.case("D1")
def test_csv_columns_are_numbers_only_if_all_of_their_fields_are_canonical(tmp_path: Path) -> None:
    source = b'id,plus,thousands,n,d,empty,big\r\n007,+1,"1,000",1,1.10,,1234567890123456\r\n1,2,3,-20,,,1\r\n'
    content, _ = built_csv(selected(source, tmp_path, path="f.csv"))
    assert content == source
    cells = read_cells(built_excel(selected(source, tmp_path, path="f.csv"))[0])[1:]
    assert [cell[1] for cell in cells[0]] == [TEXT, QUOTED, TEXT, "General", "0.00", "General", TEXT]
    assert [cell[0] for cell in cells[1]] == ["1", "2", "3", -20, None, None, "1"]


@pytest.mark.case("D1")
def test_quotes_stand_only_where_they_are_needed(tmp_path: Path) -> None:
    source = json.dumps([{"a": "x y", "b": "1,2"}, {"a": "", "b": None}, {"a": 'say "hi"', "b": "l1\nl2"}]).encode()
    content, _ = built_csv(selected(source, tmp_path))
    assert content == b'a,b\r\nx y,"1,2"\r\n"",\r\n"say ""hi""","l1\nl2"\r\n'
    only = selected(b'[{"a": null}, {"a": "x"}, {"a": ""}]', tmp_path)
    assert built_csv(only)[0] == b'a\r\n""\r\nx\r\n""\r\n'  # an empty line would be no record


@pytest.mark.case("D1")
def test_excel_safe_marks_formulas_and_never_a_plain_number(tmp_path: Path) -> None:
    source = b'[{"a":"=1+1","b":-0.02},{"a":"-0.02","b":"x"},{"a":"-2+3","b":"@y"}]'
    content, tally = built_csv(selected(source, tmp_path), excel_safe=True)
    assert content == b"a,b\r\n'=1+1,-0.02\r\n-0.02,x\r\n'-2+3,'@y\r\n"
    assert tally.formula_like_cells == 3


@pytest.mark.case("D1")
def test_dates_are_dates_only_on_request_and_where_excel_shows_them_as_they_are(tmp_path: Path) -> None:
    given = [
        "2024-01-02",
        "2024-02-30",
        "1900-02-28",
        "1900-03-01",
        "2024-01-02T03:04:05Z",
        "2024-01-02T03:04:05",
        "31.12.2023",
        "soon",
    ]
    rows = selected(json.dumps([{"d": value, "e": value} for value in given]).encode(), tmp_path)
    cells = read_cells(built_excel(rows, dates=frozenset({0}))[0])[1:]
    shown = [row[0][0].strftime("%Y-%m-%d") if not isinstance(row[0][0], str) else row[0][0] for row in cells]
    assert shown == [
        "2024-01-02",
        "2024-02-30",
        "1900-02-28",
        "1900-03-01",
        "2024-01-02T03:04:05Z",
        "2024-01-02",
        "2023-12-31",
        "soon",
    ]
    assert [row[0][1] for row in cells] == [
        "yyyy\\-mm\\-dd", TEXT, TEXT, "yyyy\\-mm\\-dd", TEXT, "yyyy\\-mm\\-dd\\Thh:mm:ss", "dd\\.mm\\.yyyy", TEXT,
    ]  # fmt: skip
    assert cells[5][0][0].second == 5
    assert all(row[1] == (value, TEXT) for row, value in zip(cells, given, strict=True))


@pytest.mark.case("D3")
def test_a_cell_that_is_too_long_is_refused_with_its_place_and_csv_takes_it(tmp_path: Path) -> None:
    for value in ("x" * 40_000, "😀" * 16_384):
        source = json.dumps([{"a": 1, "long one": "y"}, {"a": 2, "long one": value}]).encode()
        with pytest.raises(TooLarge, match=r'data row 2, column "long one", has [0-9,]+ characters.*CSV'):
            built_excel(selected(source, tmp_path))
        content, _ = built_csv(selected(source, tmp_path))
        assert value in content.decode()


@pytest.mark.case("D3")
def test_rows_beyond_a_sheet_go_to_numbered_sheets_with_the_header_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.documents.excel.MAX_ROWS", 11)
    for count, expected in ((10, [10]), (11, [10, 1]), (20, [10, 10]), (25, [10, 10, 5])):
        rows = selected(json.dumps([{"n": n} for n in range(count)]).encode(), tmp_path)
        workbook, sheet = built_excel(rows, name="data")
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(workbook))
        assert book.sheet_names == sheet.sheet_names == ["data", "data (2)", "data (3)"][: len(expected)]
        tables = [book.get_sheet_by_name(name).to_python() for name in book.sheet_names]
        assert [len(table) - 1 for table in tables] == expected
        assert all(table[0] == ["n"] for table in tables)
        assert [row[0] for table in tables for row in table[1:]] == list(range(count))


@pytest.mark.case("D3")
def test_sheet_names_become_valid_and_unique(tmp_path: Path) -> None:
    wanted = ["&", "History", "a/b:c", "x" * 40, "x" * 40 + "y", "'quoted'", "", "Data", "DATA", "it's", "😀" * 20]
    target = io.BytesIO()
    made = [Sheet(name, ["n"], [[(b"1",)]]) for name in wanted]
    write_workbook(target, made, source_bytes=1)
    names = openpyxl.load_workbook(io.BytesIO(target.getvalue())).sheetnames
    assert names == [name for sheet in made for name in sheet.sheet_names]
    assert names[:4] == ["&", "History_", "a_b_c", "x" * 31]
    assert names[4] == "x" * 27 + " (2)"
    assert names[5:10] == ["quoted", "Sheet", "Data", "DATA (2)", "it's"]
    assert len({name.casefold() for name in names}) == len(names)
    assert all(len(name.encode("utf-16-le")) <= 62 for name in names)


@pytest.mark.case("D3")
def test_too_many_columns_are_refused_for_excel_and_not_for_csv(tmp_path: Path) -> None:
    source = json.dumps([{f"c{n}": n for n in range(16_385)}]).encode()
    with pytest.raises(TooLarge, match="16,385 columns"):
        built_excel(selected(source, tmp_path))
    assert built_csv(selected(source, tmp_path))[0].count(b",") == 2 * 16_384


@pytest.mark.case("D4")
def test_a_first_header_id_is_quoted_so_that_no_spreadsheet_takes_it_for_sylk(tmp_path: Path) -> None:
    content, _ = built_csv(selected(b'[{"ID": 1, "IDX": 2}]', tmp_path))
    assert content == b'"ID",IDX\r\n1,2\r\n'


@pytest.mark.case("D2")
def test_100_000_links_are_all_there_and_none_is_a_link(tmp_path: Path) -> None:
    source = json.dumps([{"u": f"https://example.org/{n}"} for n in range(100_000)]).encode()
    workbook, _ = built_excel(selected(source, tmp_path))
    read = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(workbook)).get_sheet_by_index(0).to_python()
    assert [row[0] for row in read[1:]] == [f"https://example.org/{n}" for n in range(100_000)]
    assert b"hyperlink" not in _part(workbook, "xl/worksheets/sheet1.xml")


@pytest.mark.case("D5")
def test_an_export_of_30_001_rows_has_them_all_and_the_counts_are_equal(tmp_path: Path) -> None:
    source = json.dumps([{"n": n, "t": f"row {n}"} for n in range(30_001)]).encode()
    rows = selected(source, tmp_path)
    content, _ = built_csv(rows)
    assert (rows.rows_written, rows.rows_total, content.count(b"\r\n")) == (30_001, 30_001, 30_002)
    rows = selected(source, tmp_path)
    workbook, _ = built_excel(rows)
    read = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(workbook)).get_sheet_by_index(0).to_python()
    assert (rows.rows_written, len(read)) == (30_001, 30_002)


def test_equal_and_empty_headers_stay_as_given(tmp_path: Path) -> None:
    source = b"a,a,,b\r\n1,2,3,4\r\n"
    assert built_csv(selected(source, tmp_path, path="f.csv"))[0] == source
    cells = read_cells(built_excel(selected(source, tmp_path, path="f.csv"))[0])
    assert [cell[0] or "" for cell in cells[0]] == ["a", "a", "", "b"]
    assert [cell[0] for cell in cells[1]] == [1, 2, 3, 4]


def test_the_sheet_has_a_frozen_bold_header_a_filter_and_widths(tmp_path: Path) -> None:
    source = json.dumps([{"id": 1, "title": "a rather long title of an issue"}, {"id": 2, "title": "한국어"}]).encode()
    workbook, _ = built_excel(selected(source, tmp_path))
    sheet = openpyxl.load_workbook(io.BytesIO(workbook)).worksheets[0]
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref == "A1:B3"
    assert sheet["A1"].font.b
    assert sheet.column_dimensions["B"].width == len("a rather long title of an issue") + 1
    assert sheet.column_dimensions["A"].width == 8
    assert not sheet.tables


def test_an_empty_source_gives_a_header_or_nothing(tmp_path: Path) -> None:
    assert built_csv(selected(b"[]", tmp_path))[0] == b""
    assert built_csv(selected(b"a,b\r\n", tmp_path, path="f.csv"))[0] == b"a,b\r\n"
    workbook, _ = built_excel(selected(b"[]", tmp_path))
    assert python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(workbook)).get_sheet_by_index(0).to_python() == []


@pytest.mark.parametrize(
    ("source", "path", "byte"),
    [
        (b'[{"a":"\xff"}]', "f.json", 7),
        (b"a,b\r\n1,\xff\r\n", "f.csv", 7),
        (b"a\r\n" + b"x" * (2 << 20) + b"\xff", "f.csv", (2 << 20) + 3),
    ],
)
def test_invalid_utf_8_is_refused_with_its_byte(source: bytes, path: str, byte: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidSource, match=f"byte {byte:,}"):
        built_csv(selected(source, tmp_path, path=path))
