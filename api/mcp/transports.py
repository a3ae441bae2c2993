"""Ways to another server whose messages are bounded, and whose results of tool calls go past the SDK (see `wire`)."""

import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter

from api.mcp import wire
from api.mcp.processes import running, stop
from api.mcp.settings import ServerSettings
from api.mcp.wire import Awaited
from sandbox.runtimes.programs import Programs

_log = logging.getLogger(__name__)

Streams = tuple[Any, Any]
"""Where messages come from, and where they go: what the SDK's dispatcher takes."""

_END_SECONDS, _TAKE_SECONDS = 0.5, 60
_TAIL_BYTES = 2000
_UNREADABLE = "the server's answer is no valid message of the protocol"


class Trouble:
    """What is known of why a connection does not work: for the errors that callers get."""

    def __init__(self) -> None:
        self.reason = ""
        self.tail: deque[bytes] = deque(maxlen=8)

    def __str__(self) -> str:
        said = b"".join(self.tail)[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        return "; ".join(part for part in (self.reason, f"it said: {said}" if said else "") if part)


def transport(
    server: ServerSettings, programs: Programs | None, awaited: Awaited, trouble: Trouble
) -> AbstractAsyncContextManager[Streams]:
    """The streams to a server; leaving the context ends its process or session."""
    if server.command is None:
        return _over_http(server, awaited, trouble)
    return _to_process(server, programs, awaited, trouble)


# A process


@asynccontextmanager
async def _to_process(
    server: ServerSettings, programs: Programs | None, awaited: Awaited, trouble: Trouble
) -> AsyncIterator[Streams]:
    async with running(server, programs) as process, anyio.create_task_group() as tasks:
        into, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, out_of = anyio.create_memory_object_stream[SessionMessage](0)
        tasks.start_soon(_read_messages, process, into, server, awaited, trouble)
        tasks.start_soon(_write_messages, process, out_of, into, trouble)
        tasks.start_soon(_keep_tail, process, trouble)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await stop(process)
                for stream in (into, incoming, outgoing, out_of):
                    await stream.aclose()
            tasks.cancel_scope.cancel()


async def _read_messages(
    process: Process, into: MemoryObjectSendStream[SessionMessage | Exception], server: ServerSettings, awaited: Awaited,
    trouble: Trouble,
) -> None:  # fmt: skip
    stdout = process.stdout
    if stdout is None:
        return
    line = bytearray()
    async with into:
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            while True:
                *ends, rest = (await stdout.receive()).split(b"\n")
                await anyio.lowlevel.checkpoint()  # however much there is to read, others go on
                for end in ends:
                    line += end
                    message = None if line.isspace() or not line else _message_of(bytes(line), awaited)
                    line.clear()
                    if message is not None:
                        await into.send(message)
                line += rest
                if len(line) > server.max_message_bytes:
                    trouble.reason = f"it sent a message of over {server.max_message_bytes:,} bytes (max_message_bytes)"
                    return
        with anyio.move_on_after(_END_SECONDS):
            if await process.wait():
                trouble.reason = f"its process ended with status {process.returncode}"


def _message_of(line: bytes, awaited: Awaited) -> SessionMessage | None:
    """A line's message. An answer that can't be read becomes an error for the one who waits for it; other noise is dropped."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(wire.without_result(line, awaited), by_name=False))
    except ValueError:
        request_id = wire.request_id_of(line, awaited)
    # What is in it stays unsaid: it may be a result, or what a caller sent.
    _log.warning("a server sent a line of %d bytes that is no message of the protocol", len(line))
    if request_id is None:
        return None
    return _failed(request_id, _UNREADABLE)


def _failed(request_id: str | int, why: str) -> SessionMessage:
    """An error for the one who waits for the answer to a request."""
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=PARSE_ERROR, message=why)))


async def _write_messages(
    process: Process,
    out_of: MemoryObjectReceiveStream[SessionMessage],
    into: MemoryObjectSendStream[Any],
    trouble: Trouble,
) -> None:
    if process.stdin is None:
        return
    try:
        async with out_of:
            async for session_message in out_of:
                message = session_message.message
                try:
                    text = message.model_dump_json(by_alias=True, exclude_unset=True)
                except ValueError as fault:  # half of a surrogate pair, which has no UTF-8
                    if isinstance(message, JSONRPCRequest):
                        await into.send(_failed(message.id, f"it can't be sent: {fault}"))
                    continue
                with anyio.fail_after(_TAKE_SECONDS):
                    await process.stdin.send(wire.fill(text.encode()) + b"\n")
    except TimeoutError:
        trouble.reason = f"it took nothing of what it was sent for {_TAKE_SECONDS} s"
        await into.aclose()
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        await into.aclose()


async def _keep_tail(process: Process, trouble: Trouble) -> None:
    """What the server says on its standard error, for the operator's log at DEBUG and for errors."""
    if process.stderr is None:
        return
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        async for chunk in process.stderr:
            trouble.tail.append(chunk[-_TAIL_BYTES:])
            _log.debug("%r", chunk)


# HTTP


@asynccontextmanager
async def _over_http(server: ServerSettings, awaited: Awaited, trouble: Trouble) -> AsyncIterator[Streams]:
    # Bodies are read as they are: a compressed one could not be cut without being unpacked first.
    headers = server.headers | {"accept-encoding": "identity"}
    seconds = httpx2.Timeout(30, read=None)  # how long a call may take is said for each
    tapped = _Tapped(httpx2.AsyncHTTPTransport(), awaited, server.max_message_bytes)
    async with (
        httpx2.AsyncClient(transport=tapped, headers=headers, timeout=seconds) as client,
        streamable_http_client(server.url or "", http_client=client, max_sse_event_size=server.max_message_bytes) as (
            incoming,
            outgoing,
        ),
    ):
        yield incoming, outgoing


class _Tapped(httpx2.AsyncBaseTransport):
    """Fills stand-ins in what is sent, takes results out of what comes, and bounds it."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, awaited: Awaited, max_bytes: int) -> None:
        self._inner, self._awaited, self._max_bytes = inner, awaited, max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        filled = wire.fill(body)
        if filled is not body:
            headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
            request = httpx2.Request(
                request.method, request.url, headers=headers, content=filled, extensions=request.extensions
            )
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("it answered in an encoding that it was not asked for")
        kind = response.headers.get("content-type", "").lower()
        stream: Any = response.stream
        if kind.startswith("application/json"):
            stream = _Whole(stream, self._awaited, self._max_bytes)
        elif kind.startswith("text/event-stream"):
            stream = _Events(stream, self._awaited, self._max_bytes)
        else:
            stream = _Bounded(stream, self._max_bytes)
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body of at most so many bytes."""

    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner, self._max_bytes = inner, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > self._max_bytes:
                raise httpx2.StreamError(f"the body has over {self._max_bytes:,} bytes (max_message_bytes)")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Whole(_Bounded):
    """A body that is one message."""

    def __init__(self, inner: httpx2.AsyncByteStream, awaited: Awaited, max_bytes: int) -> None:
        super().__init__(inner, max_bytes)
        self._awaited = awaited

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for chunk in super().__aiter__():
            body += chunk
        yield wire.without_result(bytes(body), self._awaited)


class _Events(httpx2.AsyncByteStream):
    """A stream of server-sent events, each event's message by itself; a stream may go on for ever, an event may not.

    Lines end in CR, LF or both, and an event's data may be of several lines (HTML, "Server-sent events", 9.2.5 and 9.2.6).
    """

    def __init__(self, inner: httpx2.AsyncByteStream, awaited: Awaited, max_bytes: int) -> None:
        self._inner, self._awaited, self._max_bytes = inner, awaited, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        line, data, size = bytearray(), list[bytes](), 0
        ended_in_cr = False
        async for chunk in self._inner:
            await anyio.lowlevel.checkpoint()
            if ended_in_cr and chunk[:1] == b"\n":
                chunk = chunk[1:]
            ended_in_cr = chunk[-1:] == b"\r" if chunk else ended_in_cr
            *ends, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            for end in ends:
                line += end
                size += len(end)
                out = self._seen(bytes(line), data)
                line.clear()
                if out is not None:
                    size = sum(map(len, data))
                    yield out
            line += rest
            size += len(rest)
            if size > self._max_bytes:
                raise httpx2.StreamError(f"an event has over {self._max_bytes:,} bytes (max_message_bytes)")

    def _seen(self, line: bytes, data: list[bytes]) -> bytes | None:
        """What to hand on now: a line that is no data, or, where an event ends, all of its ``data``."""
        if line.startswith(b"data:") or line == b"data":
            data.append(line[5:].removeprefix(b" "))
            return None
        if line or not data:
            return line + b"\n"
        message = wire.without_result(b"\n".join(data), self._awaited)
        data.clear()
        return b"".join(b"data: " + part + b"\n" for part in message.split(b"\n")) + b"\n"

    async def aclose(self) -> None:
        await self._inner.aclose()
