"""What the service knows of the files and tables that it made: spills, attachments, tables shown. Beside the ledger's calls."""

import json
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Integer,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    func,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from sandbox.database import Database, with_zone
from sandbox.errors import NotFound
from sandbox.tenants import is_of

_metadata = MetaData()
_saved = Table(
    "saved_files",
    _metadata,
    Column("workspace", String(128), primary_key=True),
    Column("path", String(255), primary_key=True),
    Column("tool", String(128)),
    Column("format", String(16)),
    Column("rows", BigInteger),
    Column("columns", Text),
    Column("rows_at", Text),
    Column("complete", Boolean),
    Column("saved_at", DateTime(timezone=True)),
    Column("expired_at", DateTime(timezone=True)),
)
_attachments = Table(
    "attachments",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("workspace", String(128), nullable=False, index=True),
    Column("path", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("media_type", String(128), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False, index=True),
    Column("attached_at", DateTime(timezone=True), nullable=False),
)
_tables = Table(
    "shown_tables",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("workspace", String(128), nullable=False, index=True),
    Column("call", String(160), nullable=False),
    Column("title", Text, nullable=False),
    Column("row_count", Integer, nullable=False),
    Column("columns", Text, nullable=False),
    Column("rows", Text, nullable=False),
    Column("shown_at", DateTime(timezone=True), nullable=False),
)


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class SavedFileInfo(_Kept):
    """What is known of a file under ``results/`` or ``errors/``."""

    path: str
    tool: str | None = None
    format: str | None = None
    rows: int | None = None
    columns: tuple[str, ...] | None = None
    rows_at: str | None = None
    complete: bool | None = None
    saved_at: datetime | None = None
    expired_at: datetime | None = None


class Attachment(_Kept):
    """A file that was attached: it never changes, and outlives its workspace's files."""

    id: str
    workspace: str
    path: str
    """Where it was in the workspace."""
    name: str
    media_type: str
    bytes: int
    sha256: str
    attached_at: datetime


class ShownTable(_Kept):
    """A table that was shown to the user."""

    id: str
    workspace: str
    call: str
    title: str
    row_count: int
    columns: tuple[str, ...]
    rows: str
    """JSON: an array of arrays of cells, every literal as in its source."""
    shown_at: datetime


class Catalog:
    """Over one database. Its methods block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.make(_metadata)

    def add_saved(self, workspace: str, info: SavedFileInfo) -> None:
        """Note a file that was saved."""
        row = info.model_dump() | {
            "workspace": workspace,
            "columns": None if info.columns is None else json.dumps(info.columns),
        }
        try:
            self._insert(_saved, row)
        except IntegrityError:  # its workspace was removed by hand, and its numbers began anew
            this = (_saved.c.workspace == workspace) & (_saved.c.path == info.path)
            self._database.write(update(_saved).where(this).values(**row))

    def saved(self, workspace: str) -> dict[str, SavedFileInfo]:
        """All that is known of the workspace's files that have not expired, by path."""
        statement = select(_saved).where((_saved.c.workspace == workspace) & _saved.c.expired_at.is_(None))
        return {row["path"]: _saved_of(row) for row in self._rows(statement)}

    def find_saved(self, workspace: str, path: str) -> SavedFileInfo | None:
        """What is known of one file."""
        statement = select(_saved).where((_saved.c.workspace == workspace) & (_saved.c.path == path))
        return next(map(_saved_of, self._rows(statement)), None)

    def expired_at(self, workspace: str, path: str) -> datetime | None:
        """When a file expired, if it did."""
        info = self.find_saved(workspace, path)
        return None if info is None else info.expired_at

    def expire(self, workspace: str, path: str, at: datetime) -> None:
        """Note that a file is gone, since its time was over."""
        try:
            self._insert(_saved, {"workspace": workspace, "path": path, "expired_at": at})
        except IntegrityError:
            this = (_saved.c.workspace == workspace) & (_saved.c.path == path)
            self._database.write(update(_saved).where(this).values(expired_at=at))

    def add_attachment(self, attachment: Attachment) -> None:
        """Note a file that was attached."""
        self._insert(_attachments, attachment.model_dump())

    def attachments(self, workspace: str) -> list[Attachment]:
        """The workspace's, newest first."""
        statement = select(_attachments).where(_attachments.c.workspace == workspace)
        return [
            Attachment.model_validate(with_zone(row))
            for row in self._rows(statement.order_by(_attachments.c.attached_at.desc()))
        ]

    def attachment(self, workspace: str, attachment_id: str) -> Attachment:
        """One; raises `NotFound`, also for an id that is another workspace's."""
        statement = select(_attachments).where(
            (_attachments.c.workspace == workspace) & (_attachments.c.id == attachment_id)
        )
        for row in self._rows(statement):
            return Attachment.model_validate(with_zone(row))
        raise NotFound(f"There is no attachment {attachment_id[:80]!a} in the workspace {workspace}.")

    def is_attached(self, sha256: str, tenant: str | None = None) -> bool:
        """Whether any attachment has this content, or any of a tenant's."""
        this = _attachments.c.sha256 == sha256
        if tenant is not None:
            this &= is_of(_attachments.c.workspace, tenant)
        return bool(self._rows(select(func.count().label("n")).where(this))[0]["n"])

    def attached_bytes(self, tenant: str) -> int:
        """Bytes of a tenant's attachments; equal content counts once."""
        contents = select(_attachments.c.sha256, _attachments.c.bytes).where(is_of(_attachments.c.workspace, tenant))
        each = contents.distinct().subquery()
        found = self._rows(select(func.coalesce(func.sum(each.c.bytes), 0).label("n")))[0]["n"]
        return int(found)

    def add_table(self, table: ShownTable) -> None:
        """Keep a table that was shown."""
        self._insert(_tables, table.model_dump() | {"columns": json.dumps(table.columns)})

    def table(self, workspace: str, table_id: str) -> ShownTable:
        """One; raises `NotFound`, also for an id that is another workspace's."""
        statement = select(_tables).where((_tables.c.workspace == workspace) & (_tables.c.id == table_id))
        for row in self._rows(statement):
            return ShownTable.model_validate(with_zone(row) | {"columns": json.loads(row["columns"])})
        raise NotFound(f"There is no table {table_id[:80]!a} in the workspace {workspace}.")

    def _insert(self, table: Table, row: dict[str, Any]) -> None:
        self._database.write(table.insert().values(**row))

    def _rows(self, statement: Any) -> list[RowMapping]:
        with self._database.reading() as db:
            return list(db.execute(statement).mappings())


def _saved_of(row: RowMapping) -> SavedFileInfo:
    return SavedFileInfo.model_validate(
        with_zone(row) | {"columns": None if row["columns"] is None else json.loads(row["columns"])}
    )
