"""What `/metrics` counts, who may read it, and what it never tells."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.app import create_app
from api.settings import Settings
from sandbox.database import Database
from sandbox.guest_root import GuestRoot
from sandbox.keys import Keys
from tests.api.mcp.conftest import PROJECT, raw_server
from tests.conftest import SURFACES_OVER, box_over
from tests.surfaces.conftest import Service, serving

README = (PROJECT / "README.md").read_text()
PLACE = "/v1/workspaces/w"
OPERATOR, SCRAPER = "the-key-of-the-operator", "the-key-of-the-scraper"


def figures(text: str) -> dict[str, float]:
    """Each figure by its name and labels, such as ``spillbox_runs_total{runtime=nsjail,status=failed}``."""
    return {
        sample.name + "{" + ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items())) + "}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }  # fmt: skip


def test_what_was_done_is_counted(http: httpx.Client) -> None:
    http.post(f"{PLACE}/tools/run_python", json={"code": "open('a.csv', 'w').write('a')"})
    http.post(f"{PLACE}/tools/run_python", json={"code": "1 / 0"})
    http.post(f"{PLACE}/tools/run_python", json={"kode": "1"})
    http.post(f"{PLACE}/tools/run_python", json={"kode": "1"}, headers={"Accept": "text/event-stream"})
    http.post(f"{PLACE}/tools/read_file", json={"path": "nothing"})
    http.post(f"{PLACE}/tools/no_such_tool", json={})
    spilled = http.post(f"{PLACE}/spills", json={"tool": "t", "content": [{"id": n} for n in range(321)]}).json()
    http.post(f"{PLACE}/spills", json={"tool": "t", "content": "short"})
    built = http.post(f"{PLACE}/tools/build_csv", json={"source": spilled["path"], "output": "b.csv"}).json()
    found = figures(http.get("/metrics").text)
    expected = {
        f"spillbox_runs_total{{runtime={SURFACES_OVER},status=succeeded}}": 1,
        f"spillbox_runs_total{{runtime={SURFACES_OVER},status=failed}}": 1,
        f"spillbox_run_duration_seconds_count{{runtime={SURFACES_OVER}}}": 2,
        "spillbox_tool_calls_total{outcome=succeeded,tool=run_python}": 1,
        "spillbox_tool_calls_total{outcome=failed,tool=run_python}": 1,
        "spillbox_tool_calls_total{outcome=invalid_arguments,tool=run_python}": 2,
        "spillbox_tool_calls_total{outcome=not_found,tool=read_file}": 1,
        "spillbox_tool_calls_total{outcome=not_found,tool=unknown}": 1,
        "spillbox_tool_calls_total{outcome=ok,tool=build_csv}": 1,
        "spillbox_tool_call_duration_seconds_count{tool=run_python}": 4,
        "spillbox_spills_saved_total{}": 1,
        "spillbox_spills_saved_bytes_total{}": spilled["bytes"],
        "spillbox_built_files_total{format=csv}": 1,
        "spillbox_built_bytes_total{format=csv}": built["bytes"],
        "spillbox_built_rows_total{format=csv}": 321,
        "spillbox_cleaned_files_total{}": 0,
        "spillbox_slots_held{}": 0,
        "spillbox_queue_waiting{}": 0,
        "spillbox_build_info{version=0.1.0}": 1,
        "spillbox_http_requests_total{method=POST,route=/v1/workspaces/{workspace}/spills,status=200}": 2,
        "spillbox_http_requests_total{method=POST,route=/v1/workspaces/{workspace}/tools/{tool},status=404}": 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found[f"spillbox_run_duration_seconds_sum{{runtime={SURFACES_OVER}}}"] > 0.01
    assert found["spillbox_last_clean_timestamp_seconds{}"] > 1_700_000_000
    assert found["process_open_fds{}"] > 3


def test_the_readme_lists_every_figure_with_its_labels(http: httpx.Client) -> None:
    section = README.partition("## Watch and stop it")[2].partition("**Logs**")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| `spillbox_")]
    listed = {
        name: set(re.findall(r"`(\w+)`", labels)) for names, labels in rows for name in re.findall(r"`(\w+)`", names)
    }
    help_lines = re.findall(r"^# TYPE (spillbox_\w+) (\w+)", http.get("/metrics").text, re.MULTILINE)
    assert sorted(listed) == sorted(name for name, kind in help_lines if not name.endswith("_created"))
    kinds = dict(help_lines)
    for name, labels in listed.items():
        assert name.endswith({"counter": "_total", "histogram": "_seconds"}.get(kinds[name], "")), name
        assert labels <= {
            "runtime",
            "status",
            "tool",
            "outcome",
            "kind",
            "format",
            "server",
            "method",
            "route",
            "version",
        }


def test_no_label_has_what_a_caller_chose(root: GuestRoot, tmp_path: Path) -> None:
    database = Database.in_folder(tmp_path)
    _, text = Keys(database).create("chosen-tenant")
    database.close()
    with serving(root, tmp_path, api_key=OPERATOR) as url:
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {text}"}, timeout=60) as http:
            place = "/v1/workspaces/chosen-workspace"
            http.put(f"{place}/files/chosen-folder/chosen-file.json", content=b'[{"chosen-column": 1}]')
            http.post(f"{place}/tools/chosen-tool", json={})
            http.post(f"{place}/tools/run_python", json={"code": "raise ValueError('chosen-text')"})
            http.post(
                f"{place}/tools/read_file", json={"path": "chosen-path"}, headers={"Idempotency-Key": "chosen-id"}
            )
            http.post(
                f"{place}/spills", json={"tool": "chosen-result", "content": "x" * 2000, "client": "chosen-client"}
            )
            http.get("/chosen-page?chosen-query")
            http.request("CHOSEN", "/v1/tools")
            source = {"source": "chosen-folder/chosen-file.json", "output": "chosen.csv"}
            assert http.post(f"{place}/tools/build_csv", json=source).status_code == 200
        told = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {OPERATOR}"}).text
    assert 'spillbox_built_files_total{format="csv"} 1.0' in told
    assert 'route="none"' in told
    assert "chosen" not in told.lower()


def test_a_tenants_key_does_not_read_it_and_the_metrics_key_reads_nothing_else(root: GuestRoot, tmp_path: Path) -> None:
    database = Database.in_folder(tmp_path)
    keys = Keys(database)
    tenants = [keys.create("a")[1], keys.create("a", approves=True)[1]]
    database.close()

    with serving(root, tmp_path, api_key=OPERATOR, metrics_key=SCRAPER) as url:

        def status(path: str, text: str) -> int:
            return httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {text}"}).status_code

        assert [status("/metrics", text) for text in (OPERATOR, SCRAPER)] == [200, 200]
        assert [status("/metrics", text) for text in tenants] == [403, 403]
        assert status("/metrics", "a-key-that-there-is-not") == 401
        assert httpx.get(f"{url}/metrics").status_code == 401
        for path in ("/v1/tools", "/v1/approvals", f"{PLACE}/files", "/openapi.json", "/metrics/x", "/mcp"):
            assert status(path, SCRAPER) == 401, path


def test_where_there_are_keys_of_tenants_only_no_one_reads_it(root: GuestRoot, tmp_path: Path) -> None:
    database = Database.in_folder(tmp_path)
    _, text = Keys(database).create("a", approves=True)
    database.close()
    with serving(root, tmp_path) as url:
        refused = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {text}"})
        assert (refused.status_code, refused.json()["code"]) == (403, "denied")
        assert "spillbox_" not in refused.text


def test_without_keys_this_machine_reads_it_and_no_web_page_does(http: httpx.Client) -> None:
    answer = http.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert http.get("/metrics", headers={"Host": "evil.example"}).status_code == 403
    assert http.get("/metrics", headers={"Origin": "https://evil.example"}).status_code == 403


async def test_who_waits_and_who_has_a_slot_is_seen(root: GuestRoot, tmp_path: Path) -> None:
    with serving(root, tmp_path, slots=1) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:

            async def seen() -> tuple[float, float, float]:
                found = figures((await http.get("/metrics")).text)
                held, waiting = found["spillbox_slots_held{}"], found["spillbox_queue_waiting{}"]
                return found["spillbox_slots{}"], held, waiting

            code = {"code": "import time; time.sleep(2)"}
            calls = [
                asyncio.create_task(http.post(f"/v1/workspaces/w{n}/tools/run_python", json=code)) for n in range(3)
            ]
            while await seen() != (1, 1, 2):
                assert not any(call.done() for call in calls), await seen()
                await asyncio.sleep(0.02)
            await asyncio.gather(*calls)
            assert await seen() == (1, 0, 0)


async def test_calls_of_other_servers_are_counted_by_their_names_in_the_settings(
    root: GuestRoot, tmp_path: Path
) -> None:
    servers = tmp_path / "servers.json"
    known = {"r": raw_server(tmp_path / "sent"), "gone": {"command": "/no/such/program"}}
    servers.write_text(json.dumps({"mcpServers": known}))
    with serving(root, tmp_path, mcp_servers=servers) as url:
        async with mcp.Client(f"{url}/mcp?workspace=w", mode="legacy") as client:
            assert not (await client.call_tool("r_take", {"id": 1})).is_error
            assert (await client.call_tool("gone_x", {})).is_error
            with pytest.raises(mcp.MCPError):
                await client.call_tool("chosen", {})
        found = figures(httpx.get(f"{url}/metrics").text)
    assert found["spillbox_gateway_calls_total{outcome=ok,server=r}"] == 1
    assert found["spillbox_gateway_call_duration_seconds_count{server=r}"] == 1
    assert found["spillbox_gateway_connections_total{outcome=ok,server=r}"] == 1
    assert found["spillbox_gateway_connections_total{outcome=upstream_failed,server=gone}"] >= 1
    assert found["spillbox_tool_calls_total{outcome=ok,tool=outer}"] == 1
    assert not [name for name in found if "take" in name or "chosen" in name]


def test_launchers_and_spare_jails_are_seen(folder: Path) -> None:
    with Service(folder) as (_, url):
        assert httpx.get(f"{url}/readyz").json()["runtimes"][0] == "warm"
        found = figures(httpx.get(f"{url}/metrics").text)
    for kind in ("plain", "office"):
        assert found[f"spillbox_launchers{{kind={kind}}}"] >= 2
        assert found[f"spillbox_spare_jails{{kind={kind}}}"] >= 1


@pytest.fixture
def two_apps(tmp_path: Path) -> Iterator[list[Any]]:
    boxes = [box_over(tmp_path / name) for name in "ab"]
    yield [(create_app(Settings(data_dir=tmp_path / "a"), box, []), box) for box in boxes]
    for box in boxes:
        box.records.close()


async def test_each_application_has_figures_of_its_own(two_apps: list[Any]) -> None:
    texts = []
    for number, (app, box) in enumerate(two_apps):
        for _ in range(number):
            await box.call("list_files", "w", {})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
            texts.append((await http.get("/metrics")).text)
    assert "list_files" not in texts[0]
    assert 'spillbox_tool_calls_total{outcome="ok",tool="list_files"} 1.0' in texts[1]
