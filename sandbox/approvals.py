"""What a person has to approve before it is done. Each approval is for one call and one sha256 of its arguments."""

import asyncio
import secrets
import time
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Column, DateTime, Integer, MetaData, RowMapping, String, Table, Text, select, update

from sandbox.database import Database, with_zone
from sandbox.errors import ArgumentsChanged, NotApproved, NotFound
from sandbox.tenants import SEPARATOR, tenant_of

_PRESENT_SECONDS = 60
_LOOK_SECONDS = 1.0
_MAX_SHOWN = 100


class ApprovalState(StrEnum):
    """How far an approval is."""

    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    USED = "used"
    """Granted, and the call was made; it is good for no other."""


_metadata = MetaData()
_approvals = Table(
    "approvals",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("workspace", String(128), nullable=False, index=True),
    Column("call", String(160), nullable=False),
    Column("tool", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("asked_at", DateTime(timezone=True), nullable=False),
    Column("decided_at", DateTime(timezone=True)),
)


class Approval(BaseModel):
    """A call that waits for a person, or what the person said."""

    model_config = ConfigDict(frozen=True)

    id: str
    workspace: str
    call: str
    tool: str
    arguments: str = Field(
        description="JSON of all arguments as the tool would get them, every number as it is written."
    )
    bytes: int = Field(description="Of the arguments.")
    sha256: str = Field(description="Of the arguments; an approval is for these and no others.")
    state: ApprovalState
    asked_at: datetime
    decided_at: datetime | None = None


class Approvals:
    """Over one database. Its methods block, but for `answer`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked_at: dict[str, float] = {}
        """When someone of a tenant looked for the last time."""
        database.make(_metadata)

    def ask(self, workspace: str, call: str, tool: str, arguments: str, sha256: str) -> Approval:
        """Note a call that needs approval."""
        made = Approval(
            id=secrets.token_hex(12), workspace=workspace, call=call, tool=tool, arguments=arguments,
            bytes=len(arguments.encode()), sha256=sha256, state=ApprovalState.WAITING, asked_at=datetime.now(UTC),
        )  # fmt: skip
        self._database.write(_approvals.insert().values(**made.model_dump()))
        return made

    def waiting(self, tenant: str) -> list[Approval]:
        """A tenant's that wait, oldest first, at most 100. Who looks is taken to be there, and is waited for."""
        self._looked_at[tenant] = time.monotonic()
        is_theirs = _approvals.c.workspace.startswith(f"{tenant}{SEPARATOR}", autoescape=True)
        if not tenant:
            is_theirs = ~_approvals.c.workspace.contains(SEPARATOR)
        is_waiting = (_approvals.c.state == ApprovalState.WAITING) & is_theirs
        statement = select(_approvals).where(is_waiting).order_by(_approvals.c.asked_at).limit(_MAX_SHOWN)
        with self._database.reading() as db:
            return [_approval(row) for row in db.execute(statement).mappings()]

    def get(self, approval_id: str) -> Approval:
        """One; raises `NotFound`."""
        with self._database.reading() as db:
            row = db.execute(select(_approvals).where(_approvals.c.id == approval_id)).mappings().first()
        if row is None:
            raise _unknown(approval_id)
        return _approval(row)

    def decide(self, approval_id: str, *, granted: bool, sha256: str, tenant: str) -> Approval:
        """Grant or refuse what waits; ``sha256`` is that of the arguments which the person, one of the tenant's, saw.

        Raises `NotFound`, also for another tenant's, `ArgumentsChanged` if these are others, `NotApproved` if it was decided
        before.
        """
        found = self.get(approval_id)
        if tenant_of(found.workspace) != tenant:
            raise _unknown(approval_id)
        if sha256 != found.sha256:
            raise ArgumentsChanged(
                f"The arguments of the approval {approval_id} have another sha256. Look at them again."
            )
        state = ApprovalState.GRANTED if granted else ApprovalState.REFUSED
        if not self._move(approval_id, ApprovalState.WAITING, state):
            raise NotApproved(f"The approval {approval_id} was decided before: {self.get(approval_id).state}.")
        return self.get(approval_id)

    def use(self, approval: Approval, sha256: str) -> None:
        """Spend a grant on one call with these arguments; raises `NotApproved` if there is none, or for others."""
        if sha256 != approval.sha256:
            self._move(approval.id, ApprovalState.GRANTED, ApprovalState.REFUSED)
            raise ArgumentsChanged(
                f"What was approved for {approval.tool} is not what would be sent now: the arguments have changed. Nothing was "
                "sent. Call again to ask anew."
            )
        if not self._move(approval.id, ApprovalState.GRANTED, ApprovalState.USED):
            raise NotApproved(f"{approval.tool} was not approved, or the approval was used before. Nothing was sent.")

    def give_back(self, approval: Approval) -> None:
        """Let a grant stand that was spent on a call which has not begun, since its tool wants to know more first."""
        self._move(approval.id, ApprovalState.USED, ApprovalState.GRANTED)

    async def answer(self, approval: Approval, *, seconds: float) -> bool:
        """Wait for the person who decides over this, if one has looked lately; nobody there is a refusal."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and self._is_present(tenant_of(approval.workspace)):
            state = (await asyncio.to_thread(self.get, approval.id)).state
            if state is not ApprovalState.WAITING:
                return state is ApprovalState.GRANTED
            await asyncio.sleep(_LOOK_SECONDS)
        self._move(approval.id, ApprovalState.WAITING, ApprovalState.REFUSED)
        return self.get(approval.id).state is ApprovalState.GRANTED

    def _is_present(self, tenant: str) -> bool:
        return time.monotonic() - self._looked_at.get(tenant, float("-inf")) < _PRESENT_SECONDS

    def _move(self, approval_id: str, old: ApprovalState, new: ApprovalState) -> bool:
        this = (_approvals.c.id == approval_id) & (_approvals.c.state == old)
        return self._database.write(update(_approvals).where(this).values(state=new, decided_at=datetime.now(UTC))) == 1


def _unknown(approval_id: str) -> NotFound:
    return NotFound(f"There is no approval {approval_id[:80]!a}.")


def _approval(row: RowMapping) -> Approval:
    return Approval.model_validate(with_zone(row))
