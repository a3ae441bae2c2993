"""What a client gives back in a later round of a call, and what it was asked: approvals, by elicitation."""

import json
import os
from typing import Any

from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState
from mcp_types import ElicitRequest, ElicitRequestFormParams

from sandbox.approvals import Approval
from sandbox.errors import NotApproved
from sandbox.tools.permit import question

APPROVAL = "spillbox-approval"
_PREFIX = "spillbox."

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Approve", "description": "Make this one call."}},
    "required": ["approve"],
}


class Rounds:
    """Seals what the client carries between rounds. The key lives as long as the process: after a restart it is asked anew."""

    def __init__(self) -> None:
        self._codec = AESGCMRequestStateCodec([os.urandom(32)])

    def sealed(self, approval_id: str, inner: str | None = None) -> str:
        """A state that stands for an approval, and carries that of another server inside."""
        return _PREFIX + self._codec.seal(json.dumps([approval_id, inner]).encode())

    def opened(self, state: str | None) -> tuple[str | None, str | None]:
        """The approval and the inner state; a state that is not ours is the inner one. Raises `NotApproved` for a forged one."""
        if state is None or not state.startswith(_PREFIX):
            return None, state
        try:
            approval_id, inner = json.loads(self._codec.unseal(state.removeprefix(_PREFIX)))
        except (InvalidRequestState, ValueError):
            raise NotApproved(
                "This answer belongs to no question of this service. Call again to be asked anew."
            ) from None
        return approval_id, inner


def elicitation_of(approval: Approval) -> dict[str, Any]:
    """The question, as a request of the protocol."""
    params = ElicitRequestFormParams(message=question(approval), requested_schema=FORM)
    return ElicitRequest(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)


def is_yes(answer: Any) -> bool:
    """Whether what came back from an elicitation grants it."""
    if not isinstance(answer, dict) or answer.get("action") != "accept":
        return False
    return isinstance(answer.get("content"), dict) and answer["content"].get("approve") is True
