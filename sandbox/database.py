"""The database of a data folder, or any other that SQLAlchemy has a URL for."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, MetaData, RowMapping, create_engine, event, inspect
from sqlalchemy.exc import OperationalError

from sandbox import migrations
from sandbox.errors import LedgerLocked, SetupFailed

FILE = "records.sqlite3"
"""The embedded database of a data folder."""
T = TypeVar("T")

_BUSY_MILLISECONDS = 5  # writers take turns of a fraction of one; more is for the caller to wait, off the event loop
TRIES, PAUSE_SECONDS = 100, 0.1
"""How often, and after which pause, something is tried again while another program holds the database locked."""


class Database:
    """An engine, and one connection that writes, kept: to take one from the pool takes as long as the rest of a write."""

    def __init__(self, url: str) -> None:
        """Open it, and bring one of an older version up to this one; raises `SetupFailed` for one of a newer version."""
        self._engine = _engine(url)
        self._lock = threading.Lock()
        self._writer = self._engine.connect()
        try:
            self._bring_up()
        except BaseException:
            self.close()
            raise

    def _bring_up(self) -> None:
        with self.reading() as db:
            if migrations.version_of(db) == migrations.VERSION:
                return
            migrations.require_not_newer(db)
        self._again_while_locked(self._migrated)

    def _migrated(self) -> None:
        with self.writing() as db:
            if db.dialect.name == "sqlite":  # its driver begins no transaction for a change of tables
                db.exec_driver_sql("BEGIN IMMEDIATE")
            migrations.migrate(db)

    @classmethod
    def in_folder(cls, folder: Path) -> "Database":
        """The embedded default: an SQLite file in the data folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(f"sqlite:///{folder / FILE}")

    def make(self, metadata: MetaData) -> None:
        """Make the tables that are not there; raises `SetupFailed` if one was made by another version."""
        metadata.create_all(self._engine)
        for table in metadata.tables.values():
            found = {column["name"] for column in inspect(self._engine).get_columns(table.name)}
            if found != set(table.columns.keys()):
                raise SetupFailed(
                    f"The records at {self._engine.url} were written by another version. Move them away, or use another "
                    "data folder."
                )

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction; raises `LedgerLocked` while another program writes."""
        try:
            with self._lock, self._writer.begin():
                yield self._writer
        except OperationalError as fault:
            if "locked" not in str(fault.orig):
                raise
            raise LedgerLocked("Another program holds the records locked. Try again in a few seconds.") from None

    def write(self, statement: Executable, row: Mapping[str, Any] | None = None) -> int:
        """One statement in a transaction of its own, again while the database is locked; gives how many rows it was about.

        It blocks, so not for an event loop.
        """
        return self._again_while_locked(lambda: self._written(statement, row))

    def _again_while_locked(self, work: Callable[[], T]) -> T:
        for _ in range(TRIES):
            try:
                return work()
            except LedgerLocked:
                time.sleep(PAUSE_SECONDS)
        return work()

    def _written(self, statement: Executable, row: Mapping[str, Any] | None) -> int:
        with self.writing() as db:
            return db.execute(statement, row).rowcount

    def reading(self) -> Connection:
        """A connection for reading, to be used in a ``with``."""
        return self._engine.connect()

    def close(self) -> None:
        """Close the database."""
        self._writer.close()
        self._engine.dispose()


def with_zone(row: RowMapping) -> dict[str, Any]:
    """A row whose times have their zone, UTC, which SQLite forgets."""
    return {
        name: value.replace(tzinfo=value.tzinfo or UTC) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def _engine(url: str) -> Engine:
    engine = create_engine(
        url, hide_parameters=True
    )  # of a statement that fails: arguments and answers are no matter of a log
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _settings(connection: Any, _: object) -> None:
            # A crash of the machine may lose the last calls, never the file; a crash of the service loses nothing.
            for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={_BUSY_MILLISECONDS}"):
                connection.execute(f"PRAGMA {pragma}")

    return engine
