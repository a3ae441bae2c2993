"""A backup has everything, and gives everything back."""

import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest

from sandbox import backup
from sandbox.database import Database
from sandbox.errors import SetupFailed
from sandbox.spills.spill import Received
from tests.conftest import box_over

ROWS = (
    b'[{"id": 947871269024436488, "price": 1.10}, ' + b'{"id": 2, "price": 2.50}, ' * 100 + b'{"id": 3, "price": 0.10}]'
)


async def _filled(folder: Path) -> dict[str, object]:
    """What a data folder has, as its users see it; made there if it is empty."""
    async with box_over(folder) as box:
        for name in ("chat-1", "acme~chat-1"):
            workspace = box.workspaces.open(name)
            if not workspace.exists("a.txt"):
                workspace.write("a.txt", name.encode())
                workspace.write("deep/é\n.bin", bytes(range(256)))
                workspace.write("incoming/.scratch/mine.txt", b"a folder of the user's own")
                await box.spill(name, Received("rows", content=ROWS))
                await box.call("attach_file", name, {"path": "a.txt"})
        seen: dict[str, object] = {}
        for name in ("chat-1", "acme~chat-1"):
            workspace = box.workspaces.open(name)
            paths = ["a.txt", "deep/é\n.bin", "incoming/.scratch/mine.txt", "results/0001-rows.json"]
            seen[name] = (
                [workspace.read_bytes(path) for path in paths],
                box.catalog.saved(name),
                box.records.latest(name),
            )
            (attachment,) = box.catalog.attachments(name)
            with box.attachments.open(attachment) as file:
                seen[f"{name} attached"] = attachment, file.read()
        return seen


async def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "backup.tar.gz"
    before = await _filled(old)
    (old / "link-secret").write_text("secret")
    (old / "workspaces/chat-1/incoming/half").write_text("half")
    async with box_over(old):  # a service goes on meanwhile
        count = backup.save(old, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert backup.restore(file, new) == count
    assert await _filled(new) == before
    assert (new / "link-secret").read_text() == "secret"
    assert not (new / "workspaces/chat-1/incoming/half").exists()
    assert not (new / ".restored").exists()


async def test_a_file_that_changes_meanwhile_is_whole(tmp_path: Path) -> None:
    async with box_over(tmp_path / "data") as box:
        workspace = box.workspaces.open("w")
        contents = [b"A" * (3 << 20), b"B" * 1000]
        stop = threading.Event()

        def change() -> None:
            for content in itertools.cycle(contents):
                workspace.write("a.bin", content)
                workspace.write_own("results", "-t.txt", (b"x",))
                if stop.is_set():
                    return

        workspace.write("a.bin", contents[0])
        changing = threading.Thread(target=change)
        changing.start()
        for number in range(30):
            backup.save(tmp_path / "data", tmp_path / f"{number}.tar.gz")
        stop.set()
        changing.join()
    for number in range(30):
        with tarfile.open(tmp_path / f"{number}.tar.gz") as archive:
            file = archive.extractfile("workspaces/w/files/a.bin")
            assert file is not None
            assert file.read() in contents


async def test_what_is_left_of_another_ledger_is_not_mixed_in(tmp_path: Path) -> None:
    await _filled(tmp_path / "data")
    backup.save(tmp_path / "data", tmp_path / "file")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/records.sqlite3-wal").write_bytes(b"old")
    with pytest.raises(SetupFailed, match=r"records\.sqlite3-wal"):
        backup.restore(tmp_path / "file", tmp_path / "new")


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder, file = tmp_path / "data", tmp_path / "backup.tar.gz"
    with pytest.raises(SetupFailed, match="--data-dir"):
        backup.save(folder, file)
    await _filled(folder)
    backup.save(folder, file)
    with pytest.raises(SetupFailed, match="there already"):
        backup.save(folder, file)
    with pytest.raises(SetupFailed, match="already"):
        backup.restore(file, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar.gz", "data"]


async def test_a_file_that_is_not_whole_or_no_backup_leaves_nothing(tmp_path: Path) -> None:
    await _filled(tmp_path / "data")
    backup.save(tmp_path / "data", tmp_path / "backup.tar.gz")
    whole = (tmp_path / "backup.tar.gz").read_bytes()
    for content in (whole[: len(whole) // 2], whole[:20], b"", b"no archive", _archive("a.txt"), _archive("records.sqlite3", "../out.txt"),
                    _archive("records.sqlite3", "/tmp/out.txt"), _archive("records.sqlite3", link="workspaces"),
                    _archive("records.sqlite3", "guest-root/bin/python"), _archive("records.sqlite3", time="1e20"),
                    _archive("records.sqlite3", time="nan"), _archive("records.sqlite3/x"), _archive("records.sqlite3", "workspaces"),
                    _archive("records.sqlite3", f"workspaces/{'a/' * 1500}x"), _archive("records.sqlite3", ledger=b"x"),
                    _archive("records.sqlite3", ledger=b"")):  # fmt: skip
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(SetupFailed):
            backup.restore(tmp_path / "file", tmp_path / "new")
        assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out.txt").exists()
    (tmp_path / "file").write_bytes(_archive("records.sqlite3", "workspaces/w/files/a"))
    assert backup.restore(tmp_path / "file", tmp_path / "new") == 2


async def test_a_backup_that_was_damaged_gives_nothing_back_that_differs(tmp_path: Path) -> None:
    await _filled(tmp_path / "data")
    workspace_file = tmp_path / "data/workspaces/chat-1/files/random.bin"
    workspace_file.write_bytes(os.urandom(100_000))  # so that most bits of the backup are bits of a value
    backup.save(tmp_path / "data", tmp_path / "backup.tar.gz")
    whole = (tmp_path / "backup.tar.gz").read_bytes()
    content = workspace_file.read_bytes()
    refused = 0
    for at in range(20, len(whole), len(whole) // 40):
        (tmp_path / "file").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            backup.restore(tmp_path / "file", tmp_path / "new")
        except SetupFailed:
            refused += 1
            assert not (tmp_path / "new").exists()
        else:  # some bits of a gzip stream are no matter of what is in it
            assert (tmp_path / "new/workspaces/chat-1/files/random.bin").read_bytes() == content
            shutil.rmtree(tmp_path / "new")
    assert refused > 30


async def test_a_service_and_a_restore_do_not_have_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(file: Path, folder: Path) -> int:
        with pytest.raises(SetupFailed, match="a backup is being restored into it"):
            Database.in_folder(tmp_path / "new")
        with pytest.raises(SetupFailed, match="is in use"):
            backup.restore(file, tmp_path / "new")
        return real(file, folder)

    before = await _filled(tmp_path / "data")
    backup.save(tmp_path / "data", tmp_path / "file")
    real = backup._unpack
    monkeypatch.setattr(backup, "_unpack", unpack)
    backup.restore(tmp_path / "file", tmp_path / "new")
    assert await _filled(tmp_path / "new") == before
    (tmp_path / "used").mkdir()
    with (
        closing(Database.in_folder(tmp_path / "used")),
        pytest.raises(SetupFailed, match="a program of Spillbox has it open"),
    ):
        backup.restore(tmp_path / "file", tmp_path / "used")


@pytest.mark.parametrize("last", ["attachments", "records.sqlite3"])
async def test_a_restore_that_fails_while_names_are_given_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    def rename(path: Path, target: Path) -> Path:
        if path.name == last and path.parent.name == ".restored":
            raise OSError("gone")
        return real(path, target)

    await _filled(tmp_path / "data")
    backup.save(tmp_path / "data", tmp_path / "file")
    real = Path.rename
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(SetupFailed, match="Nothing was changed"):
        backup.restore(tmp_path / "file", tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_a_restore_that_was_killed_is_told_to_whoever_comes_next(tmp_path: Path) -> None:
    await _filled(tmp_path / "data")
    backup.save(tmp_path / "data", tmp_path / "file")
    code = (
        "import os, sys; from pathlib import Path; from sandbox import backup\n"
        "real = Path.rename\n"
        "Path.rename = lambda path, target: os._exit(9) if path.name == 'records.sqlite3' else real(path, target)\n"
        "backup.restore(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    killed = subprocess.run([sys.executable, "-c", code, tmp_path / "file", tmp_path / "new"], check=False)
    assert killed.returncode == 9
    with pytest.raises(SetupFailed, match="did not end"):
        Database.in_folder(tmp_path / "new")
    with pytest.raises(SetupFailed, match=r"Remove what came of it \(\.restored, attachments, workspaces\)"):
        backup.restore(tmp_path / "file", tmp_path / "new")


def _archive(*names: str, link: str | None = None, time: str | None = None, ledger: bytes | None = None) -> bytes:
    """``ledger``: what the records hold, those of a service if None."""
    out = BytesIO()
    if ledger is None:
        with closing(sqlite3.connect(":memory:")) as database:
            database.execute("CREATE TABLE calls (id)")
            ledger = database.serialize()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            if time is not None:
                member.pax_headers = {"mtime": time}
            content = ledger if name == "records.sqlite3" else b""
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
        if link is not None:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc"
            archive.addfile(member)
    return out.getvalue()
