"""The server over streamable HTTP, at one path, in both eras of the protocol."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access import note_route
from api.bodies import Bodies
from api.errors import refusal_of
from api.mcp import wire
from api.mcp.server import McpServer
from sandbox.errors import BadRequest, Busy

PATH = "/mcp"


def is_endpoint(path: str) -> bool:
    """Whether a request's path is the endpoint's."""
    return path.rstrip("/") == PATH


class Endpoint:
    """An ASGI application; run it in `running`. Who may call is decided before it."""

    def __init__(self, server: McpServer, bodies: Bodies, *, max_request_bytes: int) -> None:
        self._bodies = bodies
        self._max_request_bytes = max_request_bytes
        # Marks make a body longer; the bound that counts is our own.
        self._sessions = StreamableHTTPSessionManager(server, max_request_body_size=8 * max_request_bytes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While it takes requests."""
        async with self._sessions.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._sessions.handle_request(scope, receive, _filling(send))
            return
        try:
            body = await self._bodies.read(
                Request(scope, receive), self._max_request_bytes, "SPILLBOX_MAX_REQUEST_BYTES"
            )
        except (BadRequest, Busy) as fault:
            await refusal_of(fault, over_mcp=True)(scope, receive, send)
            return
        with body:
            receive = _replaying(wire.with_marked_arguments(body.content), receive)
            await self._sessions.handle_request(scope, receive, _filling(send))


class Mounted:
    """ASGI middleware: one path is the endpoint's, the rest the application's."""

    def __init__(self, app: ASGIApp, endpoint: Endpoint) -> None:
        self._app, self._endpoint = app, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and is_endpoint(scope["path"])
        if is_ours:
            note_route(scope, PATH)
        await (self._endpoint if is_ours else self._app)(scope, receive, send)


def _replaying(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _filling(send: Send) -> Send:
    """Puts JSON in the place of stand-ins. The SDK sends an event, or a whole answer, at a time; the start waits for its length."""
    waiting: Message | None = None

    async def filled(message: Message) -> None:
        nonlocal waiting
        if message["type"] == "http.response.start":
            waiting = message
            return
        body = wire.fill(message.get("body", b""))
        if waiting is not None:
            if not message.get("more_body", False):
                headers = [pair for pair in waiting["headers"] if pair[0].lower() != b"content-length"]
                waiting = {**waiting, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
            await send(waiting)
            waiting = None
        await send({**message, "body": body})

    return filled
