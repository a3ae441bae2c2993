"""Whether a call may be made: judged by the tool's own permission and by the arguments as they would be sent."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from sandbox.approvals import Approval, Approvals, ApprovalState
from sandbox.errors import ArgumentsChanged, Denied, InputNeeded, NotApproved
from sandbox.tables.literal_json import dump
from sandbox.tenants import tenant_of
from sandbox.tools.outer import Caller, Permission

Sent = TypeVar("Sent")

_MAX_SHOWN_CHARACTERS = 4000
_INVISIBLE = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Characters that change how a text is shown, and are not seen: a person has to see what is sent."""


@dataclass(frozen=True)
class Expanded:
    """Arguments as the tool would get them, and what a person approves of them."""

    value: dict[str, Any]

    @cached_property
    def text(self) -> str:
        """Their JSON, every number as it is written; half of a surrogate pair as its escape."""
        return dump(self.value)

    @cached_property
    def sha256(self) -> str:
        """Of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Desk:
    """Where approvals are asked for."""

    approvals: Approvals
    approve: Callable[[Approval], Awaitable[bool | None]] | None = None
    """Of an agent loop that embeds the library; asked where the caller's surface can't ask."""


@dataclass(frozen=True)
class Grant:
    """Leave for one call, to be used just before it."""

    approvals: Approvals
    approval: Approval | None = None

    async def spend(self, arguments: Expanded, send: Callable[[], Awaitable[Sent]]) -> Sent:
        """Send what was approved; raises `ArgumentsChanged` if that is not what would be sent now."""
        if self.approval is None:
            return await send()
        await asyncio.to_thread(self.approvals.use, self.approval, arguments.sha256)
        try:
            return await send()
        except InputNeeded as fault:
            await asyncio.to_thread(self.approvals.give_back, self.approval)
            fault.approval_id = self.approval.id
            raise


async def permit(
    desk: Desk, tool: str, permission: Permission, arguments: Expanded, *, workspace_id: str, call_id: str, caller: Caller
) -> Grant:  # fmt: skip
    """Leave to make the call.

    Raises `Denied`, `NotApproved`, `Busy` where too many wait, and whatever the surface raises to ask its caller in another round.
    """
    if permission == "deny":
        raise Denied(f"The settings of this service forbid {tool}. Nothing was sent.")
    if permission == "allow":
        return Grant(desk.approvals)
    if caller.approval_id is None:
        approval = await asyncio.to_thread(
            desk.approvals.ask, workspace_id, call_id, tool, arguments.text, arguments.sha256
        )
    else:
        approval = desk.approvals.get(caller.approval_id)
        if (approval.workspace, approval.tool) != (workspace_id, tool) or approval.sha256 != arguments.sha256:
            raise ArgumentsChanged(
                f"What was asked for {approval.tool} is not what {tool} would be sent now: the arguments have changed. Nothing "
                "was sent. Call again to ask anew."
            )
    if approval.state is ApprovalState.GRANTED:
        return Grant(desk.approvals, approval)
    for ask in (caller.approve, desk.approve):
        said = None if ask is None else await ask(approval)
        if said is not None:
            tenant = tenant_of(workspace_id)
            await asyncio.to_thread(
                desk.approvals.decide, approval.id, granted=said, sha256=approval.sha256, tenant=tenant
            )
            break
    else:
        said = await desk.approvals.answer(approval)
    if not said:
        raise NotApproved(
            f"{tool} needs a person's approval, and it was not given. Nothing was sent. Do not try again unless the user asks "
            "for it."
        )
    return Grant(desk.approvals, approval)


def question(approval: Approval) -> str:
    """What a person is asked."""
    shown = _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", approval.arguments)
    if len(shown) > _MAX_SHOWN_CHARACTERS:
        cut = len(shown) - _MAX_SHOWN_CHARACTERS
        shown = f"{shown[:_MAX_SHOWN_CHARACTERS]}… ({cut:,} characters more; {approval.bytes:,} bytes, sha256 {approval.sha256})"
    return f"May the agent call {approval.tool} with these arguments?\n{shown}"
