"""Results over lines: every token as it was, one record a line, formats named."""

import json
import random

import pytest

from sandbox.spills.layout import Laid, lay_out
from tests.sandbox.tables.test_slices import any_value, encoded


def content(laid: Laid) -> bytes:
    return b"".join(laid.chunks)


@pytest.mark.parametrize("seed", range(60))
def test_a_document_that_is_laid_out_says_the_same(seed: int) -> None:
    rng = random.Random(seed)
    value = (
        {"key": [any_value(rng) for _ in range(30)], "other": any_value(rng)}
        if seed % 2
        else [any_value(rng) for _ in range(40)]
    )
    assert json.loads(content(lay_out(encoded(rng, value)))) == value


@pytest.mark.case("S10")
def test_a_table_has_one_record_a_line_and_every_literal() -> None:
    record = '{"id": 947871269024436488, "p": 1.10, "e": 1E400, "x": {"deep": [1, 2.50]}, "t": "line\\nbreak"}'
    laid = lay_out(f"[{','.join([record] * 5)}]".encode())
    expected = "[\n" + ",\n".join([record] * 5) + "\n]\n"
    assert content(laid).decode() == expected
    assert (laid.format, laid.rows, laid.columns, laid.rows_at) == ("json", 5, ("id", "p", "e", "x", "t"), "$")
    pretty = "[\n" + ",\n".join([record.replace(", ", ",\n    ")] * 5) + "\n]"
    assert content(lay_out(pretty.encode())).decode() == expected.replace(", ", ", ")


@pytest.mark.case("S6")
def test_rows_under_a_key_stay_there_and_their_place_is_told() -> None:
    rows = ",".join(f'{{"id": {n}, "title": "issue number {n}"}}' for n in range(321))
    laid = lay_out(f'{{"total": 321, "issues": [{rows}], "next": null}}'.encode())
    lines = content(laid).decode().split("\n")
    assert lines[:4] == ["{", '  "total": 321,', '  "issues": [', '{"id": 0, "title": "issue number 0"},']
    assert len(lines) == 321 + 7
    assert (laid.rows, laid.columns, laid.rows_at) == (321, ("id", "title"), "$.issues")
    assert json.loads("\n".join(lines))["issues"][320]["id"] == 320


@pytest.mark.case("S7")
@pytest.mark.parametrize(
    ("body", "format", "rows", "columns"),
    [
        (b'{"a":1}\n{"a":2,"b":3}\n', "ndjson", 2, ("a", "b")),
        (b'{"a":1}{"a":2}', "ndjson", 2, ("a",)),
        (b'{\n "a": 1\n}\n{\n "a": 2\n}', "ndjson", 2, ("a",)),
        (b'a,b\n1,2\n3,"x\ny"\n', "csv", 2, ("a", "b")),
        (b"a;b\r\n1;2\r\n", "csv", 1, ("a", "b")),
        (b"a\tb\n1\t2\n", "tsv", 1, ("a", "b")),
        (b"# Title\n\nSome text, with commas, here.\n", "markdown", None, None),
        (b"| a | b |\n|---|---|\n| 1 | 2 |\n", "markdown", None, None),
        (b'<?xml version="1.0"?><a><b/></a>', "xml", None, None),
        (b"<!DOCTYPE html><html></html>", "html", None, None),
        (b"Dear all, thank you, see you.\nBest, me, and you, too.\n", "text", None, None),
        ("한국어 text".encode(), "text", None, None),
        (b"", "text", None, None),
        (b"2024-05-01 12:00:00,000 INFO started\n2024-05-01 12:00:00,001 INFO ended\n", "text", None, None),
        (b"Dear Anna, thank you\nBest wishes, Bob\n", "text", None, None),
        (b"name,2023,2024\nx,1,2\n", "csv", 1, ("name", "2023", "2024")),
    ],
)
def test_formats_are_named_and_text_stays_as_it_is(
    body: bytes, format: str, rows: int | None, columns: tuple[str, ...] | None
) -> None:
    laid = lay_out(body)
    assert (laid.format, laid.rows, laid.columns) == (format, rows, columns)
    if format not in ("json", "ndjson"):
        assert content(laid) == body
    elif format == "ndjson":
        assert content(laid).count(b"\n") == rows
        assert [json.loads(line)["a"] for line in content(laid).splitlines()] == [1, 2]


@pytest.mark.case("S7")
def test_a_byte_order_mark_is_passed_over_for_csv_and_stays_there() -> None:
    laid = lay_out(b"\xef\xbb\xbfa,b\n1,2\n")
    assert (laid.format, laid.columns, content(laid)[:3]) == ("csv", ("a", "b"), b"\xef\xbb\xbf")
    assert lay_out(b"\xef\xbb\xbf[1]").format == "json"


@pytest.mark.case("S8")
def test_what_is_cut_or_no_json_is_kept_as_it_was_received_and_said() -> None:
    cut = lay_out(b'{"issues": [{"id": 1}, {"id')
    assert (cut.format, cut.complete, content(cut)) == ("json", False, b'{"issues": [{"id": 1}, {"id')
    assert "byte 27" in cut.notes[0]
    cut = lay_out(b'{"a":1}\n{"a":2}\n{"a"')
    assert (cut.format, cut.complete, content(cut)) == ("ndjson", False, b'{"a":1}\n{"a":2}\n{"a"')
    wrong = lay_out(b'{"a": 1, "b": oops}')
    assert (wrong.format, content(wrong)) == ("text", b'{"a": 1, "b": oops}')
    assert "byte 14" in wrong.notes[0]


@pytest.mark.case("S8")
def test_nan_is_kept_and_keys_that_are_twice_are_said() -> None:
    body = b'[{"a": NaN, "a": 1, "b": "' + b"x" * 100 + b'"}, {"a": 2}]'
    laid = lay_out(body)
    assert content(laid).replace(b"\n", b"") == body.replace(b"}, {", b"},{")
    assert (laid.rows, laid.complete) == (2, True)
    assert "1 keys are twice" in laid.notes[0]


@pytest.mark.case("S8")
def test_20_mb_on_one_line_are_laid_out() -> None:
    record = '{"id":%d,"text":"' + "y" * 180 + '"}'
    body = ("[" + ",".join(record % n for n in range(100_000)) + "]").encode()
    laid = lay_out(body)
    assert (laid.rows, max(map(len, content(laid).split(b"\n"))) < 300) == (100_000, True)
