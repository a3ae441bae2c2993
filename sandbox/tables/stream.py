"""The elements of an array in a file, in memory that does not grow with it.

An array is read in pieces that hold whole elements. Where a piece may end is first guessed, at a comma between two records,
and the guess is tried: from a true beginning, text that is a valid list of values ends at a true end. Only where all
guesses fail is the piece scanned.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

from sandbox.tables.slices import NotJson, count_of, end_of_string, end_of_value, is_strict, skip_space, text_of, values

PIECE_BYTES = 1 << 20
_GUESSES = 8
_LOOKED_AT_BYTES = 1 << 16
_AFTER_CONTAINER = re.compile(rb"[}\]](?=[ \t\n\r]*+,)")
_AFTER_SCALAR = re.compile(rb"[\w\"](?=[ \t\n\r]*+,)")
_BOM = b"\xef\xbb\xbf"


class Window:
    """A file's bytes from a place on, read as they are needed and let go of when they were used."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = file.read(PIECE_BYTES)
        self._at = len(_BOM) if self._buffer.startswith(_BOM) else 0
        self._base = 0
        self.at_end = len(self._buffer) < PIECE_BYTES

    @property
    def start(self) -> int:
        """The place in the file of what is next."""
        return self._base + self._at

    def rest(self) -> bytes:
        """What is read and not used."""
        self._buffer, self._base, self._at = self._buffer[self._at :], self._base + self._at, 0
        return self._buffer

    def drop(self, count: int) -> None:
        """Pass over bytes that are read."""
        self._at += count

    def more(self) -> bool:
        """Read more, as much again as is not used; whether there was more."""
        return self._read(max(PIECE_BYTES, len(self._buffer) - self._at))

    def fill(self, count: int) -> None:
        """Read until there are ``count`` bytes, if the file has them."""
        there = len(self._buffer) - self._at
        if there < count:
            self._read(count - there)

    def _read(self, wanted: int) -> bool:
        if self.at_end:
            return False
        read = self._file.read(wanted)
        self.at_end = len(read) < wanted
        self._buffer = self.rest() + read
        return bool(read)

    def next_byte(self) -> bytes:
        """Go to the next byte that is no white space, and give it; empty at the end."""
        while True:
            self._at = skip_space(self._buffer, self._at)
            if self._at < len(self._buffer) or not self.more():
                return self._buffer[self._at : self._at + 1]

    def expect(self, byte: bytes) -> None:
        """Pass over one byte that must be there."""
        found = self.next_byte()
        if found != byte:
            raise NotJson(self.start, truncated=not found)
        self._at += 1

    def string(self) -> bytes:
        """Take a JSON string."""
        self.next_byte()
        while (end := end_of_string(self._buffer, self._at)) is None:
            if not self.more():
                raise NotJson(self.start, truncated=True)
        raw, self._at = self._buffer[self._at : end], end
        return raw

    def skip_value(self) -> None:
        """Pass over a value of any size: what is in the window at once, a large array in pieces."""
        first = self.next_byte()
        try:
            end = end_of_value(self._buffer, self._at)
        except NotJson as fault:
            if fault.truncated and first == b"[":
                for _ in pieces(self):
                    pass
                return
        else:
            if end < len(self._buffer):
                self._at = end
                return
        self.take()

    def take(self) -> bytes:
        """Take a whole value."""
        self.next_byte()
        while True:
            try:
                end = end_of_value(self._buffer, self._at)
            except NotJson as fault:
                if not fault.truncated or not self.more():
                    raise NotJson(self._base + fault.byte, truncated=fault.truncated) from None
            else:
                if end < len(self._buffer) or not self.more():  # else a number may go on
                    value = self._buffer[self._at : end]
                    self._at = end
                    return value

    def each_key(self) -> Iterator[str]:
        """The keys of an object; before each next one the value must have been taken, or skipped."""
        self.expect(b"{")
        if self.next_byte() == b"}":
            self._at += 1
            return
        while True:
            key = self.string()
            self.expect(b":")
            self.next_byte()
            yield text_of(key)
            if self.next_byte() == b"}":
                self._at += 1
                return
            self.expect(b",")

    def enter(self, key: str) -> bool:
        """Go to the value of a key of the object that is next; whether there is one."""
        for found in self.each_key():
            if found == key:
                return True
            self.skip_value()
        return False


def pieces(window: Window) -> Iterator[tuple[int, bytes]]:
    """The array that is next, as smaller arrays of its elements in turn, each with its place in the file."""
    window.expect(b"[")
    if window.next_byte() == b"]":
        window.drop(1)
        return
    while True:
        window.fill(PIECE_BYTES)
        data = window.rest()
        end = _guess(data)
        if end is None:
            end, data = _scan(window)
        yield window.start - 1, b"[" + data[:end] + b"]"
        window.drop(end)
        if window.next_byte() == b"]":
            window.drop(1)
            return
        window.expect(b",")


def _guess(data: bytes) -> int | None:
    """Where a piece can end after whole elements, tried at the last places that look like it."""
    for boundary in (_AFTER_CONTAINER, _AFTER_SCALAR):
        found = [match.start() + 1 for match in boundary.finditer(data, max(0, len(data) - _LOOKED_AT_BYTES))]
        for end in reversed(found[-_GUESSES:]):
            if is_strict(b"[" + data[:end] + b"]"):
                return end
    return None


def _scan(window: Window) -> tuple[int, bytes]:
    """The end of the last element that is whole in the window, or of the array, and the window; reads on until there is one."""
    at = end = 0
    while True:
        data = window.rest()
        try:
            following = end_of_value(data, skip_space(data, at))
        except NotJson as fault:
            if not fault.truncated:
                raise NotJson(window.start + fault.byte, truncated=False) from None
            if end:
                return end, data
            if not window.more():
                raise NotJson(window.start + fault.byte, truncated=True) from None
            continue
        at = skip_space(data, following)
        if at == len(data):  # a number may go on
            if end:
                return end, data
            if not window.more():
                raise NotJson(window.start + at, truncated=True)
            at = 0
            continue
        end = following
        if data[at : at + 1] != b",":
            return end, data
        at += 1


def lines(window: Window) -> Iterator[tuple[int, bytes]]:
    """Values that stand one a line, or one after another, as arrays of them in turn, each with its place in the file."""
    while window.next_byte():
        data = window.rest()
        end = data.rfind(b"\n")
        while end < 0 and window.more():
            data = window.rest()
            end = data.rfind(b"\n")
        if end < 0 or window.at_end:
            end = len(data)
        found = [line for line in data[:end].split(b"\n") if line.strip()]
        piece = b"[" + b",\n".join(found) + b"]"
        if count_of(piece) != len(found):
            end, piece = _one_by_one(window, end)
        yield window.start - 1, piece
        window.drop(end)
        window.fill(PIECE_BYTES)


def _one_by_one(window: Window, end: int) -> tuple[int, bytes]:
    """Values that stand on several lines, several on one, or that are not strict; and where the last whole one ends."""
    while True:
        data = window.rest()
        found: list[bytes] = []
        at = 0
        try:
            for start, at in values(data):
                found.append(data[start:at])
                if at >= end:
                    break
        except NotJson as fault:
            if not fault.truncated or (window.at_end and found) or not (found or window.more()):
                raise NotJson(window.start + fault.byte, truncated=fault.truncated) from None
            if not found:
                continue
        return at, b"[" + b",".join(found) + b"]"
