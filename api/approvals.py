"""The HTTP routes of approvals: what waits for a person, and what the person says."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from api.callers import Bearer
from sandbox.approvals import Approval
from sandbox.errors import Denied
from sandbox.tools.toolbox import Toolbox


class Decision(BaseModel):
    """What a person says."""

    model_config = ConfigDict(extra="forbid")

    granted: bool
    sha256: str = Field(description="Of the arguments that the person saw; an approval is for these and no others.")


def add_routes(router: APIRouter, box: Toolbox) -> None:
    """Approvals of the caller's workspaces. A key that may not decide sees none: its bearer may be the agent that asks."""

    def person(request: Request) -> Bearer:
        bearer = Bearer.of(request)
        if not bearer.approves:
            raise Denied("This key may not decide over approvals. Use one that was made with --approves.")
        return bearer

    @router.get("/v1/approvals", tags=["approvals"])
    def approvals(bearer: Annotated[Bearer, Depends(person)]) -> list[Approval]:
        """Calls that wait for a person, oldest first. Who looks at least each minute is waited for."""
        return box.approvals.waiting(bearer.tenant)

    @router.post("/v1/approvals/{approval}", tags=["approvals"])
    def decide(approval: str, decision: Decision, bearer: Annotated[Bearer, Depends(person)]) -> Approval:
        """Grant or refuse one call with one sha256 of its arguments."""
        return box.approvals.decide(approval, granted=decision.granted, sha256=decision.sha256, tenant=bearer.tenant)
