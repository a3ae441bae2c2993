"""The files of a run in a container: filled in, listed, given, wiped. Called only while nothing of the guest lives."""

import errno
import os
import stat

import frames

WORKSPACE, REPORT = "/workspace", "/run/report"
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_READ_BYTES = 128 * 1024
_MAX_DEPTH = 32


class Filling:
    """Takes what the service sends into the empty workspace; after an error it takes nothing more, and tells of it."""

    def __init__(self):
        self.error = 0
        self._parents = _Parents()
        self._fd = -1
        self._modified_ns = 0

    def folder(self, path):
        """Make one."""
        self._try(lambda: os.mkdir(_name(path), 0o755, dir_fd=self._parents.of(path)))

    def file(self, payload):
        """Begin a file; the one before is whole."""
        self._end_file()
        _, _, _, self._modified_ns, path = frames.decode_entry(payload)
        self._try(lambda: self._open(path))

    def data(self, payload):
        """More of it."""
        if self._fd >= 0:
            self._try(lambda: _write_all(self._fd, payload))

    def finish(self):
        """No more comes."""
        self._end_file()
        self._parents.close()

    def _open(self, path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._fd = os.open(_name(path), flags, 0o644, dir_fd=self._parents.of(path))

    def _end_file(self):
        if self._fd >= 0:
            os.utime(self._fd, ns=(self._modified_ns, self._modified_ns))
            os.close(self._fd)
            self._fd = -1

    def _try(self, work):
        if not self.error:
            try:
                work()
            except OSError as fault:
                self.error = fault.errno


class _Parents:
    """The folders that paths are in. The last stays open, since they come sorted and a call costs much in gVisor."""

    def __init__(self):
        self._above = b""
        self._fd = -1

    def of(self, path):
        """A descriptor, opened one step after another: a path may be longer than the kernel takes at once."""
        above = path.rpartition(b"/")[0]
        if self._fd < 0 or above != self._above:
            self.close()
            self._above, self._fd = above, os.open(WORKSPACE, _OPEN_FOLDER)
            for name in above.split(b"/") if above else ():
                outer = self._fd
                self._fd = os.open(name, _OPEN_FOLDER, dir_fd=outer)
                os.close(outer)
        return self._fd

    def close(self):
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _name(path):
    return path.rpartition(b"/")[2]


def _write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def entries(leave_out):
    """What the guest left: ``(path, status)`` of each entry; its owner can read all of it again."""
    os.chmod(WORKSPACE, 0o755)
    top = os.open(WORKSPACE, _OPEN_FOLDER)
    try:
        yield from _below(top, (), leave_out)
    finally:
        os.close(top)


def _below(fd, above, leave_out):
    for name in map(os.fsencode, os.listdir(fd)):
        if name == b"__pycache__" or (not above and name in leave_out):
            continue
        status = os.lstat(name, dir_fd=fd)
        is_folder = stat.S_ISDIR(status.st_mode)
        if (is_folder or stat.S_ISREG(status.st_mode)) and status.st_mode & 0o700 != 0o700:
            os.chmod(name, status.st_mode | 0o700, dir_fd=fd)
        path = (*above, name)
        yield b"/".join(path), status
        if is_folder and len(path) < _MAX_DEPTH:
            inner = os.open(name, _OPEN_FOLDER, dir_fd=fd)
            try:
                yield from _below(inner, path, leave_out)
            finally:
                os.close(inner)


def count_entries(place, most, leave_out):
    """Entries of a place now, while the guest may change them, without some of its own; it stops at ``most``.

    A folder that can't be read counts for itself only.
    """
    return _count(place, most, leave_out, lambda name, above: os.open(name, _OPEN_FOLDER, dir_fd=above), 0)


def count_entries_at_last(place, most, leave_out):
    """The same when nothing of the guest lives, with what a folder's mode hides; what can't be counted all the same is ``most``."""

    def enter(name, above):
        os.chmod(name, 0o700, dir_fd=above)
        return os.open(name, _OPEN_FOLDER, dir_fd=above)

    return _count(place, most, leave_out, enter, most)


def _count(place, most, leave_out, enter, otherwise):
    """``enter`` gives a descriptor of a folder in another; one that it can't open counts ``otherwise``."""
    count = 0
    opened = []  # the folders from the place down to where it is: a path may be longer than the kernel takes at once
    waiting = [[place]]  # in what is above each of them, and in the last, the folders that are to be looked into yet
    try:
        while waiting and count < most:
            if not waiting[-1]:
                waiting.pop()
                if opened:
                    os.close(opened.pop())
                continue
            try:
                opened.append(enter(waiting[-1].pop(), opened[-1] if opened else None))
                waiting.append([])
                with os.scandir(opened[-1]) as found:
                    for entry in found:
                        if len(opened) == 1 and entry.name in leave_out:
                            continue
                        count += 1
                        if count >= most:
                            break
                        if entry.is_dir(follow_symlinks=False):
                            waiting[-1].append(entry.name)
            except OSError as fault:
                count += most if fault.errno == errno.EMFILE else otherwise  # so deep that nobody can tell
        return min(count, most)
    finally:
        for fd in opened:
            os.close(fd)


def contents(paths):
    """The content of regular files, each in parts and then None."""
    parents = _Parents()
    try:
        for path in paths:
            fd = os.open(_name(path), _OPEN_FILE, dir_fd=parents.of(path))
            try:
                while part := os.read(fd, _READ_BYTES):
                    yield part
                    if len(part) < _READ_BYTES:  # it is the end: nobody else is there who could write
                        break
            finally:
                os.close(fd)
            yield None
    finally:
        parents.close()


def report():
    """Name and content of the regular files directly in the report's folder, so many of them, and each cut."""
    os.chmod(REPORT, 0o700)
    for name in sorted(os.listdir(REPORT.encode()))[: frames.MAX_REPORT_FILES]:
        path = os.path.join(REPORT.encode(), name)
        try:
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as file:
                    yield name, file.read(frames.MAX_REPORT_BYTES)
        except OSError:
            continue


def is_full():
    """Whether the workspace can't take any more."""
    space = os.statvfs(WORKSPACE)
    return space.f_bavail == 0 or (space.f_files > 0 and space.f_ffree == 0)


def wipe(place, mode, keep):
    """Remove all that is in a folder, but for the mounts ``keep``, and give it its mode again. Raises OSError.

    A tree may be deeper than any path, or any recursion: each folder is brought to the top before it is looked into.
    """
    os.chmod(place, mode)
    top = os.open(place, _OPEN_FOLDER)
    number = 0
    try:
        while names := [name for name in os.listdir(top) if name not in keep]:
            for name in names:
                if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
                    os.unlink(name, dir_fd=top)
                    continue
                os.chmod(name, 0o700, dir_fd=top)
                number = _bring_up(top, name, number)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _bring_up(top, name, number):
    """Empty a folder: its folders go to the top under names that nothing there has."""
    fd = os.open(name, _OPEN_FOLDER, dir_fd=top)
    try:
        for inner in os.listdir(fd):
            if not stat.S_ISDIR(os.lstat(inner, dir_fd=fd).st_mode):
                os.unlink(inner, dir_fd=fd)
                continue
            os.chmod(inner, 0o700, dir_fd=fd)
            while True:
                number += 1
                try:
                    os.stat(f".{number}", dir_fd=top, follow_symlinks=False)
                except FileNotFoundError:
                    break
            os.rename(inner, f".{number}", src_dir_fd=fd, dst_dir_fd=top)
    finally:
        os.close(fd)
    return number
