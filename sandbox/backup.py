"""A data folder as one file, and back. What can be made again, such as the guest root, is not in it."""

import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from sandbox.errors import SetupFailed

LEDGER = "records.sqlite3"
_SECRET = "link-secret"  # noqa: S105  the name of a file
_FOLDERS = ("attachments", "workspaces")
_HALF_WRITTEN = frozenset({"incoming", ".scratch"})


def save(data_folder: Path, file: Path) -> int:
    """Write everything into a new file; gives how many files are in it. A service may go on meanwhile.

    The ledger is copied first, as it is at one moment; files only ever appear whole, so none is half in it. What is removed
    meanwhile is missing, as if it had expired. Raises `SetupFailed` where there is nothing to save, or the file is there.
    """
    if not (data_folder / LEDGER).exists():
        raise SetupFailed(f"There are no records in {data_folder}. Name the data folder with --data-dir.")
    if file.exists():
        raise SetupFailed(f"{file} is there already. Choose another name.")
    count = 0
    new = file.with_name(f"{file.name}.new")
    try:
        with (
            TemporaryDirectory(dir=file.parent) as temporary,
            os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,
        ):
            ledger = Path(temporary) / LEDGER
            with closing(sqlite3.connect(data_folder / LEDGER)) as source, closing(sqlite3.connect(ledger)) as copy:
                source.backup(copy)
            with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
                archive.add(ledger, LEDGER)
                for path in _kept(data_folder):
                    with suppress(FileNotFoundError):
                        archive.add(path, os.path.relpath(path, data_folder), recursive=False)
                        count += path.is_file()
            out.flush()
            os.fsync(out.fileno())
        new.rename(file)
    finally:
        new.unlink(missing_ok=True)
    return count + 1


def restore(file: Path, data_folder: Path) -> int:
    """Put everything back into a data folder that has no records yet; gives how many files there were.

    Raises `SetupFailed`, and leaves nothing, where the folder is in use or the file is no backup, or not a whole one.
    """
    taken = [name for name in (LEDGER, _SECRET, *_FOLDERS) if (data_folder / name).exists()]
    if taken:
        raise SetupFailed(f"{data_folder} has {', '.join(taken)} already. Restore into another data folder.")
    data_folder.mkdir(parents=True, exist_ok=True)
    new = data_folder / ".restored"
    count = 0
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                _put(archive, member, new)
                count += member.isfile()
        if not (new / LEDGER).exists():
            raise SetupFailed(f"{file} is no backup of Spillbox: it has no {LEDGER}.")
        for path in new.iterdir():
            path.rename(data_folder / path.name)
    except (tarfile.TarError, EOFError, OSError) as fault:
        raise SetupFailed(f"{file} can't be restored: {fault}. Nothing was changed.") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return count


def _kept(data_folder: Path) -> Iterator[Path]:
    if (data_folder / _SECRET).exists():
        yield data_folder / _SECRET
    for name in _FOLDERS:
        for folder, folders, files in os.walk(data_folder / name):
            folders[:] = sorted(set(folders) - _HALF_WRITTEN)
            yield Path(folder)
            yield from (Path(folder) / one for one in sorted(files))


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one file or folder; nothing else is in a backup, and nothing lies outside of the data folder."""
    place = PurePosixPath(member.name)
    if place.is_absolute() or ".." in place.parts or not (member.isfile() or member.isdir()):
        raise SetupFailed(f"{member.name[:200]!a} in the file is nothing that a backup has. Nothing was restored.")
    target = folder / place
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        if content is None:
            raise tarfile.ReadError(f"{member.name[:200]!a} has no content")
        with content, target.open("xb") as out:
            shutil.copyfileobj(content, out)
    os.utime(target, (member.mtime, member.mtime))
    target.chmod(member.mode & 0o777)
