"""Lines of a file by a pattern, in time linear in the file: RE2, which does not backtrack, on bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol

import re2

from sandbox.errors import InvalidArguments

MAX_TEXT_CHARACTERS = 20_000
_BLOCK_BYTES = 4 << 20
_MAX_LINE_BYTES = 1000
"""Of a longer line only the part around the match is given."""
_AROUND_BYTES = 300
_MAX_CONTEXT_BYTES = 500
"""Of a line beside a match."""
_CONTEXT_READ_BYTES = 64 << 10
_META = frozenset("\\.^$|?*+()[]{}")


class Match(NamedTuple):
    """A line that matches."""

    line: int
    text: str
    start_character: int
    """Where the text begins in the line: not 0 if it is the part of a long line around the match."""
    line_characters: int
    before: list[str]
    after: list[str]


@dataclass(frozen=True)
class Found:
    """A page of the lines that match, and how many there are in all."""

    matches: list[Match]
    total: int


class Pattern(Protocol):
    """What lines are searched for."""

    def count(self, block: bytes) -> int:
        """How many lines of a block match."""

    def find(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Start and end of the first match in each line that has one."""


class _Literal:
    def __init__(self, text: bytes) -> None:
        self._text = text

    def count(self, block: bytes) -> int:
        if self._text not in block:
            return 0
        return sum([self._text in line for line in block.split(b"\n")])

    def find(self, block: bytes) -> Iterator[tuple[int, int]]:
        at = block.find(self._text)
        while at >= 0:
            yield at, at + len(self._text)
            line_end = block.find(b"\n", at)
            at = block.find(self._text, line_end) if line_end >= 0 else -1


class _Expression:
    """One match takes in the rest of its line, so that there is one for each line."""

    def __init__(self, to_line_end: Any, alone: Any) -> None:
        self._to_line_end = to_line_end
        self._alone = alone

    def count(self, block: bytes) -> int:
        return sum(1 for _ in self._lines(block))

    def find(self, block: bytes) -> Iterator[tuple[int, int]]:
        for start, end in self._lines(block):
            line = block[start:end]
            alone = self._alone.match(line) if line else None  # None too if it looks at what stands before the line
            yield start, start + (alone.end() if alone is not None else 0)

    def _lines(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Start of the first match in each line, and end of the line."""
        last_end = -1
        for found in self._to_line_end.finditer(block):
            start = found.start()
            is_after_the_last_line = start == len(block) and block.endswith(b"\n")
            if start > last_end and not is_after_the_last_line:
                line_end = block.find(b"\n", start)
                last_end = len(block) if line_end < 0 else line_end
                yield start, last_end


def compiled(pattern: str, *, literal: bool, ignore_case: bool) -> Pattern:
    """The pattern; raises `InvalidArguments`, saying what is wrong with it."""
    try:
        text = pattern.encode()
    except UnicodeEncodeError:
        raise InvalidArguments("pattern is not valid Unicode text: it has half of a surrogate pair.") from None
    if b"\n" in text:
        raise InvalidArguments(
            "pattern has a line break, and lines are searched one by one. Search for a part of one line."
        )
    if not literal and b"\\C" in text:
        raise InvalidArguments(r"pattern has \C, a single byte, which is not for lines of text. Use . for a character.")
    is_plain = literal or not _META & set(pattern)
    if is_plain and not ignore_case and text.isascii():
        return _Literal(text)
    options = re2.Options()
    options.never_nl = options.never_capture = True
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.max_mem = 8 << 20
    inner = re2.escape(text) if literal else text
    if is_plain and not text.isascii():
        inner = b"".join(_as_written_in_json(character) for character in pattern)
    re2.purge()  # its cache would keep each pattern of each caller
    try:
        re2.compile(inner, options)  # alone, so that a parenthesis too many is an error
        return _Expression(*(re2.compile(b"(?m)(?:" + inner + b")" + rest, options) for rest in (b".*", b"")))
    except re2.error as fault:
        reason = fault.args[0].decode("utf-8", "replace") if isinstance(fault.args[0], bytes) else str(fault)
        raise InvalidArguments(
            f"The pattern is no regular expression: {reason}. There are no look-arounds and no back references (RE2); "
            f"set literal "
            "to search for the text as it is."
        ) from None


def _as_written_in_json(character: str) -> bytes:
    """A character as it is, or as an escape, in which many servers write letters that are not ASCII."""
    alone = re2.escape(character.encode())
    if character.isascii():
        return bytes(alone)
    units = character.encode("utf-16-be")
    escape = "".join(f"\\\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return b"(?:" + bytes(alone) + b"|(?i:" + escape.encode() + b"))"


def search(file: BinaryIO, pattern: Pattern, *, context_lines: int, offset: int, max_matches: int) -> Found:
    """Matching lines from the ``offset``-th on, as many as fit, and the number of all."""
    found: list[tuple[Match, int, int]] = []
    total, line, start = 0, 1, 0
    for block in _blocks(file):
        if len(found) == max_matches:
            total += pattern.count(block)
            continue
        position = 0
        for at, end in pattern.find(block):
            if total >= offset and len(found) < max_matches:
                line += block.count(b"\n", position, at)
                position = at
                line_start = block.rfind(b"\n", 0, at) + 1
                line_end = block.find(b"\n", at)
                line_end = len(block) if line_end < 0 else line_end
                match = _match(block[line_start:line_end], at - line_start, min(end, line_end) - line_start, line)
                found.append((match, start + line_start, start + line_end + 1))
            total += 1
        line += block.count(b"\n", position)
        start += len(block)
    matches: list[Match] = []
    left = MAX_TEXT_CHARACTERS
    for match, line_start, line_end in found:
        if context_lines:
            match = match._replace(
                before=_lines_before(file, line_start, context_lines), after=_lines_after(file, line_end, context_lines)
            )
        left -= len(match.text) + sum(map(len, (*match.before, *match.after)))
        if left < 0 and matches:
            break
        matches.append(match)
    return Found(matches, total)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The file in pieces of whole lines."""
    while block := file.read(_BLOCK_BYTES):
        yield block if block.endswith(b"\n") else block + file.readline()


def _match(line: bytes, at: int, end: int, number: int) -> Match:
    """A match with its line, or the part of a long line around it."""
    if len(line) <= _MAX_LINE_BYTES:
        text = line.decode("utf-8", "replace")
        return Match(number, text.removesuffix("\r"), 0, len(text), [], [])
    first = _to_character(line, max(0, at - _AROUND_BYTES))
    last = _to_character(line, min(len(line), max(end, first) + _AROUND_BYTES, first + _MAX_LINE_BYTES))
    whole = len(line.decode("utf-8", "replace"))
    skipped = len(line[:first].decode("utf-8", "replace"))
    return Match(number, line[first:last].decode("utf-8", "replace"), skipped, whole, [], [])


def _to_character(line: bytes, at: int) -> int:
    """Back to where a character of UTF-8 begins."""
    while 0 < at < len(line) and line[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _lines_before(file: BinaryIO, end: int, count: int) -> list[str]:
    start = max(0, end - _CONTEXT_READ_BYTES)
    file.seek(start)
    lines = file.read(end - start).split(b"\n")[:-1]
    if start and len(lines) <= count:
        lines = lines[1:]  # the first is not whole
    return [_cut(line) for line in lines[-count:]]


def _lines_after(file: BinaryIO, start: int, count: int) -> list[str]:
    file.seek(start)
    read = file.read(_CONTEXT_READ_BYTES)
    lines = read.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [_cut(line) for line in lines[:count]]


def _cut(line: bytes) -> str:
    text = line[: _MAX_CONTEXT_BYTES + 1].decode("utf-8", "ignore").removesuffix("\r")
    return text if len(line) <= _MAX_CONTEXT_BYTES else text + "…"
