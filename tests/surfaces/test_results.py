"""The data's path over every surface: a result spills, is looked into, and becomes a file, a table, an attachment."""

import csv
import io
import json
from typing import Any

import pytest

from sandbox.tools.shown import MAX_SHOWN_ROWS
from tests.surfaces.conftest import Surface

RECORD = (
    '{"id": 9478712690244364%02d, "price": 1.10, "rate": 1e400, "code": "%03d", "title": "Issue, %d", "state": "%s"}'
)
ROWS = [RECORD % (n % 100, n, n, "open" if n % 3 else "closed") for n in range(321)]
DOCUMENT = '{"total": 321, "issues": [' + ", ".join(ROWS) + "]}"


async def spilled(surface: Surface, content: str = DOCUMENT, **more: Any) -> dict[str, Any]:
    rest = "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in more.items())
    one = await surface.spill("w", f'{{"tool": "list_issues", "content": {content}{rest}}}')
    assert one.get("spilled"), one
    return one


async def read_whole(surface: Surface, path: str) -> str:
    text, position = "", {"start_line": 1, "start_character": 0}
    while position:
        part = await surface.call("read_file", "w", {"path": path, "line_count": 10_000, **position})
        text, position = text + part["text"], part["next"]
    return text


@pytest.mark.case("S10")
async def test_every_literal_survives_spill_path_csv_excel_and_a_script(surface: Surface) -> None:
    path = (await spilled(surface))["path"]
    for row in ROWS[:3]:
        assert row in await read_whole(surface, path)
    one = await surface.call("extract_json_path", "w", {"path": path, "expression": "$.issues[7]"})
    assert one["text"] == ROWS[7]
    made = await surface.call("build_csv", "w", {"source": path, "output": "issues.csv"})
    assert (made["rows_written"], made["rows_total"], made["change"]) == (321, 321, "created")
    text = await read_whole(surface, "issues.csv")
    assert text.startswith("\ufeffid,price,rate,code,title,state\r\n")
    assert text.splitlines()[8] == '947871269024436407,1.10,1e400,007,"Issue, 7",open'
    made = await surface.call("build_excel", "w", {"source": path, "output": "issues.xlsx"})
    assert made["tables"][0] | {"columns": 0} == {
        "source": path, "rows_written": 321, "rows_total": 321, "columns": 0, "cells_as_text": 642, "formula_like_cells": 0,
        "replaced_characters": 0, "dates": 0, "duplicate_keys": 0, "notes": [], "sheets": ["list_issues"],
    }  # fmt: skip
    code = "import openpyxl\ns = openpyxl.load_workbook('issues.xlsx').active\nprint([c.value for c in s[9]], s['B9'].number_format)"
    ran = await surface.call("run_python", "w", {"code": code})
    assert ran["stdout"]["text"] == "['947871269024436407', 1.1, '1e400', '007', 'Issue, 7', 'open'] 0.00\n"


@pytest.mark.case("S22")
async def test_what_was_spilled_is_listed_with_tool_time_rows_and_columns(surface: Surface) -> None:
    for number in range(20):
        await spilled(surface, f"[{', '.join(ROWS[: 10 + number])}]")
    listed = (await surface.call("list_files", "w", {"prefix": "results/"}))["files"]
    assert [file["path"] for file in listed] == [f"results/{n:04d}-list_issues.json" for n in range(1, 21)]
    assert [(file["tool"], file["rows"]) for file in listed] == [("list_issues", 10 + n) for n in range(20)]
    assert listed[0]["columns"] == ["id", "price", "rate", "code", "title", "state"]
    assert all(file["modified_at"] for file in listed)


async def test_a_script_reads_the_spill_by_its_path(surface: Surface) -> None:
    path = (await spilled(surface))["path"]
    code = (
        f"import json\nd = json.load(open({path!r}), parse_float=str)\nprint(len(d['issues']), d['issues'][0]['price'])"
    )
    assert (await surface.call("run_python", "w", {"code": code}))["stdout"]["text"] == "321 1.10\n"
    refused = await surface.call("run_python", "w", {"code": f"open({path!r}, 'w')"})
    assert "Read-only file system" in refused["error"]["summary"]


async def test_columns_headers_sort_and_range(surface: Surface) -> None:
    path = (await spilled(surface))["path"]
    arguments = {
        "source": path, "output": "out/few.csv", "columns": [{"name": "code", "header": "Code"}, {"name": "state"}],
        "sort_by": "id", "descending": True, "start": 1, "count": 2, "audience": "machine",
    }  # fmt: skip
    made = await surface.call("build_csv", "w", arguments)
    assert (made["rows_written"], made["rows_total"], made["columns"]) == (2, 321, ["Code", "state"])
    assert await read_whole(surface, "out/few.csv") == "Code,state\r\n199,open\r\n299,open\r\n"
    past = await surface.call("build_csv", "w", {**arguments, "start": 5000})
    assert (past["rows_written"], past["change"]) == (0, "modified")
    assert await read_whole(surface, "out/few.csv") == "Code,state\r\n"


@pytest.mark.parametrize("tool", ["build_csv", "build_excel"])
@pytest.mark.parametrize("name", ["where", "filter", "group_by", "Conditions"])
async def test_conditions_and_groups_are_sent_back_to_sql(surface: Surface, tool: str, name: str) -> None:
    output = "a.csv" if tool == "build_csv" else "a.xlsx"
    refused = await surface.call(tool, "w", {"source": "x", "output": output, name: "state = 'open'"})
    assert refused["code"] == "invalid_arguments"
    assert "SQL" in refused["detail"]
    assert name in refused["detail"]


@pytest.mark.parametrize(
    ("arguments", "code", "advice"),
    [
        ({"columns": [{"name": "titel"}]}, "invalid_source", 'Did you mean "title"'),
        ({"sort_by": "Id"}, "invalid_source", 'There are: "id"'),
        ({"rows_at": "$.isues"}, "invalid_source", 'no key "isues"'),
        ({"source": "nothing.json"}, "not_found", "list_files"),
        ({"output": "results/x.csv"}, "read_only", "another folder"),
        ({"output": "x.pdf"}, "invalid_arguments", ".csv"),
        ({"output": "../x.csv"}, "invalid_path", "inside the workspace"),
        ({"start": -1}, "invalid_arguments", "greater than or equal"),
        ({"unknown": 1}, "invalid_arguments", "unknown"),
    ],
)
async def test_a_mistake_is_told_with_what_to_do_and_leaves_nothing(
    surface: Surface, arguments: dict[str, Any], code: str, advice: str
) -> None:
    path = (await spilled(surface))["path"]
    answer = await surface.call("build_csv", "w", {"source": path, "output": "x.csv", **arguments})
    assert answer["code"] == code
    assert advice in answer["detail"]
    assert [file["path"] for file in (await surface.call("list_files", "w", {}))["files"]] == [path]


async def test_a_workbook_of_several_sources(surface: Surface) -> None:
    path = (await spilled(surface))["path"]
    await surface.call("write_file", "w", {"path": "notes.csv", "content": "n,text\n1,=a\n2,b\n"})
    sheets = [
        {"source": path, "sheet": "Issues", "count": 5},
        {"source": "notes.csv"},
        {"source": path, "sheet": "issues", "start": 5},
    ]
    made = await surface.call("build_excel", "w", {"sheets": sheets, "output": "all.xlsx"})
    assert [(table["sheets"], table["rows_written"]) for table in made["tables"]] == [
        (["Issues"], 5),
        (["notes"], 2),
        (["issues (2)"], 316),
    ]
    assert made["tables"][1]["formula_like_cells"] == 1


async def test_a_workbook_becomes_a_csv_as_it_is_written(surface: Surface) -> None:
    path = (await spilled(surface))["path"]
    await surface.call("build_excel", "w", {"source": path, "output": "issues.xlsx"})
    made = await surface.call("build_csv", "w", {"source": "issues.xlsx", "output": "again.csv", "audience": "machine"})
    assert made["rows_written"] == 321
    direct = await surface.call("build_csv", "w", {"source": path, "output": "direct.csv", "audience": "machine"})
    assert direct["rows_written"] == 321
    assert await read_whole(surface, "again.csv") == await read_whole(surface, "direct.csv")


async def test_a_workbook_of_others_gives_numbers_dates_booleans_and_texts(surface: Surface) -> None:
    code = (
        "import openpyxl, datetime as d\nb = openpyxl.Workbook(); s = b.active; s.title = 'One'\n"
        "s.append(['when', 'at', 'n', 'ok', 'text', 'f'])\n"
        "s.append([d.date(2024, 2, 29), d.datetime(2024, 1, 2, 3, 4, 5), 0.1 + 0.2, True, 'a\\nb', '=1+1'])\n"
        "s.append([None, d.time(1, 2, 3), -7, False, '007', d.timedelta(hours=36)])\n"
        "b.create_sheet('Two').append(['only']); b.save('made.xlsx')"
    )
    await surface.call("run_python", "w", {"code": code})
    await surface.call("build_csv", "w", {"source": "made.xlsx", "output": "one.csv", "audience": "machine"})
    rows = list(csv.reader(io.StringIO(await read_whole(surface, "one.csv"), newline="")))
    assert rows == [
        ["when", "at", "n", "ok", "text", "f"],
        ["2024-02-29", "2024-01-02 03:04:05", "0.3", "true", "a\nb", ""],
        ["", "01:02:03", "-7", "false", "007", "36:00:00"],
    ]
    two = await surface.call("build_csv", "w", {"source": "made.xlsx", "rows_at": "Two", "output": "two.csv"})
    assert (two["columns"], two["rows_written"]) == (["only"], 0)
    wrong = await surface.call("build_csv", "w", {"source": "made.xlsx", "rows_at": "Tree", "output": "two.csv"})
    assert wrong["code"] == "invalid_source"
    assert "One, Two" in wrong["detail"]
    await surface.call("write_file", "w", {"path": "fake.xlsx", "content": "PK no"})
    assert (await surface.call("build_csv", "w", {"source": "fake.xlsx", "output": "x.csv"}))[
        "code"
    ] == "invalid_source"


async def test_prices_that_are_texts_sort_by_value_on_request_and_else_it_is_said(surface: Surface) -> None:
    rows = ", ".join(f'{{"n": {n}, "price": "{n * 11}.10"}}' for n in range(1, 31))
    path = (await spilled(surface, f"[{rows}, " + '{"n": 0, "pad": "' + "x" * 1000 + '"}]'))["path"]
    arguments = {
        "source": path,
        "output": "top.csv",
        "sort_by": "price",
        "descending": True,
        "count": 2,
        "columns": ["n"],
    }
    made = await surface.call("build_csv", "w", arguments)
    assert "sort_as" in made["notes"][0]
    made = await surface.call("build_csv", "w", {**arguments, "sort_as": "numbers", "audience": "machine"})
    assert made["notes"] == []
    assert await read_whole(surface, "top.csv") == "n\r\n30\r\n29\r\n"


async def test_the_sheet_that_was_read_is_said_if_there_are_others(surface: Surface) -> None:
    path = (await spilled(surface))["path"]
    sheets = [{"source": path, "sheet": name} for name in ("First", "Second")]
    await surface.call("build_excel", "w", {"sheets": sheets, "output": "two.xlsx"})
    made = await surface.call("build_csv", "w", {"source": "two.xlsx", "output": "one.csv"})
    assert '"First"; there are also: "Second"' in made["notes"][0]
    named = await surface.call("build_csv", "w", {"source": "two.xlsx", "rows_at": "Second", "output": "one.csv"})
    assert named["notes"] == []


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"limit": 5}, "limit; did you mean count (there are: source, "),
        ({"order_by": "id"}, "did you mean sort_by"),
        ({"sheets": [{"source": "x", "name": "a"}]}, "there is no sheets.0.name; did you mean sheet"),
        ({"columns": [{"nam": "id"}]}, "did you mean name"),
        ({"date_columns": ["when"]}, 'There are: "id", "price"'),
        ({"columns": ["state.name"]}, 'Columns are whole members: "state" is one'),
    ],
)
async def test_arguments_that_do_not_fit_are_told_with_those_that_do(
    surface: Surface, arguments: dict[str, Any], advice: str
) -> None:
    path = (await spilled(surface))["path"]
    given = {"output": "x.xlsx", **({} if "sheets" in arguments else {"source": path}), **arguments}
    answer = await surface.call("build_excel", "w", given)
    assert advice in answer["detail"], answer
    assert "Value error" not in answer["detail"]


# Looking into results


@pytest.mark.case("S13")
async def test_paths_and_searches_are_answered_with_what_is_next(surface: Surface) -> None:
    path = (await spilled(surface))["path"]
    found = await surface.call(
        "extract_json_path", "w", {"path": path, "expression": "$.issues[*].state", "max_items": 3}
    )
    assert (json.loads(found["text"]), found["total"], found["returned"]) == (["closed", "open", "open"], 321, 3)
    missed = await surface.call("extract_json_path", "w", {"path": path, "expression": "$.issue"})
    assert missed["code"] == "no_such_element"
    assert '"issues"' in missed["detail"]
    lines = await surface.call("search_output", "w", {"path": path, "pattern": '"code": "1[0-9]+7"', "max_matches": 2})
    assert (lines["total_matches"], lines["has_more"], lines["next_offset"]) == (10, True, 2)
    read = await surface.call(
        "read_file", "w", {"path": path, "start_line": lines["matches"][1]["line"], "line_count": 1}
    )
    assert read["text"].rstrip("\n") == lines["matches"][1]["text"]
    bad = await surface.call("search_output", "w", {"path": path, "pattern": "(a"})
    assert (bad["code"], "missing )" in bad["detail"]) == ("invalid_arguments", True)


@pytest.mark.case("S12", "S15")
@pytest.mark.parametrize("tool", ["extract_json_path", "search_output", "read_file"])
async def test_looking_never_leaves_the_workspace_and_never_spills(surface: Surface, tool: str) -> None:
    more = {"extract_json_path": {"expression": "$"}, "search_output": {"pattern": "x"}, "read_file": {}}[tool]
    for path in ("../v/results/0001-list_issues.json", "/etc/passwd", "results/%2F../x", "a\0b"):
        assert (await surface.call(tool, "w", {"path": path, **more}))["code"] in ("invalid_path", "not_found")
    first = await spilled(surface)
    assert (await surface.call(tool, "v", {"path": first["path"], **more}))["code"] == "not_found"
    answer = await surface.call(tool, "w", {"path": first["path"], **more})
    assert len(json.dumps(answer)) < 60_000
    assert [file["path"] for file in (await surface.call("list_files", "w", {}))["files"]] == [first["path"]]


# What the user gets


async def test_an_attachment_is_a_copy_that_stays(surface: Surface) -> None:
    await surface.call("write_file", "w", {"path": "a/report.txt", "content": "first"})
    made = await surface.call("attach_file", "w", {"path": "a/report.txt", "name": "Bericht é.txt"})
    assert (made["name"], made["bytes"], made["media_type"]) == ("Bericht é.txt", 5, "text/plain")
    await surface.call("write_file", "w", {"path": "a/report.txt", "content": "second"})
    again = await surface.call("attach_file", "w", {"path": "a/report.txt"})
    assert again["sha256"] != made["sha256"]
    assert again["id"] in again["url"]
    for name in ("a/b", "", "x" * 300, "a\nb"):
        assert (await surface.call("attach_file", "w", {"path": "a/report.txt", "name": name}))[
            "code"
        ] == "invalid_arguments"
    assert (await surface.call("attach_file", "w", {"path": "nothing"}))["code"] == "not_found"


async def test_a_table_is_shown_whole_and_the_model_gets_its_beginning(surface: Surface) -> None:
    path = (await spilled(surface))["path"]
    arguments = {"source": path, "title": "Open issues", "columns": ["id", "price"], "sort_by": "id", "count": 100}
    shown = await surface.call("show_table", "w", arguments)
    assert (shown["row_count"], shown["columns"], shown["title"]) == (100, ["id", "price"], "Open issues")
    assert shown["first_rows"].startswith("[[947871269024436400,1.10],\n")
    assert len(json.loads(shown["first_rows"])) == 5
    given = await surface.call("show_table", "w", {"rows": [{"a": 1, "b": "<x>"}, {"c": None}]})
    assert (given["row_count"], given["columns"]) == (2, ["a", "b", "c"])
    assert json.loads(given["first_rows"]) == [[1, "<x>", None], [None, None, None]]


async def test_a_table_of_more_rows_is_refused_and_a_csv_advised(surface: Surface) -> None:
    rows = ", ".join(f'{{"n": {n}}}' for n in range(MAX_SHOWN_ROWS + 1))
    path = (await spilled(surface, f"[{rows}]"))["path"]
    refused = await surface.call("show_table", "w", {"source": path})
    assert refused["code"] == "too_large"
    assert "build_csv" in refused["detail"]
    assert (await surface.call("show_table", "w", {"source": path, "count": MAX_SHOWN_ROWS}))[
        "row_count"
    ] == MAX_SHOWN_ROWS
    for arguments in ({}, {"source": path, "rows": []}):
        assert (await surface.call("show_table", "w", arguments))["code"] == "invalid_arguments"


# Spilling


async def test_a_raw_mcp_result_and_an_error_are_taken(surface: Surface) -> None:
    result = {"content": [{"type": "text", "text": "[" + ", ".join(ROWS) + "]"}], "isError": False}
    one = await surface.spill("w", json.dumps({"tool": "t", "result": result}))
    assert (one["rows"], one["unwrapped"]) == (321, ["text block"])
    failed = {"content": [{"type": "text", "text": "x" * 5000 + "\nValueError: bad"}], "isError": True}
    one = await surface.spill("w", json.dumps({"tool": "t", "result": failed}))
    assert (one["is_error"], one["path"]) == (True, "errors/0002-t.txt")
    assert "ValueError: bad" in one["text"]
    one = await surface.spill("w", json.dumps({"tool": "t", "content": "boom", "is_error": True}))
    assert one["is_error"]


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{}", '{"tool": "t"}', '{"tool": "t", "content": 1, "result": {}}', '{"content": 1}', '{"tool": "t", "content": 1, "x": 1}',
     '{"tool": "t", "content": 1', '{"tool": "t", "result": {"rows": []}}', '{"tool": "t", "result": []}', '{"tool": "t", "result": 3}', '{"tool": "t", "content": 1, "surface": "moon"}'],
)  # fmt: skip
async def test_a_spill_that_is_not_understood_is_refused(surface: Surface, body: str) -> None:
    answer = await surface.spill("w", body)
    assert answer.get("code") == "invalid_arguments", answer


@pytest.mark.parametrize(
    "content",
    ["[" + ", ".join(["{}"] * 600) + "]", "[" + ", ".join(["[]"] * 600) + "]", "[" + ", ".join(["null"] * 600) + "]"],
)
async def test_rows_without_columns_spill_too(surface: Surface, content: str) -> None:
    one = await spilled(surface, content)
    assert (one["rows"], one["columns"]) == (600, [])
    listed = (await surface.call("list_files", "w", {}))["files"]
    assert (listed[0]["rows"], listed[0]["columns"]) == (600, [])


async def test_letters_that_a_server_wrote_as_escapes_are_found(surface: Surface) -> None:
    rows = json.dumps([{"n": n, "name": "Müller 😀"} for n in range(100)])
    path = (await spilled(surface, rows))["path"]
    for pattern, literal in (("Müller", False), ("Müller 😀", True)):
        found = await surface.call("search_output", "w", {"path": path, "pattern": pattern, "literal": literal})
        assert found["total_matches"] == 100


async def test_nan_and_halves_of_pairs_in_a_result_are_kept(surface: Surface) -> None:
    rows = ", ".join(['{"a": NaN, "b": "\\ud800"}'] * 100)
    one = await spilled(surface, f"[{rows}]")
    assert (one["rows"], one["columns"]) == (100, ["a", "b"])
    assert '{"a": NaN, "b": "\\ud800"}' in await read_whole(surface, one["path"])
    made = await surface.call("build_csv", "w", {"source": one["path"], "output": "x.csv"})
    assert (made["rows_written"], made["replaced_characters"]) == (100, 100)
