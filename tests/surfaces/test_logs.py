"""The log: each line whole and with its request's id, in both formats, and without what is nobody's business."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from httpx2 import AsyncClient
from mcp.client.streamable_http import streamable_http_client
from pydantic import BaseModel
from sqlalchemy import text as sql
from sqlalchemy.exc import SQLAlchemyError

from api import logs
from api.app import create_app
from api.callers import Callers
from api.links import link_secret
from api.settings import Settings
from sandbox.database import Database
from sandbox.guest_root import GuestRoot
from sandbox.keys import Keys
from sandbox.threads import on_thread
from sandbox.tools.registry import Call, Tool, ToolInput
from tests.api.mcp.conftest import raw_server
from tests.conftest import box_over
from tests.surfaces.conftest import Service, serving, serving_app

PLACE = "/v1/workspaces/w"
OPERATOR = "the-key-of-the-operator"
SECRET = "secret-of-an-argument"  # noqa: S105  what must not be seen
_speaker = logging.getLogger("tests.speaker")


class Lines(logging.Handler):
    """Keeps what would be written, as it would be."""

    def __init__(self, format: logs.Format) -> None:
        super().__init__()
        self.setFormatter(logs.formatter(format))
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "httpx":  # the test's own client
            self.texts.append(self.format(record))

    def of(self, logger: str) -> list[dict[str, Any]]:
        """The lines of a logger, which are JSON."""
        return [line for line in map(json.loads, self.texts) if line["logger"] == logger]


@contextmanager
def listening(format: logs.Format = "json") -> Iterator[Lines]:
    lines, root = Lines(format), logging.getLogger()
    level = root.level
    root.addHandler(lines)
    root.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        root.removeHandler(lines)
        root.setLevel(level)


def test_an_access_line_has_the_route_and_not_the_path(root: GuestRoot, tmp_path: Path) -> None:
    database = Database.in_folder(tmp_path)
    _, key = Keys(database).create("acme")
    database.close()
    with (
        listening() as lines,
        serving(root, tmp_path) as url,
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}) as http,
    ):
        http.put(f"{PLACE}/files/of/someone.txt", content=b"x", headers={"X-Request-Id": "mine-1"})
        http.get("/v1/nothing/of/someone?and=more")
        httpx.get(f"{url}{PLACE}/files")
        http.get("/healthz")
    found = lines.of("api.access")
    assert [(line["method"], line["route"], line["status"], line["tenant"]) for line in found] == [
        ("PUT", "/v1/workspaces/{workspace}/files/{path}", 200, "acme"),
        ("GET", "none", 404, "acme"),
        ("GET", "none", 401, None),
    ]
    first = found[0]
    assert (first["level"], first["request_id"]) == ("INFO", "mine-1")
    assert first["message"].startswith("PUT /v1/workspaces/{workspace}/files/{path} 200 in ")
    assert 0 < first["duration_seconds"] < 10
    assert first["time"].endswith("Z")
    assert abs(datetime.fromisoformat(first["time"]).timestamp() - time.time()) < 60
    assert datetime.fromisoformat(first["time"]).utcoffset() == timedelta(0)
    assert "someone" not in "".join(lines.texts)


@pytest.mark.parametrize("given", ["a", "A-z_0.9:x", "x" * 64])
def test_a_safe_id_of_a_request_is_kept(http: httpx.Client, given: str) -> None:
    answer = http.get("/v1/tools", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "x" * 65, "a b", "a\tb", 'a"b', "é", "a,b"])
def test_without_one_an_id_is_made(http: httpx.Client, given: str | None) -> None:
    headers = {} if given is None else {b"X-Request-Id": given.encode()}
    made = {http.get("/v1/nothing", headers=headers).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)


class Nothing(ToolInput):
    """No arguments."""


class Spoken(BaseModel):
    """What the test's tool gives."""

    ok: bool = True


async def _speak(_: Call, __: Nothing) -> Spoken:
    """Logs in its call's own task, in a thread, and in a task that it begins."""

    async def in_a_task() -> None:
        _speaker.warning("in a task")

    _speaker.warning("in the call")
    await asyncio.to_thread(_speaker.warning, "in a thread")
    await asyncio.create_task(in_a_task())
    return Spoken()


async def _break(_: Call, __: Nothing) -> Spoken:
    raise RuntimeError("broken\nINFO api.access: forged\r\x1b[31m")


TOOLS = {
    name: Tool(name=name, description="x", input=Nothing, output=Spoken, function=function, read_only=True)
    for name, function in (("speak", _speak), ("break", _break))
}


@contextmanager
def speaking(folder: Path) -> Iterator[str]:
    """A service with the test's own tools."""

    def make() -> Any:
        box = box_over(folder)
        box.tools.update(TOOLS)
        return create_app(Settings(data_dir=folder), box, [])

    with serving_app(make) as url:
        yield url


def test_what_a_call_logs_in_tasks_and_threads_has_its_requests_id(tmp_path: Path) -> None:
    with listening() as lines, speaking(tmp_path) as url:
        for number in range(2):
            headers = {"X-Request-Id": f"request-{number}"}
            assert httpx.post(f"{url}{PLACE}/tools/speak", json={}, headers=headers).status_code == 200
        streamed = {"X-Request-Id": "request-2", "Accept": "text/event-stream"}
        assert "result" in httpx.post(f"{url}{PLACE}/tools/speak", json={}, headers=streamed).text
    found = [(line["request_id"], line["message"]) for line in lines.of("tests.speaker")]
    places = ("in the call", "in a thread", "in a task")
    assert found == [(f"request-{number}", place) for number in range(3) for place in places]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_over_mcp_a_line_has_the_id_of_its_own_message(tmp_path: Path, mode: str) -> None:
    """A session of the handshake era is one task for many requests."""
    with listening() as lines, speaking(tmp_path) as url:
        async with AsyncClient() as plain:
            way = streamable_http_client(f"{url}/mcp?workspace=w", http_client=plain)
            async with mcp.Client(way, mode=mode) as client:
                for number in range(2):
                    plain.headers["X-Request-Id"] = f"message-{number}"
                    await client.call_tool("speak", {})
    assert [line["request_id"] for line in lines.of("tests.speaker")] == ["message-0"] * 3 + ["message-1"] * 3


async def test_a_connection_that_outlives_its_request_does_not_log_as_that(tmp_path: Path) -> None:
    servers = tmp_path / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"r": raw_server(tmp_path / "sent")}}))

    def make() -> Any:
        return create_app(Settings(data_dir=tmp_path, mcp_servers=servers), box_over(tmp_path), [])

    with listening() as lines, serving_app(make) as url:
        async with AsyncClient(headers={"X-Request-Id": "opens-it"}) as plain:
            way = streamable_http_client(f"{url}/mcp?workspace=w", http_client=plain)
            async with mcp.Client(way, mode="legacy") as client:
                await client.call_tool("r_nonsense", {})
    found = [line for line in lines.of("api.mcp.transports") if "no message" in line["message"]]
    assert [line["request_id"] for line in found] == [None, None]
    assert "this is no message" not in "".join(lines.texts)


async def test_threads_that_work_for_a_request_know_its_id(tmp_path: Path) -> None:
    logs.request_id.set("mine")
    database = Database.in_folder(tmp_path)
    seen: list[str | None] = []

    def find(_: str) -> None:
        seen.append(logs.request_id.get())

    with ThreadPoolExecutor(1) as threads:
        assert await on_thread(logs.request_id.get, threads=threads) == "mine"
    await Callers(None, Keys(database), find).find("a.b.c")
    assert seen == ["mine"]
    database.close()


def test_a_mistake_of_ours_is_one_answer_and_one_line_with_the_same_id(tmp_path: Path) -> None:
    with listening() as lines, speaking(tmp_path) as url:
        answer = httpx.post(f"{url}{PLACE}/tools/break", json={})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["content-type"] == "application/problem+json"
    errors = [line for line in map(json.loads, lines.texts) if line["level"] == "ERROR"]
    assert [(line["request_id"], line["message"]) for line in errors] == [
        (answer.headers["x-request-id"], "POST /v1/workspaces/{workspace}/tools/break failed")
    ]
    assert "RuntimeError: broken\nINFO api.access: forged\r\x1b[31m" in errors[0]["exception"]


@pytest.mark.parametrize("format", ["text", "json"])
def test_nobodys_text_breaks_a_line(tmp_path: Path, format: logs.Format) -> None:
    hostile = "a\nb\r\nc\x1b[31m\x00\x85\u2028\ud800\N{RIGHT-TO-LEFT OVERRIDE}"
    with listening(format) as lines, speaking(tmp_path) as url:
        _speaker.warning("%s", hostile)
        httpx.post(f"{url}{PLACE}/tools/break", json={})
    assert len(lines.texts) > 2
    for text in lines.texts:
        for line in text.encode("utf-8").decode().splitlines():
            assert line.isprintable()
            if format == "json":
                json.loads(line)
            else:
                assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ [\w.]+( \[\w+\])?: |    ", line), line
    spoken = next(text for text in lines.texts if "tests.speaker" in text)
    if format == "text":
        assert spoken.endswith(r": a\nb\r\nc\x1b[31m\x00\x85\u2028\ud800\u202e")
    else:
        assert json.loads(spoken)["message"] == hostile
        assert all("\n" not in text for text in lines.texts)


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_key_link_or_argument_is_in_the_log(folder: Path, format: str) -> None:
    database = Database.in_folder(folder)
    keys = Keys(database)
    (_, tenants), (revoked, old) = keys.create("acme", approves=True), keys.create("acme")
    keys.revoke(revoked.id)
    database.close()
    link_secret(folder, make=True)
    service = Service(
        folder, RUNTIME="nsjail", LOG_FORMAT=format, API_KEY=OPERATOR, METRICS_KEY=f"{OPERATOR}-of-metrics"
    )
    with service as (_, url):
        for key in (OPERATOR, tenants, old, f"{OPERATOR}-of-metrics", f"wrong-{SECRET}"):
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
                links = _try_everything(http)
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {tenants}"}, timeout=60) as http:
            links = _try_everything(http)
            assert len(links) == 1
        for link in links:
            assert httpx.get(f"{url}{link}").status_code == 200
            assert httpx.get(f"{url}{link}0").status_code == 401
            assert httpx.get(f"{url}{link.replace('expires=', 'expires=0')}").status_code in (200, 401)
        asyncio.run(_over_mcp(url, tenants))
        assert httpx.get(f"{url}{PLACE}/files?key={SECRET}&signature={SECRET}").status_code == 401
    log = service.log.read_text()
    assert log.count("/v1/workspaces/{workspace}/tools/run_python") > 3
    assert "/mcp" in log
    signature = links[0].partition("signature=")[2]
    assert len(signature) == 64
    secrets = (OPERATOR, tenants, old, SECRET, signature, "signature=", "expires=", "Bearer")
    assert [secret for secret in secrets if secret in log] == []


def _try_everything(http: httpx.Client) -> list[str]:
    """Calls that succeed and that fail in each way, as far as the key lets; gives links that were signed."""
    calls: list[tuple[str, Any]] = [
        ("tools/run_python", {"code": f"print('{SECRET}')"}),
        ("tools/run_python", {"code": f"raise ValueError('{SECRET}')"}),
        ("tools/run_python", {"kode": SECRET}),
        ("tools/read_file", {"path": SECRET}),
        (f"tools/{SECRET}", {}),
        ("tools/write_file", {"path": f"{SECRET}.txt", "content": SECRET}),
        ("tools/build_csv", {"source": f"{SECRET}.txt", "output": "a.csv"}),
        ("tools/call_tool", {"tool": SECRET, "arguments": {"x": SECRET}}),
        ("spills", {"tool": SECRET, "content": SECRET * 1000}),
        ("spills", {"tool": SECRET}),
    ]
    for path, body in calls:
        assert http.post(f"{PLACE}/{path}", json=body).status_code < 500
    http.post(f"{PLACE}/tools/run_python", content=f'{{"code": {SECRET}')
    http.put(f"{PLACE}/files/../{SECRET}", content=SECRET)
    http.get(f"/{SECRET}?{SECRET}")
    attached = http.post(f"{PLACE}/tools/attach_file", json={"path": f"{SECRET}.txt"})
    return [attached.json()["url"]] if attached.status_code == 200 else []


async def _over_mcp(url: str, key: str) -> None:
    for mode in ("legacy", "2026-07-28"):
        async with AsyncClient(headers={"Authorization": f"Bearer {key}"}) as plain:
            way = streamable_http_client(f"{url}/mcp?workspace=w", http_client=plain)
            async with mcp.Client(way, mode=mode) as client:
                await client.call_tool("run_python", {"code": f"print('{SECRET}')"})
                assert (await client.call_tool("run_python", {"kode": SECRET})).is_error
                with pytest.raises(mcp.MCPError):
                    await client.call_tool(SECRET, {"x": SECRET})
                with pytest.raises(mcp.MCPError):
                    await client.read_resource(f"spillbox://workspace/{SECRET}")


def test_a_statement_that_fails_does_not_tell_its_values(tmp_path: Path) -> None:
    database = Database.in_folder(tmp_path)
    with pytest.raises(SQLAlchemyError) as caught, database.writing() as db:
        db.execute(sql("insert into no_such_table values (:value)"), {"value": SECRET})
    assert "no_such_table" in str(caught.value)
    assert SECRET not in str(caught.value)
    database.close()
