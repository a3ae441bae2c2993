"""What goes into a run's tmpfs, and what is taken out of it.

A guest never touches the host's disk. It works on a tmpfs of its own, whose size and inode limits are the quota, and
the kernel holds them; `GuestTree` is how the service reaches it. `copy_in` fills it before the run, `commit` takes the
changes after all of the run's processes are gone: regular files and folders only, bounded, never through a link. So a
link, FIFO or device that a guest makes never exists on the host's disk, and a run that dies half-way leaves the files as
they were; so does one of which not all can be taken, since files get their names when the last of them has come.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from sandbox.errors import QuotaExceeded, ServiceFull
from sandbox.job import FileChange, Skipped
from sandbox.workspace.changes import Changes, Vanished
from sandbox.workspace.paths import MAX_DEPTH, Segments, name_of
from sandbox.workspace.store import Store, Version
from sandbox.workspace.tree import CREATE, Entry, Identity, Tree, acting_as, copy, pages

NEVER_KEPT = b"__pycache__"  # byte code of one run must not be executed by the next
_CHUNK_BYTES = 1 << 20
_WRITTEN = "another call wrote or deleted it while the script ran, and that stays"
_LAST_NS = 253_402_300_799 * 10**9  # in the year 9999; a guest may set any time, and a calendar ends there


@dataclass
class Manifest:
    """What `copy_in` put into a run's tmpfs, and how the workspace was then."""

    files: set[Segments] = field(default_factory=set)
    folders: set[Segments] = field(default_factory=set)
    versions: dict[Segments, Version] = field(default_factory=dict)
    """Of every file that a run could change, also of those that it did not get."""


class GuestTree(Protocol):
    """The files of a run, wherever they are. It is touched only while nothing of the guest lives; methods raise OSError."""

    def make_folder(self, segments: Segments) -> None:
        """Make one; the folder above it was made before."""

    def put(self, segments: Segments, source: int, status: os.stat_result) -> None:
        """Make a file with the content of an open one, and its time."""

    def filled(self) -> None:
        """Wait until all is there that was made."""

    def entries(self, leave_out: frozenset[bytes], skipped: list[Skipped]) -> list[Entry]:
        """Everything that the guest left, sorted; with the reason in ``skipped`` what is not looked into."""

    def opened(self, files: list[Segments]) -> Iterator[int]:
        """A descriptor of each file in turn, for reading it from its start; the caller closes each before it asks for the next."""


class FolderTree(Tree):
    """A `GuestTree` by the descriptor of a folder that this machine's kernel has, with the guest's own rights there."""

    def __init__(self, fd: int, identity: Identity) -> None:
        super().__init__(fd)
        self._identity = identity

    def make_folder(self, segments: Segments) -> None:
        with acting_as(self._identity):
            os.mkdir(segments[-1], 0o755, dir_fd=self.parent(segments))

    def put(self, segments: Segments, source: int, status: os.stat_result) -> None:
        with acting_as(self._identity):
            target = os.open(segments[-1], CREATE, 0o644, dir_fd=self.parent(segments))
        try:
            copy(source, target, status.st_size)
            os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
        finally:
            os.close(target)

    def filled(self) -> None:
        """It is."""

    def entries(self, leave_out: frozenset[bytes], skipped: list[Skipped]) -> list[Entry]:
        def prepare(parent: int, segments: Segments, status: os.stat_result) -> bool:
            name = segments[-1]
            if name == NEVER_KEPT or (len(segments) == 1 and name in leave_out):
                return False
            is_folder = stat.S_ISDIR(status.st_mode)
            if (is_folder or stat.S_ISREG(status.st_mode)) and status.st_mode & 0o700 != 0o700:
                os.chmod(
                    name, status.st_mode | 0o700, dir_fd=parent
                )  # no process of the guest lives that could swap it
            if is_folder and len(segments) >= MAX_DEPTH:
                skipped.append(too_deep(segments))
                return False
            return True

        with acting_as(self._identity):
            os.fchmod(self.fd, 0o755)
            return sorted(self.walk(prepare), key=lambda entry: entry[0])

    def opened(self, files: list[Segments]) -> Iterator[int]:
        for segments in files:
            with acting_as(self._identity):
                fd = self.open_file(segments)
            yield fd


def too_deep(segments: Segments) -> Skipped:
    """A folder in which no path of a tool can lead to anything."""
    return Skipped(path=name_of(segments), reason=f"more than {MAX_DEPTH} folders deep")


def copy_in(
    store: Store, guest: GuestTree, *, leave_out: frozenset[bytes], only: Iterable[Segments] | None
) -> Manifest:
    """Copy files into the empty tree of a run, all but those in the top folders ``leave_out``."""
    manifest = Manifest()
    wanted = None if only is None else set(only)
    with Tree.at(store.files) as ours:
        try:
            for segments, status in store.entries(leave_out=leave_out):
                if NEVER_KEPT in segments:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    guest.make_folder(segments)
                    manifest.folders.add(segments)
                    continue
                if wanted is not None and segments not in wanted:
                    manifest.versions[segments] = Version.of(status)
                elif put := _put(ours, guest, segments):
                    manifest.versions[segments] = put
                    manifest.files.add(segments)
            guest.filled()
        except OSError as fault:
            if fault.errno != errno.ENOSPC:
                raise
            raise QuotaExceeded(
                "The workspace holds more than its quota. Delete files or folders with delete_file."
            ) from None
    return manifest


def _put(ours: Tree, guest: GuestTree, segments: Segments) -> Version | None:
    """Gives which file was put in: the one that is there now, or none if another process has removed it."""
    try:
        source = ours.open_file(segments)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode):
            return None
        guest.put(segments, source, status)
        return Version.of(status)
    finally:
        os.close(source)


class Taken(NamedTuple):
    """What came of a run."""

    changes: list[FileChange]
    skipped: list[Skipped]
    """What was left out, with the reason."""
    grown_bytes: int
    """By which the workspace is larger than before."""


def commit(
    store: Store, guest: GuestTree, manifest: Manifest, *, leave_out: frozenset[bytes], max_bytes: int,
    reserve: Callable[[int], int],
) -> Taken:  # fmt: skip
    """Take what a run changed in its tmpfs; call it only when every process of the run is gone.

    Nothing is taken if not all of it comes, or can be put in its place: it raises then what the guest's tree raises, or
    `ServiceFull` if the disk has no room.

    ``max_bytes`` bounds what a workspace holds, in whole pages. ``reserve`` is told by how many bytes its files would be longer
    than before, and gives by how many they may be.

    A file that was written again as it was is modified too: a script that makes the same document once more has made it. What
    another process has written since `copy_in` stays as that one wrote it.
    """
    skipped: list[Skipped] = []
    entries = guest.entries(leave_out, skipped)
    folders = [segments for segments, status in entries if stat.S_ISDIR(status.st_mode)]
    # What was there before comes first, and first what has not grown: neither a quota nor a second name of a file may cost an
    # older file its place. One that has grown too much stays as it was before the run.
    by_age = sorted(
        entries,
        key=lambda entry: (entry[0] not in manifest.files, store.size(entry[0]) != entry[1].st_size, entry[0]),
    )
    there_bytes = sum(status.st_size for _, status in entries if stat.S_ISREG(status.st_mode))
    held_bytes = sum(manifest.versions[segments].size for segments in manifest.files)
    tenant_bytes = held_bytes + reserve(max(0, min(there_bytes, max_bytes) - held_bytes))
    wanted, too_much = _choose(by_age, manifest, skipped, max_bytes, tenant_bytes)
    new: list[_New] = []
    try:
        with _full_disk_told():
            _receive_all(store, guest, manifest, wanted, new)
            deleted = manifest.files - {segments for segments, _ in wanted} - too_much
            changes, grown_bytes = _put_in_place(store, manifest, folders, new, deleted, skipped)
    finally:
        store.discard(one.name for one in new)
    return Taken(sorted(changes, key=lambda change: change.path), skipped, grown_bytes)


def _choose(
    entries: list[Entry], manifest: Manifest, skipped: list[Skipped], max_bytes: int, tenant_bytes: int
) -> tuple[list[Entry], set[Segments]]:
    """The files to take, within both quotas, and those over one, of which one that was there before stays as it was."""
    wanted: list[Entry] = []
    too_much: set[Segments] = set()
    taken: dict[int, Segments] = {}
    for segments, status in entries:
        if stat.S_ISDIR(status.st_mode):
            continue
        reason = _reason_to_skip(segments, status, taken.get(status.st_ino))
        if reason is None:
            size = status.st_size
            # The tmpfs held the quota in blocks; what a sparse file claims to hold may be more.
            if pages(size) > max_bytes or size > tenant_bytes:
                whose = "a workspace" if pages(size) > max_bytes else "this tenant"
                reason = f"over the bytes that {whose} may hold"
                too_much.add(segments)
                size = manifest.versions[segments].size if segments in manifest.files else 0
            max_bytes -= pages(size)
            tenant_bytes -= size
        if reason is None:
            wanted.append((segments, status))
            taken[status.st_ino] = segments
        else:
            skipped.append(Skipped(path=name_of(segments), reason=reason))
    return wanted, too_much


def _reason_to_skip(segments: Segments, status: os.stat_result, first_link: Segments | None) -> str | None:
    if segments == (b"scripts",):
        return "a file named scripts; that is the folder of the scripts"
    if stat.S_ISREG(status.st_mode):
        return f"a hard link to {name_of(first_link)}, which was taken" if first_link else None
    kinds = {
        stat.S_IFLNK: "a symbolic link; links are never followed",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(status.st_mode), "not a regular file")


class _New(NamedTuple):
    """A file that has come, and has not got its place yet."""

    name: str
    segments: Segments
    size: int


@contextmanager
def _full_disk_told() -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ServiceFull(
            "The disk of the service is full: nothing that the script wrote was kept, and all files are as before it. The operator "
            "can make room with `spillbox clean`, or by removing workspaces."
        ) from None


def _receive_all(store: Store, guest: GuestTree, manifest: Manifest, wanted: list[Entry], new: list[_New]) -> None:
    files = guest.opened([segments for segments, _ in wanted])
    for entry, source in zip(wanted, files, strict=True):
        _receive(store, manifest, entry, source, new)


def _receive(store: Store, manifest: Manifest, entry: Entry, source: int, new: list[_New]) -> None:
    """Add a file to ``new``, with its content, unless it is as it was put in."""
    segments, status = entry
    try:
        if _is_as_before(store, manifest, entry, source):
            return
        name, fd = store.begin_file()
        try:
            new.append(_New(name, segments, status.st_size))
            copy(source, fd, status.st_size)
            modified_ns = min(max(status.st_mtime_ns, 0), _LAST_NS)
            os.utime(fd, ns=(modified_ns, modified_ns))
        finally:
            os.close(fd)
    finally:
        os.close(source)


def _is_as_before(store: Store, manifest: Manifest, entry: Entry, source: int) -> bool:
    segments, status = entry
    before = manifest.versions.get(segments)
    if before is None or before[1:] != (status.st_size, status.st_mtime_ns):
        return False
    # The time alone is no proof: a write through mmap(2) may leave it alone on tmpfs. Where another process has written the file
    # since, there is nothing left to compare it with.
    return store.version(segments) != before or _equals(store, segments, source)


def _equals(store: Store, segments: Segments, theirs: int) -> bool:
    try:
        ours = store.open_file(segments)
    except FileNotFoundError:  # now
        return True
    try:
        while True:
            one, other = os.read(ours, _CHUNK_BYTES), os.read(theirs, _CHUNK_BYTES)
            if one != other:
                return False
            if not one:
                return True
    finally:
        os.close(ours)


def _put_in_place(
    store: Store, manifest: Manifest, folders: list[Segments], new: list[_New], deleted: set[Segments],
    skipped: list[Skipped],
) -> tuple[list[FileChange], int]:  # fmt: skip
    """Give the folders and files that came their places, and remove what the run removed; gives by how many bytes that grew."""
    found: list[FileChange] = []
    grown_bytes = 0
    theirs: set[Segments] = set()

    def keep(segments: Segments, reason: str) -> None:
        skipped.append(Skipped(path=name_of(segments), reason=reason))
        theirs.add(segments)

    def is_ours(segments: Segments) -> bool:
        """Whether no other process has written it meanwhile, nor what would have to make room for it."""
        if any(segments[:depth] in theirs for depth in range(1, len(segments))):
            keep(segments, "another call wrote a file where it needs a folder")
        elif store.version(segments) != manifest.versions.get(segments):
            keep(segments, _WRITTEN)
        return segments not in theirs

    @contextmanager
    def unless_gone(segments: Segments) -> Iterator[None]:
        try:
            yield
        except Vanished:
            keep(segments, _WRITTEN)

    with Changes(store) as changes:

        def remove(segments: Segments) -> None:
            nonlocal grown_bytes
            size = store.size(segments)
            if size is not None and is_ours(segments):
                with unless_gone(segments):
                    changes.remove(segments)
                    grown_bytes -= size
                    found.append(FileChange(path=name_of(segments), bytes=size, change="deleted"))

        def place(one: _New) -> None:
            nonlocal grown_bytes
            if is_ours(one.segments):
                with unless_gone(one.segments):
                    old_size = changes.place(one.name, one.segments)
                    grown_bytes += one.size - (old_size or 0)
                    kind: Literal["modified", "created"] = "created" if old_size is None else "modified"
                    found.append(FileChange(path=name_of(one.segments), bytes=one.size, change=kind))

        # A file may stand where a folder was: such a folder goes before the file comes, everything else goes last.
        blocked = {one.segments for one in new if store.is_folder(one.segments)}
        for segments in folders:
            if not store.is_folder(segments) and is_ours(segments):
                remove(segments)
                changes.make_folder(segments)
        for one in (one for one in new if one.segments not in blocked):
            place(one)
        for segments in deleted:
            remove(segments)
        for segments in sorted(manifest.folders - set(folders), reverse=True):
            changes.drop_folder(segments)
        for one in (one for one in new if one.segments in blocked):
            if store.is_folder(one.segments):
                keep(one.segments, "a folder with files that the run had not is there")
            else:
                place(one)
    return found, grown_bytes
