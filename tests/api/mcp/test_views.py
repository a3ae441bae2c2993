"""The views of tables and downloads, in a real browser, with the extension's own bridge as the host."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.mcp import resources
from tests.api.mcp.conftest import PROJECT, client_of
from tests.conftest import unavailable

ROWS = """[
{"id": 947871269024436488, "library": "libpthread.so.0", "price": 1.10, "note": null},
{"id": 947871269024436487, "library": "<img src=x onerror=alert(1)>", "price": 21631706.9893399, "note": "b"},
{"id": 947871269024436489, "library": "libé.so", "price": -3, "note": "=SUM(A1)"},
{"id": 947871269024436490, "library": "libz.so", "price": 100, "note": "</script><script>alert(2)</script>"}]"""
IDS = ["947871269024436487", "947871269024436488", "947871269024436489", "947871269024436490"]


@pytest.fixture(scope="session")
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        unavailable("browser", "install Debian's chromium")
    return found or ""


def _seen(
    node: Path, browser: str, base_url: str, tool: str, arguments: dict[str, Any], **options: Any
) -> dict[str, Any]:
    script = str(PROJECT / "tests/node/view.mjs")
    done = subprocess.run(
        [str(node / "node"), script, f"{base_url}/mcp?workspace=w", tool, json.dumps(arguments), json.dumps(options)],
        env={**os.environ, "CHROMIUM": browser}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen["mimeType"] == "text/html;profile=mcp-app"
    assert seen["requests"] == [], "a view asks nobody for anything"
    assert seen["faults"] == []
    assert seen["seen"]["sizes"], "it tells its size"
    return seen


def _put(base_url: str, name: str, content: str | bytes) -> None:
    assert httpx.put(f"{base_url}/v1/workspaces/w/files/{name}", content=content).status_code == 200


def test_a_table_is_sorted_by_exact_numbers_and_searched(node: Path, browser: str, base_url: str) -> None:
    _put(base_url, "rows.json", ROWS)
    show = {"source": "rows.json", "title": "Libraries"}

    def seen(*steps: list[str]) -> dict[str, Any]:
        return _seen(node, browser, base_url, "show_table", show, steps=steps)

    as_given = seen()
    assert [row[2] for row in as_given["cells"]] == ["1.10", "21631706.9893399", "-3", "100"]
    assert "<img src=x onerror=alert(1)>" in as_given["text"]
    assert "4 rows" in as_given["text"]
    up = seen(["click", "th:nth-child(1) button"])
    assert [row[0] for row in up["cells"]] == IDS
    down = seen(["click", "th:nth-child(1) button"], ["click", "th:nth-child(1) button"])
    assert [row[0] for row in down["cells"]] == IDS[::-1]
    prices = seen(["click", "th:nth-child(3) button"])
    assert [row[2] for row in prices["cells"]] == ["-3", "1.10", "100", "21631706.9893399"]
    found = seen(["type", "#search", "LIBÉ"])
    assert [row[0] for row in found["cells"]] == ["947871269024436489"]
    assert "1 of 4 rows" in found["text"]


def test_a_large_table_is_shown_whole(node: Path, browser: str, base_url: str) -> None:
    rows = [{"number": number, "text": f"row {number} " + "x" * 50} for number in range(2000)]
    _put(base_url, "rows.json", json.dumps(rows))
    seen = _seen(node, browser, base_url, "show_table", {"source": "rows.json"}, theme="dark")
    assert len(seen["cells"]) == 2000
    assert "row 1999" not in seen["result"]["content"][0]["text"], "the model gets the first rows only"


def test_a_card_has_the_check_and_downloads(node: Path, browser: str, base_url: str) -> None:
    code = "import openpyxl\nbook = openpyxl.Workbook()\nbook.active.append([1])\nbook.save('report.xlsx')"
    httpx.post(f"{base_url}/v1/workspaces/w/tools/run_python", json={"code": code})
    seen = _seen(node, browser, base_url, "attach_file", {"path": "report.xlsx"}, steps=[["click", "#download"]])
    assert "report.xlsx" in seen["text"]
    assert "Excel workbook" in seen["text"]
    assert "opened and checked" in seen["text"]
    (contents,) = seen["seen"]["downloads"]
    assert contents[0]["uri"].startswith("spillbox://attachments/")


def test_a_broken_document_is_said_to_be_broken(node: Path, browser: str, base_url: str) -> None:
    _put(base_url, "report.docx", b"PK\x03\x04 no document")
    seen = _seen(node, browser, base_url, "attach_file", {"path": "report.docx"}, capabilities={})
    assert "broken" in seen["text"]
    assert "/attachments/" in seen["text"], "a host that can do nothing shows where it is"
    assert seen["result"]["structuredContent"]["check"]["ok"] is False


def test_a_failure_is_told_in_the_view(node: Path, browser: str, base_url: str) -> None:
    for tool in ("attach_file", "show_table"):
        argument = {"path": "nothing"} if tool == "attach_file" else {"source": "nothing.json"}
        assert "not_found" in _seen(node, browser, base_url, tool, argument)["text"]


async def test_a_host_without_views_gets_the_short_text_and_no_rows(base_url: str) -> None:
    _put(base_url, "rows.json", ROWS)
    async with client_of(base_url, "legacy") as client:
        result = await client.call_tool("show_table", {"source": "rows.json"})
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        views = [await client.read_resource(uri) for uri in resources.VIEW_OF_TOOL.values()]
    assert result.meta is None
    assert "4 rows" in result.content[0].text  # type: ignore[union-attr]
    assert tools["show_table"].meta == {"ui": {"resourceUri": "ui://spillbox/table.html"}}
    for view in views:
        text = view.contents[0].text  # type: ignore[union-attr]
        assert "/* bridge.js */" not in text
        outside = ("http://", "https://", "src=", "@import", "fetch(")
        assert not [word for word in outside if word in text]
