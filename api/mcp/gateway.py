"""Other servers' tools, resources and prompts among our own: whose each is, on which connection, and what is handed on."""

import asyncio
import base64
import json
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from mcp.server.subscriptions import SubscriptionBus
from mcp_types import INVALID_PARAMS, SubscriptionFilter

from api.mcp.channel import NO_WORKSPACE, Channel
from api.mcp.connection import Client, Connection, Lost
from api.mcp.processes import program_of
from api.mcp.settings import ServerSettings, ToolRules, prefix_of
from sandbox.errors import Busy, Denied, InputNeeded, OuterError, OuterFailed, OuterTimeout
from sandbox.observers import Observers
from sandbox.runtimes.programs import Programs
from sandbox.spills.spill import Received
from sandbox.tenants import tenant_of
from sandbox.tools.outer import Caller, OuterCall, OuterTool

_log = logging.getLogger(__name__)

_MAX_CONNECTIONS, _MAX_OF_A_TENANT = 256, 128
_MAX_SESSIONS = 32
_MAX_ROUNDS = 10
_MAX_PAGES = 1000
_MAX_URIS = 10_000
_SILENT_SECONDS = 60.0
_REAP_SECONDS = 5.0
_LISTS = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
_ABILITY_OF = {"tools": "tools", "prompts": "prompts", "resources": "resources", "resourceTemplates": "resources"}

Page = tuple[list[dict[str, Any]], str | None]


class Asker(Protocol):
    """The client that a request came from, as the gateway needs it; see `api.mcp.peer.Peer`."""

    @property
    def client(self) -> Client:
        """What other servers are told of it."""

    @property
    def channel(self) -> Channel:
        """The way to it."""

    @property
    def session_id(self) -> str:
        """Which of the workspace's clients it is."""

    @property
    def workspace_or_none(self) -> str | None:
        """The conversation's workspace, if one was named."""


@dataclass
class Lists:
    """Lists of a server, as they were last read."""

    entries: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By kind, where a list is of one page."""
    uris: set[str] = field(default_factory=set)
    """Of resources that were listed."""

    def note(self, kind: str, page: list[dict[str, Any]], *, is_all: bool) -> None:
        """Keep a page."""
        if is_all:
            self.entries[kind] = page
        if kind == "resources":
            self.uris |= {str(entry.get("uri")) for entry in page[:_MAX_URIS]}
            if len(self.uris) > _MAX_URIS:
                self.uris.clear()  # then each server is asked in turn


@dataclass
class _Server:
    """A server, and what is known of it."""

    name: str
    settings: ServerSettings
    prefix: str
    abilities: Mapping[str, Any] = field(default_factory=dict)
    known: Lists = field(default_factory=Lists)
    """Read at the start, for nobody: what clients without a conversation see."""
    by_workspace: dict[str, Lists] = field(default_factory=dict)
    """What each conversation last saw, for when the server is down; the newest `_MAX_CONNECTIONS`."""
    silent_until: dict[str, float] = field(default_factory=dict)
    """By tenant: a server that did not answer in time is not waited for at each list."""

    def rules_of(self, tool: str) -> ToolRules:
        return self.settings.rules_of(tool)

    def fall_silent(self, tenant: str) -> None:
        self.silent_until[tenant] = time.monotonic() + _SILENT_SECONDS

    def is_silent(self, tenant: str) -> bool:
        return time.monotonic() < self.silent_until.get(tenant, 0)

    def lists_of(self, workspace_id: str | None) -> Lists:
        """What is known of it in a conversation; no other's is seen there."""
        return self.known if workspace_id is None else self.by_workspace.get(workspace_id, self.known)

    def note(self, workspace_id: str) -> Lists:
        """What is to be noted of it for a conversation."""
        lists = self.by_workspace.pop(workspace_id, None) or Lists(dict(self.known.entries))
        self.by_workspace[workspace_id] = lists
        while len(self.by_workspace) > _MAX_CONNECTIONS:
            del self.by_workspace[next(iter(self.by_workspace))]
        return lists


class Gateway:
    """Use it in an ``async with``. Connections belong to conversations: what one leaves at a server, no other meets."""

    def __init__(
        self, servers: Mapping[str, ServerSettings], programs: Programs | None, observers: Observers, *, version: str
    ) -> None:
        """``programs`` puts walls around those servers that are to have them; raises `SetupFailed` where it can't."""
        for program in filter(None, map(program_of, servers.values())):
            if programs is not None:
                programs.check(program)
        self._programs = programs
        self._observers = observers
        self._servers = [_Server(name, one, prefix_of(name, one)) for name, one in servers.items()]
        self._own = Client(is_modern=False, info={"name": "spillbox", "version": version}, capabilities={})
        self._open: dict[tuple[str, str, str], Connection] = {}
        self._locks: dict[tuple[str, str, str], asyncio.Lock] = {}
        self._reaping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Gateway":
        await asyncio.gather(*map(self._greet, self._servers))
        self._reaping = asyncio.create_task(self._reap())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
        await asyncio.gather(*(one.close() for one in self._open.values()), return_exceptions=True)
        if self._programs is not None:
            self._programs.close()

    async def _greet(self, server: _Server) -> None:
        """Learn what a server has before any client asks."""
        connection = Connection(server.name, server.settings, self._own, self._programs)
        try:
            async with asyncio.timeout(server.settings.connect_seconds):
                await connection.open()
                server.abilities = connection.abilities
                for kind in _LISTS:
                    if _ABILITY_OF[kind] in server.abilities:
                        await self._learn(server, connection, kind)
        except OuterFailed as fault:
            _log.error("%s It is tried again when a client asks for it.", fault)
        except TimeoutError:
            server.fall_silent("")
            _log.error(
                "The MCP server %s does not answer in time. It is tried again when a client asks for it.", server.name
            )
        finally:
            await connection.close()

    async def _learn(self, server: _Server, connection: Connection, kind: str) -> None:
        try:
            server.known.note(kind, await self._whole_list(connection, kind), is_all=True)
        except OuterError as fault:
            _log.warning("the MCP server %s does not list its %s: %s", server.name, kind, fault)

    async def _whole_list(self, connection: Connection, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            some, cursor = await _page_of(connection, kind, cursor)
            entries += some
            if cursor is None:
                break
        return entries

    # What there is

    @property
    def abilities(self) -> set[str]:
        """What any of the servers can beyond tools and resources. Of one that could not be reached all is expected."""
        found: set[str] = set()
        for server in self._servers:
            able = server.abilities or {
                "prompts": {},
                "completions": {},
                "logging": {},
                "resources": {"subscribe": True},
            }
            found |= {name for name in ("prompts", "completions", "logging") if name in able}
            if isinstance(able.get("resources"), dict) and able["resources"].get("subscribe"):
                found.add("subscribe")
        return found

    def names(self, workspace_id: str) -> list[str]:
        """Names of all tools that are known in a conversation and not forbidden."""
        return [
            server.prefix + str(entry.get("name"))
            for server in self._servers
            for entry in server.lists_of(workspace_id).entries.get("tools", [])
            if server.rules_of(str(entry.get("name"))).permission != "deny"
        ]

    def known_schema(self, name: str) -> Mapping[str, Any] | None:
        """The input schema of a tool, as it was last listed."""
        server = self._server_of(name)
        if server is None:
            return None
        inner = name.removeprefix(server.prefix)
        entry = next((one for one in server.known.entries.get("tools", []) if one.get("name") == inner), {})
        schema = entry.get("inputSchema")
        return schema if isinstance(schema, dict) else None

    async def page(self, kind: str, asker: Asker, cursor: str | None) -> Page:
        """The servers' lists, one after another; a page ends where a server's own does."""
        index, inner = _opened(cursor)
        found: list[dict[str, Any]] = []
        while index < len(self._servers):
            server = self._servers[index]
            entries, inner = await self._entries(server, kind, asker, inner)
            found += [shown for entry in entries if (shown := _shown(server, kind, entry)) is not None]
            if inner is not None:
                return found, _sealed(index, inner)
            index += 1
        return found, None

    async def _entries(self, server: _Server, kind: str, asker: Asker, cursor: str | None) -> Page:
        """A page of one server; what was known of it if it is down, never nothing in silence."""
        workspace_id = asker.workspace_or_none
        tenant = tenant_of(workspace_id or "")
        if workspace_id is None and not server.known.entries and not server.is_silent(""):
            await self._greet(server)
        if workspace_id is None or server.is_silent(tenant):
            return server.lists_of(workspace_id).entries.get(kind, []), None
        try:
            connection = await self._connection(server, workspace_id, asker.client, asker)
            if _ABILITY_OF[kind] not in connection.abilities:
                return [], None
            entries, following = await _page_of(connection, kind, cursor)
        except OuterFailed as fault:
            if isinstance(fault, OuterTimeout):
                server.fall_silent(tenant)
            known = server.lists_of(workspace_id).entries.get(kind)
            _log.warning(
                "%s Listed is what was known: %s", fault, "nothing" if known is None else f"{len(known)} {kind}"
            )
            return known or [], None
        is_all = cursor is None and following is None
        server.note(workspace_id).note(kind, entries, is_all=is_all)
        return entries, following

    # Tools

    async def find(self, name: str, workspace_id: str, caller: Caller) -> OuterTool | None:
        """The tool of this name, by its server's prefix."""
        server = self._server_of(name)
        if server is None:
            return None
        inner = name.removeprefix(server.prefix)
        rules = server.rules_of(inner)
        if rules.permission == "deny":
            raise Denied(f"The settings of this service forbid {name}. Nothing was sent.")
        asker: Asker | None = caller.channel
        entry = await self._entry(server, inner, workspace_id, asker)
        if entry is None:
            return None
        safe = _is_safe(entry)

        async def send(call: OuterCall) -> Received:
            params = {**call.caller.extra, "name": inner, "arguments": call.arguments}
            seconds = rules.timeout_seconds
            result = await self._sent(server, "tools/call", params, workspace_id, asker, safe=safe, seconds=seconds)
            raw = result.get("raw")
            return Received(
                name, result=msgspec.json.encode(result) if raw is None else raw, hint=rules.hint, is_error=False
            )

        schema = entry.get("inputSchema")
        return OuterTool(
            name=name, send=send, description=str(entry.get("description") or ""), permission=rules.permission,
            input_schema=schema if isinstance(schema, dict) else {"type": "object"}, spill=rules.spill,
            inline_bytes=rules.inline_bytes,
        )  # fmt: skip

    def _server_of(self, name: str) -> _Server | None:
        fitting = [server for server in self._servers if name.startswith(server.prefix)]
        return max(fitting, key=lambda server: len(server.prefix), default=None)

    async def _entry(self, server: _Server, tool: str, workspace_id: str, asker: Asker | None) -> dict[str, Any] | None:
        """The tool's entry in the server's list, which is read anew if it is not known."""
        listed = server.lists_of(workspace_id).entries.get("tools", [])
        known = {str(entry.get("name")): entry for entry in listed}
        if tool not in known:
            client = self._own if asker is None else asker.client
            connection = await self._connection(server, workspace_id, client, asker)
            if tool not in connection.tools:
                await self._whole_list(connection, "tools")
            known = connection.tools
        return known.get(tool)

    # Requests

    async def forward(self, method: str, params: Mapping[str, Any], asker: Asker) -> dict[str, Any]:
        """Hand on a request that is about a prompt or a resource to the server whose it is."""
        if method == "logging/setLevel":
            await self._all(asker, method, params)
            return {}
        reference = params.get("ref")
        about: Mapping[str, Any] = reference if isinstance(reference, dict) else params
        uri = about.get("uri")
        if uri is not None:
            return await self._of_resource(method, params, str(uri), asker)
        name = str(about.get("name"))
        server = self._server_of(name)
        if server is None:
            raise OuterError(f"Unknown prompt: {name[:80]}", number=INVALID_PARAMS)
        inner = {"name": name.removeprefix(server.prefix)}
        given = {**params, "ref": {**about, **inner}} if about is not params else {**params, **inner}
        return await self._sent(server, method, given, asker.workspace_or_none, asker)

    async def _of_resource(self, method: str, params: Mapping[str, Any], uri: str, asker: Asker) -> dict[str, Any]:
        """Ask the server that listed the resource, else each in turn until one has it."""
        listing = [server for server in self._servers if uri in server.lists_of(asker.workspace_or_none).uris]
        able = [server for server in self._servers if "resources" in server.abilities or not server.abilities]
        fault: OuterFailed = OuterError(f"Resource not found: {uri[:200]}", number=INVALID_PARAMS, data={"uri": uri})
        for server in listing or able:
            try:
                return await self._sent(server, method, params, asker.workspace_or_none, asker)
            except OuterFailed as failed:
                fault = failed
        raise fault

    async def tell_all(self, asker: Asker, method: str) -> None:
        """Hand on a notification of the client's to its connections."""
        for connection in self._of_workspace(asker):
            await connection.notify(method)

    async def _all(self, asker: Asker, method: str, params: Mapping[str, Any]) -> None:
        for server in self._servers if asker.workspace_or_none is not None else ():
            if "logging" in server.abilities:
                await self._sent(server, method, params, asker.workspace_or_none, asker)

    @asynccontextmanager
    async def listening(self, asker: Asker, wanted: SubscriptionFilter, bus: SubscriptionBus) -> AsyncIterator[None]:
        """Events of all servers on a bus, while a client of the stateless era listens."""
        async with AsyncExitStack() as stack:
            workspace_id = asker.workspace_or_none
            if workspace_id is None:
                yield
                return
            for server in self._servers:
                try:
                    connection = await self._connection(server, workspace_id, asker.client, asker)
                except OuterFailed as fault:
                    _log.warning("nothing is heard of the MCP server %s: %s", server.name, fault)
                    continue
                connection.buses.add(bus)
                stack.callback(connection.buses.discard, bus)
                asking = asyncio.create_task(_ask_for_events(connection, wanted))
                stack.callback(asking.cancel)
            yield

    async def _sent(
        self, server: _Server, method: str, params: Mapping[str, Any], workspace_id: str | None, asker: Asker | None, *,
        safe: bool = True, seconds: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """A server's answer; where the connection is lost meanwhile, a request that is safe to repeat is sent once more."""
        if workspace_id is None:
            raise OuterError(NO_WORKSPACE, number=INVALID_PARAMS)
        client = self._own if asker is None else asker.client
        with self._observers.watch("gateway", server.name):
            connection = await self._connection(server, workspace_id, client, asker)
            try:
                return await self._answer(connection, method, params, asker, seconds)
            except Lost as fault:
                if not safe:
                    raise OuterFailed(
                        f"{fault} The call may or may not have been done: look before you call again."
                    ) from None
            try:
                connection = await self._connection(server, workspace_id, client, asker)
                return await self._answer(connection, method, params, asker, seconds)
            except Lost as fault:
                raise OuterFailed(f"{fault} It was tried twice.") from None

    async def _answer(
        self, connection: Connection, method: str, params: Mapping[str, Any], asker: Asker | None, seconds: float | None
    ) -> dict[str, Any]:
        """The final answer. What a server of the stateless era wants to know first is asked of the client, in its own era."""
        channel = None if asker is None else asker.channel
        for _ in range(_MAX_ROUNDS):
            result = await connection.request(method, params, channel, timeout_seconds=seconds)
            if result.get("resultType") != "input_required":
                return result
            if asker is None:
                raise OuterFailed(
                    f"The MCP server {connection.name} wants to ask its user something, and there is no way to."
                )
            if asker.client.is_modern:
                raise InputNeeded(f"The MCP server {connection.name} wants to know more.", request=result)
            wanted = result.get("inputRequests")
            answers = {
                key: await asker.channel.ask(str(one.get("method")), dict(one.get("params") or {}))
                for key, one in (wanted.items() if isinstance(wanted, dict) else ())
            }
            params = {**params, "inputResponses": answers, "requestState": result.get("requestState")}
        raise OuterFailed(f"The MCP server {connection.name} asked for more in {_MAX_ROUNDS} rounds without an answer.")

    # Connections

    async def _connection(self, server: _Server, workspace_id: str, client: Client, asker: Asker | None) -> Connection:
        """The conversation's connection to a server, opened if there is none that works."""
        # A client of the stateless era says in each request what it can; the handshake says it once for a connection.
        able = None if client.is_modern else client.capabilities
        about = json.dumps(able, sort_keys=True, default=str)
        key = (server.name, workspace_id, about)
        async with self._locks.setdefault(key, asyncio.Lock()):
            connection = self._open.get(key)
            if connection is None or not connection.alive:
                if connection is not None:
                    await connection.close()
                    del self._open[key]
                await self._make_room(tenant_of(workspace_id))
                with self._observers.watch("connect", server.name):
                    connection = await Connection(server.name, server.settings, client, self._programs).open()
                self._open[key] = connection
                server.abilities = connection.abilities
        if asker is not None:
            connection.channels[asker.session_id] = asker.channel
            while len(connection.channels) > _MAX_SESSIONS:
                del connection.channels[next(iter(connection.channels))]
        connection.used_at = time.monotonic()
        return connection

    async def _make_room(self, tenant: str) -> None:
        """Close the connection that is longest idle: of this tenant if it has its share, else of the one that has most."""
        counts = Counter(tenant_of(workspace_id) for _, workspace_id, _ in self._open)
        if counts[tenant] < _MAX_OF_A_TENANT and len(self._open) < _MAX_CONNECTIONS:
            return
        most = tenant if counts[tenant] >= _MAX_OF_A_TENANT else max(counts, key=lambda one: counts[one])
        idle = [
            (one.used_at, key)
            for key, one in self._open.items()
            if tenant_of(key[1]) == most and not one.is_asked and not one.buses
        ]
        if not idle:
            raise Busy(f"All {len(self._open)} connections to MCP servers are in use. Try again in a few seconds.")
        await self._open.pop(min(idle)[1]).close()

    async def _reap(self) -> None:
        """Close connections that nobody uses, and forget those that ended."""
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            now = time.monotonic()
            for key, one in list(self._open.items()):
                idle = now - one.used_at > one.server.idle_seconds and not one.is_asked and not one.buses
                if idle or not one.alive:
                    del self._open[key]
                    await one.close()
            for key in [key for key, lock in self._locks.items() if key not in self._open and not lock.locked()]:
                del self._locks[key]

    def _of_workspace(self, asker: Asker) -> list[Connection]:
        return [one for key, one in self._open.items() if key[1] == asker.workspace_or_none and one.alive]


async def _page_of(connection: Connection, kind: str, cursor: str | None) -> Page:
    params = {} if cursor is None else {"cursor": cursor}
    result = await connection.request(_LISTS[kind], params, timeout_seconds=connection.server.connect_seconds)
    entries = result.get(kind)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise OuterFailed(f"The MCP server {connection.name} answered {_LISTS[kind]} with no list.")
    if kind == "tools":
        connection.tools |= {str(entry.get("name")): entry for entry in entries}
    following = result.get("nextCursor")
    return entries, following if isinstance(following, str) else None


async def _ask_for_events(connection: Connection, wanted: SubscriptionFilter) -> None:
    try:
        if connection.is_modern:
            notifications = wanted.model_dump(by_alias=True, exclude_none=True, mode="json")
            await connection.request("subscriptions/listen", {"notifications": notifications}, timeout_seconds=math.inf)
        else:
            for uri in wanted.resource_subscriptions or ():
                await connection.request("resources/subscribe", {"uri": uri})
    except OuterFailed as fault:
        _log.info("the MCP server %s tells no events: %s", connection.name, fault)


def _shown(server: _Server, kind: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    """An entry as clients see it: under the prefix; of a tool whose result may be replaced without the promise of its shape."""
    if kind not in ("tools", "prompts"):
        return entry
    name = str(entry.get("name"))
    shown = {**entry, "name": server.prefix + name}
    if kind == "tools":
        rules = server.rules_of(name)
        if rules.permission == "deny":
            return None
        if rules.spill:
            shown.pop("outputSchema", None)
    return shown


def _is_safe(entry: Mapping[str, Any]) -> bool:
    """Whether a call can be repeated without harm, by what the server says of its tool."""
    hints = entry.get("annotations")
    return isinstance(hints, dict) and any(hints.get(name) is True for name in ("readOnlyHint", "idempotentHint"))


def _sealed(index: int, cursor: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([index, cursor]).encode()).decode()


def _opened(cursor: str | None) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    try:
        index, inner = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, TypeError):
        raise OuterError("This cursor is none of this server's.", number=INVALID_PARAMS) from None
    if not isinstance(index, int) or index < 0 or not isinstance(inner, str):
        raise OuterError("This cursor is none of this server's.", number=INVALID_PARAMS)
    return index, inner
