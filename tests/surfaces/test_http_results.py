"""What only HTTP has of results: downloads and links, pages, progress, codes, and a service without a sandbox."""

import asyncio
import html
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from pydantic import SecretStr

from api.app import create_app, links_of, prove, toolbox_of
from api.links import Links
from api.settings import Settings
from sandbox.guest_root import GuestRoot
from tests.surfaces.conftest import serving

W = "/v1/workspaces/w"
KEY = "a-key-of-sixteen-characters"


def test_an_attachment_is_downloaded_as_it_was_with_ranges_and_its_own_name(http: httpx.Client) -> None:
    content = os.urandom(300_000)
    http.put(f"{W}/files/report.xlsx", content=content)
    made = http.post(f"{W}/tools/attach_file", json={"path": "report.xlsx", "name": "Bericht é.xlsx"}).json()
    http.delete(f"{W}/files/report.xlsx")
    got = http.get(made["url"])
    assert got.content == content
    assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''Bericht%20%C3%A9.xlsx"
    assert got.headers["content-type"].startswith("application/vnd.openxmlformats")
    assert got.headers["x-content-type-options"] == "nosniff"
    assert http.get(made["url"], headers={"Range": "bytes=5-9"}).content == content[5:10]
    (listed,) = http.get(f"{W}/attachments").json()
    assert (listed["attachment"]["sha256"], listed["url"]) == (made["sha256"], made["url"])
    assert http.get(f"/v1/workspaces/other/attachments/{made['id']}").json()["code"] == "not_found"
    assert http.get(f"{W}/attachments/../../../records.sqlite3").status_code == 404


def test_a_link_opens_without_the_key_until_its_time_is_over(root: GuestRoot, tmp_path: Path) -> None:
    with serving(root, tmp_path, api_key=SecretStr(KEY)) as url:
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}) as agent:
            agent.put(f"{W}/files/a.txt", content=b"x")
            link = agent.post(f"{W}/tools/attach_file", json={"path": "a.txt"}).json()["url"]
            page = agent.post(f"{W}/tools/show_table", json={"rows": [{"a": 1}]}).json()["url"]
            other = agent.post(f"{W}/tools/attach_file", json={"path": "a.txt", "name": "b.txt"}).json()["id"]
        with httpx.Client(base_url=url) as browser:
            assert browser.get(link).content == b"x"
            assert "<td>1</td>" in browser.get(page).text
            bare, _, query = link.partition("?")
            expires = query.partition("=")[2].partition("&")[0]
            for refused in (
                bare, link[:-1] + ("0" if link[-1] != "0" else "1"), link.replace(expires, str(int(expires) + 1)),
                f"{W}/attachments/{other}?{query}", f"{W}/files/a.txt?{query}", f"{W}/records?{query}",
            ):  # fmt: skip
                assert browser.get(refused).status_code == 401, refused
            assert browser.request("DELETE", link).status_code == 401
    links = Links(lambda: SecretStr(KEY), seconds=60)
    path, _, query = links.sign(f"{W}/attachments/1").partition("?")
    assert links.allow("GET", path, query.encode())
    old = Links(lambda: SecretStr(KEY), seconds=-1)
    path, _, query = old.sign(f"{W}/attachments/1").partition("?")
    assert not links.allow("GET", path, query.encode())


def test_a_table_is_json_with_its_literals_and_a_page_in_which_nothing_runs(http: httpx.Client) -> None:
    evil = "<script>alert(1)</script>"
    content = f'[{{"id": 947871269024436488, "price": 1.10, "t": {json.dumps(evil)}}}]'
    http.put(f"{W}/files/rows.json", content=content)
    shown = http.post(f"{W}/tools/show_table", json={"source": "rows.json", "title": evil}).json()
    got = http.get(f"{W}/tables/{shown['id']}")
    assert '"rows":[[947871269024436488, 1.10' in got.text.replace(",1.10", ", 1.10")
    assert got.json()["columns"] == ["id", "price", "t"]
    assert got.json()["row_count"] == 1
    page = http.get(shown["url"])
    assert page.headers["content-type"].startswith("text/html")
    assert evil not in page.text
    assert html.escape(evil) in page.text
    assert "<td>947871269024436488</td><td>1.10</td>" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert http.get(f"/v1/workspaces/v/tables/{shown['id']}").json()["code"] == "not_found"


def test_numbers_that_a_model_gives_are_shown_as_it_wrote_them(http: httpx.Client) -> None:
    body = '{"rows": [{"a": 1.10, "b": 1e400, "c": 9007199254740993}]}'
    shown = http.post(f"{W}/tools/show_table", content=body).json()
    assert shown["first_rows"] == "[[1.10,1e400,9007199254740993]]"
    record = http.get(f"{W}/records").json()[0]
    assert http.get(f"{W}/records/{record['id']}").status_code == 200


@pytest.mark.case("S12")
def test_an_expired_result_says_that_it_expired_and_when(http: httpx.Client, tmp_path: Path) -> None:
    path = http.post(f"{W}/spills", json={"tool": "t", "content": "x" * 2000}).json()["path"]
    os.utime(tmp_path / "workspaces/w/files" / path, (0, time.time() - 8 * 86400))
    with_service = Settings(data_dir=tmp_path, runtime="none")

    async def clean() -> int:
        async with toolbox_of(with_service) as box:
            return (await box.clean()).files

    assert asyncio.run(clean()) == 1
    gone = http.post(f"{W}/tools/read_file", json={"path": path})
    assert (gone.status_code, gone.json()["code"]) == (410, "expired")
    assert "expired" in gone.json()["detail"]
    assert "attach_file" in gone.json()["detail"]
    built = http.post(f"{W}/tools/build_csv", json={"source": path, "output": "x.csv"})
    assert built.json()["code"] == "expired"
    assert http.get(f"{W}/files/{path}").status_code == 410


def test_a_long_build_tells_how_far_it_is(http: httpx.Client) -> None:
    rows = ",".join(f'{{"n": {n}, "text": "some text of row {n}", "more": {n}.50}}' for n in range(300_000))
    http.put(f"{W}/files/rows.json", content=f"[{rows}]".encode())
    events: list[tuple[str, dict[str, int]]] = []
    with http.stream(
        "POST", f"{W}/tools/build_excel", json={"source": "rows.json", "output": "rows.xlsx"}, headers={"Accept": "text/event-stream"},
    ) as answer:  # fmt: skip
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                events.append((name, json.loads(line[6:])))
    told = [data["rows_written"] for name, data in events if name == "progress"]
    assert told == sorted(told)
    assert len(told) >= 2
    assert events[-1][0] == "result"
    assert events[-1][1]["tables"][0]["rows_written"] == 300_000  # type: ignore[index]


def test_a_spill_over_the_bound_of_a_request_is_refused_with_the_setting(root: GuestRoot, tmp_path: Path) -> None:
    with serving(root, tmp_path, max_spill_bytes=10_000) as url, httpx.Client(base_url=url) as http:
        over = http.post(f"{W}/spills", json={"tool": "t", "content": "x" * 20_000})
    assert (over.status_code, over.json()["code"]) == (413, "too_large")
    assert "SPILLBOX_MAX_SPILL_BYTES" in over.json()["detail"]


async def test_a_service_without_a_sandbox_has_everything_but_scripts(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, runtime="none")
    box = toolbox_of(settings)
    app = create_app(settings, box, await prove(box))
    transport = httpx.ASGITransport(app)
    async with box, httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        names = [tool["name"] for tool in (await http.get("/v1/tools")).json()]
        assert "run_python" not in names
        assert {
            "read_file",
            "extract_json_path",
            "search_output",
            "build_csv",
            "build_excel",
            "attach_file",
            "show_table",
        } <= set(names)
        assert (await http.get("/readyz")).json()["runtimes"] == []
        one = (
            await http.post(
                f"{W}/spills", json={"tool": "t", "content": [{"n": n, "text": "x" * 20} for n in range(100)]}
            )
        ).json()
        assert one["rows"] == 100
        built = await http.post(f"{W}/tools/build_excel", json={"source": one["path"], "output": "t.xlsx"})
        assert built.json()["tables"][0]["rows_written"] == 100
        read = await http.post(f"{W}/tools/read_file", json={"path": "t.xlsx"})
        assert (read.status_code, read.json()["code"]) == (503, "no_sandbox")
        assert "SPILLBOX_RUNTIME" in read.json()["detail"]
        assert (await http.post(f"{W}/tools/run_python", json={"code": "1"})).json()["code"] == "not_found"


def test_links_are_plain_where_no_key_is_set() -> None:
    assert links_of(Settings()).sign("/v1/x") == "/v1/x"


@pytest.mark.parametrize(
    "given",
    [
        {"tool": "t", "content": None}, {"tool": "t", "content": [1], "result": None, "hint": None, "is_mcp": True},
        {"tool": "t", "result": {"content": []}}, {"tool": "t", "result": {"structuredContent": {}}}, {"content": 1},
        {"tool": "t"}, {"tool": "t", "result": None}, {"tool": "t", "content": 1, "result": {"content": []}},
        {"tool": "t", "result": {"rows": []}}, {"tool": "t", "content": 1, "more": 1},
        {"tool": "t", "content": 1, "is_mcp": 1}, {"tool": "t", "content": 1, "is_error": "true"},
        {"tool": "t", "content": 1, "surface": "none"},
    ],
)  # fmt: skip
def test_a_spill_is_taken_if_it_fits_its_schema(http: httpx.Client, given: dict[str, Any]) -> None:
    operation = http.get("/openapi.json").json()["paths"]["/v1/workspaces/{workspace}/spills"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    fits = Draft202012Validator(schema).is_valid(given)
    answer = http.post(f"{W}/spills", json=given)
    assert answer.status_code == (200 if fits else 422), answer.text
