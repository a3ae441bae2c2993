"""What goes when its time is over, and what stays; disk quotas; attachments."""

import hashlib
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api.__main__ import main
from sandbox.errors import Expired, NotFound, ServiceFull
from sandbox.spills.spill import Received
from sandbox.tools.toolbox import Toolbox
from sandbox.workspace import Disk
from tests.conftest import box_over

WEEK = timedelta(days=7)


def age(folder: Path, days: float) -> None:
    """Make all files in it older."""
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - days * 86400,) * 2)


async def test_results_and_errors_go_after_their_time_and_everything_else_stays(box: Toolbox, tmp_path: Path) -> None:
    old = await box.spill("w", Received("t", content="x" * 2000))
    error = await box.spill("w", Received("t", content="x" * 2000, is_error=True))
    await box.call("write_file", "w", {"path": "mine.txt", "content": "y"})
    attached = await box.call("attach_file", "w", {"path": str(old.path)})
    age(tmp_path, 7.5)
    young = await box.spill("w", Received("t", content="z" * 2000))
    cleaned = await box.clean()
    assert (cleaned.files, cleaned.bytes) == (2, 4000)
    workspace = box.workspaces.open("w")
    assert [info.path for info in workspace.list_files()] == ["mine.txt", young.path]
    for spill in (old, error):
        with pytest.raises(Expired, match=rf"{spill.path} expired: it was removed on {datetime.now(UTC):%Y-%m-%d}"):
            workspace.open_file(str(spill.path))
    with pytest.raises(NotFound) as fault:
        workspace.open_file("results/9999-t.txt")
    assert not isinstance(fault.value, Expired)
    with box.attachments.open(box.catalog.attachment("w", attached.id)) as file:  # type: ignore[attr-defined]
        assert file.read() == b"x" * 2000
    assert (await box.clean()).files == 0
    following = await box.spill("w", Received("t", content="z" * 2000))
    assert following.path == "results/0004-t.txt"  # a number is never given again


async def test_a_full_disk_keeps_nobody_from_making_room(
    box: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expire(*arguments: Any) -> None:
        if (tmp_path / f"workspaces/w/files/{saved.path}").exists():
            raise ServiceFull("full")
        real(*arguments)

    saved = await box.spill("w", Received("t", content="x" * 2000))
    age(tmp_path, 8)
    real = box.catalog.expire
    monkeypatch.setattr(box.catalog, "expire", expire)
    assert (await box.clean()).files == 1
    with pytest.raises(Expired):
        box.workspaces.open("w").open_file(str(saved.path))


async def test_what_can_not_be_noted_is_removed_and_told(
    box: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def expire(*_: Any) -> None:
        raise ServiceFull("full")

    for _ in range(2):
        await box.spill("w", Received("t", content="x" * 2000))
    age(tmp_path, 8)
    monkeypatch.setattr(box.catalog, "expire", expire)
    assert (await box.clean()).files == 2
    assert "2 removed files are told of as not found" in caplog.text


@pytest.mark.parametrize(("characters", "is_enough"), [(200_000, True), (2000, False)])
async def test_a_disk_that_is_full_to_the_last_byte_is_cleaned(
    tmp_path: Path, characters: int, is_enough: bool
) -> None:
    """On a disk of the test's own, where the records can't be opened: control."""
    data, disk = tmp_path / "data", tmp_path / "disk"
    disk.mkdir()
    async with box_over(data) as other:
        for _ in range(3):
            await other.spill("w", Received("t", content="x" * characters))
    age(data, 8)
    (tmp_path / "look.py").write_text(
        "import sqlite3, sys\nfind = 'select count(*) from saved_files where expired_at is not null'\n"
        "print('told of', *sqlite3.connect(sys.argv[1]).execute(find).fetchone())"
    )
    spillbox = f"{sys.executable} -m api"
    script = (
        f"mount -t tmpfs -o size=4m none {disk} && cp -a {data} {disk}/data && ! cat /dev/zero 2>&- > {disk}/fill\n"
        f"! {spillbox} keys list --data-dir {disk}/data && {spillbox} clean --data-dir {disk}/data\n"
        f"{sys.executable} {tmp_path}/look.py {disk}/data/records.sqlite3"
    )
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(unshare, capture_output=True, text=True, check=False)
    assert "can't be opened" in done.stderr, done.stderr
    if is_enough:
        assert done.returncode == 0, done.stderr
        assert "Removed 3 files of 600,000 bytes" in done.stdout
        assert done.stdout.endswith("told of 3\n"), done.stdout
    else:
        assert done.returncode != 0
        assert "Removed 3 files of 6,000 bytes; that they expired may not be noted." in done.stderr


async def test_output_of_runs_expires_too(box: Toolbox, tmp_path: Path) -> None:
    path = box.workspaces.open("w").write_own("results", "-run_python.stdout.txt", (b"out",))
    age(tmp_path, 8)
    await box.clean()
    with pytest.raises(Expired):
        box.workspaces.open("w").open_file(path)


async def test_what_a_crash_left_is_swept_after_a_day(
    box: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.call("write_file", "w", {"path": "a", "content": "x"})
    kept = await box.call("attach_file", "w", {"path": "a"})
    orphan = tmp_path / "attachments/ab" / ("ab" + "0" * 62)
    orphan.parent.mkdir(exist_ok=True)
    half = tmp_path / "attachments/incoming/half"
    written = tmp_path / "workspaces/w/incoming/half"
    for file in (orphan, half, written):
        file.write_bytes(b"x")
    await box.clean()
    assert orphan.exists()  # it may be one that is being attached just now
    age(tmp_path, 2)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 2 * 86400)  # of a file on its way a guest may have set the time
    await box.clean()
    assert not any(file.exists() for file in (orphan, half, written))
    box.attachments.open(box.catalog.attachment("w", kept.id)).close()  # type: ignore[attr-defined]


def test_the_command_says_what_it_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box = box_over(tmp_path)
    box.workspaces.open("w").write_own("errors", "-t.txt", (b"x" * 100,))
    box.records.close()
    age(tmp_path, 8)
    assert main(["clean", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "Removed 1 files of 100 bytes, older than 7 days.\n"


async def test_equal_content_is_stored_once_read_only_and_found_by_its_hash(box: Toolbox, tmp_path: Path) -> None:
    for name in ("a", "b"):
        await box.call("write_file", "w", {"path": name, "content": "same"})
    first, second = [await box.call("attach_file", "w", {"path": name}) for name in ("a", "b")]
    digest = hashlib.sha256(b"same").hexdigest()
    assert first.sha256 == second.sha256 == digest  # type: ignore[attr-defined]
    assert first.id != second.id  # type: ignore[attr-defined]
    (stored,) = [file for file in (tmp_path / "attachments").rglob("*") if file.is_file()]
    assert (stored.name, stored.stat().st_mode & 0o777) == (digest, 0o400)
    assert [one.name for one in box.catalog.attachments("w")] == ["b", "a"]
    assert box.catalog.attachments("v") == []


async def test_the_quota_of_the_service_bounds_files_and_attachments(tmp_path: Path) -> None:
    async with box_over(tmp_path, disk=Disk(tmp_path, quota_bytes=12_000_000)) as box:
        await box.call("write_file", "w", {"path": "a", "content": "x" * 5_000_000})
        await box.call("attach_file", "w", {"path": "a"})
        with pytest.raises(ServiceFull, match="spillbox clean"):
            await box.call("attach_file", "w", {"path": "a"})
        with pytest.raises(ServiceFull, match="spillbox clean"):
            await box.call("write_file", "w", {"path": "b", "content": "x" * 5_000_000})
        assert not box.workspaces.open("w").exists("b")
        assert list((tmp_path / "attachments/incoming").iterdir()) == []


def test_room_is_left_on_the_disk(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    with pytest.raises(ServiceFull, match="nearly full"):
        Disk(tmp_path, spare_bytes=free.f_blocks * free.f_frsize).take(0)
    Disk(tmp_path, spare_bytes=1).take(1)
