"""Takes what a guest prints: bounded in memory, whole on disk up to a limit, whoever holds the other end of the pipe."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

GAP_END = " bytes left out ...]\n"
"""Ends the line between head and tail of a truncated text."""

OnOutput = Callable[[str, bytes], None]
"""Called with ``"stdout"`` or ``"stderr"`` and the bytes, on the event loop, as they come."""


class Capture:
    """Head, tail and spool of one stream."""

    def __init__(self, name: str, *, text_bytes: int, disk_bytes: int, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self.total_bytes = 0
        self.disk_is_full = False
        self._disk_bytes = disk_bytes
        self._half = text_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._spool: BinaryIO | None = None

    def feed(self, data: bytes) -> bool:
        """Take more output; gives False once there is more than the disk may hold."""
        self.total_bytes += len(data)
        room = max(0, self._half - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        try:
            self._keep(data)
        except OSError:  # the host's disk is full: nothing more can be kept, and the run must not go on filling memory
            self.disk_is_full = True
        del self._tail[: max(0, len(self._tail) - self._half)]
        return self.total_bytes <= self._disk_bytes and not self.disk_is_full

    def _keep(self, data: bytes) -> None:
        if self._spool is not None:
            self._spool.write(data[: max(0, self._disk_bytes - self._spool.tell())])
        elif len(self._tail) > self._half:
            # Made only when needed: most runs print little.
            self._spool = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115  closed by `close`
            self._spool.write(self._head + self._tail)

    @property
    def truncated(self) -> bool:
        """Whether `text` leaves something out."""
        return self.total_bytes > len(self._head) + len(self._tail)

    def text(self) -> str:
        """The output as text; of a long one the head, a line that counts the gap, and the tail."""
        if not self.truncated:
            return (self._head + self._tail).decode("utf-8", "replace")
        gap = self.total_bytes - len(self._head) - len(self._tail)
        head, tail = _whole_characters(bytes(self._head), bytes(self._tail))
        return f"{head}\n[... {gap:,}{GAP_END}{tail}"

    def whole(self) -> bytes | BinaryIO:
        """All that was kept: bytes, or an open file at its start."""
        if self._spool is None:
            return bytes(self._head + self._tail)
        self._spool.seek(0)
        return self._spool

    def close(self) -> None:
        """Give the disk back."""
        if self._spool is not None:
            self._spool.close()


def _whole_characters(head: bytes, tail: bytes) -> tuple[str, str]:
    """Decode both, without the halves of a character at the cut."""
    end = len(head)
    while end > max(0, len(head) - 3) and head[end - 1] & 0xC0 == 0x80:
        end -= 1
    if end and head[end - 1] >= 0xC0:
        width = 2 + (head[end - 1] >= 0xE0) + (head[end - 1] >= 0xF0)
        end = len(head) if len(head) - end + 1 == width else end - 1
    else:
        end = len(head)
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return head[:end].decode("utf-8", "replace"), tail[start:].decode("utf-8", "replace")
