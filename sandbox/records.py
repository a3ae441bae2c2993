"""The ledger: what was asked for, by whom it is done, and what came of it. SQLite by default, any SQLAlchemy URL else.

A call is `accepted` once by its id in its workspace, so that one sent twice is done once and answered twice alike. One run
at a time in a workspace is a rule of the ledger (a unique column), not of a file or of one process's memory. A call whose
service has ended is `interrupted`; on one machine the lease is the life of the service's process.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import (
    Column,
    DateTime,
    Executable,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    bindparam,
    delete,
    null,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

from sandbox.database import Database, with_zone
from sandbox.errors import Busy, IdReused, LedgerLocked, NotFound, ServiceFull, SpillboxError
from sandbox.processes import identity_of, lives

_MAX_ARGUMENT_CHARACTERS = 4096
_MAY_PASS = (LedgerLocked, ServiceFull, OperationalError, InterfaceError)


class State(StrEnum):
    """How far a call is."""

    ACCEPTED = "accepted"
    DONE = "done"
    INTERRUPTED = "interrupted"


_metadata = MetaData()
_calls = Table(
    "calls",
    _metadata,
    Column("workspace", String(128), primary_key=True),
    Column("id", String(160), primary_key=True),
    Column("fingerprint", String(64), nullable=False),  # of tool and arguments, to tell a repeated call from another
    Column("tool", String(128), nullable=False),
    Column("arguments", Text, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("owner", String(64), nullable=False),
    Column("running_in", String(128), unique=True),  # the workspace, while a run goes on in it
    Column("status", String(32)),
    Column("answer", Text),
    Column("accepted_at", DateTime(timezone=True), nullable=False),
    Column("ended_at", DateTime(timezone=True)),
    Column("caller", String(256)),
)

_expansions = Table(
    "expansions",
    _metadata,
    Column("workspace", String(128), primary_key=True),
    Column("call", String(160), primary_key=True),
    Column("tool", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
)

# Made once: making a statement takes longer than doing it.
_this_call = (_calls.c.workspace == bindparam("in_workspace")) & (_calls.c.id == bindparam("of_id"))
_insert = _calls.insert()
_get = select(_calls).where(_this_call)
_claim = update(_calls).where(_this_call).values(running_in=bindparam("claimed"))
_this_of_mine = _this_call & (_calls.c.owner == bindparam("of_owner")) & (_calls.c.state == State.ACCEPTED)
_finish = (
    update(_calls)
    .where(_this_of_mine)
    .values(
        state=State.DONE,
        running_in=None,
        status=bindparam("with_status"),
        answer=bindparam("with_answer"),
        ended_at=bindparam("at"),
    )
)
_interrupt = update(_calls).where(_this_call).values(state=State.INTERRUPTED, running_in=None, ended_at=bindparam("at"))
_forget = delete(_calls).where(_this_of_mine)
_forget_expansion = delete(_expansions).where(
    (_expansions.c.workspace == bindparam("in_workspace")) & (_expansions.c.call == bindparam("of_id"))
)
_unfinished = select(_calls).where(_calls.c.state == State.ACCEPTED)
_latest = (
    select(*(null().label("answer") if column.name == "answer" else column for column in _calls.c))
    .where(_calls.c.workspace == bindparam("in_workspace"))
    .order_by(_calls.c.accepted_at.desc())
    .limit(bindparam("most"))
)


class Expansion(BaseModel):
    """What a delegating call really sent."""

    model_config = ConfigDict(frozen=True)

    tool: str
    arguments: str
    """JSON, whole, every number as it was written."""
    sha256: str


class Record(BaseModel):
    """What remains of a call."""

    model_config = ConfigDict(frozen=True)

    id: str
    workspace: str
    tool: str
    arguments: dict[str, Any]
    """Long texts are cut, with their length."""
    state: State
    status: str | None
    """Of a run, how it ended; else ``ok``, or the code of an error."""
    answer: dict[str, Any] | None
    """The tool's output, or the error; not in lists."""
    accepted_at: datetime
    ended_at: datetime | None
    caller: str | None = None
    """Who called, as the surface proved: the id of a key, ``api-key`` for the service's own, ``token:`` and the subject of a
    token; None where nobody has to prove anything."""
    expansion: Expansion | None = None
    """Of a delegating call; not in lists."""


class Acceptance(StrEnum):
    """Whose a call is, for one who asks for it."""

    MINE = "mine"
    BUSY = "busy"
    """The same id is being done."""
    DONE = "done"


class Records:
    """The ledger of one data folder or database. Its methods block on the database.

    How a call ended may find no room, or the database locked: it is owed then, and written by `pay`, and before anything goes
    on that hangs on it: a call with the same id, or a run in the workspace that it still claims.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        database.make(_metadata)
        self._owner = identity_of(os.getpid())
        self._owed: dict[tuple[str, str], tuple[tuple[Executable, dict[str, Any]], ...]] = {}
        """By workspace and call: what is still to be written of how it ended."""

    @classmethod
    def in_folder(cls, folder: Path) -> "Records":
        """The embedded default: an SQLite file in the data folder."""
        return cls(Database.in_folder(folder))

    def accept(
        self, call_id: str, workspace: str, tool: str, arguments: Mapping[str, Any], caller: str | None = None
    ) -> Acceptance:
        """Take a call on, unless its id is known in the workspace; raises `IdReused` if that was another call."""
        row = {
            "id": call_id, "workspace": workspace, "tool": tool, "arguments": json.dumps(_shortened(arguments)),
            "fingerprint": hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest(),
            "state": State.ACCEPTED, "owner": self._owner, "accepted_at": datetime.now(UTC), "caller": caller,
        }  # fmt: skip
        self._pay(workspace, call_id)
        try:
            with self.database.writing() as db:
                db.execute(_insert, row)
        except IntegrityError:
            known = self._row(workspace, call_id)
            if known is None or known["fingerprint"] != row["fingerprint"]:
                raise IdReused(
                    f"The id {call_id} was given to another call of this workspace. Use a new one."
                ) from None
            return Acceptance.BUSY if known["state"] == State.ACCEPTED else Acceptance.DONE
        return Acceptance.MINE

    def claim(self, workspace: str, call_id: str) -> None:
        """Claim the workspace for a run, until the call is finished; raises `Busy` while another process runs in it."""
        claimed = {**_this(workspace, call_id), "claimed": workspace}
        try:
            with self.database.writing() as db:
                db.execute(_claim, claimed)
        except IntegrityError:
            for owed in [owed for owed in self._owed if owed[0] == workspace]:
                self._pay(*owed)
            self.recover()  # the other process may have died without anyone's notice
        else:
            return
        try:
            with self.database.writing() as db:
                db.execute(_claim, claimed)
        except IntegrityError:
            raise Busy(
                f"Another service is running something in the workspace {workspace}. Try again in a few seconds."
            ) from None

    def finish(self, workspace: str, call_id: str, status: str, answer: str) -> None:
        """Write down what came of a call, as JSON, and let others run in the workspace; without effect if it is not ours.

        Where it raises what may pass, `LedgerLocked` or `ServiceFull`, it is owed: ask `pay`, and not this again.
        """
        came = {"with_status": status, "with_answer": answer, "at": datetime.now(UTC)}
        self._settle(workspace, call_id, (_finish, {**self._mine(workspace, call_id), **came}))

    def forget(self, workspace: str, call_id: str) -> None:
        """Take back a call that was not begun, so that its id can be tried again; raises as `finish` does."""
        this = _this(workspace, call_id)
        self._settle(workspace, call_id, (_forget, self._mine(workspace, call_id)), (_forget_expansion, this))

    @property
    def owes(self) -> bool:
        """Whether there is something for `pay` to write."""
        return bool(self._owed)

    def pay(self) -> None:
        """Write all that is owed; raises at the end what kept anything from being written."""
        first: Exception | None = None
        for owed in list(self._owed):
            try:
                self._pay(*owed)
            except LedgerLocked:  # for all of them
                raise
            except (SQLAlchemyError, ServiceFull) as fault:  # others may be smaller
                first = first or fault
        if first is not None:
            raise first

    def _settle(self, workspace: str, call_id: str, *writes: tuple[Executable, dict[str, Any]]) -> None:
        self._owed[workspace, call_id] = writes
        try:
            self._pay(workspace, call_id)
        except _MAY_PASS:
            raise
        except BaseException:  # it can't be written at all
            del self._owed[workspace, call_id]
            raise

    def _pay(self, workspace: str, call_id: str) -> None:
        """Write what is owed of one call, if anything."""
        if (workspace, call_id) in self._owed:
            with self.database.writing() as db:
                for statement, row in self._owed[workspace, call_id]:
                    db.execute(statement, row)
            del self._owed[workspace, call_id]

    def _mine(self, workspace: str, call_id: str) -> dict[str, Any]:
        return {**_this(workspace, call_id), "of_owner": self._owner}

    def get(self, workspace: str, call_id: str) -> Record:
        """One call; raises `NotFound`, also for an id that is another workspace's."""
        row = self._row(workspace, call_id)
        if row is None:
            raise NotFound(f"There is no record {call_id[:80]!a} in the workspace {workspace}.")
        with self.database.reading() as db:
            this = (_expansions.c.workspace == workspace) & (_expansions.c.call == call_id)
            sent = db.execute(select(_expansions).where(this)).mappings().first()
        return _record(row).model_copy(update={"expansion": sent and Expansion.model_validate(dict(sent))})

    def note(self, workspace: str, call_id: str, tool: str, arguments: str, sha256: str) -> None:
        """Note what a delegating call is about to send, in whole. It blocks."""
        row = {"workspace": workspace, "call": call_id, "tool": tool, "arguments": arguments, "sha256": sha256}
        self.database.write(_expansions.insert(), row)

    def latest(self, workspace: str, *, limit: int = 100) -> list[Record]:
        """The workspace's calls, newest first, without their answers: `get` gives one with its answer."""
        with self.database.reading() as db:
            return [_record(row) for row in db.execute(_latest, {"in_workspace": workspace, "most": limit}).mappings()]

    def recover(self) -> list[Record]:
        """Mark what ended services left unfinished as interrupted, and give it. Call it before taking new runs."""
        with self.database.writing() as db:
            dead = [row for row in db.execute(_unfinished).mappings() if not lives(row["owner"])]
            for row in dead:
                db.execute(_interrupt, {**_this(row["workspace"], row["id"]), "at": datetime.now(UTC)})
        return [self.get(row["workspace"], row["id"]) for row in dead]

    def _row(self, workspace: str, call_id: str) -> RowMapping | None:
        with self.database.reading() as db:
            return db.execute(_get, _this(workspace, call_id)).mappings().first()

    def close(self) -> None:
        """Close the database."""
        with suppress(SQLAlchemyError, SpillboxError):  # then these calls are found interrupted
            self.pay()
        self.database.close()


def _this(workspace: str, call_id: str) -> dict[str, Any]:
    return {"in_workspace": workspace, "of_id": call_id}


def _record(row: RowMapping) -> Record:
    answer = None if row["answer"] is None else json.loads(row["answer"])
    return Record.model_validate({**with_zone(row), "arguments": json.loads(row["arguments"]), "answer": answer})


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        cut = value[:_MAX_ARGUMENT_CHARACTERS].encode("utf-8", "backslashreplace").decode()
        return cut if len(value) <= _MAX_ARGUMENT_CHARACTERS else f"{cut}… ({len(value):,} characters)"
    if isinstance(value, Mapping):
        return {_shortened(str(key)): _shortened(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(inner) for inner in value]
    return value
