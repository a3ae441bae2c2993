"""Bodies of requests, read within bounds, and of responses that are files."""

import mimetypes
import os
from typing import BinaryIO
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from sandbox.errors import TooLarge


async def read_body(request: Request, max_bytes: int, setting: str) -> bytes:
    """The whole body; raises `TooLarge`, naming the setting that bounds it."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise TooLarge(
                f"The request is over {max_bytes:,} bytes. Upload large files with PUT …/files/PATH; the operator can "
                f"raise {setting}."
            )
    return bytes(body)


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
        with self._file:
            await super().__call__(scope, receive, send)
