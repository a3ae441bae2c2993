"""A service in front of other servers, and ways to call it that show every byte."""

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.guest_root import GuestRoot
from sandbox.tables.slices import by_key
from tests.api.mcp.everything import Everything
from tests.conftest import unavailable
from tests.surfaces.conftest import serving, serving_app

PROJECT = Path(__file__).parents[3]
MODERN = "2026-07-28"
ERAS = ("legacy", MODERN)
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
Servers = dict[str, dict[str, Any]]
InFront = Callable[..., AbstractContextManager[str]]


def everything_over_stdio(**more: Any) -> dict[str, Any]:
    """Settings of the test server as a process."""
    return {"command": sys.executable, "args": ["-m", "tests.api.mcp.everything"], "cwd": str(PROJECT), **more}


def raw_server(state: Path, **more: Any) -> dict[str, Any]:
    """Settings of the server that is written by hand; what it gets is appended to ``state``."""
    return {
        "command": sys.executable,
        "args": ["-m", "tests.api.mcp.raw_server", str(state)],
        "cwd": str(PROJECT),
        **more,
    }


@pytest.fixture(scope="session")
def node() -> Path:
    """The folder of commands of the programs for Node, with a node of their own."""
    folder = PROJECT / "tests/node/node_modules/.bin"
    if not (folder / "node").exists():
        unavailable("node", "`sh scripts/others.sh` installs it where npm is")
    return folder


@pytest.fixture
def base_url(root: GuestRoot, tmp_path: Path) -> Iterator[str]:
    """A service without other servers."""
    with serving(root, tmp_path / "data") as url:
        yield url


@pytest.fixture(scope="module")
def everything_url() -> Iterator[str]:
    """The test server over HTTP."""
    everything = Everything()
    everything.server.create_initialization_options = lambda *_, **__: everything.options  # type: ignore[method-assign]
    with serving_app(everything.server.streamable_http_app) as url:
        yield f"{url}/mcp"


@pytest.fixture(scope="module")
def modern_url() -> Iterator[str]:
    """The test server over HTTP, without the handshake era."""

    def make() -> ASGIApp:
        app = Everything().server.streamable_http_app()

        async def without_handshake(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and (b"mcp-protocol-version", MODERN.encode()) not in scope["headers"]:
                await Response(status_code=400)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return without_handshake

    with serving_app(make) as url:
        yield f"{url}/mcp"


@pytest.fixture
def in_front_of(root: GuestRoot, tmp_path: Path) -> InFront:
    """A service with a gateway to these servers; gives its base URL."""

    @contextmanager
    def start(servers: Servers, **settings: Any) -> Iterator[str]:
        file = tmp_path / "servers.json"
        file.write_text(json.dumps({"mcpServers": servers}))
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/guest-root").symlink_to(root.path.resolve())
        with serving(root, tmp_path / "data", mcp_servers=file, **settings) as url:
            yield url

    return start


@asynccontextmanager
async def client_of(base_url: str, era: str, workspace: str = "w", **more: Any) -> AsyncIterator[mcp.Client]:
    """A client of the SDK's, in one of the eras."""
    async with mcp.Client(f"{base_url}/mcp?workspace={workspace}", mode=era, **more) as client:
        yield client


def text_of(result: Any) -> str:
    """The first text of a result."""
    text: str = next(block.text for block in result.content if block.type == "text")
    return text


def raw_call(
    url: str, tool: str, arguments: str = "{}", *, capabilities: str = "{}", more: str = ""
) -> dict[str, bytes]:
    """The members of a result, or of an error, as they came over HTTP; the arguments go as they are written."""
    meta = f'{{"io.modelcontextprotocol/protocolVersion":"{MODERN}","{CAPABILITIES}":{capabilities}}}'
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},"_meta":{meta}{more}}}}}'
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    answer = httpx.post(url, content=body, headers=headers, timeout=60)
    lines = [line for line in answer.content.split(b"\n") if line.startswith((b"{", b"data: {"))]
    found = by_key(lines[-1].removeprefix(b"data: "))
    inner = found.get("result") or found["error"]
    return {key: bytes(value) for key, value in by_key(inner).items()}
