"""Files as tables: where the rows are, which columns they have, and what is refused."""

import io
import json
from typing import Any

import pytest

from sandbox.errors import InvalidSource
from sandbox.tables.place import Place, find_place, parse_place
from sandbox.tables.source import Source, open_source


def source_of(content: bytes | object, path: str = "f.json", rows_at: str | None = None) -> Source:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return open_source(lambda: io.BytesIO(data), path=path, rows_at=rows_at)


def rows_of(source: Source) -> list[dict[str, Any]]:
    """The rows by column, cells as text; cells that are not there are left out."""
    found = []
    for run in source.runs():
        for row in run.rows:
            cells = [cell if cell is None or isinstance(cell, str) else bytes(cell).decode() for cell in row]
            found.append({name: cell for name, cell in zip(run.columns, cells, strict=True) if cell is not None})
    return found


ROWS = [{"id": 1, "name": "a"}, {"id": 2}]
CUT = [{"id": "1", "name": '"a"'}, {"id": "2"}]


@pytest.mark.case("S6")
@pytest.mark.parametrize(
    ("document", "place"),
    [
        (ROWS, "$"),
        ({"total": 2, "issues": ROWS}, "$.issues"),
        ({"result": {"rows": ROWS, "n": 2}}, "$.result.rows"),
        ({"data": {"nodes": ROWS}}, "$.data.nodes"),
        ({"errors": [{"x": 1}], "a b": {"it's": ROWS * 3}}, '$["a b"]["it\'s"]'),
        ({"hits": {"total": 2, "hits": [{"_id": "x", "_source": row} for row in ROWS]}}, "$.hits.hits[*]._source"),
        (
            {"data": {"repo": {"issues": {"edges": [{"cursor": "c", "node": row} for row in ROWS]}}}},
            "$.data.repo.issues.edges[*].node",
        ),
        ([None, *ROWS], "$"),
    ],
)
def test_rows_are_found_and_read_where_they_are(document: Any, place: str) -> None:
    data = json.dumps(document).encode()
    found = find_place(data)
    assert str(found) == place
    assert found == parse_place(place)
    expected = CUT * 3 if "a b" in place else CUT
    for rows_at in (None, place):
        source = source_of(data, rows_at=rows_at)
        assert [row for row in rows_of(source) if row] == expected
        assert source.survey().columns == ["id", "name"]


@pytest.mark.case("S6")
@pytest.mark.parametrize("columns", [["x", "y"], [{"name": "x"}, {"name": "y", "type": "int"}]])
@pytest.mark.parametrize("order", [("columns", "rows"), ("rows", "columns")])
def test_columns_beside_rows_that_are_arrays(columns: Any, order: tuple[str, str]) -> None:
    inner = {"columns": columns, "rows": [[1, 2.50], [3], [4, 5, 6]]}
    source = source_of({"n": 3, "result": {key: inner[key] for key in order}})
    assert rows_of(source) == [{"x": "1", "y": "2.5"}, {"x": "3"}, {"x": "4", "y": "5", "": "6"}]
    assert source.has_header


def test_a_first_row_of_names_is_the_header_of_arrays() -> None:
    source = source_of({"range": "A1:B3", "values": [["id", "name"], ["1", "a"], ["2"]]})
    assert rows_of(source) == [{"id": '"1"', "name": '"a"'}, {"id": '"2"'}]
    assert source.survey().rows == 2
    assert rows_of(source_of([[1, 2], [3, 4]])) == [
        {"column_1": "1", "column_2": "2"},
        {"column_1": "3", "column_2": "4"},
    ]


@pytest.mark.case("S7")
def test_ndjson_a_byte_order_mark_and_csv() -> None:
    assert rows_of(source_of(b'\xef\xbb\xbf{"a":1}\n{"a":2.50}\n')) == [{"a": "1"}, {"a": "2.50"}]
    assert rows_of(source_of(b'\xef\xbb\xbf[{"a":1}]')) == [{"a": "1"}]
    assert rows_of(source_of(b'\xef\xbb\xbfa;b\r\n1;\r\n"x;\r\ny";\0\r\n', "f.csv")) == [
        {"a": "1"},
        {"a": "x;\r\ny", "b": "\0"},
    ]
    assert rows_of(source_of(b"a\tb\n1,2\t3\n", "f.tsv")) == [{"a": "1,2", "b": "3"}]
    assert rows_of(source_of(b"a,b\n1\n1,2,3\n", "f.csv")) == [{"a": "1"}, {"a": "1", "b": "2", "": "3"}]
    huge = b"x" * 300_000
    assert rows_of(source_of(b"a\n" + huge + b"\n", "f.csv")) == [{"a": huge.decode()}]


@pytest.mark.case("S8")
def test_keys_that_are_twice_in_a_record_are_counted_and_the_last_is_taken() -> None:
    source = source_of(b'[{"a":1,"a":2},{"a":"x\\"y"},{"b":{"c":1,"d":"e"}},{"a":NaN,"a":4}]')
    assert rows_of(source) == [{"a": "2"}, {"a": '"x\\"y"'}, {"b": '{"c":1,"d":"e"}'}, {"a": "4"}]
    assert source.duplicate_keys == 2
    assert len(rows_of(source)) == 4
    assert source.duplicate_keys == 2
    clean = source_of(b'[{"a":"1","b":[{"x":"y"}]},{"a":2}]')
    clean.survey()
    assert clean.duplicate_keys == 0


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b'{"a":1}', {}, "no array of records"),
        (b'{"a":[1,2', {}, "ends too early, at byte 9"),
        (b'[{"a":1},{"a"', {}, "ends too early, at byte 13"),
        (b'[{"a":1},{"a":x}]', {}, "no JSON at byte 14"),
        (b'{"x":{"y":[{"a":1}]}}', {"rows_at": "$.x.z"}, r'\$\.x has no key "z"'),
        (b'{"x":{"y":3}}', {"rows_at": "$.x.y"}, "no array"),
        (b'{"x":[]}', {"rows_at": "$.x[?@.a]"}, "rows_at is not the place"),
        (b"a,b\n", {"path": "f.csv", "rows_at": "$.x"}, "leave rows_at out"),
        (b"Traceback (most recent call last):\n  File x\n", {"path": "errors/0001-t.txt"}, "no table"),
    ],
)
def test_what_is_no_table_is_refused_with_what_to_do(content: bytes, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSource, match=message):
        rows_of(source_of(content, **arguments))


def test_elements_that_are_no_records_are_rows_too() -> None:
    assert rows_of(source_of(b'["x", 1.10, [2, 3], {"a": 4}]')) == [
        {"value": '"x"'}, {"value": "1.10"}, {"column_1": "2", "column_2": "3"}, {"a": "4"},
    ]  # fmt: skip
    assert parse_place("issues.list") == Place(("issues", "list"))
