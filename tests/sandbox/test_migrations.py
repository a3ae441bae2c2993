"""A database of an older version is brought up, with all that it has; one of a newer version is refused."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sandbox import backup, migrations
from sandbox.database import FILE, Database
from sandbox.errors import SetupFailed
from sandbox.keys import Keys
from sandbox.records import Acceptance, Records, State
from tests.conftest import box_over

FIRST = """
CREATE TABLE calls (workspace VARCHAR(128) NOT NULL, id VARCHAR(160) NOT NULL, fingerprint VARCHAR(64) NOT NULL,
    tool VARCHAR(128) NOT NULL, arguments TEXT NOT NULL, state VARCHAR(16) NOT NULL, owner VARCHAR(64) NOT NULL,
    running_in VARCHAR(128), status VARCHAR(32), answer TEXT, accepted_at DATETIME NOT NULL, ended_at DATETIME,
    PRIMARY KEY (workspace, id), UNIQUE (running_in));
CREATE INDEX ix_calls_state ON calls (state);
CREATE TABLE expansions (workspace VARCHAR(128) NOT NULL, call VARCHAR(160) NOT NULL, tool TEXT NOT NULL,
    arguments TEXT NOT NULL, sha256 VARCHAR(64) NOT NULL, PRIMARY KEY (workspace, call));
CREATE TABLE saved_files (workspace VARCHAR(128) NOT NULL, path VARCHAR(255) NOT NULL, tool VARCHAR(128),
    format VARCHAR(16), rows BIGINT, columns TEXT, rows_at TEXT, complete BOOLEAN, saved_at DATETIME, expired_at DATETIME,
    PRIMARY KEY (workspace, path));
CREATE TABLE attachments (id VARCHAR(32) NOT NULL, workspace VARCHAR(128) NOT NULL, path TEXT NOT NULL, name TEXT NOT NULL,
    media_type VARCHAR(128) NOT NULL, bytes BIGINT NOT NULL, sha256 VARCHAR(64) NOT NULL, attached_at DATETIME NOT NULL,
    PRIMARY KEY (id));
CREATE INDEX ix_attachments_workspace ON attachments (workspace);
CREATE INDEX ix_attachments_sha256 ON attachments (sha256);
CREATE TABLE shown_tables (id VARCHAR(32) NOT NULL, workspace VARCHAR(128) NOT NULL, call VARCHAR(160) NOT NULL,
    title TEXT NOT NULL, row_count INTEGER NOT NULL, columns TEXT NOT NULL, rows TEXT NOT NULL, shown_at DATETIME NOT NULL,
    PRIMARY KEY (id));
CREATE INDEX ix_shown_tables_workspace ON shown_tables (workspace);
CREATE TABLE approvals (id VARCHAR(32) NOT NULL, workspace VARCHAR(128) NOT NULL, call VARCHAR(160) NOT NULL,
    tool TEXT NOT NULL, arguments TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 VARCHAR(64) NOT NULL,
    state VARCHAR(16) NOT NULL, asked_at DATETIME NOT NULL, decided_at DATETIME, PRIMARY KEY (id));
CREATE INDEX ix_approvals_workspace ON approvals (workspace);
CREATE INDEX ix_approvals_state ON approvals (state);
CREATE TABLE keys (id VARCHAR(16) NOT NULL, tenant VARCHAR(32) NOT NULL, note VARCHAR(200) NOT NULL,
    approves BOOLEAN NOT NULL, sha256 VARCHAR(64) NOT NULL, made_at DATETIME NOT NULL, revoked_at DATETIME,
    PRIMARY KEY (id), UNIQUE (sha256));
CREATE INDEX ix_keys_tenant ON keys (tenant);
INSERT INTO calls VALUES ('acme~w', 'a', 'f', 'run_python', '{"code": "1"}', 'done', '1:1', NULL, 'succeeded',
    '{"exit_code": 0}', '2026-01-02 03:04:05.000000', '2026-01-02 03:04:06.000000');
INSERT INTO calls VALUES ('acme~w', 'b', 'f', 'run_python', '{}', 'accepted', '1:1', 'acme~w', NULL, NULL,
    '2026-01-02 03:04:07.000000', NULL);
INSERT INTO keys VALUES ('0a1b2c3d', 'acme', 'agent', 0,
    'b4a49f9a3a1dd9d66a8ff42b3b58a1a4ce6c3b1ab2e59fbc5bd54e4a8f4f8d30', '2026-01-02 03:04:05.000000', NULL);
"""
"""The tables of the first version, as it made them, and rows in them."""


def first(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        db.executescript(FIRST)
    return folder


def _versions(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / FILE)) as db:
        return [version for (version,) in db.execute("SELECT version FROM schema_versions")]


async def test_a_database_of_the_first_version_is_brought_up_and_keeps_everything(tmp_path: Path) -> None:
    first(tmp_path)
    async with box_over(tmp_path) as box:
        record = box.records.get("acme~w", "a")
        assert (record.state, record.answer, record.caller) == (State.DONE, {"exit_code": 0}, None)
        assert [one.id for one in box.records.recover()] == ["b"]
        assert [key.id for key in Keys(box.records.database).all()] == ["0a1b2c3d"]
        assert box.records.accept("c", "acme~w", "t", {}, "0a1b2c3d") is Acceptance.MINE
        assert box.records.get("acme~w", "c").caller == "0a1b2c3d"
    assert _versions(tmp_path) == [migrations.VERSION]


def test_it_is_brought_up_once_also_by_several_at_the_same_time(tmp_path: Path) -> None:
    first(tmp_path)
    code = "import sys; from pathlib import Path; from sandbox.records import Records; Records.in_folder(Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[1] for process in started] == [""] * 4
    assert _versions(tmp_path) == [migrations.VERSION]


def test_a_new_database_needs_no_step(tmp_path: Path) -> None:
    Records.in_folder(tmp_path).close()
    assert _versions(tmp_path) == [migrations.VERSION]
    Records.in_folder(tmp_path).close()
    assert _versions(tmp_path) == [migrations.VERSION]


def test_a_step_for_a_table_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:  # keys were made, and the service was never started
        db.executescript("".join(f"{part};" for part in FIRST.split(";") if "TABLE keys" in part))
    Records.in_folder(tmp_path).close()
    assert _versions(tmp_path) == [migrations.VERSION]


def test_a_step_that_fails_leaves_the_database_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first(tmp_path)
    steps = (*migrations.STEPS, migrations.Step(3, "calls", "ALTER TABLE missing ADD COLUMN x TEXT"))
    monkeypatch.setattr(migrations, "STEPS", steps)
    monkeypatch.setattr(migrations, "VERSION", 3)
    with pytest.raises(Exception, match="no such table: missing"):
        Database.in_folder(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert "caller" not in {row[1] for row in db.execute("PRAGMA table_info(calls)")}
        assert not list(db.execute("SELECT * FROM sqlite_master WHERE name = 'schema_versions'"))


def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    Records.in_folder(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("INSERT INTO schema_versions VALUES (?, '2030-01-01 00:00:00.000000')", (migrations.VERSION + 1,))
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(SetupFailed, match=rf"schema {migrations.VERSION + 1}.*up to {migrations.VERSION}"):
        Database.in_folder(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_backup_of_the_first_version_is_brought_up_when_it_is_restored_and_opened(tmp_path: Path) -> None:
    backup.save(first(tmp_path / "old"), tmp_path / "file")
    backup.restore(tmp_path / "file", tmp_path / "new")
    records = Records.in_folder(tmp_path / "new")
    assert records.get("acme~w", "a").status == "succeeded"
    records.close()
