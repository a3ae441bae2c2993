"""Our tools, and those of other servers behind the gateway, as a server of the protocol in both of its eras."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Never

import anyio
import mcp_types as types
from mcp.server.caching import CACHEABLE_METHODS
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from pydantic import BaseModel

from api.bodies import Body
from api.describe import describe
from api.errors import unexpected
from api.mcp import resources
from api.mcp.answers import ERA_FIELDS, Result, answer_of, failure_of, handed, refusal_of
from api.mcp.gateway import Gateway
from api.mcp.peer import VIEWS, Context, Conversation, Peer
from api.mcp.rounds import Rounds
from api.mcp.wire import unmarked
from sandbox.errors import BadRequest, InputNeeded, NotFound, OuterError, OuterFailed, SpillboxError
from sandbox.tools.outer import Caller, OuterCall
from sandbox.tools.shown import ShowTableOutput
from sandbox.tools.toolbox import Toolbox, new_call_id

_RESOURCE_NOT_FOUND = -32002  # of the handshake era; the later one has INVALID_PARAMS
_PROGRESS_SECONDS = 0.25

_INSTRUCTIONS = """\
Long tool results are saved as files in this conversation's workspace, at /workspace/results. Read them by path with read_file, \
search_output and extract_json_path, or in a script; never type their rows again. Build CSV and Excel files from the path with \
build_csv and build_excel, give files to the user with attach_file, and call other tools with long arguments by call_tool.\
"""


class Answered(Exception):
    """Takes a result past the SDK's own shaping, which drops what it does not know and can't see through a stand-in."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


async def _as_it_is(ctx: Context, call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except Answered as answered:
        return answered.result


class McpServer(Server[Any]):
    """Over one toolbox, and the gateway if other servers are configured."""

    def __init__(
        self, box: Toolbox, gateway: Gateway | None, *, version: str, conversation: Conversation | None = None
    ) -> None:
        self._box, self._gateway, self._conversation = box, gateway, conversation
        self._rounds = Rounds()
        super().__init__(
            "spillbox", version=version, title="Spillbox", instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools, on_call_tool=self._call_tool,
            on_list_resources=self._list_resources, on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource, on_subscriptions_listen=self._listen,
            get_tool_input_schema=self._input_schema,
        )  # fmt: skip
        self._listening = ListenHandler(InMemorySubscriptionBus())
        self.middleware.append(_as_it_is)
        self.extensions = {VIEWS: {"mimeTypes": [resources.VIEW_TYPE]}}
        if gateway is not None:
            self._mirror(gateway)

    def _mirror(self, gateway: Gateway) -> None:
        """Offer what the other servers have beyond tools and resources."""
        able = gateway.abilities
        if "prompts" in able:
            self.add_request_handler("prompts/list", types.PaginatedRequestParams, self._list_prompts)
            self.add_request_handler("prompts/get", types.GetPromptRequestParams, self._forward)
        if "completions" in able:
            self.add_request_handler("completion/complete", types.CompleteRequestParams, self._forward)
        if "logging" in able:
            self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._forward)
        if "subscribe" in able:
            self.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._forward)
            self.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._forward)
        self.add_notification_handler("notifications/roots/list_changed", types.NotificationParams, self._roots_changed)

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        """For the SDK, which holds headers that mirror arguments against it."""
        if name in self._box.tools:
            return self._box.tools[name].input_schema()
        return None if self._gateway is None else self._gateway.known_schema(name)

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """What the server says of itself; lists change only if other servers' do."""
        changing = self._gateway is not None
        if notification_options is None:
            notification_options = NotificationOptions(
                tools_changed=changing, resources_changed=changing, prompts_changed=changing
            )
        return super().create_initialization_options(notification_options, experimental_capabilities, extensions)

    def _peer(self, context: Context) -> Peer:
        try:
            return Peer(context, self._conversation or Conversation.of(context.request))
        except BadRequest as fault:
            raise MCPError(code=INVALID_PARAMS, message=str(fault)) from None

    def _asker(self, context: Context) -> Peer:
        """The client, for the gateway, which makes connections for any name: one that no workspace can have is told first."""
        peer = self._peer(context)
        try:
            if peer.workspace_or_none is not None:
                self._box.workspaces.open(peer.workspace_or_none)
        except BadRequest as fault:
            raise MCPError(code=INVALID_PARAMS, message=str(fault)) from None
        return peer

    # Lists

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> Never:
        own = [described(tool) for tool in self._box.tools.values()]
        await self._page("tools", own, context, params)

    async def _list_resources(self, context: Context, params: types.PaginatedRequestParams | None) -> Never:
        peer = self._peer(context)
        own = await asyncio.to_thread(resources.listed, self._box, peer.conversation.workspace_id)
        await self._page("resources", own, context, params)

    async def _list_templates(self, context: Context, params: types.PaginatedRequestParams | None) -> Never:
        await self._page("resourceTemplates", resources.TEMPLATES, context, params)

    async def _list_prompts(self, context: Context, params: types.PaginatedRequestParams | None) -> Never:
        await self._page("prompts", [], context, params)

    async def _page(
        self, kind: str, own: list[dict[str, Any]], context: Context, params: types.PaginatedRequestParams | None
    ) -> Never:
        cursor = params.cursor if params is not None else None
        page: list[dict[str, Any]] = []
        following = None
        if self._gateway is not None:
            try:
                page, following = await self._gateway.page(kind, self._asker(context), cursor)
            except OuterError as fault:
                raise MCPError(code=fault.number, message=str(fault), data=fault.data) from None
        page = [entry for entry in page if not self._is_own(kind, entry)]
        result: Result = {kind: [*own, *page] if cursor is None else page}
        raise Answered(in_era(result if following is None else result | {"nextCursor": following}, context))

    def _is_own(self, kind: str, entry: Mapping[str, Any]) -> bool:
        """Whether another server's entry has a name, or a place, of ours; calls of that go to us."""
        if kind == "tools":
            return entry.get("name") in self._box.tools
        return resources.is_own(str(entry.get("uri", entry.get("uriTemplate"))))

    # Tools

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> Any:
        peer = self._peer(context)
        try:
            arguments = unmarked(params.arguments or {})
            caller = peer.caller(self._rounds, params)
            with Body.of(context.request):
                result = await self._called(peer, params.name, arguments, caller)
        except OuterError as fault:
            raise MCPError(code=fault.number, message=str(fault), data=fault.data) from None
        except InputNeeded as fault:
            raise Answered({**self._carrying(fault), "resultType": "input_required"}) from None
        except SpillboxError as fault:
            result = failure_of(fault)
        except (MCPError, Answered):
            raise
        except Exception as fault:  # noqa: BLE001  a surface: the model is told that the mistake is ours
            result = refusal_of(unexpected(fault, f"the call of {params.name}"))
        raise Answered(in_era(result, context))

    def _carrying(self, fault: InputNeeded) -> Result:
        """What is asked; where an approval stands for the next round, the state carries it."""
        if fault.approval_id is None:
            return dict(fault.request)
        return dict(fault.request) | {
            "requestState": self._rounds.sealed(fault.approval_id, fault.request.get("requestState"))
        }

    async def _called(self, peer: Peer, name: str, arguments: dict[str, Any], caller: Caller) -> Result:
        if name in self._box.tools:
            async with self._telling(peer) as on_progress:
                output = await self._own(name, peer.workspace_id, arguments, caller, on_progress)
            table = None
            if isinstance(output, ShowTableOutput) and peer.shows_views:
                table = await asyncio.to_thread(self._box.catalog.table, peer.workspace_id, output.id)
            return answer_of(output, table)
        self._box.workspaces.open(peer.workspace_id)  # a name that none can have is told before anything is connected
        tool = None if self._gateway is None else await self._gateway.find(name, peer.workspace_id, caller)
        if tool is None:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {name[:80]}")
        return handed(await self._box.call_outer(tool, OuterCall(peer.workspace_id, arguments, caller)))

    async def _own(
        self, name: str, workspace_id: str, arguments: dict[str, Any], caller: Caller,
        on_progress: Callable[[dict[str, int]], None],
    ) -> BaseModel:  # fmt: skip
        call_id = new_call_id()
        try:
            return await self._box.call(
                name, workspace_id, arguments, call_id=call_id, caller=caller, on_progress=on_progress
            )
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._box.cancel(workspace_id, call_id)
            raise

    @asynccontextmanager
    async def _telling(self, peer: Peer) -> AsyncIterator[Callable[[dict[str, int]], None]]:
        """Progress, told to the client as it comes, at most every quarter of a second."""
        loop = asyncio.get_running_loop()
        latest: dict[str, int] = {}
        news = asyncio.Event()

        def note(counts: dict[str, int]) -> None:  # from another thread
            latest.update(counts)
            loop.call_soon_threadsafe(news.set)

        async def tell() -> None:
            while True:
                await news.wait()
                news.clear()
                for name, count in list(latest.items())[:1]:
                    await peer.context.session.report_progress(count, None, f"{count:,} {name.replace('_', ' ')}")
                await asyncio.sleep(_PROGRESS_SECONDS)

        task = asyncio.create_task(tell())
        try:
            yield note
        finally:
            task.cancel()

    # Resources and the rest

    async def _read_resource(self, context: Context, params: types.ReadResourceRequestParams) -> Any:
        peer, uri = self._peer(context), str(params.uri)
        if resources.is_own(uri) or self._gateway is None:
            try:
                result = await asyncio.to_thread(resources.read, self._box, peer.conversation.workspace_id, uri)
            except NotFound as fault:
                number = INVALID_PARAMS if peer.is_modern else _RESOURCE_NOT_FOUND
                raise MCPError(code=number, message=str(fault), data={"uri": uri}) from None
            except BadRequest as fault:
                raise MCPError(code=INVALID_PARAMS, message=str(fault), data={"uri": uri}) from None
            raise Answered(in_era(result, context))
        return await self._forward(context, params)

    async def _forward(self, context: Context, _: BaseModel) -> Any:
        if self._gateway is None:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=context.method)
        result = await _plainly(self._gateway.forward(context.method, context.params or {}, self._asker(context)))
        raise Answered(in_era(result, context))

    async def _listen(self, context: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        if self._gateway is None:
            async with self._until_drained(self._listening):
                return await self._listening(context, params)
        bus = InMemorySubscriptionBus()  # of this stream alone: other conversations' events are none of its business
        handler = ListenHandler(bus)
        async with (
            self._gateway.listening(self._asker(context), params.notifications, bus),
            self._until_drained(handler),
        ):
            return await handler(context, params)

    @asynccontextmanager
    async def _until_drained(self, handler: ListenHandler) -> AsyncIterator[None]:
        """End the streams of a handler, in good order, when the service has finished its calls: they have no end of their own."""

        async def end() -> None:
            await self._box.drained.wait()
            handler.close()

        ending = asyncio.create_task(end())
        try:
            yield
        finally:
            ending.cancel()

    async def _roots_changed(self, context: Context, _: BaseModel) -> None:
        if self._gateway is not None:
            await self._gateway.tell_all(self._peer(context), "notifications/roots/list_changed")


async def _plainly(work: Awaitable[Result]) -> Result:
    """Errors of another server, in its own words."""
    try:
        return await work
    except OuterError as fault:
        raise MCPError(code=fault.number, message=str(fault), data=fault.data) from None
    except InputNeeded as fault:
        return {**fault.request, "resultType": "input_required"}
    except OuterFailed as fault:
        raise MCPError(code=types.INTERNAL_ERROR, message=str(fault), data={"code": fault.code}) from None


def in_era(result: Mapping[str, Any], context: Context) -> Result:
    """A result with the fields that its client's era asks for, and no others."""
    plain = {key: value for key, value in result.items() if key not in ERA_FIELDS}
    if context.protocol_version not in types.version.MODERN_PROTOCOL_VERSIONS:
        return plain
    kept = {key: result[key] for key in ERA_FIELDS if key in result}
    cached = {"ttlMs": 0, "cacheScope": "private"} if context.method in CACHEABLE_METHODS else {}
    return {"resultType": "complete", **cached, **kept, **plain}


def described(tool: Any) -> dict[str, Any]:
    """A tool's entry in the list, with the view that hosts can show of its results."""
    entry = describe(tool, "mcp")
    if tool.name in resources.VIEW_OF_TOOL:
        entry["_meta"] = {"ui": {"resourceUri": resources.VIEW_OF_TOOL[tool.name]}}
    return entry
