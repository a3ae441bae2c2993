"""One connection to another server, for one conversation, in the era that both speak."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Self

import anyio
from mcp.server.subscriptions import SubscriptionBus
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.subscriptions import event_from_wire
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    REQUEST_TIMEOUT,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from api.mcp.bounds import bounded
from api.mcp.channel import Channel
from api.mcp.settings import ServerSettings
from api.mcp.transports import Trouble, transport
from api.mcp.wire import OF_THE_SDK, WANTED, Awaited, arguments_stand_in
from sandbox.errors import OuterError, OuterFailed, OuterTimeout
from sandbox.runtimes.programs import Programs

_log = logging.getLogger(__name__)

_FIRST_ID = 1000  # below are those that the dispatcher gives
_MAX_NEWS = 1000
_NEWS_SECONDS = 5.0
_TAKING_SECONDS = 5.0
_PROTOCOL_META = "io.modelcontextprotocol/"


@dataclass(frozen=True)
class Client:
    """What a server is told of the client that the connection is for."""

    is_modern: bool
    info: Mapping[str, Any]
    capabilities: Mapping[str, Any]


class Lost(OuterFailed):
    """The connection ended while a request was under way."""


class Connection:
    """Use `open`; `close` when it is not needed any more. One that is not ``alive`` stays so."""

    def __init__(self, name: str, server: ServerSettings, client: Client, programs: Programs | None) -> None:
        """``programs`` puts walls around servers that have them in their settings."""
        self.name, self.server, self._client, self._programs = name, server, client, programs
        self.trouble = Trouble()
        self.greeting: dict[str, Any] = {}
        """What the server said of itself: its answer to ``initialize`` or ``server/discover``."""
        self.version = ""
        self.tools: dict[str, dict[str, Any]] = {}
        """Entries of the tools that were listed, by the server's own names."""
        self.buses: set[SubscriptionBus] = set()
        self.channels: dict[Any, Channel] = {}
        """Of clients that hear what the server tells on its own, by session."""
        self.used_at = time.monotonic()
        self._awaited: Awaited = {}
        self._asking: dict[str | int, Channel] = {}
        self._ids = itertools.count(_FIRST_ID)
        self._news: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue()
        self._dispatcher: JSONRPCDispatcher[Any] | None = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether requests can be sent."""
        return self._task is not None and not self._task.done() and not self._closing.is_set()

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks the stateless era of the protocol here."""
        return self.version in MODERN_PROTOCOL_VERSIONS

    @property
    def abilities(self) -> Mapping[str, Any]:
        """The server's capabilities."""
        found = self.greeting.get("capabilities")
        return found if isinstance(found, dict) else {}

    @property
    def is_asked(self) -> bool:
        """Whether a request is under way."""
        return bool(self._asking)

    async def open(self) -> Self:
        """Connect and greet; raises `OuterFailed`, saying why."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # It lives longer than the request that it is opened for, so it has nothing of that one's context.
        self._task = asyncio.create_task(self._run(ready), context=Context())
        try:
            async with asyncio.timeout(self.server.connect_seconds):
                await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    await self._task
                    self._fail("it ended at once")
                await ready
        except TimeoutError:
            await self.close()
            self._fail(f"no answer within {self.server.connect_seconds:g} s")
        except (MCPError, OSError, ExceptionGroup) as fault:
            await self.close()
            self._fail(str(fault.exceptions[0] if isinstance(fault, ExceptionGroup) else fault))
        except BaseException:
            await self.close()
            raise
        return self

    def _fail(self, why: str) -> None:
        told = f"; {self.trouble}" if str(self.trouble) else ""
        raise OuterFailed(f"The MCP server {self.name} can't be reached ({why}{told}). Nothing was sent.") from None

    async def close(self) -> None:
        """End it."""
        self._closing.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, ready: asyncio.Future[None]) -> None:
        async with transport(self.server, self._programs, self._awaited, self.trouble) as streams:
            dispatcher = self._dispatcher = JSONRPCDispatcher(*bounded(streams, self.trouble))
            async with anyio.create_task_group() as tasks:

                async def run(*, task_status: Any) -> None:
                    await dispatcher.run(self._on_request, self._on_notify, self._note, task_status=task_status)
                    self._closing.set()

                await tasks.start(run)
                tasks.start_soon(self._tell)
                greeting = asyncio.ensure_future(self._greet(dispatcher))
                closing = asyncio.ensure_future(self._closing.wait())
                try:
                    await asyncio.wait({greeting, closing}, return_when=asyncio.FIRST_COMPLETED)
                    if greeting.done():
                        if (fault := greeting.exception()) is not None and not ready.done():
                            ready.set_exception(fault)
                        elif not ready.done():
                            ready.set_result(None)
                        await closing
                finally:
                    greeting.cancel()
                    closing.cancel()
                    tasks.cancel_scope.cancel()

    # The greeting

    async def _greet(self, dispatcher: JSONRPCDispatcher[Any]) -> None:
        """In the client's own era if the server has it, else in the other."""
        ways = [self._initialize, self._discover]
        first, second = reversed(ways) if self._client.is_modern else ways
        try:
            await first(dispatcher)
        except MCPError as fault:
            if fault.code == CONNECTION_CLOSED:
                raise
            await second(dispatcher)

    async def _initialize(self, dispatcher: JSONRPCDispatcher[Any]) -> None:
        # A client of the stateless era has no way back for what a server of the other one would ask.
        capabilities = {} if self._client.is_modern else self._client.capabilities
        params = {
            "protocolVersion": LATEST_HANDSHAKE_VERSION,
            "capabilities": capabilities,
            "clientInfo": self._client.info,
        }
        greeting = await self._greeted(dispatcher, "initialize", params, {"cancel_on_abandon": False})
        version = greeting.get("protocolVersion")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise MCPError(
                code=METHOD_NOT_FOUND, message=f"it speaks the protocol of {version!r:.40}, which this service does not"
            )
        self.greeting, self.version = greeting, version
        await dispatcher.notify("notifications/initialized", None, {"headers": {MCP_PROTOCOL_VERSION_HEADER: version}})

    async def _discover(self, dispatcher: JSONRPCDispatcher[Any]) -> None:
        params = {"_meta": self._envelope(LATEST_MODERN_VERSION)}
        headers = {MCP_PROTOCOL_VERSION_HEADER: LATEST_MODERN_VERSION, MCP_METHOD_HEADER: "server/discover"}
        greeting = await self._greeted(
            dispatcher, "server/discover", params, {"cancel_on_abandon": False, "headers": headers, "timeout": 10}
        )
        supported = greeting.get("supportedVersions")
        if not isinstance(supported, list) or LATEST_MODERN_VERSION not in supported:
            raise MCPError(code=METHOD_NOT_FOUND, message="it speaks no version of the protocol that this service does")
        self.greeting, self.version = greeting, LATEST_MODERN_VERSION

    async def _greeted(
        self, dispatcher: JSONRPCDispatcher[Any], method: str, params: Mapping[str, Any], options: CallOptions
    ) -> dict[str, Any]:
        request_id = next(self._ids)
        self._awaited[request_id] = OF_THE_SDK
        try:
            return await dispatcher.send_raw_request(method, params, {**options, "request_id": request_id})
        finally:
            del self._awaited[request_id]

    def _envelope(self, version: str) -> dict[str, Any]:
        return {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: dict(self._client.info),
            CLIENT_CAPABILITIES_META_KEY: dict(self._client.capabilities),
        }

    # Requests

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        channel: Channel | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """The result of a request. Of ``tools/call`` it has the raw bytes under ``raw``, if they could be taken.

        Where no ``timeout_seconds`` are given, the server's settings say how long it may take. Raises `OuterError` with the
        server's own error, `OuterTimeout`, `Lost`, `OuterFailed`.
        """
        if self._dispatcher is None or not self.alive:
            raise Lost(f"The connection to the MCP server {self.name} is closed.")
        self.used_at = time.monotonic()
        request_id = next(self._ids)
        sent = {**params, "_meta": self._meta(params, request_id)}
        if not sent["_meta"]:
            del sent["_meta"]
        seconds = self.server.timeout_seconds if timeout_seconds is None else timeout_seconds
        options: CallOptions = {"request_id": request_id, "headers": self._headers(method, params)}
        if math.isfinite(seconds):
            options["timeout"] = seconds
        if channel is not None:
            self._asking[request_id] = channel
        self._awaited[request_id] = OF_THE_SDK
        if method == "tools/call":
            self._awaited[request_id] = WANTED
            sent["arguments"] = arguments_stand_in(params.get("arguments") or {})
        try:
            # The SDK's clock begins when the server has taken the request; one that takes nothing is lost.
            async with asyncio.timeout(seconds + _TAKING_SECONDS if math.isfinite(seconds) else None):
                result = await self._dispatcher.send_raw_request(method, sent, options)
        except TimeoutError:
            self._closing.set()
            raise self._too_late(method, seconds) from None
        except MCPError as fault:
            await self._news_told()
            raise self._fault_of(fault, method, seconds) from None
        else:
            await self._news_told()
            raw = self._awaited.get(request_id)
            return {"raw": raw} if raw else result
        finally:
            self._asking.pop(request_id, None)
            self._awaited.pop(request_id, None)
            self.used_at = time.monotonic()

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell the server something."""
        if self._dispatcher is not None and self.alive:
            await self._dispatcher.notify(method, params, {"headers": {MCP_PROTOCOL_VERSION_HEADER: self.version}})

    def _too_late(self, method: str, seconds: float) -> OuterTimeout:
        return OuterTimeout(
            f"The MCP server {self.name} did not answer {method} within {seconds:g} s (timeout_seconds) and was told to stop."
        )

    def _fault_of(self, fault: MCPError, method: str, seconds: float) -> OuterFailed:
        if fault.code == REQUEST_TIMEOUT:
            return self._too_late(method, seconds)
        if fault.code == CONNECTION_CLOSED or (fault.message == "Session terminated" and not self.is_modern):
            self._closing.set()
            why = f" ({self.trouble})" if str(self.trouble) else ""
            return Lost(f"The connection to the MCP server {self.name} was lost{why}.")
        return OuterError(fault.message, number=fault.code, data=fault.error.data)

    def _meta(self, params: Mapping[str, Any], request_id: int) -> dict[str, Any]:
        """The client's ``_meta`` in the server's era, with a token of ours in the place of the client's for progress."""
        given = params.get("_meta")
        meta = dict(given) if isinstance(given, dict) else {}
        if "progressToken" in meta:
            meta["progressToken"] = request_id
        if not self.is_modern:
            return {key: value for key, value in meta.items() if not key.startswith(_PROTOCOL_META)}
        return meta if PROTOCOL_VERSION_META_KEY in meta else {**meta, **self._envelope(self.version)}

    def _headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.version}
        if not self.is_modern:
            return headers
        headers[MCP_METHOD_HEADER] = method
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        schema = self.tools.get(str(name), {}).get("inputSchema")
        if method == "tools/call" and schema is not None and find_invalid_x_mcp_header(schema) is None:
            headers |= mcp_param_headers(x_mcp_header_map(schema), params.get("arguments") or {})
        return headers

    # What the server tells and asks on its own

    def _note(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Keep news in their order; a flood of them is cut, so that it fills no memory."""
        if self._news.qsize() < _MAX_NEWS:
            self._news.put_nowait((method, params or {}))
        return True

    async def _on_notify(self, *_: object) -> None:
        """Never called: `_note` takes all."""

    async def _news_told(self) -> None:
        """Wait until what came before an answer is told."""
        try:
            async with asyncio.timeout(_NEWS_SECONDS):
                await self._news.join()
        except TimeoutError:
            _log.warning("a client takes news of the MCP server %s too slowly", self.name)

    async def _tell(self) -> None:
        while True:
            method, params = await self._news.get()
            try:
                await self._told(method, params)
            except Exception:  # noqa: BLE001  one client that is gone must not keep news from the others
                _log.debug("news of %s could not be told", self.name, exc_info=True)
            finally:
                self._news.task_done()

    async def _told(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "notifications/progress":
            channel = self._asking.get(params.get("progressToken", ""))
            if channel is not None:
                await channel.progress(params)
        elif method == "notifications/message":
            for channel in list(self._asking.values())[-1:] or list(self.channels.values()):
                await channel.notify(method, params, aside=bool(self._asking))
        elif (event := event_from_wire(method, params)) is not None:
            for bus in list(self.buses):
                await bus.publish(event)
            for channel in list(self.channels.values()):
                await channel.notify(method, params, aside=False)
        elif method == "notifications/elicitation/complete":
            for channel in list(self.channels.values()):
                await channel.notify(method, params, aside=False)

    async def _on_request(
        self, _: DispatchContext[Any], method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        if method == "ping":
            return {}
        channels = list(self._asking.values())
        if not channels:
            raise MCPError(code=METHOD_NOT_FOUND, message="No client waits for this server now.")
        return await channels[-1].ask(method, dict(params or {}))
