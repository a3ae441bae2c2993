"""How a database of an older version becomes one of this version: small steps in their order, each done once, all old data kept.

The versions that a database went through are rows of its own table. One that has no such table is of version 1, or empty.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Column, Connection, DateTime, Integer, MetaData, Table, func, inspect, select, text

from sandbox.errors import SetupFailed


class Step(NamedTuple):
    """One statement, for a table that is there: one that is not is made in its newest form."""

    version: int
    """Of the database, when it is done."""
    table: str
    statement: str


FIRST_VERSION = 1
STEPS = (Step(2, "calls", "ALTER TABLE calls ADD COLUMN caller VARCHAR(256)"),)
VERSION = STEPS[-1].version

_metadata = MetaData()
_versions = Table(
    "schema_versions",
    _metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("since", DateTime(timezone=True), nullable=False),
)


def version_of(db: Connection) -> int | None:
    """The newest version that a database went through; None if it knows of none."""
    if not inspect(db).has_table(_versions.name):
        return None
    found: int | None = db.execute(select(func.max(_versions.c.version))).scalar()
    return found


def require_not_newer(db: Connection) -> None:
    """Raises `SetupFailed` for a database that a newer version of the program has changed."""
    found = version_of(db) or FIRST_VERSION
    if found > VERSION:
        raise SetupFailed(
            f"The records at {db.engine.url} have the schema {found}, and this program knows those up to {VERSION}: a newer "
            "one has changed them. Install that one again, or restore a backup that was made before (docs/upgrade.md)."
        )


def migrate(db: Connection) -> None:
    """Do the steps that are missing; call it in a transaction that no other writer can be in at the same time."""
    require_not_newer(db)
    found = version_of(db)
    there = set(inspect(db).get_table_names())
    _metadata.create_all(db)
    for step in STEPS:
        if step.version > (found or FIRST_VERSION) and step.table in there:
            db.execute(text(step.statement))
    if found != VERSION:
        db.execute(_versions.insert().values(version=VERSION, since=datetime.now(UTC)))
