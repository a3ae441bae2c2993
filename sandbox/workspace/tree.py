"""Folders by descriptor. Every step from a folder to its entry is made with O_NOFOLLOW, so no link leads anywhere."""

import ctypes
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sandbox.workspace.paths import MAX_DEPTH, Segments

PAGE_BYTES = 4096
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Entry = tuple[Segments, os.stat_result]


@dataclass(frozen=True)
class Identity:
    """Whose rights are used on a guest's tmpfs: the host's ids of the guest's user."""

    uid: int
    gid: int


class Tree:
    """An open folder and what is below it. Keeps the last parent open, since entries come sorted."""

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)
        self._parent: tuple[Segments, int] = ((), os.dup(fd))

    @classmethod
    @contextmanager
    def at(cls, path: Path) -> Iterator[Self]:
        """The tree of a folder of our own on the host."""
        fd = os.open(path, OPEN_FOLDER)
        try:
            tree = cls(fd)
        finally:
            os.close(fd)
        with tree:
            yield tree

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.close(self._parent[1])

    def parent(self, segments: Segments, *, make: bool = False) -> int:
        """A descriptor of the folder that ``segments`` is in, valid until the next call; ``make`` makes what is missing."""
        above = segments[:-1]
        if above != self._parent[0]:
            fd = os.dup(self.fd)
            try:
                for name in above:
                    child = _open_folder(fd, name, make=make)
                    os.close(fd)
                    fd = child
            except OSError:
                os.close(fd)
                raise
            os.close(self._parent[1])
            self._parent = (above, fd)
        return self._parent[1]

    def open_file(self, segments: Segments) -> int:
        """A descriptor for reading; the caller closes it, and looks whether it is a regular file."""
        return os.open(segments[-1], OPEN_FILE, dir_fd=self.parent(segments))

    def status(self, segments: Segments) -> os.stat_result | None:
        """The entry's own status, or None if there is none."""
        try:
            return os.stat(segments[-1], dir_fd=self.parent(segments), follow_symlinks=False)
        except OSError:
            return None

    def walk(self, prepare: Callable[[int, Segments, os.stat_result], bool] | None = None) -> Iterator[Entry]:
        """Every entry with its own status, down to `MAX_DEPTH`. What disappears meanwhile is passed over.

        ``prepare`` is called with the folder before an entry is given, and says whether it and what is below it is wanted.
        """
        yield from _walk(self.fd, (), prepare)


def _open_folder(parent: int, name: bytes, *, make: bool) -> int:
    try:
        return os.open(name, OPEN_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, OPEN_FOLDER, dir_fd=parent)


def _walk(
    top: int, above: Segments, prepare: Callable[[int, Segments, os.stat_result], bool] | None
) -> Iterator[Entry]:
    for name in map(os.fsencode, os.listdir(top)):
        segments = (*above, name)
        try:
            status = os.stat(name, dir_fd=top, follow_symlinks=False)
            if prepare is not None and not prepare(top, segments, status):
                continue
            is_folder = stat.S_ISDIR(status.st_mode)
            fd = os.open(name, OPEN_FOLDER, dir_fd=top) if is_folder and len(segments) < MAX_DEPTH else -1
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            yield segments, status
            if fd >= 0:
                yield from _walk(fd, segments, prepare)
        finally:
            if fd >= 0:
                os.close(fd)


def remove_tree(parent: int, name: bytes) -> None:
    """Remove a file, or a folder with all that is in it."""
    try:
        fd = os.open(name, OPEN_FOLDER, dir_fd=parent)
    except OSError:
        os.unlink(name, dir_fd=parent)
        return
    try:
        while inside := os.listdir(fd):  # noqa: PTH208  a descriptor; until nothing is left: another service may write meanwhile
            for inner in map(os.fsencode, inside):
                with suppress(FileNotFoundError):
                    remove_tree(fd, inner)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def pages(size: int) -> int:
    """The size in whole pages, as a tmpfs counts."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def copy(source: int, target: int, size: int) -> None:
    """Copy ``size`` bytes between files, in the kernel."""
    offset = 0
    while offset < size:
        sent = os.sendfile(target, source, offset, min(size - offset, 1 << 30))
        if sent == 0:
            break
        offset += sent


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def acting_as(identity: Identity) -> Iterator[None]:
    """Touch a guest's tmpfs with the guest's own rights, so that a service run as root has no more there than the guest.

    setfsuid(2) is per thread, and leaving uid 0 also drops the capabilities that override file permissions; a
    tmpfs of a user namespace refuses inodes of an owner that the namespace does not map.
    """
    if os.geteuid() == identity.uid:
        yield
        return
    uid, gid = os.geteuid(), os.getegid()
    _libc.setfsgid(ctypes.c_uint(identity.gid))
    _libc.setfsuid(ctypes.c_uint(identity.uid))
    try:
        yield
    finally:
        _libc.setfsuid(ctypes.c_uint(uid))
        _libc.setfsgid(ctypes.c_uint(gid))
