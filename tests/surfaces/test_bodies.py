"""Bodies of requests in memory: bounded for a tenant and for all, waited for in turn, let go of when a call is over."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from api.settings import Settings
from sandbox.database import Database
from sandbox.guest_root import GuestRoot
from sandbox.keys import Keys
from tests.surfaces.conftest import serving

PROJECT = Path(__file__).parents[2]
MIB = 1 << 20
BODY = json.dumps({"tool": "t", "content": "x" * (17 * MIB)}).encode()
MANY = 24
W = "/v1/workspaces/w"


@contextmanager
def _process(folder: Path, **settings: int) -> Iterator[tuple[str, int]]:
    """A service in a process of its own; gives its URL and the process's id."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    given = {f"SPILLBOX_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "api", "serve", "--port", str(port), "--data-dir", str(folder)]
    environment = {**os.environ, "SPILLBOX_RUNTIME": "none", **given}
    with subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            while True:
                assert process.poll() is None
                try:
                    httpx.get(f"{url}/healthz")
                    break
                except httpx.ConnectError:
                    time.sleep(0.05)
            yield url, process.pid
        finally:
            process.terminate()


def _peak_mib(pid: int) -> int:
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


def _peak_of_many(folder: Path, *, patience_seconds: float, **settings: int) -> tuple[int, int]:
    """How many of many large uploads were taken at once, all but their last byte, and MiB more at the peak than without them."""
    with _process(folder, **settings) as (url, pid), ExitStack() as stack:
        before = _peak_mib(pid)

        def send(_: int) -> bool:
            client = stack.enter_context(_half_sent(url, {}, size=len(BODY)))
            client.settimeout(patience_seconds)
            try:
                client.sendall(BODY[:-1])
            except TimeoutError:
                return False
            return True

        with ThreadPoolExecutor(MANY) as pool:
            taken = sum(pool.map(send, range(MANY)))
        time.sleep(0.5)
        peak = _peak_mib(pid) - before
        stack.close()
        small = json.dumps({"tool": "t", "content": "x"})
        assert httpx.post(f"{url}{W}/spills", content=small, timeout=30).status_code == 200, (
            "whoever left holds nothing"
        )
        return taken, peak


def test_memory_stays_bounded_when_many_send_large_bodies(tmp_path: Path) -> None:
    room = {
        "max_spill_bytes": 18 * MIB,
        "max_request_bytes": MIB,
        "tenant_body_bytes": 36 * MIB,
        "body_bytes": 72 * MIB,
    }
    taken, peak = _peak_of_many(tmp_path / "bounded", patience_seconds=5, **room)
    assert taken == 2
    assert peak < 100, peak
    without = {**room, "tenant_body_bytes": 4096 * MIB, "body_bytes": 8192 * MIB}
    taken, peak = _peak_of_many(tmp_path / "control", patience_seconds=60, **without)
    assert taken == MANY
    assert peak > 17 * MANY, f"{peak}: without the bound the bodies are all in memory at once"


@contextmanager
def _half_sent(
    url: str, headers: dict[str, str], path: str = f"{W}/spills", size: int = 4000
) -> Iterator[socket.socket]:
    """A request whose body has not come, and whose room is held."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {size}\r\n\r\n".encode())
        time.sleep(0.3)
        yield client


ONE_AT_A_TIME: dict[str, Any] = {
    "max_request_bytes": 4096, "max_spill_bytes": 4096, "tenant_body_bytes": 4096, "body_bytes": 8192,
}  # fmt: skip
SPILL = json.dumps({"tool": "t", "content": "y" * 3000})


def test_what_has_no_room_waits_and_over_the_room_to_wait_it_is_refused(root: GuestRoot, tmp_path: Path) -> None:
    database = Database.in_folder(tmp_path)
    a, b = ({"Authorization": f"Bearer {Keys(database).create(tenant)[1]}"} for tenant in "ab")
    database.close()
    with (
        serving(root, tmp_path, queue_length=1, **ONE_AT_A_TIME) as url,
        ThreadPoolExecutor() as pool,
        _half_sent(url, a) as first,
    ):
        waiting = pool.submit(httpx.post, f"{url}{W}/spills", content=SPILL, headers=a, timeout=60)
        time.sleep(0.3)
        over = httpx.post(f"{url}{W}/spills", content=SPILL, headers=a)
        protocol = httpx.post(f"{url}/mcp?workspace=w", content=SPILL, headers=a)
        assert (over.status_code, over.json()["code"]) == (429, "busy")
        assert int(over.headers["retry-after"]) >= 1
        assert (protocol.status_code, protocol.json()["error"]["data"]["code"]) == (429, "busy")
        assert not waiting.done()
        assert httpx.post(f"{url}{W}/spills", content=SPILL, headers=b).status_code == 200, "another tenant's"
        first.sendall(SPILL.encode().ljust(4000))
        assert b" 200 " in first.recv(100)
        assert waiting.result().status_code == 200


def test_a_client_that_leaves_while_it_sends_holds_nothing(root: GuestRoot, tmp_path: Path) -> None:
    with serving(root, tmp_path, queue_length=1, **ONE_AT_A_TIME) as url:
        for path in (f"{W}/spills", f"{W}/tools/list_files", "/mcp?workspace=w"):
            with _half_sent(url, {}, path):
                pass
            assert httpx.post(f"{url}{W}/spills", content=SPILL, timeout=10).status_code == 200


def test_a_client_that_stops_sending_is_told_and_holds_nothing(
    root: GuestRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.bodies._STALLED_SECONDS", 0.5)
    with serving(root, tmp_path, queue_length=1, **ONE_AT_A_TIME) as url, _half_sent(url, {}) as stalled:
        assert httpx.post(f"{url}{W}/spills", content=SPILL, timeout=10).status_code == 200
        assert b" 400 " in stalled.recv(100)


def test_whatever_becomes_of_a_call_its_room_is_free_again(root: GuestRoot, tmp_path: Path) -> None:
    """With room for one body, and none to wait, whatever is left over refuses the next."""
    stream = {"Accept": "text/event-stream"}
    write = f"{W}/tools/write_file"
    good = {"path": "a.txt", "content": "z" * 3000}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "write_file", "arguments": good}}
    with (
        serving(root, tmp_path, queue_length=0, **ONE_AT_A_TIME) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        for _ in range(2):
            assert http.post(write, json=good).status_code == 200
            assert "event: result" in http.post(write, json=good, headers=stream).text
            assert http.post(write, json={**good, "path": "/x"}, headers=stream).status_code == 200
            assert http.post(write, json={"nothing": "z" * 3000}, headers=stream).status_code == 422
            assert http.post(write, content=b"{" * 3000).status_code == 422
            assert http.post(write, content=b"z" * 5000).status_code == 413
            assert http.post(write, content=iter([b"z" * 3000] * 2)).status_code == 413
            assert http.post(write, content=iter([json.dumps(good).encode()])).status_code == 200
            assert http.post(f"{W}/spills", content=SPILL).status_code == 200
            assert http.post("/mcp?workspace=w", json=call).status_code < 500
            assert http.post("/mcp?workspace=w", content=b"z" * 5000).json()["error"]["data"]["code"] == "too_large"


def test_a_run_that_goes_on_without_its_client_holds_its_body(root: GuestRoot, tmp_path: Path) -> None:
    code = {"code": f"import time; time.sleep(2)  # {'z' * 3000}"}
    with (
        serving(root, tmp_path, queue_length=0, **ONE_AT_A_TIME) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        run, stream = f"{W}/tools/run_python", {"Accept": "text/event-stream"}
        with http.stream("POST", run, json=code, headers=stream) as answer:
            assert answer.status_code == 200
        assert httpx.post(f"{url}{W}/spills", content=SPILL).status_code == 429
        while (status := httpx.post(f"{url}{W}/spills", content=SPILL).status_code) == 429:
            time.sleep(0.1)
        assert status == 200
        assert http.get(f"{W}/records").json()[0]["status"] == "succeeded"


def test_a_call_over_the_protocol_that_goes_on_without_its_client_holds_its_body(
    root: GuestRoot, tmp_path: Path
) -> None:
    headers = {"accept": "application/json, text/event-stream"}
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}  # fmt: skip
    arguments = {"code": f"import time; time.sleep(3)  # {'z' * 3000}"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run_python", "arguments": arguments}}
    with serving(root, tmp_path, queue_length=0, **ONE_AT_A_TIME) as url:
        begun = httpx.post(f"{url}/mcp?workspace=w", headers=headers, json=begin)
        headers |= {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/mcp?workspace=w", headers=headers, json=call, timeout=1)
        time.sleep(0.3)
        assert httpx.get(f"{url}{W}/records").json()[0]["state"] == "accepted"
        assert httpx.post(f"{url}{W}/spills", content=SPILL).status_code == 429
        while (status := httpx.post(f"{url}{W}/spills", content=SPILL).status_code) == 429:
            time.sleep(0.1)
        assert status == 200
        assert httpx.get(f"{url}{W}/records").json()[0]["state"] == "done"


@pytest.mark.parametrize(
    "wrong",
    [
        {"body_bytes": 1 << 20},
        {"tenant_body_bytes": 1 << 20},
        {"tenant_body_bytes": 2 << 30},
        {"max_spill_bytes": 1 << 30},
    ],
)
def test_settings_by_which_no_body_could_ever_be_read_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="one body has to fit"):
        Settings(**wrong)  # type: ignore[arg-type]
