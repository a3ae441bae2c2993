"""Tools of other programs, as the toolbox sees them: what a gateway, or an agent loop with tools of its own, offers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sandbox.approvals import Approval
from sandbox.spills.spill import Received, Surface

Permission = Literal["allow", "ask", "deny"]

Approve = Callable[[Approval], Awaitable[bool | None]]
"""Asks a person; None if this one can't be asked."""


@dataclass(frozen=True)
class Caller:
    """Who makes a call, as far as its surface knows."""

    surface: Surface = "agent"
    name: str | None = None
    """Of the client's program, for sizes that the settings have for it."""
    identity: str | None = None
    """Who it is, as the surface proved it; kept with the record. The name above is only what the client says."""
    is_mcp: bool = False
    approve: Approve | None = None
    approval_id: str | None = None
    """Of an approval that was asked for in an earlier round of this call."""
    channel: Any = None
    """The surface's own way to this caller, for an outer tool that asks or tells something while it works."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else the caller's request had, in the surface's own form."""


@dataclass(frozen=True)
class OuterCall:
    """What an outer tool is given. The arguments are values of JSON; see `sandbox.tables.literal_json`."""

    workspace_id: str
    arguments: dict[str, Any]
    caller: Caller
    on_progress: Callable[[dict[str, int]], None] | None = None


@dataclass(frozen=True)
class OuterTool:
    """A tool of another program. ``send`` calls it; it raises `OuterFailed` where that can't be done."""

    name: str
    send: Callable[[OuterCall], Awaitable[Received]]
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    permission: Permission = "allow"
    spill: bool = True
    inline_bytes: int | None = None
    """Another size up to which a saved result is in the answer too."""


class OuterTools(Protocol):
    """Where outer tools are found."""

    async def find(self, name: str, workspace_id: str, caller: Caller) -> OuterTool | None:
        """The tool of this name, as this caller may see it; raises `OuterFailed` if its program can't be reached."""

    def names(self, workspace_id: str) -> list[str]:
        """Of the tools that are known now in a conversation, for an error that names what there is."""
