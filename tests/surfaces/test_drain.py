"""A service that is told to stop: what is under way is finished, nothing new is begun, and the rest is recorded."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest

from sandbox.errors import Draining, Interrupted
from sandbox.records import Records
from sandbox.spills.spill import Received
from sandbox.tools.outer import Caller, OuterCall, OuterTool
from sandbox.tools.toolbox import Toolbox
from tests.api.mcp.conftest import MODERN, raw_server
from tests.conftest import SURFACES_OVER, jail_pids
from tests.surfaces.conftest import OVER, Service

PLACE = "/v1/workspaces/w"


@asynccontextmanager
async def running(
    http: httpx.AsyncClient, seconds: float, call_id: str = "r"
) -> AsyncIterator["asyncio.Task[httpx.Response]"]:
    """A run that takes so long, once its script is under way."""
    before = jail_pids()
    body = {"code": f"import time; time.sleep({seconds}); print('whole')"}
    call = asyncio.create_task(http.post(f"{PLACE}/tools/run_python", json=body, headers={"Idempotency-Key": call_id}))
    await until_under_way(http, call, before)
    try:
        yield call
    finally:
        call.cancel()


STOPPED = "The service was stopped before the call was done. Try it again with a new id when the service is up again."


async def until_under_way(http: httpx.AsyncClient, call: "asyncio.Task[Any]", before: set[int]) -> None:
    """A script: it has a slot, and a process, which with gVisor nobody sees."""
    is_seen = "runsc" not in SURFACES_OVER
    while "spillbox_slots_held 1.0" not in (await http.get("/metrics")).text or (is_seen and not jail_pids() - before):
        assert not call.done(), call.result()
        await asyncio.sleep(0.02)


async def until_draining(http: httpx.AsyncClient) -> httpx.Response:
    deadline = time.monotonic() + 10
    while (ready := await http.get("/readyz")).status_code == 200:
        assert time.monotonic() < deadline, "it does not drain"
        await asyncio.sleep(0.02)
    return ready


async def test_a_call_under_way_is_answered_whole_and_new_ones_are_refused(folder: Path) -> None:
    with Service(folder, **OVER) as (process, url):
        async with httpx.AsyncClient(base_url=url, timeout=30) as http, running(http, 4) as call:
            process.send_signal(signal.SIGTERM)
            ready = await until_draining(http)
            assert (ready.status_code, ready.json()["code"]) == (503, "draining")
            assert (await http.get("/healthz")).status_code == 200
            assert "spillbox_slots_held 1.0" in (await http.get("/metrics")).text
            async with httpx.AsyncClient(base_url=url, timeout=30) as new_connection:
                for path, body in (
                    ("tools/run_python", {"code": "1"}),
                    ("tools/list_files", {}),
                    ("tools/none", {}),
                    ("spills", {"tool": "t", "content": "x"}),
                ):
                    refused = await new_connection.post(f"{PLACE}/{path}", json=body)
                    assert (refused.status_code, refused.json()["code"]) == (503, "draining"), path
                    assert int(refused.headers["retry-after"]) > 0
            assert not call.done()
            answer = await call
        assert (answer.status_code, answer.json()["stdout"]["text"]) == (200, "whole\n")
        assert process.wait(timeout=10) == 0
    assert Records.in_folder(folder).get("w", "r").status == "succeeded"


async def test_a_call_that_takes_too_long_is_stopped_told_and_recorded(folder: Path) -> None:
    before = jail_pids()
    with Service(folder, DRAIN_SECONDS="1", **OVER) as (process, url):
        async with httpx.AsyncClient(base_url=url, timeout=30) as http, running(http, 25) as call:
            process.send_signal(signal.SIGTERM)
            answer = await call
            assert (answer.status_code, answer.json()["code"]) == (409, "interrupted")
        assert process.wait(timeout=10) == 0
    record = Records.in_folder(folder).get("w", "r")
    assert (record.status, record.answer) == (
        "interrupted",
        {"code": "interrupted", "message": STOPPED},
    )
    assert not jail_pids() - before
    assert "1 calls were not done after 1 s" in (folder / "log.txt").read_text()


async def test_a_call_over_mcp_is_finished_and_open_streams_do_not_hold_the_service(folder: Path) -> None:
    with Service(folder, **OVER) as (process, url):
        async with mcp.Client(f"{url}/mcp?workspace=w", mode="legacy") as client:
            await client.list_tools()  # else the SDK asks for the schemas when the answer is there
            before = jail_pids()
            body = {"code": "import time; time.sleep(4); print('whole')"}
            call = asyncio.create_task(client.call_tool("run_python", body))
            async with httpx.AsyncClient(base_url=url) as http:
                await until_under_way(http, call, before)
                process.send_signal(signal.SIGTERM)
                await until_draining(http)
            refused = await client.call_tool("list_files", {})
            assert refused.is_error
            assert "draining: " in str(refused.content)
            assert "whole" in str((await call).content)
            ended = asyncio.get_running_loop().run_in_executor(None, process.wait, 10)
            assert await ended == 0


async def test_told_twice_it_ends_at_once(folder: Path) -> None:
    with Service(folder, **OVER) as (process, url):
        async with httpx.AsyncClient(base_url=url, timeout=30) as http, running(http, 25):
            process.send_signal(signal.SIGTERM)
            await until_draining(http)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.get_running_loop().run_in_executor(None, process.wait, 10) == 0
    assert Records.in_folder(folder).get("w", "r").status == "interrupted"


def test_an_idle_service_ends_at_once(folder: Path) -> None:
    with Service(folder, RUNTIME="none") as (process, url):
        assert httpx.get(f"{url}/healthz").status_code == 200
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - began < 5


def outer_tool(began: asyncio.Event, seconds: float) -> OuterTool:
    async def send(_: OuterCall) -> Received:
        began.set()
        await asyncio.sleep(seconds)
        return Received.of("slow", "done")

    return OuterTool("slow", send)


async def outer_call(box: Toolbox, seconds: float) -> "asyncio.Task[Any]":
    began = asyncio.Event()
    call = asyncio.create_task(box.call_outer(outer_tool(began, seconds), OuterCall("w", {}, Caller())))
    await began.wait()
    return call


async def test_a_call_of_another_program_is_waited_for_and_then_stopped(box: Toolbox) -> None:
    short, long = await outer_call(box, 0.2), await outer_call(box, 60)
    assert await box.drain(1) == 1
    assert json.loads((await short).model_dump_json()) == {"bytes": 4, "is_error": False}
    with pytest.raises(Interrupted, match="stopped"):
        await long
    assert sorted(str(record.status) for record in box.records.latest("w")) == ["interrupted", "ok"]
    with pytest.raises(Draining):
        await outer_call_refused(box)


async def outer_call_refused(box: Toolbox) -> None:
    await box.call_outer(outer_tool(asyncio.Event(), 0), OuterCall("w", {}, Caller()))


async def test_a_caller_that_leaves_is_no_stopped_call(box: Toolbox) -> None:
    """The control: its own cancellation reaches the caller as one."""
    call = await outer_call(box, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [record.status for record in box.records.latest("w")] == ["interrupted"]
    assert await box.drain(0) == 0


@pytest.mark.parametrize("has_servers", [False, True], ids=["alone", "gateway"])
def test_a_subscription_that_is_open_is_ended_and_does_not_hold_the_service(folder: Path, has_servers: bool) -> None:
    """Of the stateless era, where it is a request without an end."""
    (folder / "servers.json").write_text(
        json.dumps({"mcpServers": {"r": raw_server(folder / "sent")} if has_servers else {}})
    )
    about = {f"io.modelcontextprotocol/{name}": value for name, value in (
        ("protocolVersion", MODERN), ("clientInfo", {"name": "t", "version": "1"}), ("clientCapabilities", {}),
    )}  # fmt: skip
    listen = {
        "jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen",
        "params": {"notifications": {"toolsListChanged": True}, "_meta": about},
    }  # fmt: skip
    headers = {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": "subscriptions/listen",
    }  # fmt: skip
    with Service(folder, RUNTIME="none", MCP_SERVERS=str(folder / "servers.json")) as (process, url):
        with httpx.stream("POST", f"{url}/mcp?workspace=w", json=listen, headers=headers, timeout=20) as stream:
            lines = stream.iter_lines()
            assert "acknowledged" in next(line for line in lines if line.startswith("data: "))
            process.send_signal(signal.SIGTERM)
            last = next(line for line in lines if line.startswith("data: "))
            assert json.loads(last.removeprefix("data: "))["id"] == 7
        assert process.wait(timeout=10) == 0
