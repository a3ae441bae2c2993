"""The HTTP routes of approvals: what waits for a person, and what the person says."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from sandbox.approvals import Approval
from sandbox.tools.toolbox import Toolbox


class Decision(BaseModel):
    """What a person says."""

    model_config = ConfigDict(extra="forbid")

    granted: bool
    sha256: str = Field(description="Of the arguments that the person saw; an approval is for these and no others.")


def add_routes(router: APIRouter, box: Toolbox) -> None:
    """Approvals of all workspaces."""

    @router.get("/v1/approvals", tags=["approvals"])
    def approvals() -> list[Approval]:
        """Calls that wait for a person, oldest first. Who looks at least each minute is waited for."""
        return box.approvals.waiting()

    @router.post("/v1/approvals/{approval}", tags=["approvals"])
    def decide(approval: str, decision: Decision) -> Approval:
        """Grant or refuse one call with one sha256 of its arguments."""
        return box.approvals.decide(approval, granted=decision.granted, sha256=decision.sha256)
