"""The server over the standard streams of this process."""

import os
import sys
from collections.abc import AsyncIterator
from typing import IO

import anyio
from mcp.server.stdio import stdio_server

from api.mcp import wire
from api.mcp.server import McpServer


async def serve(server: McpServer) -> None:
    """Serve until the client closes our input. What anyone else here prints goes to standard error."""
    incoming = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    outgoing = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: ASYNC230, PTH123  at the start
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    async with stdio_server(_Lines(incoming), _Filled(outgoing)) as (read, write):  # type: ignore[arg-type]
        await server.run(read, write, server.create_initialization_options())


class _Lines:
    """Messages as lines, as the SDK reads them from a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = anyio.wrap_file(file)

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._file:
            yield wire.with_marked_arguments(line).decode("utf-8", "replace")


class _Filled:
    """What the SDK writes, with the JSON in the place of each stand-in."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._waiting: list[bytes] = []

    async def write(self, text: str) -> None:
        self._waiting.append(wire.fill(text.encode()))

    async def flush(self) -> None:
        """In one visit to a thread, since each takes as long as a small call's other work."""
        data = b"".join(self._waiting)
        self._waiting.clear()

        def write() -> None:
            self._file.write(data)
            self._file.flush()

        await anyio.to_thread.run_sync(write)
