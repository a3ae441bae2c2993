"""The client that a request came from: its workspace, its era, and how to ask and tell it something."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, ElicitResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from api.callers import Bearer
from api.mcp.channel import NO_WORKSPACE, Channel
from api.mcp.connection import Client
from api.mcp.rounds import APPROVAL, FORM, Rounds, elicitation_of, is_yes
from sandbox.approvals import Approval
from sandbox.errors import InputNeeded, InvalidArguments
from sandbox.spills.spill import Surface
from sandbox.tenants import workspace_id
from sandbox.tools.outer import Caller
from sandbox.tools.permit import question

WORKSPACE_HEADER, SURFACE_HEADER = "spillbox-workspace", "spillbox-surface"
VIEWS = "io.modelcontextprotocol/ui"
_SURFACES: tuple[Surface, ...] = ("agent", "client", "workflow", "sandbox")
_TAKEN = ("name", "arguments", "requestState")

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True)
class Conversation:
    """Which workspace a connection is for, and whom its results are for."""

    workspace_id: str | None = None
    surface: Surface = "agent"

    @classmethod
    def of(cls, request: Request | None) -> "Conversation":
        """By the URL's parameters ``workspace`` and ``surface``, or by headers."""
        if request is None:
            return cls()
        given = {
            name: request.query_params.get(name) or request.headers.get(header)
            for name, header in (("workspace", WORKSPACE_HEADER), ("surface", SURFACE_HEADER))
        }
        surface = given["surface"] or "agent"
        if surface not in _SURFACES:
            raise InvalidArguments(f"There is no surface {surface[:40]!a}. There are: {', '.join(_SURFACES)}.")
        name = given["workspace"]
        return cls(None if name is None else workspace_id(Bearer.of(request).tenant, name), surface)


@dataclass(frozen=True)
class Peer:
    """One request's client."""

    context: Context
    conversation: Conversation

    @property
    def is_modern(self) -> bool:
        """Whether the client speaks the stateless era of the protocol."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def workspace_id(self) -> str:
        """The conversation's workspace; raises `InvalidArguments` if none was named."""
        if self.conversation.workspace_id is None:
            raise InvalidArguments(NO_WORKSPACE)
        return self.conversation.workspace_id

    @property
    def workspace_or_none(self) -> str | None:
        """The conversation's workspace, if one was named."""
        return self.conversation.workspace_id

    @property
    def session_id(self) -> str:
        """Which of the workspace's clients it is."""
        request = self.context.request
        return "" if request is None else request.headers.get("mcp-session-id", "")

    @property
    def channel(self) -> Channel:
        """The way to it while this request is under way."""
        return Channel(self.context.session, self.context.request_id)

    @property
    def client(self) -> Client:
        """What other servers are told of it."""
        session = self.context.session
        said, able = session.client_params, session.client_capabilities
        info: Mapping[str, Any] = {"name": "unknown", "version": ""}
        if said is not None:
            info = said.client_info.model_dump(by_alias=True, mode="json", exclude_none=True)
        capabilities = {} if able is None else able.model_dump(by_alias=True, mode="json", exclude_none=True)
        return Client(self.is_modern, info, capabilities)

    @property
    def can_elicit(self) -> bool:
        """Whether the client can ask its user something."""
        able = self.context.session.client_capabilities
        return able is not None and able.elicitation is not None

    @property
    def shows_views(self) -> bool:
        """Whether the client's host shows views of results (MCP Apps)."""
        able = self.context.session.client_capabilities
        return able is not None and VIEWS in (able.extensions or {})

    def caller(self, rounds: Rounds, params: CallToolRequestParams) -> Caller:
        """Who calls. What else the request had goes along to another server: its _meta, its answers of an earlier round."""
        approval_id, inner = rounds.opened(params.request_state)
        extra = {key: value for key, value in (self.context.params or {}).items() if key not in _TAKEN}
        if inner is not None:
            extra["requestState"] = inner
        client = self.context.session.client_params
        # Whoever bears an agent's key answers its questions too: so that one is not asked.
        request = self.context.request
        bearer = Bearer() if request is None else Bearer.of(request)
        return Caller(
            surface=self.conversation.surface, name=client.client_info.name if client else None, identity=bearer.identity,
            is_mcp=True, approve=self._approve(rounds, params, approval_id) if self.can_elicit and bearer.approves else None,
            approval_id=approval_id, channel=self, extra=extra,
        )  # fmt: skip

    def _approve(
        self, rounds: Rounds, params: CallToolRequestParams, approval_id: str | None
    ) -> Callable[[Approval], Awaitable[bool | None]]:
        async def ask(approval: Approval) -> bool | None:
            session = self.context.session
            if not self.is_modern:
                if not session.can_send_request:
                    return None
                try:
                    answer = await session.elicit_form(question(approval), FORM, self.context.request_id)
                except MCPError:
                    return False
                return is_yes(answer.model_dump())
            # An answer counts only beside our own state, which says what was asked.
            given = None if approval_id is None else (params.input_responses or {}).get(APPROVAL)
            if given is not None:
                return is_yes(given.model_dump() if isinstance(given, ElicitResult) else given)
            request = {APPROVAL: elicitation_of(approval)}
            raise InputNeeded(
                f"{approval.tool} needs approval.",
                request={"inputRequests": request, "requestState": rounds.sealed(approval.id)},
            )

        return ask
