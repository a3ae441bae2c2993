"""The same calls over every surface: HTTP, MCP in both of its eras, and the library."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import mcp
import pytest
import uvicorn
from pydantic import BaseModel

from api.app import create_app, links_of
from api.mcp.answers import PROBLEM
from api.results import spill_request
from api.settings import Settings
from sandbox.errors import SpillboxError
from sandbox.guest_root import GuestRoot
from sandbox.runtimes.container import Engine
from tests.conftest import IMAGE, SURFACES_OVER, make_toolbox, need_image

_KIND, _, _OCI_RUNTIME = SURFACES_OVER.partition("+")
OVER = {"RUNTIME": _KIND, "DOCKER_IMAGE": IMAGE} | ({"DOCKER_RUNTIME": _OCI_RUNTIME} if _OCI_RUNTIME else {})
"""Settings of a `Service` that runs scripts in SURFACES_OVER."""

CallTool = Callable[[str, str, dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]
"""Tool, workspace, arguments; the answer, or ``{"code": …, "detail": …}``."""


@contextmanager
def serving(root: GuestRoot, folder: Path, **settings: Any) -> Iterator[str]:
    """A real service on a free port of loopback; gives its base URL."""
    chosen = Settings(data_dir=folder, **settings)
    given: dict[str, Any] = {
        "limits": chosen.limits, "slots": chosen.slots, "queue_length": chosen.queue_length, "spills": chosen.spill,
        "approval_seconds": chosen.approval_seconds, "tenant_approvals": chosen.tenant_approvals, "sign": links_of(chosen).sign,
    }  # fmt: skip
    with serving_app(lambda: create_app(chosen, make_toolbox(root, folder, **given), [])) as url:
        yield url


@contextmanager
def serving_app(make: Callable[[], Any]) -> Iterator[str]:
    """A real server on a free port of loopback, for an application that is made in its own event loop; gives its base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server: uvicorn.Server | None = None

    async def serve() -> None:
        nonlocal server
        server = uvicorn.Server(uvicorn.Config(make(), log_level="warning"))
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        while server is None or not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        if server is not None:
            server.should_exit = True
        thread.join()
        listener.close()


class Service:
    """`spillbox serve` as a process of its own, over a folder that has a guest root; further settings by their variables."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.log = folder / "log.txt"
        self._folder = folder
        self._variables = {f"SPILLBOX_{name}": value for name, value in variables.items()}

    def __enter__(self) -> tuple[subprocess.Popen[str], str]:
        with self.log.open("a+") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "api", "serve", "--port", "0", "--data-dir", str(self._folder)],
                stderr=log, text=True, env={**os.environ, **self._variables},
            )  # fmt: skip
            start = log.seek(0, 2)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            text = self.log.read_text()[start:]
            if "Uvicorn running on " in text:
                return self._process, text.partition("Uvicorn running on ")[2].split()[0]
            time.sleep(0.05)
        self.__exit__()
        raise AssertionError(self.log.read_text())

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=60)


@pytest.fixture
def folder(root: GuestRoot, tmp_path: Path) -> Path:
    """A data folder with a guest root; the image of containers is there too if they are asked for."""
    if _KIND == "docker":
        need_image(Engine(), root)
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    return tmp_path


@pytest.fixture
def base_url(root: GuestRoot, tmp_path: Path) -> Iterator[str]:
    with serving(root, tmp_path) as url:
        yield url


@pytest.fixture
def http(base_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url, timeout=60) as client:
        yield client


@dataclass
class Surface:
    """One way to call the service."""

    call: CallTool
    spill: Callable[[str, str], Coroutine[Any, Any, dict[str, Any]]]
    """Workspace, and the JSON text of a request to spill; the answer."""
    accepted: Callable[[str], Coroutine[Any, Any, int]]
    """How many calls in a workspace the service knows of."""
    leaving_stops: bool = False
    """Whether a caller that leaves stops its run."""


@pytest.fixture(params=["http", "library", "mcp-2025-11-25", "mcp-2026-07-28"])
async def surface(request: pytest.FixtureRequest, root: GuestRoot, tmp_path: Path) -> AsyncIterator[Surface]:
    """Every surface in turn."""
    if request.param.startswith("mcp-"):
        mode = "legacy" if request.param == "mcp-2025-11-25" else "2026-07-28"
        with serving(root, tmp_path) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60) as plain:

                async def spill(w: str, content: str) -> dict[str, Any]:
                    body: dict[str, Any] = (await plain.post(f"/v1/workspaces/{w}/spills", content=content)).json()
                    return body

                yield Surface(
                    call=partial(_over_mcp, url, mode),
                    spill=spill,
                    accepted=partial(_accepted, plain),
                    leaving_stops=True,
                )
    elif request.param == "http":
        with serving(root, tmp_path) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:

                async def post(path: str, content: str) -> dict[str, Any]:
                    answer = await client.post(path, content=content)
                    body: dict[str, Any] = answer.json()
                    return body

                yield Surface(
                    call=lambda tool, w, arguments: post(f"/v1/workspaces/{w}/tools/{tool}", json.dumps(arguments)),
                    spill=lambda w, content: post(f"/v1/workspaces/{w}/spills", content),
                    accepted=partial(_accepted, client),
                )
    else:
        async with make_toolbox(root, tmp_path) as box:

            async def in_process(work: Callable[[], Awaitable[BaseModel]]) -> dict[str, Any]:
                try:
                    return (await work()).model_dump(mode="json")
                except SpillboxError as fault:
                    return {"code": fault.code, "detail": str(fault)}

            async def accepted(w: str) -> int:
                return len(box.records.latest(w, limit=1000))

            yield Surface(
                accepted=accepted,
                call=lambda tool, w, arguments: in_process(lambda: box.call(tool, w, arguments)),
                spill=lambda w, content: in_process(lambda: box.spill(w, *spill_request(content.encode()))),
            )


async def _accepted(client: httpx.AsyncClient, w: str) -> int:
    return len((await client.get(f"/v1/workspaces/{w}/records")).json())


async def _over_mcp(url: str, mode: str, tool: str, w: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A tool's structured answer, as a client of the protocol gets it."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        pytest.skip("the SDK's client sends no half of a surrogate pair")
    async with mcp.Client(f"{url}/mcp?workspace={quote(w)}", mode=mode) as client:
        try:
            result = await client.call_tool(tool, json.loads(json.dumps(arguments)))
        except mcp.MCPError as fault:
            return {"code": "not_found" if "Unknown tool" in str(fault) else "protocol_error", "detail": str(fault)}
    assert result.content[0].type == "text"
    if result.is_error and result.structured_content is None:
        assert result.meta is not None
        problem: dict[str, Any] = result.meta[PROBLEM]
        assert result.content[0].text == f"{problem['code']}: {problem['detail']}"
        return problem
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@pytest.fixture
def call_tool(surface: Surface) -> CallTool:
    """Call a tool over one surface."""
    return surface.call
