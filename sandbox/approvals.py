"""What a person has to approve before it is done. Each approval is for one call and one sha256 of its arguments.

One that waits does so for a time, and is expired from then on: nobody can grant it any more. Of a tenant a number may wait.
"""

import asyncio
import secrets
import time
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import (
    Column,
    ColumnElement,
    DateTime,
    Integer,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    func,
    literal,
    select,
    update,
)

from sandbox.database import Database, with_zone
from sandbox.errors import ArgumentsChanged, Busy, NotApproved, NotFound
from sandbox.tenants import is_of, tenant_of

_PRESENT_SECONDS = 60
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 30
WAIT_SECONDS = 300.0
MOST_WAITING = 100


class ApprovalState(StrEnum):
    """How far an approval is."""

    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    USED = "used"
    """Granted, and the call was made; it is good for no other."""
    EXPIRED = "expired"
    """Nobody decided in time."""


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

    def __init__(
        self, database: Database, *, wait_seconds: float = WAIT_SECONDS, most_waiting: int = MOST_WAITING
    ) -> None:
        """``most_waiting``: of one tenant, at once."""
        self._database = database
        self._wait = timedelta(seconds=wait_seconds)
        self._most_waiting = most_waiting
        self._looked_at: dict[str, float] = {}
        """When someone of a tenant looked for the last time."""
        database.make(_metadata)

    def ask(self, workspace: str, call: str, tool: str, arguments: str, sha256: str) -> Approval:
        """Note a call that needs approval; raises `Busy` where as many of the tenant's wait as may."""
        made = Approval(
            id=secrets.token_hex(12), workspace=workspace, call=call, tool=tool, arguments=arguments,
            bytes=len(arguments.encode()), sha256=sha256, state=ApprovalState.WAITING, asked_at=datetime.now(UTC),
        )  # fmt: skip
        row = made.model_dump()
        columns = [column for column in _approvals.columns if column.name in row]
        tenant = tenant_of(workspace)
        waiting = select(func.count()).where(self._waiting(tenant)).scalar_subquery()
        # In one statement, so that also calls at the same time keep to the number.
        values = select(*(literal(row[column.name], column.type) for column in columns)).where(
            waiting < self._most_waiting
        )
        if not self._database.write(_approvals.insert().from_select(columns, values)):
            raise Busy(
                f"{self._most_waiting:,} calls wait for a person's approval already, which is as many as may. Nothing was sent. "
                "Ask the user to decide over them; those that nobody decides over expire after "
                f"{self._wait.total_seconds():g} s.",
                retry_after_seconds=_RETRY_SECONDS,
            )
        return made

    def _waiting(self, tenant: str) -> ColumnElement[bool]:
        is_open = (_approvals.c.state == ApprovalState.WAITING) & (
            _approvals.c.asked_at > datetime.now(UTC) - self._wait
        )
        return is_open & is_of(_approvals.c.workspace, tenant)

    def waiting(self, tenant: str) -> list[Approval]:
        """A tenant's that wait, oldest first. Who looks is taken to be there, and is waited for."""
        self._looked_at[tenant] = time.monotonic()
        statement = select(_approvals).where(self._waiting(tenant)).order_by(_approvals.c.asked_at)
        with self._database.reading() as db:
            return [_approval(row) for row in db.execute(statement).mappings()]

    def get(self, approval_id: str) -> Approval:
        """One; raises `NotFound`."""
        with self._database.reading() as db:
            row = db.execute(select(_approvals).where(_approvals.c.id == approval_id)).mappings().first()
        if row is None:
            raise _unknown(approval_id)
        found = _approval(row)
        is_over = found.state is ApprovalState.WAITING and self._is_over(found)
        return found.model_copy(update={"state": ApprovalState.EXPIRED}) if is_over else found

    def decide(self, approval_id: str, *, granted: bool, sha256: str, tenant: str) -> Approval:
        """Grant or refuse what waits; ``sha256`` is that of the arguments which the person, one of the tenant's, saw.

        Raises `NotFound`, also for another tenant's, `ArgumentsChanged` if these are others, `NotApproved` if it was decided
        before, or its time is over.
        """
        found = self.get(approval_id)
        if tenant_of(found.workspace) != tenant:
            raise _unknown(approval_id)
        if sha256 != found.sha256:
            raise ArgumentsChanged(
                f"The arguments of the approval {approval_id} have another sha256. Look at them again."
            )
        if found.state is ApprovalState.EXPIRED:
            raise NotApproved(
                f"The approval {approval_id} expired: nobody decided within {self._wait.total_seconds():g} s. The call has to be "
                "made again."
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

    async def answer(self, approval: Approval) -> bool:
        """Wait for the person who decides over this, if one has looked lately; nobody there is a refusal."""
        ends = time.monotonic() + self._wait.total_seconds()
        try:
            while time.monotonic() < ends and self._is_present(tenant_of(approval.workspace)):
                state = (await asyncio.to_thread(self.get, approval.id)).state
                if state is not ApprovalState.WAITING:
                    return state is ApprovalState.GRANTED
                await asyncio.sleep(_LOOK_SECONDS)
        finally:  # also when the caller has left
            state = ApprovalState.EXPIRED if self._is_over(approval) else ApprovalState.REFUSED
            self._move(approval.id, ApprovalState.WAITING, state)
        return self.get(approval.id).state is ApprovalState.GRANTED

    def _is_over(self, approval: Approval) -> bool:
        return approval.asked_at <= datetime.now(UTC) - self._wait

    def _is_present(self, tenant: str) -> bool:
        return time.monotonic() - self._looked_at.get(tenant, float("-inf")) < _PRESENT_SECONDS

    def _move(self, approval_id: str, old: ApprovalState, new: ApprovalState) -> bool:
        this = (_approvals.c.id == approval_id) & (_approvals.c.state == old)
        return self._database.write(update(_approvals).where(this).values(state=new, decided_at=datetime.now(UTC))) == 1


def _unknown(approval_id: str) -> NotFound:
    return NotFound(f"There is no approval {approval_id[:80]!a}.")


def _approval(row: RowMapping) -> Approval:
    return Approval.model_validate(with_zone(row))
