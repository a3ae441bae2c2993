"""Bodies of requests, read within bounds, and of responses that are files."""

import asyncio
import mimetypes
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO, Self
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import FileResponse
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from api.callers import Bearer
from api.errors import Problem, response_of
from api.settings import Settings
from sandbox.errors import BadRequest, TooLarge
from sandbox.tools.queue import FairShares

_STATE = "body"
_STALLED_SECONDS = 60
"""A client that stops sending holds the room of others."""


class Bodies:
    """Room in memory for bodies of requests: fair between tenants, and bounded for each and for all together."""

    def __init__(self, settings: Settings) -> None:
        self._room = FairShares(settings.body_bytes, settings.most_body_bytes_of_a_tenant, settings.queue_length)

    async def read(self, request: Request, max_bytes: int, setting: str) -> "Body":
        """The whole body, to be used in a ``with`` at once. It is read when there is room for it; until then the client waits.

        Raises `TooLarge`, naming the setting that bounds it, `Busy` where too many wait, `BadRequest` for one that stops coming.
        """
        tenant = Bearer.of(request).tenant
        told = request.headers.get("content-length", "")
        held = int(told) if told.isascii() and told.isdecimal() else max_bytes
        if held > max_bytes:
            raise _too_large(max_bytes, setting)
        await self._room.take(tenant, held)
        try:
            content = await _whole(request, max_bytes, setting)
        except BaseException:
            self._room.give_back(tenant, held)
            raise
        self._room.give_back(tenant, held - len(content))
        body = Body(content, lambda: self._room.give_back(tenant, len(content)))
        request.scope.setdefault("state", {})[_STATE] = body
        return body


class Body:
    """What was read. Its room is held until every ``with`` of it has ended."""

    def __init__(self, content: bytes, let_go: Callable[[], None]) -> None:
        self.content = content
        self._let_go = let_go
        self._uses = 0

    def __enter__(self) -> Self:
        self._uses += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._uses -= 1
        if not self._uses:
            let_go, self._let_go = self._let_go, _nothing
            let_go()

    @staticmethod
    def of(request: HTTPConnection | None) -> AbstractContextManager[object]:
        """Of a request that was read: for work that may go on when its client has left."""
        found = None if request is None else request.scope.get("state", {}).get(_STATE)
        return found if isinstance(found, Body) else nullcontext()


def _nothing() -> None:
    """Of a body whose room was let go of."""


async def _whole(request: Request, max_bytes: int, setting: str) -> bytes:
    body = bytearray()
    chunks = aiter(request.stream())
    try:
        while True:
            async with asyncio.timeout(_STALLED_SECONDS):
                chunk = await anext(chunks, None)
            if chunk is None:
                return bytes(body)
            body += chunk
            if len(body) > max_bytes:
                raise _too_large(max_bytes, setting)
    except TimeoutError:
        raise BadRequest(f"Nothing more of the body came for {_STALLED_SECONDS} s.") from None


def _too_large(max_bytes: int, setting: str) -> TooLarge:
    return TooLarge(
        f"The request is over {max_bytes:,} bytes. Upload large files with PUT …/files/PATH; the operator can raise {setting}."
    )


_REFUSED_RANGES = {
    400: Problem(
        title="Bad Request", status=400, code="bad_request",
        detail="The header Range is not understood: write it as `bytes=0-999`, or leave it out.",
    ),
    416: Problem(
        title="Range Not Satisfiable", status=416, code="unsatisfiable_range",
        detail="The header Range begins behind the end of the file, whose size is in Content-Range.",
    ),
}  # fmt: skip
"""In the place of Starlette's own answers, which are plain texts."""
FILE_RESPONSES: dict[int | str, dict[str, Any]] = {status: {"content": {"*/*": {}}} for status in (200, 206)}
"""What the OpenAPI document says of a file's bytes."""


class OpenFileResponse(FileResponse):
    """Serves a file that is already open, with ranges, and closes it.

    Starlette opens by path; the path is this process's own descriptor, so what is served is what was checked.
    """

    def __init__(self, file: BinaryIO, *, name: bytes, media_type: str | None = None) -> None:
        self._file = file
        super().__init__(
            f"/proc/self/fd/{file.fileno()}",
            stat_result=os.fstat(file.fileno()),
            media_type=media_type or mimetypes.guess_type(os.fsdecode(name))[0] or "application/octet-stream",
            headers={
                # RFC 6266 with the encoding of RFC 5987, of the name's own bytes.
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
                "X-Content-Type-Options": "nosniff",
                "Content-Security-Policy": "sandbox; default-src 'none'",
            },
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Problem | None = None
        headers: dict[str, str] = {}

        async def sending(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] in _REFUSED_RANGES:
                refused = _REFUSED_RANGES[message["status"]]
                size = Headers(raw=message["headers"]).get("content-range")
                headers.update({} if size is None else {"Content-Range": size})
            if refused is None:
                await send(message)

        with self._file:
            await super().__call__(scope, receive, sending)
        if refused is not None:
            await response_of(refused, headers)(scope, receive, send)
