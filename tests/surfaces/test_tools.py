"""One body for every surface: the tools do the same, and refuse the same with the same codes."""

import asyncio
import json
import time
from typing import Any

import pytest

from tests.surfaces.conftest import CallTool, Surface


async def test_a_script_is_kept_mended_and_run_by_path(call_tool: CallTool) -> None:
    first = await call_tool("run_python", "w", {"code": "import sys\nprint(1 / int(sys.argv[1]))", "arguments": ["0"]})
    assert first["status"] == "failed"
    assert first["script_path"].startswith("scripts/")
    assert first["error"]["source_line"] == "print(1 / int(sys.argv[1]))"
    edited = await call_tool(
        "edit_file", "w", {"path": first["script_path"], "old_text": "1 / int", "new_text": "1 + int"}
    )
    assert edited["change"] == "modified"
    again = await call_tool("run_python", "w", {"path": first["script_path"], "arguments": ["0"]})
    assert again["status"] == "succeeded"
    assert again["stdout"]["text"] == "1\n"
    kept = await call_tool("read_file", "w", {"path": first["error"]["traceback_path"]})
    assert "ZeroDivisionError: division by zero" in kept["text"]


async def test_one_path_names_the_same_file_everywhere(call_tool: CallTool) -> None:
    await call_tool("write_file", "w", {"path": "/workspace/data/a.txt", "content": "A"})
    assert (await call_tool("read_file", "w", {"path": "data/a.txt"}))["text"] == "A"
    ran = await call_tool(
        "run_python", "w", {"code": "print(open('/workspace/data/a.txt').read() + open('data/a.txt').read())"}
    )
    assert ran["stdout"]["text"] == "AA\n"
    listed = await call_tool("list_files", "w", {"prefix": "data/"})
    assert [file["path"] for file in listed["files"]] == ["data/a.txt"]
    assert (await call_tool("delete_file", "w", {"path": "./data/a.txt"}))["change"] == "deleted"
    assert (await call_tool("read_file", "w", {"path": "data/a.txt"}))["code"] == "not_found"


@pytest.mark.case("S12")
@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("read_file", {"path": "../other/secret"}, "invalid_path"),
        ("read_file", {"path": "/etc/passwd"}, "invalid_path"),
        ("read_file", {"path": "a\0b"}, "invalid_path"),
        ("read_file", {"path": "%2e%2e/x"}, "not_found"),
        ("read_file", {"path": "\\x2e\\x2e/x"}, "invalid_path"),
        ("read_file", {"path": "\ud800"}, "invalid_path"),
        ("write_file", {"path": "results/x", "content": ""}, "read_only"),
        ("write_file", {"path": "errors/x", "content": ""}, "read_only"),
        ("write_file", {"path": "a//b", "content": ""}, "invalid_path"),
        ("write_file", {"path": "x/", "content": ""}, "invalid_path"),
        ("write_file", {"path": "n" * 300, "content": ""}, "invalid_path"),
        ("write_file", {"path": "scripts", "content": ""}, "read_only"),
        ("delete_file", {"path": "nothing"}, "not_found"),
        ("edit_file", {"path": "nothing", "old_text": "a", "new_text": "b"}, "not_found"),
        ("run_python", {"path": "scripts/nothing.py"}, "not_found"),
        ("run_python", {}, "invalid_arguments"),
        ("run_python", {"code": "1", "path": "x"}, "invalid_arguments"),
        ("run_python", {"code": "1", "arguments": ["a\0"]}, "invalid_arguments"),
        ("run_python", {"code": "1", "timeout_seconds": 9999}, "invalid_arguments"),
        ("run_python", {"code": "1", "unknown": True}, "invalid_arguments"),
        ("run_rust", {}, "not_found"),
    ],
)
async def test_bad_input_is_refused_with_a_stable_code(
    call_tool: CallTool, tool: str, arguments: dict[str, Any], code: str
) -> None:
    answer = await call_tool(tool, "w", arguments)
    assert answer["code"] == code
    assert len(answer["detail"]) > 20


async def test_a_missing_file_is_answered_with_near_names(call_tool: CallTool) -> None:
    await call_tool("write_file", "w", {"path": "reports/summary.txt", "content": "x"})
    assert "reports/summary.txt" in (await call_tool("read_file", "w", {"path": "summary.txt"}))["detail"]


async def test_an_edit_must_fit_exactly_once(call_tool: CallTool) -> None:
    await call_tool("write_file", "w", {"path": "a.py", "content": "x = 1\r\ny = 1\r\n"})
    twice = await call_tool("edit_file", "w", {"path": "a.py", "old_text": "= 1", "new_text": "= 2"})
    assert twice["code"] == "edit_mismatch"
    assert "2 times" in twice["detail"]
    never = await call_tool("edit_file", "w", {"path": "a.py", "old_text": "x = 1\ny = 1", "new_text": ""})
    assert never["code"] == "edit_mismatch"
    assert "\\r\\n" in never["detail"]
    assert (await call_tool("read_file", "w", {"path": "a.py"}))["text"] == "x = 1\r\ny = 1\r\n"


async def test_the_workspace_itself_may_be_named_in_any_way(call_tool: CallTool) -> None:
    await call_tool("write_file", "w", {"path": "a/b.txt", "content": ""})
    for prefix in ("", "/workspace", "/workspace/", ".", "./", "a", "/workspace/a/"):
        listed = await call_tool("list_files", "w", {"prefix": prefix})
        assert [file["path"] for file in listed["files"]] == ["a/b.txt"], prefix


async def test_an_edit_of_text_that_no_file_can_hold_is_refused(call_tool: CallTool) -> None:
    await call_tool("write_file", "w", {"path": "a", "content": "x"})
    edited = await call_tool("edit_file", "w", {"path": "a", "old_text": "x", "new_text": "\ud800"})
    assert edited["code"] == "invalid_arguments"


async def test_many_broken_documents_do_not_make_an_endless_answer(call_tool: CallTool) -> None:
    ran = await call_tool("run_python", "w", {"code": "for n in range(300): open(f'{n}.docx', 'w').close()"})
    assert len(ran["warnings"]) < 20
    assert len(ran["documents"]) == 100
    assert len(json.dumps(ran)) < 100_000


@pytest.mark.case("D7", "D9")
async def test_a_broken_document_is_told_before_the_model_claims_success(call_tool: CallTool) -> None:
    ran = await call_tool(
        "run_python", "w", {"code": "open('empty.xlsx', 'w').close()\nprint('wrote report.docx and empty.xlsx')"}
    )
    assert ran["status"] == "succeeded"
    assert [file["path"] for file in ran["files"]] == ["empty.xlsx"]
    assert [(d["path"], d["ok"]) for d in ran["documents"]] == [("empty.xlsx", False)]
    assert "BROKEN DOCUMENT: empty.xlsx" in ran["warnings"][0]


@pytest.mark.case("R20")
async def test_runs_of_one_workspace_go_one_after_another_in_order(surface: Surface) -> None:
    call_tool = surface.call
    await call_tool("write_file", "w", {"path": "log.txt", "content": ""})
    code = "import sys, time\nt = open('log.txt').read()\ntime.sleep(0.05)\nopen('log.txt', 'w').write(t + sys.argv[1])"
    await call_tool("write_file", "w", {"path": "append.py", "content": code})
    tasks = []
    async with asyncio.timeout(60):
        for number, letter in enumerate("abcdefgh", start=await surface.accepted("w") + 1):
            tasks.append(
                asyncio.create_task(call_tool("run_python", "w", {"path": "append.py", "arguments": [letter]}))
            )
            while await surface.accepted("w") < number:  # a client's connections need not bring them in this order
                await asyncio.sleep(0.005)
    assert {answer["status"] for answer in await asyncio.gather(*tasks)} == {"succeeded"}
    assert (await call_tool("read_file", "w", {"path": "log.txt"}))["text"] == "abcdefgh"


@pytest.mark.case("R20")
async def test_64_runs_at_once_in_16_workspaces_are_all_done_and_none_mixed(call_tool: CallTool) -> None:
    async def one(number: int) -> None:
        code = (
            f"import os\nopen('f{number}.txt', 'w').write('{number}')\nprint({number}, sorted(os.listdir('results')))"
        )
        answer = await call_tool("run_python", f"w{number % 16}", {"code": code})
        assert answer["status"] == "succeeded"
        assert answer["stdout"]["text"] == f"{number} []\n"
        assert [file["path"] for file in answer["files"]] == [f"f{number}.txt"]

    await asyncio.gather(*(one(number) for number in range(64)))
    for workspace in range(16):
        listed = await call_tool("list_files", f"w{workspace}", {"prefix": "f"})
        expected = sorted(f"f{number}.txt" for number in range(workspace, 64, 16))
        assert [file["path"] for file in listed["files"]] == expected


@pytest.mark.case("R21")
async def test_a_caller_that_leaves_loses_nothing(surface: Surface) -> None:
    """Over MCP to leave is to cancel, and stops the run; elsewhere the run goes on."""
    leaving = asyncio.create_task(
        surface.call("run_python", "w", {"code": "import time\ntime.sleep(5)\nopen('done', 'w')"})
    )
    await asyncio.sleep(0.5)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    # The next run of the workspace waits for its turn, and sees what the first one did.
    started = time.monotonic()
    after = await surface.call("run_python", "w", {"code": "import os\nprint(os.path.exists('done'))"})
    assert after["stdout"]["text"] == f"{not surface.leaving_stops}\n"
    assert surface.leaving_stops == (time.monotonic() - started < 3)
