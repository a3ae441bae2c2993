"""A conversation's workspace on disk, and the only module that opens paths which a guest may have written.

    <workspaces>/<id>/files/       what the guest sees as /workspace
    <workspaces>/<id>/incoming/    files being written; each is renamed into files/ when it is whole
    <workspaces>/<id>/counter      the last number given to a file under results/, errors/ or scripts/

A guest never touches this tree. It works on a tmpfs of its own, whose size and inode limits are the quota, and the kernel
holds them. `Workspace.copy_in` fills that tmpfs before a run, `Workspace.commit` takes the changes after all of the run's
processes are gone: regular files and folders only, bounded, never through a link. So a link, FIFO or device
that a guest makes never exists on the host's disk, and a run that dies half-way leaves the files as they were.

Every step from a folder to its entry is made by directory file descriptor with O_NOFOLLOW.
"""

import ctypes
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sandbox.errors import InvalidPath, InvalidWorkspace, NotFound, QuotaExceeded, ReadOnly, TooLarge
from sandbox.job import FileChange, Limits, Skipped

GUEST_PATH = "/workspace"
READ_ONLY_FOLDERS = ("results", "errors")
"""Written by the service only, and mounted read-only into a run."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_DEPTH = 32
_MAX_SEGMENT_BYTES = 255  # NAME_MAX of Linux file systems
_CHUNK_BYTES = 1 << 20
_PAGE_BYTES = 4096
_NEVER_KEPT = (b"__pycache__",)  # byte code of one run must not be executed by the next
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Segments = tuple[bytes, ...]
Entry = tuple[Segments, os.stat_result]


class FileInfo(NamedTuple):
    """A file of a workspace."""

    path: str
    bytes: int
    modified_at: datetime


@dataclass(frozen=True)
class Identity:
    """Whose rights are used on a guest's tmpfs: the host's ids of the guest's user."""

    uid: int
    gid: int


@dataclass
class Manifest:
    """What `Workspace.copy_in` put into a run's tmpfs."""

    files: set[Segments] = field(default_factory=set)
    folders: set[Segments] = field(default_factory=set)


def name_of(segments: Segments) -> str:
    r"""The path of ``segments`` as text. Bytes that are not UTF-8 are written ``\xNN``, and then backslashes too."""
    raw = b"/".join(segments)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if text and "\\x" not in text:
        return text
    return raw.replace(b"\\", b"\\x5c").decode("utf-8", "backslashreplace")


def guest_name(path: str) -> str:
    """The path as a guest's Python has it: relative, bytes that are not UTF-8 as surrogate escapes."""
    return os.fsdecode(b"/".join(segments_of(path)))


def segments_of(path: str) -> Segments:
    """Parse a path of the tools' path language: relative to the workspace, or absolute under ``/workspace``."""
    problem = None
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), _encoded(path))
    prefix = GUEST_PATH.encode() + b"/"
    raw = raw.removeprefix(prefix) if raw.startswith(prefix) else raw.removeprefix(b"./")
    segments = tuple(raw.split(b"/"))
    if not raw:
        problem = "it is empty"
    elif b"\0" in raw:
        problem = "it contains a NUL character"
    elif raw.startswith(b"/"):
        problem = f"it is outside {GUEST_PATH}"
    elif b".." in segments:
        problem = "it contains '..'"
    elif b"" in segments or b"." in segments:
        problem = "it has an empty part, a part '.', or ends in '/'"
    elif len(segments) > _MAX_DEPTH:
        problem = f"it is more than {_MAX_DEPTH} folders deep"
    elif any(len(s) > _MAX_SEGMENT_BYTES for s in segments):
        problem = f"a part of it is longer than {_MAX_SEGMENT_BYTES} bytes"
    if problem:
        shown = ascii(path if len(path) <= 100 else path[:100] + "…")
        raise InvalidPath(
            f"The path {shown} is refused: {problem}. Give a path inside the workspace, such as 'report.docx'."
        )
    return segments


def _encoded(path: str) -> bytes:
    try:
        return path.encode()
    except UnicodeEncodeError:
        raise InvalidPath(f"The path {path[:100]!a} is refused: it is not valid Unicode text.") from None


class Workspaces:
    """All workspaces of a service, under one folder."""

    def __init__(self, root: Path, *, limits: Limits = Limits()) -> None:  # noqa: B008  frozen
        self.root = root.resolve()
        self.limits = limits
        root.mkdir(parents=True, exist_ok=True)

    def open(self, workspace_id: str) -> "Workspace":
        """The workspace of that id, made on first use."""
        if not _ID.fullmatch(workspace_id):
            raise InvalidWorkspace(
                f"The workspace id {workspace_id[:140]!a} is refused. Use 1 to 128 letters, digits, '.', '_' or "
                "'-', the first of them a letter or digit."
            )
        return Workspace(self.root / workspace_id, self.limits)

    @contextmanager
    def scratch(self) -> Iterator["Workspace"]:
        """A workspace of no conversation, gone at the end of the ``with``."""
        folder = self.root.parent / "scratch" / secrets.token_hex(8)
        try:
            yield Workspace(folder, self.limits)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Workspace:
    """One conversation's files. All methods block on disk; none of them follows a symbolic link."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.id = folder.name
        self.limits = limits
        self._folder = folder
        self._files = folder / "files"
        self._incoming = folder / "incoming"

    def make(self) -> None:
        """Make its folders, if this is its first use; looking into a workspace that was never used leaves no trace."""
        if not self._incoming.is_dir():
            for name in ("", *READ_ONLY_FOLDERS, "scripts"):
                (self._files / name).mkdir(parents=True, exist_ok=True)
                (self._files / name).chmod(0o755)  # whatever the umask: a guest of another uid reads the mounts
            self._incoming.mkdir()

    def host_folder(self, name: str) -> Path:
        """Where the read-only folder ``name`` is on the host, for mounting it."""
        self.make()
        return self._files / READ_ONLY_FOLDERS[READ_ONLY_FOLDERS.index(name)]

    @property
    def spool_folder(self) -> Path:
        """A folder on the workspace's disk for unnamed temporary files."""
        self.make()
        return self._incoming

    # Reading

    def open_file(self, path: str) -> BinaryIO:
        """Open a regular file for reading in binary; raises `NotFound`, naming files that are near."""
        segments = segments_of(path)
        try:
            with self._parent(segments) as parent:
                fd = os.open(segments[-1], _OPEN_FILE, dir_fd=parent)
        except OSError:
            raise self._not_found(path) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._not_found(path)
        return os.fdopen(fd, "rb")

    def read_bytes(self, path: str, *, max_bytes: int = 64 * _CHUNK_BYTES) -> bytes:
        """The file's content; raises `TooLarge` over ``max_bytes``."""
        with self.open_file(path) as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise TooLarge(f"{path} is larger than {max_bytes:,} bytes. Read it in parts, by lines or in a script.")
        return data

    def exists(self, path: str) -> bool:
        """Whether a regular file is at ``path``."""
        try:
            self.open_file(path).close()
        except NotFound:
            return False
        return True

    def list_files(self, *, limit: int | None = None) -> list[FileInfo]:
        """Its files, sorted by path."""
        found: list[FileInfo] = []
        if not self._files.is_dir():
            return found
        with _folder(self._files) as top:
            for segments, status in _walk(top):
                if stat.S_ISREG(status.st_mode):
                    modified = datetime.fromtimestamp(status.st_mtime, UTC)
                    found.append(FileInfo(name_of(segments), status.st_size, modified))
        found.sort()
        return found[:limit]

    def usage(self) -> tuple[int, int]:
        """Bytes in whole pages, and number of files and folders, that count for the quota."""
        used_bytes = used_files = 0
        with _folder(self._files) as top:
            for segments, status in _walk(top):
                if segments[0].decode(errors="replace") not in READ_ONLY_FOLDERS:
                    used_bytes += _pages(status.st_size) if stat.S_ISREG(status.st_mode) else 0
                    used_files += 1
        return used_bytes, used_files

    # Writing

    def write(self, path: str, content: bytes | Iterable[bytes]) -> FileChange:
        """Write a whole file, replacing an older one at once when all of it is there; makes missing folders.

        Raises `ReadOnly`, `InvalidPath` (a folder stands there), `QuotaExceeded`, `TooLarge`; then nothing is changed.
        """
        segments = segments_of(path)
        if segments[0].decode(errors="replace") in READ_ONLY_FOLDERS:
            raise ReadOnly(
                f"{path} is read-only: only the service writes under results/ and errors/. Use another folder."
            )
        self.make()
        used_bytes, used_files = self.usage()
        old = self._size(segments)
        used_bytes -= _pages(old or 0)
        new_entries = 0 if old is not None else len(segments)
        if used_files + new_entries > self.limits.workspace_files:
            raise QuotaExceeded(
                f"The workspace may hold {self.limits.workspace_files:,} files and folders. Delete some with delete_file."
            )
        with self._new_file() as (temporary, fd):
            size = 0
            for chunk in (content,) if isinstance(content, bytes) else content:
                size += len(chunk)
                if size > self.limits.file_bytes:
                    raise TooLarge(f"{path} would be over {self.limits.file_bytes:,} bytes, the limit for one file.")
                if used_bytes + _pages(size) > self.limits.workspace_bytes:
                    raise QuotaExceeded(
                        f"The workspace may hold {self.limits.workspace_bytes:,} bytes. Delete files with delete_file."
                    )
                _write_all(fd, chunk)
            self._place(temporary, segments, path)
        return FileChange(path=name_of(segments), bytes=size, change="created" if old is None else "modified")

    def write_script(self, code: str) -> str:
        """Save a script under a new name in ``scripts/``; gives its path."""
        path = f"scripts/{self._next_number():04d}.py"
        self.write(path, code.encode("utf-8", "surrogatepass"))
        return path

    def write_own(self, folder: str, name: str, content: bytes | Iterable[bytes]) -> str:
        """Write a file of the service's own as ``folder/NNNN-name``, with a number never used before; gives its path."""
        path = f"{folder}/{self._next_number():04d}{name}"
        with self._new_file() as (temporary, fd):
            for chunk in (content,) if isinstance(content, bytes) else content:
                _write_all(fd, chunk)
            os.fsync(fd)
            self._place(temporary, segments_of(path), path)
        return path

    def delete(self, path: str) -> FileChange:
        """Delete a regular file."""
        segments = segments_of(path)
        if segments[0].decode(errors="replace") in READ_ONLY_FOLDERS:
            raise ReadOnly(f"{path} is read-only: files under results/ and errors/ are deleted by the clean-up.")
        size = self._size(segments)
        if size is None:
            raise self._not_found(path)
        with self._parent(segments) as parent:
            os.unlink(segments[-1], dir_fd=parent)
        return FileChange(path=name_of(segments), bytes=size, change="deleted")

    # A run

    def copy_in(self, guest_fd: int, identity: Identity, *, only: Iterable[str] | None = None) -> Manifest:
        """Copy the files that a guest may write into the empty tmpfs at ``guest_fd``."""
        manifest = Manifest()
        wanted = None if only is None else {segments_of(path) for path in only}
        with _folder(self._files) as top:
            for segments, status in sorted(_walk(top), key=lambda entry: entry[0]):
                if segments[0].decode(errors="replace") in READ_ONLY_FOLDERS:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    with _acting_as(identity), _descend(guest_fd, segments[:-1]) as parent:
                        os.mkdir(segments[-1], 0o755, dir_fd=parent)
                    manifest.folders.add(segments)
                elif wanted is None or segments in wanted:
                    with _descend(top, segments[:-1]) as source_parent:
                        source = os.open(segments[-1], _OPEN_FILE, dir_fd=source_parent)
                    try:
                        _copy_to_guest(source, status, guest_fd, segments, identity)
                    finally:
                        os.close(source)
                    manifest.files.add(segments)
        return manifest

    def commit(self, guest_fd: int, identity: Identity, manifest: Manifest) -> tuple[list[FileChange], list[Skipped]]:
        """Take what a run changed in its tmpfs; call it only when every process of the run is gone.

        Gives the changes and what was left out, with the reason. A file that is equal to the one on disk is no change.
        """
        skipped: list[Skipped] = []
        with _acting_as(identity):
            entries = sorted(_walk(guest_fd, opened_up=True, skipped=skipped), key=lambda entry: entry[0])
        folders = [segments for segments, status in entries if stat.S_ISDIR(status.st_mode)]
        wanted, kept = self._choose(entries, skipped)
        # A file may stand where a folder was: such a folder goes before the file comes, everything else goes last.
        blocked = [entry for entry in wanted if self._is_folder(entry[0])]
        taking = _Taking(guest_fd, identity)
        for segments in folders:
            self._take_folder(segments)
        changes = self._take_files([entry for entry in wanted if entry not in blocked], taking)
        changes += self._delete_files(manifest.files - kept)
        for segments in sorted(manifest.folders - set(folders), reverse=True):
            self._drop_folder(segments)
        changes += self._take_files(blocked, taking)
        changes.sort(key=lambda change: change.path)
        return changes, skipped

    @staticmethod
    def read_report(report_fd: int, identity: Identity, *, max_bytes: int) -> dict[str, bytes]:
        """The regular files directly in a run's report folder, each cut at ``max_bytes``."""
        found = {}
        with _acting_as(identity):
            for name in os.listdir(report_fd):
                if stat.S_ISREG(os.stat(name, dir_fd=report_fd, follow_symlinks=False).st_mode):
                    with suppress(PermissionError):  # the guest took its own right to read away
                        fd = os.open(name, _OPEN_FILE, dir_fd=report_fd)
                        with os.fdopen(fd, "rb") as file:
                            found[name] = file.read(max_bytes)
        return found

    # Inner steps

    def _choose(self, entries: list[Entry], skipped: list[Skipped]) -> tuple[list[Entry], set[Segments]]:
        """The files to take, within the quota, and the paths of which an older version on disk must not be deleted."""
        wanted: list[Entry] = []
        kept: set[Segments] = set()
        links: dict[int, Segments] = {}
        budget_bytes = self.limits.workspace_bytes
        for segments, status in entries:
            if stat.S_ISDIR(status.st_mode):
                continue
            reason = _reason_to_skip(status, links.get(status.st_ino))
            if reason is None:
                # The tmpfs held the quota in blocks; what a sparse file claims to hold is more.
                kept.add(segments)
                links[status.st_ino] = segments
                if (budget_bytes := budget_bytes - _pages(status.st_size)) < 0:
                    reason = f"over the {self.limits.workspace_bytes:,} bytes that a workspace may hold"
            if reason is None:
                wanted.append((segments, status))
            else:
                skipped.append(Skipped(path=name_of(segments), reason=reason))
        return wanted, kept

    def _take_files(self, entries: list[Entry], taking: "_Taking") -> list[FileChange]:
        changes = []
        for segments, status in entries:
            with taking.open(segments) as source:
                change = self._take_file(source, status, segments)
            if change is not None:
                changes.append(change)
        return changes

    def _delete_files(self, gone: set[Segments]) -> list[FileChange]:
        changes = []
        for segments in gone:
            size = self._size(segments)
            if size is not None:
                with self._parent(segments) as parent:
                    os.unlink(segments[-1], dir_fd=parent)
                changes.append(FileChange(path=name_of(segments), bytes=size, change="deleted"))
        return changes

    def _is_folder(self, segments: Segments) -> bool:
        try:
            with self._parent((*segments, b"")):
                return True
        except OSError:
            return False

    def _take_folder(self, segments: Segments) -> None:
        with _folder(self._files) as top, _descend(top, segments[:-1]) as parent:
            self._make_folder(parent, segments[-1])

    def _make_folder(self, parent: int, name: bytes) -> None:
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                return
            os.unlink(name, dir_fd=parent)  # the run put a folder where a file was
            os.mkdir(name, 0o755, dir_fd=parent)

    def _take_file(self, source: int, status: os.stat_result, segments: Segments) -> FileChange | None:
        old = self._size(segments)
        # Times are no proof that a file is as it was: a write through mmap(2) may leave them alone on tmpfs.
        if old == status.st_size and self._equals(source, segments):
            return None
        with self._new_file() as (temporary, fd):
            _copy(source, fd, status.st_size)
            os.utime(fd, ns=(status.st_mtime_ns, status.st_mtime_ns))
            self._place(temporary, segments, name_of(segments))
        return FileChange(path=name_of(segments), bytes=status.st_size, change="created" if old is None else "modified")

    def _equals(self, source: int, segments: Segments) -> bool:
        with self.open_file(name_of(segments)) as ours, os.fdopen(os.dup(source), "rb") as theirs:
            while True:
                one, other = ours.read(_CHUNK_BYTES), theirs.read(_CHUNK_BYTES)
                if one != other:
                    return False
                if not one:
                    return True

    def _drop_folder(self, segments: Segments) -> None:
        try:
            with self._parent(segments) as parent:
                os.rmdir(segments[-1], dir_fd=parent)
        except OSError:
            pass  # not empty, since something under it was kept, or a file stands there now

    @contextmanager
    def _parent(self, segments: Segments) -> Iterator[int]:
        with _folder(self._files) as top, _descend(top, segments[:-1]) as parent:
            yield parent

    @contextmanager
    def _new_file(self) -> Iterator[tuple[str, int]]:
        """A temporary file under incoming/, removed unless `_place` renamed it."""
        name = secrets.token_hex(12)
        with _folder(self._incoming) as incoming:
            fd = os.open(name, _CREATE, 0o600, dir_fd=incoming)
            try:
                os.fchmod(fd, 0o644)
                yield name, fd
            finally:
                os.close(fd)
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=incoming)

    def _place(self, temporary: str, segments: Segments, path: str) -> None:
        with _folder(self._files) as top, _folder(self._incoming) as incoming:
            parent = os.dup(top)
            try:
                for name in segments[:-1]:
                    try:
                        child = os.open(name, _OPEN_FOLDER, dir_fd=parent)
                    except FileNotFoundError:
                        os.mkdir(name, 0o755, dir_fd=parent)
                        child = os.open(name, _OPEN_FOLDER, dir_fd=parent)
                    os.close(parent)
                    parent = child
                os.rename(temporary, segments[-1], src_dir_fd=incoming, dst_dir_fd=parent)
            except (IsADirectoryError, NotADirectoryError):
                raise InvalidPath(
                    f"The path {path} is refused: a folder stands there, or a file where it needs a folder."
                ) from None
            finally:
                os.close(parent)

    def _size(self, segments: Segments) -> int | None:
        """Bytes of the regular file there, or None."""
        try:
            with self._parent(segments) as parent:
                status = os.stat(segments[-1], dir_fd=parent, follow_symlinks=False)
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def _next_number(self) -> int:
        self.make()
        with _counter_lock:
            counter = self._folder / "counter"
            number = int(counter.read_text()) + 1 if counter.exists() else 1
            new = counter.with_suffix(".new")
            new.write_text(str(number))
            new.replace(counter)
            return number

    def _not_found(self, path: str) -> NotFound:
        near = near_paths(path, (info.path for info in self.list_files()))
        advice = f"Did you mean {', '.join(near)}?" if near else "list_files shows what there is."
        return NotFound(f"There is no file {path} in the workspace. {advice}")


@dataclass(frozen=True)
class _Taking:
    """A guest's tmpfs, from which files are taken with its own rights."""

    guest_fd: int
    identity: Identity

    @contextmanager
    def open(self, segments: Segments) -> Iterator[int]:
        with _acting_as(self.identity), _descend(self.guest_fd, segments[:-1]) as parent:
            source = os.open(segments[-1], _OPEN_FILE, dir_fd=parent)
        try:
            yield source
        finally:
            os.close(source)


_counter_lock = threading.Lock()


def near_paths(path: str, candidates: Iterable[str]) -> list[str]:
    """Up to three candidates that look like ``path``: the same file name elsewhere first, then similar spellings."""
    import difflib

    names = list(candidates)
    wanted = path.removeprefix(GUEST_PATH + "/")
    same_name = [n for n in names if n.rsplit("/", 1)[-1] == wanted.rsplit("/", 1)[-1]]
    similar = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    return list(dict.fromkeys(same_name + similar))[:3]


def _pages(size: int) -> int:
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def _reason_to_skip(status: os.stat_result, first_link: Segments | None) -> str | None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return f"a hard link to {name_of(first_link)}, which was taken" if first_link else None
    kinds = {
        stat.S_IFLNK: "a symbolic link; links are never followed",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    fd = os.open(path, _OPEN_FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _descend(top: int, segments: Segments) -> Iterator[int]:
    fd = os.dup(top)
    try:
        for name in segments:
            child = os.open(name, _OPEN_FOLDER, dir_fd=fd)
            os.close(fd)
            fd = child
        yield fd
    finally:
        os.close(fd)


def _walk(
    top: int, *, opened_up: bool = False, skipped: list[Skipped] | None = None, above: Segments = ()
) -> Iterator[Entry]:
    """Every entry under the folder, with its own status (never that of a link's target), no deeper than `_MAX_DEPTH`.

    ``opened_up``: this is a guest's tree; give its owner the right to read and search it first, leave out the mounted folders
    and what is never kept, and put what is too deep on ``skipped``.
    """
    for name in map(os.fsencode, os.listdir(top)):
        segments = (*above, name)
        if opened_up and (name in _NEVER_KEPT or (not above and name.decode(errors="replace") in READ_ONLY_FOLDERS)):
            continue
        status = os.stat(name, dir_fd=top, follow_symlinks=False)
        is_folder = stat.S_ISDIR(status.st_mode)
        if opened_up and (is_folder or stat.S_ISREG(status.st_mode)) and status.st_mode & 0o700 != 0o700:
            os.chmod(name, status.st_mode | 0o700, dir_fd=top)  # no process of the guest lives that could swap it
            if not is_folder:
                times = (status.st_atime_ns, status.st_mtime_ns)
                os.utime(name, ns=times, dir_fd=top, follow_symlinks=False)
        if is_folder and len(segments) >= _MAX_DEPTH:
            if skipped is not None:
                skipped.append(Skipped(path=name_of(segments), reason=f"more than {_MAX_DEPTH} folders deep"))
            continue
        yield segments, status
        if is_folder:
            fd = os.open(name, _OPEN_FOLDER, dir_fd=top)
            try:
                yield from _walk(fd, opened_up=opened_up, skipped=skipped, above=segments)
            finally:
                os.close(fd)


def _copy_to_guest(source: int, status: os.stat_result, guest_fd: int, segments: Segments, identity: Identity) -> None:
    with _acting_as(identity), _descend(guest_fd, segments[:-1]) as parent:
        target = os.open(segments[-1], _CREATE, 0o644, dir_fd=parent)
        try:
            _copy(source, target, status.st_size)
            os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
        finally:
            os.close(target)


def _copy(source: int, target: int, size: int) -> None:
    offset = 0
    while offset < size:
        sent = os.sendfile(target, source, offset, min(size - offset, 1 << 30))
        if sent == 0:
            break
        offset += sent


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def _acting_as(identity: Identity) -> Iterator[None]:
    """Touch a guest's tmpfs with the guest's own rights, so that a service run as root has no more there than the guest.

    setfsuid(2) is per thread, and leaving uid 0 also drops the capabilities that override file permissions; a
    tmpfs of a user namespace refuses inodes of an owner that the namespace does not map.
    """
    if os.geteuid() == identity.uid:
        yield
        return
    uid, gid = os.geteuid(), os.getegid()
    _libc.setfsgid(identity.gid)
    _libc.setfsuid(identity.uid)
    try:
        yield
    finally:
        _libc.setfsuid(uid)
        _libc.setfsgid(gid)
