"""What a review and an attack found in the data's path: each once, so that it stays mended."""

import base64
import io
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from openpyxl.utils.escape import unescape

from sandbox.errors import InvalidArguments, InvalidSource, SpillboxError, TooLarge
from sandbox.spills.layout import lay_out
from sandbox.spills.spill import Received, Spiller
from sandbox.spills.unwrap import unwrap_json, unwrap_result, unwrap_text
from sandbox.tables.source import open_source
from sandbox.tools.toolbox import Toolbox
from sandbox.workspace import Workspace
from tests.sandbox.documents.test_fidelity import built_csv, built_excel, selected
from tests.sandbox.tables.test_source import rows_of, source_of


def csv_of(source: bytes, folder: Path, path: str = "f.json", **selection: Any) -> bytes:
    return built_csv(selected(source, folder, path=path, **selection))[0]


# Time: eight times as much takes about eight times as long, where a square would take 64 times


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "|" + "-" * n + " " * n + "x" + "y" * 1000,
        lambda n: "p\n" + "```x\n" * n,
        lambda n: '[{"a":"' + " " * (10 * n) + '"\n}]',
        lambda n: "A" * 64 + "\n" * n + "!",
        lambda n: '{"rows":[{"a":0}],' + ",".join(f'"k{i}":[{i}]' for i in range(n)) + "}",
        lambda n: "{" + "".join(f'"k{i}":{i},' for i in range(n)) + '"rows":[{"a":0}]}',
        lambda n: "[" + '"",' * n + '{"a":1}]',
        lambda n: '{"a":"' + "\\\\" * n + '"}',
        lambda n: "x" * n + "\nValueError: y\n" + "z " * n,
    ],
    ids=["markdown", "fences", "line breaks", "base64", "small arrays", "members", "strings", "backslashes", "words"],
)
def test_time_grows_no_faster_than_the_text(make: Callable[[int], str], workspace: Workspace) -> None:
    def seconds(count: int) -> float:
        text = make(count)
        started = time.perf_counter()
        Spiller().spill(workspace, Received("t", content=text))
        Spiller().spill(workspace, Received("t", content=text, is_error=True))
        try:
            source = open_source(lambda: io.BytesIO(text.encode()), path="f.json", rows_at=None)
            source.survey()
        except InvalidSource:
            pass
        return time.perf_counter() - started

    seconds(1000)
    few = min(seconds(2500) for _ in range(3))
    assert any(seconds(20_000) < 24 * few + 0.2 for _ in range(3))  # a busy machine is slow once, a square always


def test_a_small_file_does_not_become_large_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    sources = [
        (b"a,b\n" + b"1,2\n" * 2000 + b"," * 50_000 + b"\n", "f.csv"),
        (
            b'{"columns":['
            + b",".join(b'"c%d"' % n for n in range(5000))
            + b'],"rows":['
            + b",".join([b"[1]"] * 5000)
            + b"]}",
            "f.json",
        ),
        (b"[{" + b",".join(b'"k%d":1' % n for n in range(3000)) + b"}," + b",".join([b"{}"] * 5000) + b"]", "f.json"),
    ]
    for source, path in sources:
        tracemalloc.start()
        rows = selected(source, tmp_path, path=path, count=0)
        for _ in rows.runs():
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 60 << 20, path


# Values and rows that were lost


def test_equal_headers_of_arrays_keep_their_columns(tmp_path: Path) -> None:
    source = b'{"columns":["id","id","name"],"rows":[[1,2,"a"],[3],[4,5,"b",6,7]]}'
    assert csv_of(source, tmp_path) == b"id,id,name,,\r\n1,2,a,,\r\n3,,,,\r\n4,5,b,6,7\r\n"


def test_what_stands_after_an_array_is_never_passed_over() -> None:
    for text in (b'[{"a":1}]\n[{"a":2}]', b'[{"a":1}] garbage'):
        with pytest.raises(InvalidSource, match="byte 1"):
            rows_of(source_of(text))
    assert rows_of(source_of(b'[1,"a"]\n[2,"b"]\n', "f.ndjson")) == [
        {"column_1": "1", "column_2": '"a"'},
        {"column_1": "2", "column_2": '"b"'},
    ]
    assert rows_of(source_of(b'{"id":1,"tags":[{"k":1}]}', "f.jsonl")) == [{"id": "1", "tags": '[{"k":1}]'}]


def test_a_quotation_mark_that_is_not_closed_is_told() -> None:
    for text in (b'a,b\n1,"12 inch\n2,x\n', b'a,b\n1,"12" pipe\n'):
        with pytest.raises(InvalidSource, match="doubled"):
            rows_of(source_of(text, "f.csv"))
    assert rows_of(source_of(b'\n\na,b\n1,12" pipe\n', "f.csv")) == [{"a": "1", "b": '12" pipe'}]


def test_a_line_break_in_a_value_of_ndjson_is_no_comma() -> None:
    for text in (b'{"a":"x"}\n{"a":"hello\nworld"}\n', b'{"a":1}\n{"a":2\n"b":3}\n'):
        with pytest.raises(InvalidSource, match="no JSON at byte"):
            rows_of(source_of(text, "f.ndjson"))


def test_a_first_row_of_texts_is_a_row_where_all_are_texts() -> None:
    assert len(rows_of(source_of([["alice", "bob"], ["bob", "carol"]]))) == 2
    assert rows_of(source_of([["id", "n"], ["x", 1]])) == [{"id": '"x"', "n": "1"}]


def test_wrappers_that_have_more_than_the_record_stay() -> None:
    assert rows_of(source_of([{"node": {"name": "a"}, "cpu": 0.9}])) == [{"node": '{"name": "a"}', "cpu": "0.9"}]
    assert rows_of(source_of({"columns": [["id", "int"]], "rows": [[1, "a"]]})) != []
    table = source_of({"table": "t", "columns": [{"name": "id", "type": "int"}]})
    assert rows_of(table) == [{"name": '"id"', "type": '"int"'}]


def test_overlapping_escapes_of_a_workbook_read_back_as_they_are(tmp_path: Path) -> None:
    for value in ("_x0041_x0042_", "_x000D_x000D_", "__x0041_"):
        workbook, _ = built_excel(selected(json.dumps([{"a": value}]).encode(), tmp_path))
        assert unescape(openpyxl.load_workbook(io.BytesIO(workbook)).active["A2"].value) == value


def test_headers_that_look_like_formulas_are_counted_and_made_safe(tmp_path: Path) -> None:
    content, tally = built_csv(selected(b'[{"=cmd":1,"@x":2}]', tmp_path), excel_safe=True)
    assert (content, tally.formula_like_cells) == (b"'=cmd,'@x\r\n1,2\r\n", 2)
    with pytest.raises(TooLarge, match="header"):
        built_excel(selected(json.dumps([{"x" * 40_000: 1}]).encode(), tmp_path))


# Unwrapping that lost something


def test_nothing_of_a_result_is_lost() -> None:
    text = {"type": "text", "text": "important"}
    unknown = unwrap_result(json.dumps({"content": [text, {"type": "video", "uri": "x"}]}).encode())
    assert json.loads(unknown.body or b"") == [text, {"type": "video", "uri": "x"}]
    assert unwrap_result(b'{"content": "important text"}').body == b"important text"
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(70)).decode()
    found = unwrap_result(json.dumps({"content": [{"type": "text", "text": picture}]}).encode())
    assert [blob.media_type for blob in found.blobs] == ["image/png"]
    link = {"content": [{"type": "resource_link", "uri": "x", "name": "y"}, text], "structuredContent": {"a": 1}}
    assert unwrap_result(json.dumps(link).encode()).is_heuristic  # so that it is kept as it was received
    assert unwrap_result(json.dumps({"content": [text], "nextCursor": "x"}).encode()).is_heuristic
    inner = json.dumps({"content": [{"type": "text", "text": "boom"}], "isError": True})
    assert unwrap_result(json.dumps({"content": [{"type": "text", "text": inner}]}).encode()).is_error
    with pytest.raises(InvalidArguments, match="as content"):
        unwrap_result(b'{"rows": []}')


def test_records_that_look_like_blocks_stay_records() -> None:
    records = json.dumps(
        [{"type": "text", "text": "Hello", "id": 1}, {"type": "text", "text": "World", "id": 2}]
    ).encode()
    assert unwrap_json(records).body == records
    assert unwrap_json(b'{"content": []}').body == b'{"content": []}'


def test_a_text_in_quotation_marks_is_kept_as_it_was_received(workspace: Workspace) -> None:
    text = '"C:\\new\\table"'
    assert unwrap_text(text).is_heuristic
    assert Spiller().spill(workspace, Received("t", content=text)).text == text


# Characters that no UTF-8 can carry, bytes that are none, depth


DEEP = '{"a":' * 5000 + "1" + "}" * 5000


@pytest.mark.parametrize(
    "content",
    [
        b'[{"\\ud800":"x","b":"\\udfff"}]' + b" " * 1000, b'{"\\ud800":[{"a":1}]}' + b" " * 1000, b'{"a[*]b":[{"x":"' + b"y" * 20_000 + b'"}]}',
        b'[{"a\xff":1}]' + b" " * 1000, b'"\xff"' + b" " * 1000, b'{"a":' + DEEP.encode() + b',"rows":[{"b":1}]}', b"[" * 3000 + b"]" * 3000,
        json.dumps({"rows": [[1]], "schema": json.loads("{}")}).encode() + b" " * 1000,
    ],
)  # fmt: skip
async def test_whatever_comes_is_spilled_listed_and_answered(box: Toolbox, content: bytes) -> None:
    spill = await box.spill("w", Received("t", content=content))
    spill.model_dump_json()
    assert spill.spilled
    (await box.call("list_files", "w", {})).model_dump_json()
    for tool, arguments in (
        ("extract_json_path", {"path": spill.path, "expression": "$"}),
        ("extract_json_path", {"path": spill.path, "expression": '$["\\ud800"]'}),
        ("search_output", {"path": spill.path, "pattern": "\\Bx"}),
        ("build_csv", {"source": spill.path, "output": "x.csv"}),
        ("build_csv", {"source": spill.path, "output": "x.csv", "rows_at": '$["\\ud800"]'}),
        ("build_excel", {"source": spill.path, "output": "x.xlsx"}),
        ("show_table", {"source": spill.path}),
    ):
        with suppress(SpillboxError):
            (await box.call(tool, "w", arguments)).model_dump_json()
    for record in box.records.latest("w"):
        record.model_dump_json()


async def test_arguments_may_be_anything(box: Toolbox) -> None:
    shown = await box.call("show_table", "w", {"rows": [{"\ud800": float("nan"), "a": {"b": [1.10, "\udfff"]}}]})
    shown.model_dump_json()
    table = box.catalog.table("w", shown.id)  # type: ignore[attr-defined]
    assert json.loads(table.rows) == [["NaN", {"b": [1.1, "\udfff"]}]]
    for record in box.records.latest("w"):
        record.model_dump_json()
    deep: Any = 1
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(InvalidArguments, match="deep"):
        await box.call("show_table", "w", {"rows": [{"a": deep}]})


def test_bytes_that_are_no_text_are_kept(workspace: Workspace) -> None:
    content = b'{"a": "\xff"' + b"x" * 2000
    spill = Spiller().spill(workspace, Received("t", content=content))
    assert workspace.read_bytes(str(spill.path)) == content
    assert "not valid UTF-8" in spill.warnings[0]
    assert lay_out(b"\xff").format == "text"


@pytest.mark.parametrize(("pattern", "total"), [(r"\Bb", 1), ("fo+", 1), (r"\C", None)])
async def test_patterns_at_the_edges(box: Toolbox, pattern: str, total: int | None) -> None:
    box.workspaces.open("w").write("f", b"foo \xff foo\nab\n")
    arguments = {"path": "f", "pattern": pattern}
    if total is None:
        with pytest.raises(InvalidArguments):
            await box.call("search_output", "w", arguments)
    else:
        found: Any = await box.call("search_output", "w", arguments)
        assert found.total_matches == total


async def test_a_number_that_is_given_again_has_its_own_place(box: Toolbox, tmp_path: Path) -> None:
    import shutil

    first = await box.spill("w", Received("t", content=b'{"facets":[{"f":1}],"pad":"' + b"x" * 2000 + b'"}'))
    shutil.rmtree(tmp_path / "workspaces/w")
    rows = b",".join(b'{"r":%d,"pad":"xxxxxxxxxxxxxxxxxxxx"}' % n for n in range(50))
    second = await box.spill("w", Received("t", content=b'{"rows":[' + rows + b"]}"))
    assert first.path == second.path
    built: Any = await box.call("build_csv", "w", {"source": second.path, "output": "x.csv"})
    assert built.rows_written == 50
