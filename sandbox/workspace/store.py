"""The files of one workspace on disk. A file appears whole, by rename, or not at all."""

import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from sandbox.errors import InvalidPath
from sandbox.workspace.paths import Segments, name_of
from sandbox.workspace.tree import CREATE, Entry, Tree, remove_tree

_NUMBER = re.compile("[0-9]{4,9}")
_log = logging.getLogger(__name__)


class Version(NamedTuple):
    """Which file of a workspace it is: one that was written again has another inode, since it came by rename."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Version":
        """Of the file that has this status."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Store:
    """``files/``, ``incoming/`` and ``counter`` in one folder. Methods raise OSError; nothing is checked against a quota."""

    def __init__(self, folder: Path, *, own_folders: tuple[str, ...]) -> None:
        self.files = folder / "files"
        self.incoming = folder / "incoming"
        self._counter = folder / "counter"
        self._own_folders = own_folders

    def make(self) -> None:
        """Make the folders, if they are not there."""
        if not self.incoming.is_dir():
            for name in ("", *self._own_folders):
                (self.files / name).mkdir(parents=True, exist_ok=True)
                (self.files / name).chmod(0o755)  # whatever the umask: a guest of another uid reads the mounts
            self.incoming.mkdir(exist_ok=True)

    def next_number(self) -> int:
        """A number never given before, also by another service on the same folder."""
        with self._counter.open("a+") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            counter.seek(0)
            try:
                last = int(counter.read() or 0)
            except ValueError:
                last = 0
            number = (last or self._highest_number()) + 1
            counter.truncate(0)
            counter.write(str(number))
            return number

    def _highest_number(self) -> int:
        """In the names of files: for a counter that lost its content with the machine's power."""
        own = {folder.encode() for folder in self._own_folders}
        inside = (segments for segments, _ in self.entries() if len(segments) == 2 and segments[0] in own)
        names = [segments[1].decode("utf-8", "replace") for segments in inside]
        return max((int(found[0]) for name in names if (found := _NUMBER.match(name))), default=0)

    def entries(self, *, leave_out: frozenset[bytes] = frozenset()) -> list[Entry]:
        """Everything below ``files/``, sorted by path, but for what is in the top folders ``leave_out``."""
        if not self.files.is_dir():
            return []
        with Tree.at(self.files) as tree:
            walk = tree.walk(lambda _, segments, __: len(segments) > 1 or segments[0] not in leave_out)
            return sorted(walk, key=lambda entry: entry[0])

    def open_file(self, segments: Segments) -> int:
        """A descriptor of a regular file, for reading; raises OSError for anything else."""
        with Tree.at(self.files) as tree:
            fd = tree.open_file(segments)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(name_of(segments))
        return fd

    def status(self, segments: Segments) -> os.stat_result | None:
        """The entry's own status, or None."""
        if not self.files.is_dir():
            return None
        with Tree.at(self.files) as tree:
            return tree.status(segments)

    def size(self, segments: Segments) -> int | None:
        """Bytes of the regular file there, or None."""
        version = self.version(segments)
        return None if version is None else version.size

    def version(self, segments: Segments) -> Version | None:
        """Of the regular file there, or None."""
        status = self.status(segments)
        return Version.of(status) if status is not None and stat.S_ISREG(status.st_mode) else None

    def is_folder(self, segments: Segments) -> bool:
        """Whether a folder is there."""
        status = self.status(segments)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def begin_file(self) -> tuple[str, int]:
        """A new file under ``incoming/``, open for writing. The caller closes it, and gives its name to `place` or `discard`."""
        name = _new_name()
        with Tree.at(self.incoming) as incoming:
            fd = os.open(name, CREATE, 0o600, dir_fd=incoming.fd)
            try:
                os.fchmod(fd, 0o644)
            except BaseException:
                os.close(fd)
                os.unlink(name, dir_fd=incoming.fd)
                raise
        return name, fd

    def version_of_new(self, name: str) -> Version:
        """Of a new file, before and after it is placed."""
        return Version.of((self.incoming / name).lstat())

    def discard(self, names: Iterable[str]) -> None:
        """Remove those of new files that were not placed. What can't be removed now is swept later: it raises nothing."""
        try:
            with Tree.at(self.incoming) as incoming:
                for name in names:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=incoming.fd)
        except OSError:
            _log.warning("%s could not be tidied", self.incoming, exc_info=True)

    @contextmanager
    def new_file(self) -> Iterator[tuple[str, int]]:
        """As `begin_file`; at the end of the ``with`` it is closed, and removed if it was not placed."""
        name, fd = self.begin_file()
        try:
            yield name, fd
        finally:
            os.close(fd)
            self.discard([name])

    def place(self, name: str, segments: Segments) -> None:
        """Give a new file its name, making missing folders; raises `InvalidPath` where a folder stands in the way."""
        with Tree.at(self.files) as tree, Tree.at(self.incoming) as incoming:
            try:
                parent = tree.parent(segments, make=True)
                os.rename(name, segments[-1], src_dir_fd=incoming.fd, dst_dir_fd=parent)
            except (IsADirectoryError, NotADirectoryError):
                raise InvalidPath(
                    f"The path {name_of(segments)} is refused: a folder stands there, or a file where it needs a folder."
                ) from None

    def place_new(self, name: str, segments: Segments) -> None:
        """Give a new file a name that no file has; raises FileExistsError if one does."""
        with Tree.at(self.files) as tree, Tree.at(self.incoming) as incoming:
            parent = tree.parent(segments, make=True)
            os.link(name, segments[-1], src_dir_fd=incoming.fd, dst_dir_fd=parent, follow_symlinks=False)
            os.fsync(parent)

    def link_aside(self, segments: Segments) -> str:
        """Give a file a second name, under ``incoming/``, for `place` or `discard`."""
        name = _new_name()
        with Tree.at(self.files) as tree, Tree.at(self.incoming) as incoming:
            parent = tree.parent(segments)
            os.link(segments[-1], name, src_dir_fd=parent, dst_dir_fd=incoming.fd, follow_symlinks=False)
        return name

    def make_folder(self, segments: Segments) -> None:
        """Make a folder; raises FileExistsError if something is there."""
        with Tree.at(self.files) as tree:
            os.mkdir(segments[-1], 0o755, dir_fd=tree.parent(segments))

    def remove(self, segments: Segments) -> None:
        """Remove a file, or a folder with all that is in it."""
        with Tree.at(self.files) as tree:
            remove_tree(tree.parent(segments), segments[-1])

    def drop_folder(self, segments: Segments) -> bool:
        """Remove a folder if it is empty; gives whether it did."""
        with Tree.at(self.files) as tree, suppress(OSError):
            os.rmdir(segments[-1], dir_fd=tree.parent(segments))
            return True
        return False


def _new_name() -> str:
    """Of a file under ``incoming/``."""
    return secrets.token_hex(12)
