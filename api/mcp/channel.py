"""The way to a client while it waits for another server, or hears of it."""

from collections.abc import Mapping
from typing import Any

from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INVALID_REQUEST, Notification, Request, RequestId
from pydantic import BaseModel, ConfigDict

NO_WORKSPACE = (
    "This connection names no workspace. Add ?workspace=NAME to the URL of the MCP server, or the header "
    "Spillbox-Workspace: NAME; one for each conversation."
)


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


class Channel:
    """Over the session of one request of the client's."""

    def __init__(self, session: ServerSession, request_id: RequestId | None) -> None:
        self._session, self._request_id = session, request_id

    async def progress(self, params: Mapping[str, Any]) -> None:
        """Tell how far the request is."""
        progress, total = (_number(params.get(key)) for key in ("progress", "total"))
        message = params.get("message")
        await self._session.report_progress(progress or 0, total, message if isinstance(message, str) else None)

    async def notify(self, method: str, params: Mapping[str, Any], *, aside: bool) -> None:
        """Hand on what a server tells: ``aside`` the answer of the request, or on its own."""
        notification = Notification[Any, str](method=method, params=dict(params) or None)
        await self._session.send_notification(notification, self._request_id if aside else None)  # type: ignore[arg-type]

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Hand on what a server asks, and give the client's answer; raises `MCPError` as the client's own."""
        if not self._session.can_send_request:
            raise MCPError(code=INVALID_REQUEST, message="The client can't be asked anything on this connection.")
        request = Request[Any, str](method=method, params=params or None)
        related = ServerMessageMetadata(related_request_id=self._request_id)
        try:
            answer = await self._session.send_request(request, _Anything, metadata=related)  # type: ignore[arg-type]
        except NoBackChannelError as fault:
            raise MCPError(code=INVALID_REQUEST, message=str(fault)) from None
        return answer.model_dump(mode="json")


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
