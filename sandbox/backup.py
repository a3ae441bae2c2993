"""A data folder as one file, and back. What can be made again, such as the guest root, is not in it."""

import gzip
import io
import os
import shutil
import sqlite3
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from sandbox.database import FILE as LEDGER
from sandbox.database import HALF_RESTORED, alone_in
from sandbox.errors import SetupFailed

LINK_SECRET = "link-secret"  # noqa: S105  the name of a file
"""What links are signed with, where tenants have keys."""
_FOLDERS = ("attachments", "workspaces")
_LEFT_OUT = {("attachments", 1, "incoming"), ("workspaces", 1, ".scratch"), ("workspaces", 2, "incoming")}
"""Folders by the top folder, the depth and the name."""
_FILES = (LEDGER, LINK_SECRET)
_RESTORED = (*_FILES, *_FOLDERS, f"{LEDGER}-wal", f"{LEDGER}-shm")
_SMALL_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20


def save(data_folder: Path, file: Path) -> int:
    """Write everything into a new file; gives how many files are in it. A service may go on meanwhile.

    The ledger is copied first, as it is at one moment. A file is taken as it is when it is opened; what is removed meanwhile
    is missing, as if it had expired. Raises `SetupFailed` where there is nothing to save, or the file can't be written.
    """
    if not os.access(data_folder / LEDGER, os.R_OK):
        raise SetupFailed(
            f"There are no records in {data_folder} that this user can read. Name the data folder with --data-dir."
        )
    count = 0
    try:
        with TemporaryDirectory(dir=file.parent, prefix=".spillbox-") as temporary:  # for this user only
            ledger, new = Path(temporary) / LEDGER, Path(temporary) / "new"
            with closing(sqlite3.connect(data_folder / LEDGER)) as source, closing(sqlite3.connect(ledger)) as copy:
                source.backup(copy)
            with new.open("wb") as out:
                with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1, dereference=True) as archive:
                    count += _add(archive, ledger, LEDGER)
                    for path in _kept(data_folder):
                        name = os.path.relpath(path, data_folder)
                        if path.is_dir() and not path.is_symlink():
                            with suppress(FileNotFoundError):
                                archive.add(path, name, recursive=False)
                        else:
                            count += _add(archive, path, name)
                out.flush()
                os.fsync(out.fileno())
            new.chmod(0o600)
            os.link(new, file)
    except FileExistsError:
        raise SetupFailed(f"{file} is there already. Choose another name.") from None
    except (OSError, sqlite3.Error, tarfile.TarError) as fault:
        raise SetupFailed(f"The backup could not be written: {fault}.") from None
    return count


def _add(archive: tarfile.TarFile, path: Path, name: str) -> int:
    """Put in a regular file, as it is when it is opened; gives 0 for what has gone, or is anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    with os.fdopen(fd, "rb") as file:
        about = archive.gettarinfo(arcname=name, fileobj=file)
        if not about.isfile():
            return 0
        if about.size <= _SMALL_BYTES:  # such as a counter, which is written in its place
            content = file.read()
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
        else:
            archive.addfile(about, file)
    return 1


def restore(file: Path, data_folder: Path) -> int:
    """Put everything back into a data folder that has no records yet; gives how many files there were.

    Raises `SetupFailed`, and leaves nothing, where the folder is in use or the file is no backup, or not a whole one. If it is
    killed it leaves a folder whose records nobody opens: `Database.in_folder` refuses it.
    """
    with ExitStack() as made, ExitStack() as undoing:
        try:
            if not data_folder.exists():
                data_folder.mkdir(mode=0o700, parents=True)
                undoing.callback(_remove_empty, data_folder)
            made.enter_context(alone_in(data_folder))
            new = data_folder / HALF_RESTORED
            taken = [name for name in _RESTORED if (data_folder / name).exists()]
            if new.exists():
                remains = ", ".join((HALF_RESTORED, *taken))
                raise SetupFailed(
                    f"A restore into {data_folder} did not end. Remove what came of it ({remains}), and try again."
                )
            if taken:
                raise SetupFailed(f"{data_folder} has {', '.join(taken)} already. Restore into another data folder.")
            new.mkdir(mode=0o700)
            undoing.callback(shutil.rmtree, new, ignore_errors=True)
            count = _unpack(file, new)
            _require_records(file, new / LEDGER)
            with suppress(PermissionError):  # another's folder, which this user may write to
                data_folder.chmod(0o700)
            os.sync()
            for path in sorted(new.iterdir(), key=lambda path: path.name == LEDGER):
                place = data_folder / path.name
                path.rename(place)
                undoing.callback(place.rename, path)
            new.rmdir()
            undoing.pop_all()
        except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError, RecursionError) as fault:
            raise SetupFailed(f"{file} can't be restored: {fault}. Nothing was changed.") from None
    os.sync()
    return count


def _unpack(file: Path, folder: Path) -> int:
    """Gives how many files there were."""
    count = 0
    with gzip.open(file) as whole:
        with tarfile.open(fileobj=whole) as archive:
            for member in archive:
                _put(archive, member, folder)
                count += member.isfile()
        while whole.read(_CHUNK_BYTES):  # only at the end of the file is its checksum compared
            pass
    return count


def _require_records(file: Path, ledger: Path) -> None:
    try:
        if not ledger.is_file():
            raise SetupFailed(f"{file} is no backup of Spillbox: it has no {LEDGER}. Nothing was changed.")
        with closing(sqlite3.connect(ledger)) as records:
            is_ours = records.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchone() is not None
            if not is_ours or records.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("it is damaged" if is_ours else "it is another program's")
    except sqlite3.Error as fault:
        raise SetupFailed(
            f"{file} is no backup of Spillbox: its {LEDGER} can't be read ({fault}). Nothing was changed."
        ) from None


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it has something in it
        folder.rmdir()


def _kept(data_folder: Path) -> Iterator[Path]:
    yield data_folder / LINK_SECRET
    for name in _FOLDERS:
        for folder, folders, files in os.walk(data_folder / name):
            place = Path(folder)
            inside = place.relative_to(data_folder).parts
            # Half-written, or of a self-test; guests' own folders may have these names too, and lie deeper.
            folders[:] = sorted(one for one in folders if (*inside[:1], len(inside), one) not in _LEFT_OUT)
            yield place
            yield from (place / one for one in sorted(files))


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one file or folder; nothing else is in a backup, and nothing lies outside of the data folder."""
    place = PurePosixPath(member.name)
    if place.parts in {(name,) for name in _FILES}:
        is_saved = member.isfile()
    else:
        is_saved = place.parts[:1] in {(name,) for name in _FOLDERS} and (
            member.isdir() or (member.isfile() and len(place.parts) > 1)
        )
    if not is_saved or ".." in place.parts:
        raise SetupFailed(f"{member.name[:200]!a} in the file is nothing that a backup has. Nothing was restored.")
    target = folder / place
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        if content is None:
            raise tarfile.ReadError(f"{member.name[:200]!a} has no content")
        with content, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            shutil.copyfileobj(content, out)
    os.utime(target, (member.mtime, member.mtime))
    target.chmod(member.mode & 0o777)
