"""Columns in their order, one sort, a range."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import InvalidSource
from sandbox.tables.select import Selected, Selection
from sandbox.tables.source import open_source


def picked(
    content: bytes | object, folder: Path, *, path: str = "f.json", **selection: Any
) -> tuple[list[list[Any]], Selected]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    selected = Selected(
        open_source(lambda: io.BytesIO(data), path=path, rows_at=None), Selection(**selection), spool_folder=folder
    )
    rows = [row for some in selected.runs() for row in some]
    return [
        [cell if cell is None or isinstance(cell, str) else bytes(cell).decode() for cell in row] for row in rows
    ], selected


def column(rows: list[list[Any]]) -> list[Any]:
    return [row[0] for row in rows]


def test_columns_come_in_the_order_asked_for_and_a_lack_is_nothing(tmp_path: Path) -> None:
    rows, _ = picked([{"a": 1, "b": 2, "c": 3}, {"b": 4}], tmp_path, columns=("c", "a"))
    assert rows == [["3", "1"], [None, None]]
    assert picked([{"a": 1, "b": 2}], tmp_path, columns=("b",))[0] == [["2"]]
    assert picked(b"a,b\n1,2\n", tmp_path, path="f.csv", columns=("b", "a"))[0] == [["2", "1"]]


def test_an_unknown_column_is_refused_with_those_that_are_near(tmp_path: Path) -> None:
    for path, content in (("f.json", b'[{"user_name": 1}]'), ("f.csv", b"user_name\n1\n")):
        for selection in ({"columns": ("username",)}, {"sort_by": "username"}):
            with pytest.raises(
                InvalidSource, match=r'no column "username".*Did you mean "user_name".*There are: "user_name"'
            ):
                picked(content, tmp_path, path=path, **selection)


def test_numbers_sort_exactly_before_strings_booleans_and_nested_and_nothing_is_last(tmp_path: Path) -> None:
    values = b'"b", 9007199254740993, null, 9007199254740992, true, "10", 1.10, 1e400, "", -0.5, {"x":1}, 2, "B", false, 1E-400'
    source = b"[" + b",".join(b'{"v":' + value.strip() + b"}" for value in values.split(b", ")) + b',{"w":1}]'
    rows, _ = picked(source, tmp_path, columns=("v",), sort_by="v")
    upwards = [
        "-0.5", "1E-400", "1.10", "2", "9007199254740992", "9007199254740993", "1e400", '"10"', '"B"', '"b"', "false", "true", '{"x":1}',
    ]  # fmt: skip
    assert column(rows) == [*upwards, "null", '""', None]
    rows, _ = picked(source, tmp_path, columns=("v",), sort_by="v", descending=True)
    assert column(rows) == [*reversed(upwards), "null", '""', None]


def test_sorting_is_stable_in_both_directions(tmp_path: Path) -> None:
    source = [{"k": n % 3, "n": n} for n in range(30)]
    for descending in (False, True):
        rows, _ = picked(source, tmp_path, columns=("k", "n"), sort_by="k", descending=descending)
        assert [(int(k), int(n)) for k, n in rows] == sorted(
            ((row["k"], row["n"]) for row in source), key=lambda pair: -pair[0] if descending else pair[0]
        )


def test_numbers_of_a_csv_sort_as_numbers_if_the_whole_column_is_numeric(tmp_path: Path) -> None:
    assert column(picked(b"n\n10\n9\n100\n", tmp_path, path="f.csv", sort_by="n")[0]) == ["9", "10", "100"]
    assert column(picked(b"n\n10\n9\n1x\n", tmp_path, path="f.csv", sort_by="n")[0]) == ["10", "1x", "9"]


@pytest.mark.parametrize("sort_by", [None, "n"])
def test_the_range_is_taken_after_sorting_and_the_counts_are_true(sort_by: str | None, tmp_path: Path) -> None:
    source = [{"n": n} for n in range(25_000)]
    for start, count, expected in (
        (0, None, range(25_000)),
        (24_990, None, range(24_990, 25_000)),
        (5, 3, range(5, 8)),
        (7, 0, range(0)),
        (30_000, 5, range(0)),
    ):
        rows, selected = picked(source, tmp_path, sort_by=sort_by, start=start, count=count)
        assert [int(row[0]) for row in rows] == list(expected)
        assert (selected.rows_total, selected.rows_written) == (25_000, len(expected))
