"""The HTTP server, which lets calls finish before it stops."""

import asyncio
import errno
import logging
import math
import socket
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from api.settings import Settings
from sandbox.errors import SetupFailed
from sandbox.tools.toolbox import Toolbox

_log = logging.getLogger(__name__)

_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_LAST_ANSWERS_SECONDS = 2
"""For the answers of calls that were stopped at the very end."""


def require_free(host: str, port: int) -> None:
    """Raises `SetupFailed` where a service could not listen, before any work is done for it."""
    why = ""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as fault:  # the latter of what can be no name of a host
        why, found = str(fault), []
    for family, _, _, _, address in found:
        try:
            socket.create_server(address[:2], family=family).close()
        except OSError as fault:
            # Of anything else the server finds out, which may have other addresses of the host.
            if fault.errno in _TAKEN:
                why = str(fault.strerror)
    if why:
        raise SetupFailed(
            f"The service can't listen on port {port} of {host}: {why}. Stop what uses it, or name another port with --port or "
            "SPILLBOX_PORT, another address with --host or SPILLBOX_HOST."
        )


class Server(uvicorn.Server):
    """Told to stop (SIGTERM, SIGINT) it goes on to listen, refuses new calls and waits for those under way; told twice it ends.

    uvicorn's own stopping begins only then: it closes the door first, and streams of the protocol's SDK end at its sight.
    """

    def __init__(self, app: FastAPI, settings: Settings, box: Toolbox) -> None:
        super().__init__(
            uvicorn.Config(
                app, host=settings.host, port=settings.port, server_header=False, access_log=False, proxy_headers=False,
                log_config=None,
            )
        )  # fmt: skip
        self._box = box
        self._drain_seconds = settings.drain_seconds
        self._is_told_to_stop = False
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """In a signal's handler. The signal is not raised again at the end, as uvicorn would: it was served."""
        if self._is_told_to_stop:
            self.should_exit = self.force_exit = True
        self._is_told_to_stop = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self._is_told_to_stop and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        _log.info("told to stop: calls under way have %g s to finish, new ones are refused", self._drain_seconds)
        until = time.monotonic() + self._drain_seconds
        try:
            late = await self._box.drain(self._drain_seconds)
            if late:
                _log.warning("%d calls were not done after %g s and were stopped", late, self._drain_seconds)
        finally:
            # Uploads and downloads have what is left of the time.
            left = math.ceil(until - time.monotonic())
            self.config.timeout_graceful_shutdown = max(left, _LAST_ANSWERS_SECONDS)
            self.should_exit = True
