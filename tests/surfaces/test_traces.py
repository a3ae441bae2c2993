"""Traces, as a real collector receives them; and that nothing of them is there where none is configured."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from httpx2 import AsyncClient
from mcp.client.streamable_http import streamable_http_client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.api.mcp.conftest import PROJECT, raw_server
from tests.surfaces.conftest import Service

PLACE = "/v1/workspaces/w"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
KEY, SECRET = "the-key-of-the-operator", "secret-of-an-argument"


@dataclass
class Collector:
    """What was received, as it came."""

    url: str = ""
    requests: list[tuple[str, ExportTraceServiceRequest]] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def path_to(self, name: str) -> list[str]:
        """The names of a span and of those around it, from the inside; where it ends with none of ours, that one's id."""
        by_id = {span.span_id: span for span in self.spans}
        span = next(span for span in self.spans if span.name == name)
        path = [span.name]
        while span.parent_span_id in by_id:
            span = by_id[span.parent_span_id]
            path.append(span.name)
        return [*path, span.parent_span_id.hex()]


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on a free port of loopback."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest()
            request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            found.requests.append((self.path, request))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()
        thread.join()


@contextmanager
def traced(folder: Path, collector: Collector, **variables: str) -> Iterator[str]:
    """A service that sends traces; all are there when it has ended."""
    with Service(folder, OTLP_ENDPOINT=collector.url, **variables) as (process, url):
        yield url
        process.terminate()
        assert process.wait(timeout=30) == 0


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_call_is_a_trace_that_goes_on_from_its_callers(folder: Path, collector: Collector) -> None:
    with traced(folder, collector, RUNTIME="nsjail", API_KEY=KEY) as url:
        headers = {"Authorization": f"Bearer {KEY}", "traceparent": TRACEPARENT}
        with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
            http.post(f"{PLACE}/tools/run_python", json={"code": f"raise ValueError('{SECRET}')"})
            spilled = http.post(f"{PLACE}/spills", json={"tool": SECRET, "content": [SECRET] * 1000}).json()
            http.post(f"{PLACE}/tools/read_file", json={"path": SECRET})
            del http.headers["traceparent"]
            http.get(f"{PLACE}/files/{SECRET}?signature={SECRET}", headers={"traceparent": "no traceparent"})
    assert {path for path, _ in collector.requests} == {"/v1/traces"}
    resources = [resource for _, request in collector.requests for resource in request.resource_spans]
    assert all(attributes(one.resource)["service.name"] == "spillbox" for one in resources)
    route = "POST /v1/workspaces/{workspace}/tools/run_python"
    assert collector.path_to("run nsjail") == ["run nsjail", "tool run_python", route, PARENT]
    assert collector.path_to("spill") == ["spill", "POST /v1/workspaces/{workspace}/spills", PARENT]
    alone = "GET /v1/workspaces/{workspace}/files/{path}"
    assert collector.path_to(alone) == [alone, ""]
    by_name = {span.name: span for span in collector.spans}
    assert {span.trace_id.hex() for span in collector.spans if span.name != alone} >= {TRACE}
    assert by_name[alone].trace_id.hex() != TRACE
    assert attributes(by_name["run nsjail"]) == {"spillbox.outcome": "failed"}
    assert attributes(by_name["tool read_file"]) == {"spillbox.outcome": "not_found"}
    assert attributes(by_name["spill"]) == {"spillbox.outcome": "saved", "spillbox.bytes": spilled["bytes"]}
    assert attributes(by_name[route]) == {
        "http.request.method": "POST", "http.route": "/v1/workspaces/{workspace}/tools/run_python",
        "http.response.status_code": 200,
    }  # fmt: skip
    run, call = by_name["run nsjail"], by_name["tool run_python"]
    assert call.start_time_unix_nano <= run.start_time_unix_nano < run.end_time_unix_nano <= call.end_time_unix_nano
    sent = b"".join(request.SerializeToString() for _, request in collector.requests)
    assert b"run_python" in sent
    assert not [text for text in (KEY, SECRET, "Bearer", "/workspaces/w") if text.encode() in sent]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_over_mcp_each_call_belongs_to_its_own_message(folder: Path, collector: Collector, mode: str) -> None:
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"r": raw_server(folder / "sent")}}))
    with traced(folder, collector, RUNTIME="none", MCP_SERVERS=str(folder / "servers.json")) as url:

        async def call() -> None:
            async with AsyncClient() as plain:
                way = streamable_http_client(f"{url}/mcp?workspace=w", http_client=plain)
                async with mcp.Client(way, mode=mode) as client:
                    plain.headers["traceparent"] = TRACEPARENT
                    assert not (await client.call_tool("r_take", {"id": 1, "x": SECRET})).is_error
                    plain.headers["traceparent"] = TRACEPARENT.replace(PARENT, "1" * 16)
                    assert not (await client.call_tool("list_files", {})).is_error

        asyncio.run(call())
    message = ["tools/call r_take", "POST /mcp", PARENT]
    assert collector.path_to("gateway r") == ["gateway r", "tool outer", *message]
    assert collector.path_to("tool list_files") == ["tool list_files", "tools/call list_files", "POST /mcp", "1" * 16]
    assert SECRET.encode() not in b"".join(request.SerializeToString() for _, request in collector.requests)


def test_a_service_whose_collector_is_gone_answers_and_stops(folder: Path) -> None:
    with Service(folder, RUNTIME="none", OTLP_ENDPOINT="http://127.0.0.1:9") as (process, url):
        assert httpx.post(f"{url}{PLACE}/tools/list_files", json={}).status_code == 200
        process.terminate()
        assert process.wait(timeout=30) == 0


def _python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=PROJECT, timeout=60,
        env={f"SPILLBOX_{name}": value for name, value in variables.items()},
    )  # fmt: skip


_ENTER = """
import asyncio, sys
from api.__main__ import VERSION, Settings, tracing
from sandbox.observers import Observers

async def enter():
    async with tracing(Settings(), Observers(), version=VERSION):
        print(sorted(name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")))[:1])

asyncio.run(enter())
"""


def test_without_the_setting_nothing_of_the_sdk_is_imported() -> None:
    done = _python(_ENTER)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    control = _python(_ENTER, OTLP_ENDPOINT="http://127.0.0.1:9")
    assert control.stdout == "['opentelemetry.exporter']\n", control.stderr


@pytest.mark.parametrize("missing", ["opentelemetry.sdk.trace", "opentelemetry.exporter"])
def test_where_the_packages_are_missing_it_is_said_what_to_install(tmp_path: Path, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from api.__main__ import main; sys.exit(main(['serve']))"
    variables = {"DATA_DIR": str(tmp_path), "RUNTIME": "none", "PORT": "0"}
    done = _python(code, OTLP_ENDPOINT="http://127.0.0.1:9", **variables)
    assert done.returncode == 70
    assert done.stderr.startswith("setup_failed: ")
    assert "pip install '.[traces]'" in done.stderr
    assert "Traceback" not in done.stderr
