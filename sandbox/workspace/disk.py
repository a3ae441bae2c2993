"""How much of the host's disk the service may fill."""

import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox.errors import ServiceFull

_MEASURED_SECONDS = 600
_MEASURED_AGAIN_SECONDS = 5


class Disk:
    """A quota over a folder, and room on its file system that is left to others.

    What is used is measured now and then, and counted up between; before anything is refused it is measured again.
    """

    def __init__(self, folder: Path, *, quota_bytes: int | None = None, spare_bytes: int = 0) -> None:
        self._folder = folder
        self.quota_bytes = quota_bytes
        self._spare_bytes = spare_bytes
        self._lock = threading.Lock()
        self._used = 0
        self._measured_at = float("-inf")

    def take(self, count: int) -> None:
        """Count bytes that are about to be written; raises `ServiceFull` if they have no room."""
        if self._spare_bytes:
            free = os.statvfs(self._folder)
            if free.f_bavail * free.f_frsize < count + self._spare_bytes:
                raise ServiceFull(
                    f"The disk of the service is nearly full: less than {self._spare_bytes:,} bytes would be left. "
                    "The operator can make room with `spillbox clean`, or by removing workspaces."
                )
        if self.quota_bytes is None:
            return
        with self._lock:
            if self._age() > _MEASURED_SECONDS or (self._is_over(count) and self._age() > _MEASURED_AGAIN_SECONDS):
                self._used, self._measured_at = used_bytes(self._folder), time.monotonic()
            if self._is_over(count):
                raise ServiceFull(
                    f"The service may use {self.quota_bytes:,} bytes of disk, and they are used up. The operator can make room "
                    "with `spillbox clean`, or raise SPILLBOX_DISK_BYTES."
                )
            self._used += count

    def note(self, count: int) -> None:
        """Count bytes that are written already."""
        with self._lock:
            self._used += count

    def _age(self) -> float:
        return time.monotonic() - self._measured_at

    def _is_over(self, count: int) -> bool:
        return self.quota_bytes is not None and self._used + count > self.quota_bytes


class BoundedFile(io.BufferedRandom):
    """A file over a descriptor, which stays open, that asks before it grows: ``admit`` gets its new size and the difference."""

    def __init__(self, fd: int, admit: Callable[[int, int], None]) -> None:
        super().__init__(_BoundedRaw(fd, admit))


class _BoundedRaw(io.FileIO):
    def __init__(self, fd: int, admit: Callable[[int, int], None]) -> None:
        super().__init__(fd, "r+b", closefd=False)
        self._admit = admit
        self._size = 0

    def write(self, data: Any) -> int:
        end = self.tell() + len(data)
        if end > self._size:
            self._admit(end, end - self._size)
            self._size = end
        return super().write(data)


def used_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(top, name)).st_size  # noqa: PTH118  a Path for each file costs more than its size
            except OSError:
                continue
    return total
