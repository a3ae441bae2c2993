"""The workspace itself.

<workspaces>/<id>/files/       what the guest sees as /workspace
<workspaces>/<id>/incoming/    files being written; each is renamed into files/ when it is whole
<workspaces>/<id>/counter      the last number given to a file under results/, errors/ or scripts/
"""

import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from sandbox.errors import Expired, InvalidWorkspace, NotFound, QuotaExceeded, ReadOnly, TooLarge
from sandbox.job import FileChange, Limits, Skipped
from sandbox.tenants import NAME, SEPARATOR, tenant_of
from sandbox.workspace import transfer
from sandbox.workspace.disk import BoundedFile, Disk, TenantDisk
from sandbox.workspace.paths import Segments, name_of, near_paths, segments_of
from sandbox.workspace.store import Store
from sandbox.workspace.transfer import GuestTree, Manifest
from sandbox.workspace.tree import OPEN_FILE, Identity, acting_as, pages, write_all

READ_ONLY_FOLDERS = ("results", "errors")
"""Written by the service only, and mounted read-only into a run."""

_OWN_PREFIXES = tuple(f"{name}/" for name in READ_ONLY_FOLDERS)
_READ_ONLY = frozenset(name.encode() for name in READ_ONLY_FOLDERS)
ExpiredAt = Callable[[str, str], datetime | None]
"""When the file of a workspace's id and a path expired, if it did."""

WORKSPACE_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ID = re.compile(rf"(?=.{{1,128}}$)({NAME.pattern}{SEPARATOR})?{WORKSPACE_NAME.pattern}")
_MAX_READ_BYTES = 64 << 20
_LEFT_OVER_SECONDS = 24 * 3600
_SCRATCH = ".scratch"  # no workspace id begins with a dot


class FileInfo(NamedTuple):
    """A file of a workspace, or, with a path that ends in ``/``, an empty folder."""

    path: str
    bytes: int
    modified_at: datetime


class Workspaces:
    """All workspaces of a service, under one folder."""

    def __init__(
        self, root: Path, *, limits: Limits = Limits(), disk: Disk | None = None, expired_at: ExpiredAt = lambda *_: None,  # noqa: B008
    ) -> None:  # fmt: skip
        self.root = root.resolve()
        self.limits = limits
        self._disk = disk or Disk(root)
        self._expired_at = expired_at
        root.mkdir(parents=True, exist_ok=True)

    def open(self, workspace_id: str) -> "Workspace":
        """The workspace of that id; its folder is made when something is first written."""
        if not _ID.fullmatch(workspace_id):
            raise InvalidWorkspace(
                f"The workspace id {workspace_id[:140]!a} is refused. Use 1 to 128 letters, digits, '.', '_' or "
                "'-', the first of them a letter or digit."
            )
        return self._at(self.root / workspace_id)

    def all(self) -> Iterator["Workspace"]:
        """Those that were used."""
        for folder in sorted(self.root.iterdir()):
            if _ID.fullmatch(folder.name):
                yield self._at(folder)

    def _at(self, folder: Path) -> "Workspace":
        disk = self._disk.of(tenant_of(folder.name))
        return Workspace(folder, self.limits, disk=disk, expired_at=self._expired_at)

    def sweep(self) -> None:
        """Remove what a crash left half-written more than a day ago."""
        oldest = time.time() - _LEFT_OVER_SECONDS
        for left in (*self.root.glob("*/incoming/*"), *(self.root / _SCRATCH).glob("*")):
            with suppress(OSError):
                if left.lstat().st_ctime < oldest:  # what a run left has any time of modification
                    shutil.rmtree(left) if left.is_dir() else left.unlink()

    @contextmanager
    def scratch(self) -> Iterator["Workspace"]:
        """A workspace of no conversation, gone at the end of the ``with``."""
        with self._at(self.root / _SCRATCH).scratch() as made:
            yield made


class Workspace:
    """One conversation's files. All methods block on disk; none of them follows a symbolic link."""

    def __init__(self, folder: Path, limits: Limits, *, disk: TenantDisk, expired_at: ExpiredAt) -> None:
        self.id = folder.name
        self.limits = limits
        self._root = folder.parent
        self._disk = disk
        self._expired_at = expired_at
        self._store = Store(folder, own_folders=(*READ_ONLY_FOLDERS, "scripts"))

    def make(self) -> None:
        """Make its folders, if this is its first use; looking into a workspace that was never used leaves no trace."""
        self._store.make()

    @property
    def files_folder(self) -> Path:
        """Where its files are on the host, for mounting the read-only ones among them."""
        self.make()
        return self._store.files

    @property
    def spool_folder(self) -> Path:
        """A folder on the workspace's disk for unnamed temporary files."""
        self.make()
        return self._store.incoming

    # Reading

    def open_file(self, path: str) -> BinaryIO:
        """Open a regular file for reading in binary; raises `NotFound`, naming files that are near."""
        try:
            return os.fdopen(self._store.open_file(segments_of(path)), "rb")
        except OSError:
            raise self._not_found(path) from None

    def read_bytes(self, path: str, *, max_bytes: int = _MAX_READ_BYTES) -> bytes:
        """The file's content; raises `TooLarge` over ``max_bytes``."""
        with self.open_file(path) as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise TooLarge(f"{path} is larger than {max_bytes:,} bytes. Read it in parts, by lines or in a script.")
        return data

    def head(self, path: str, *, bytes: int) -> bytes:
        """The beginning of the file's content; raises `NotFound`, naming files that are near."""
        with self.open_file(path) as file:
            return file.read(bytes)

    def tail(self, path: str, *, bytes: int) -> bytes:
        """The end of the file's content."""
        with self.open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - bytes))
            return file.read(bytes)

    def size(self, path: str) -> int:
        """Bytes of the regular file there; raises `NotFound`."""
        with self.open_file(path) as file:
            return os.fstat(file.fileno()).st_size

    def exists(self, path: str) -> bool:
        """Whether a regular file is at ``path``."""
        return self._store.size(segments_of(path)) is not None

    def list_files(self) -> list[FileInfo]:
        """Its files, and folders in which there is nothing, sorted by path."""
        entries = self._store.entries()
        with_content = {segments[:-1] for segments, _ in entries}
        found = []
        for segments, status in entries:
            modified = datetime.fromtimestamp(status.st_mtime, UTC)
            if stat.S_ISREG(status.st_mode):
                found.append(FileInfo(name_of(segments), status.st_size, modified))
            elif stat.S_ISDIR(status.st_mode) and segments not in with_content and not self._is_own(segments):
                found.append(FileInfo(name_of(segments) + "/", 0, modified))
        return sorted(found)

    def usage(self) -> tuple[int, int]:
        """Bytes in whole pages, and number of files and folders, that count for the quota."""
        used = [
            pages(status.st_size) if stat.S_ISREG(status.st_mode) else 0
            for segments, status in self._store.entries()
            if segments[0] not in _READ_ONLY
        ]
        return sum(used), len(used)

    # Writing

    def write(self, path: str, content: bytes | Iterable[bytes]) -> FileChange:
        """Write a whole file, replacing an older one at once when all of it is there; makes missing folders.

        Raises `ReadOnly`, `InvalidPath` (a folder stands there), `QuotaExceeded`, `TenantFull`, `TooLarge`, `ServiceFull`; then
        nothing is changed.
        """

        def fill(file: IO[bytes]) -> None:
            for chunk in (content,) if isinstance(content, bytes) else content:
                file.write(chunk)

        return self._replace(path, fill, max_bytes=self.limits.file_bytes, sync=False)

    def build(self, path: str, fill: Callable[[IO[bytes]], None]) -> FileChange:
        """As `write`, with what ``fill`` writes into a seekable file. It may be as large as the quota, and is on the disk after."""
        return self._replace(path, fill, max_bytes=self.limits.workspace_bytes, sync=True)

    def _replace(self, path: str, fill: Callable[[IO[bytes]], None], *, max_bytes: int, sync: bool) -> FileChange:
        segments = segments_of(path)
        self._require_writable(segments, path)
        self.make()
        used_bytes, used_files = self.usage()
        old = self._store.size(segments)
        used_bytes -= pages(old or 0)
        new_entries = 0 if old is not None else len(segments)
        if used_files + new_entries > self.limits.workspace_files:
            raise QuotaExceeded(
                f"The workspace may hold {self.limits.workspace_files:,} files and folders. Delete some with delete_file, "
                "which takes folders too; list_files shows empty ones with a '/' at the end."
            )

        def admit(size: int, more: int) -> None:
            if size > max_bytes:
                raise TooLarge(
                    f"{path} would be over {max_bytes:,} bytes, the most that it may have. Write less of it, or several files."
                )
            if used_bytes + pages(size) > self.limits.workspace_bytes:
                raise QuotaExceeded(
                    f"The workspace may hold {self.limits.workspace_bytes:,} bytes. Delete files with delete_file."
                )
            take(more)

        with self._disk.taking() as take, self._store.new_file() as (name, fd):
            with BoundedFile(fd, admit) as file:
                fill(file)
                file.flush()
                size = file.seek(0, os.SEEK_END)
            if sync:
                os.fsync(fd)
            self._store.place(name, segments)
        self._disk.note(-(old or 0))
        return FileChange(path=name_of(segments), bytes=size, change="created" if old is None else "modified")

    def write_script(self, code: str) -> str:
        """Save a script under a new name in ``scripts/``; gives its path."""
        self.make()
        while True:
            path = f"scripts/{self._store.next_number():04d}.py"
            if self._store.status(segments_of(path)) is None:  # a guest may have taken any name
                break
        self.write(path, code.encode("utf-8", "surrogatepass"))
        return path

    def write_own(self, folder: str, name: str, content: Iterable[bytes]) -> str:
        """Write a file of the service's own as ``folder/NNNN-name``, with a number never used before; gives its path.

        It has its name only when all of it is on the disk. Raises OSError, `TenantFull` and `ServiceFull`; then there is
        no file.
        """
        self.make()
        with self._disk.taking() as take, self._store.new_file() as (temporary, fd):
            for chunk in content:
                take(len(chunk))
                write_all(fd, chunk)
            os.fsync(fd)
            while True:
                path = f"{folder}/{self._store.next_number():04d}{name}"
                with suppress(FileExistsError):  # another service on the same folder took the number
                    self._store.place_new(temporary, segments_of(path))
                    return path

    def list_own(self, *, before: datetime) -> list[FileInfo]:
        """Files under ``results/`` and ``errors/`` that were written before a time."""
        return [info for info in self.list_files() if info.path.startswith(_OWN_PREFIXES) and info.modified_at < before]

    def remove_own(self, path: str) -> None:
        """Remove a file under ``results/`` or ``errors/``."""
        self._remove(segments_of(path))

    def own_bytes(self) -> int:
        """Bytes under ``results/`` and ``errors/``."""
        return sum(status.st_size for segments, status in self._store.entries() if segments[0] in _READ_ONLY)

    def delete(self, path: str) -> FileChange:
        """Delete a regular file, or a folder with all that is in it."""
        segments = segments_of(path.removesuffix("/"))
        self._require_writable(segments, path)
        size = self._store.size(segments)
        if size is None and not self._store.is_folder(segments):
            raise self._not_found(path)
        self._remove(segments)
        return FileChange(path=name_of(segments), bytes=size or 0, change="deleted")

    def _remove(self, segments: Segments) -> None:
        gone = self._store.size(segments)
        if gone is None:
            inside = (status for place, status in self._store.entries() if place[: len(segments)] == segments)
            gone = sum(status.st_size for status in inside if stat.S_ISREG(status.st_mode))
        self._store.remove(segments)
        self._disk.note(-gone)

    # A run

    @contextmanager
    def scratch(self) -> Iterator["Workspace"]:
        """Another workspace with the same limits, gone at the end of the ``with``."""
        folder = self._root / _SCRATCH / secrets.token_hex(8)
        try:
            yield Workspace(folder, self.limits, disk=self._disk, expired_at=self._expired_at)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def copy_in(self, guest: GuestTree, *, only: Iterable[str] | None = None) -> Manifest:
        """Copy the files that a guest may write into the empty tree of a run; see `transfer`."""
        self._disk.take(0)
        wanted = None if only is None else [segments_of(path) for path in only]
        return transfer.copy_in(self._store, guest, leave_out=_READ_ONLY, only=wanted)

    def commit(self, guest: GuestTree, manifest: Manifest) -> tuple[list[FileChange], list[Skipped]]:
        """Take what a run changed in its tree, when every process of the run is gone; see `transfer`."""
        with self._disk.reserving() as reserve:
            taken = transfer.commit(
                self._store, guest, manifest, leave_out=_READ_ONLY, max_bytes=self.limits.workspace_bytes, reserve=reserve
            )  # fmt: skip
            self._disk.note(taken.grown_bytes)
        return taken.changes, taken.skipped

    @staticmethod
    def read_report(report_fd: int, identity: Identity, *, max_bytes: int) -> dict[str, bytes]:
        """The regular files directly in a run's report folder that can be read, each cut at ``max_bytes``."""
        found = {}
        with acting_as(identity):
            with suppress(OSError):
                os.fchmod(report_fd, 0o700)  # the guest may have taken its own right away
            for name in os.listdir(report_fd):
                with suppress(OSError):
                    fd = os.open(name, OPEN_FILE, dir_fd=report_fd)
                    try:
                        if stat.S_ISREG(os.fstat(fd).st_mode):
                            with open(fd, "rb", closefd=False) as file:
                                found[name] = file.read(max_bytes)
                    finally:
                        os.close(fd)
        return found

    # Inner steps

    def _is_own(self, segments: Segments) -> bool:
        return len(segments) == 1 and segments[0] in (*_READ_ONLY, b"scripts")

    def _require_writable(self, segments: Segments, path: str) -> None:
        if segments == (b"scripts",):
            raise ReadOnly("scripts is the folder of the scripts: name a file in it, such as scripts/report.py.")
        if segments[0] in _READ_ONLY:
            raise ReadOnly(
                f"{path} is read-only: only the service writes under results/ and errors/. Use another folder."
            )

    def _not_found(self, path: str) -> NotFound:
        name = name_of(segments_of(path))
        if (expired := self._expired_at(self.id, name)) is not None:
            return Expired(
                f"{name} expired: it was removed on {expired:%Y-%m-%d at %H:%M} UTC, its time being over. Call its tool again; "
                "attach what is to stay with attach_file."
            )
        near = near_paths(path, (info.path for info in self.list_files()))
        advice = f"Did you mean {', '.join(near)}?" if near else "list_files shows what there is."
        return NotFound(f"There is no file {path} in the workspace. {advice}")
