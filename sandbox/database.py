"""The database of a data folder, or any other that SQLAlchemy has a URL for."""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, MetaData, RowMapping, create_engine, event, inspect
from sqlalchemy.exc import DatabaseError, OperationalError

from sandbox import migrations
from sandbox.errors import LedgerLocked, ServiceFull, SetupFailed

FILE = "records.sqlite3"
"""The embedded database of a data folder."""
HALF_RESTORED = ".restored"
"""A folder that is in a data folder only while a backup comes back into it, or since that was cut off."""
T = TypeVar("T")

_LOCKED = "Another program holds the records locked. Try again in a few seconds."
_BUSY_MILLISECONDS = 5  # writers take turns of a fraction of one; more is for the caller to wait, off the event loop
TRIES, PAUSE_SECONDS = 100, 0.1
"""How often, and after which pause, something is tried again while another program holds the database locked."""


class Database:
    """An engine, and one connection that writes, kept: to take one from the pool takes as long as the rest of a write."""

    def __init__(self, url: str) -> None:
        """Open it, and bring one of an older version up to this one; raises `SetupFailed` for one of a newer version."""
        self._held = ExitStack()
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
        """The embedded default: an SQLite file in the data folder, which nobody restores a backup into meanwhile."""
        folder.mkdir(parents=True, exist_ok=True)
        with opening(folder), ExitStack() as use:
            use.enter_context(together_in(folder))
            if (folder / HALF_RESTORED).exists() and not (folder / FILE).exists():
                raise SetupFailed(
                    f"A restore into {folder} did not end. Restore the backup again, into another data folder."
                )
            database = cls(f"sqlite:///{folder / FILE}")
            database._held = use.pop_all()
            return database

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
            if "locked" in str(fault.orig):
                raise LedgerLocked(_LOCKED) from None
            if "disk is full" in str(fault.orig):
                raise ServiceFull(
                    "The disk of the service is full: the records can't grow. Let the operator make room."
                ) from None
            raise

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
        self._held.close()


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Tell what is wrong with the records of a data folder when they are first used, as `SetupFailed` or `LedgerLocked`."""
    why = f"The records at {folder / FILE} can't be opened:"
    try:
        yield
    except OperationalError as fault:
        if "locked" in str(fault.orig):
            raise LedgerLocked(_LOCKED) from None
        raise SetupFailed(f"{why} {fault.orig}. Let this user read and write them, on a disk with room.") from None
    except DatabaseError as fault:
        raise SetupFailed(f"{why} {fault.orig}. Restore a backup into another data folder.") from None


def alone_in(folder: Path) -> AbstractContextManager[None]:
    """While in the ``with``, nobody else opens the records of a data folder; raises `SetupFailed` if somebody has them open."""
    return _used(folder, fcntl.LOCK_EX)


def together_in(folder: Path) -> AbstractContextManager[None]:
    """While in the ``with``, nobody is alone in the data folder; raises `SetupFailed` if somebody is."""
    return _used(folder, fcntl.LOCK_SH)


@contextmanager
def _used(folder: Path, how: int) -> Iterator[None]:
    """An advisory lock on the folder itself, which ends with the process; see flock(2)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except OSError as fault:
            if fault.errno != errno.EWOULDBLOCK:
                # This file system has no such locks: others may open the folder, but nobody can have it alone.
                if how == fcntl.LOCK_EX:
                    raise
                yield
                return
            what = "a backup is being restored into it" if how == fcntl.LOCK_SH else "a program of Spillbox has it open"
            raise SetupFailed(
                f"The data folder {folder} is in use: {what}. Stop that, or name another data folder."
            ) from None
        yield
    finally:
        os.close(fd)


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
