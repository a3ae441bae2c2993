"""JSON cut into its members and elements as raw bytes, so that no literal is ever read as a number and written again.

msgspec slices fast and is strict. What it refuses and many servers write all the same (NaN, Infinity, halves of surrogate
pairs) is cut by a scanner of the grammar of RFC 8259 that allows these and nothing else.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw

Slice = Raw | bytes
"""A JSON value as it stands in its document. Raw is a view of it."""

_SPACE = re.compile(rb"[ \t\n\r]*+")
# No possessive groups: Python before 3.11.5 gets them wrong (cpython issue 106052); and a bounded repeat, since an open one
# keeps a note of each escape in memory.
_RUN = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})[^"\\\x00-\x1f]*+){0,1000}')
_BEGUN_ESCAPE = re.compile(rb"(?:\\(?:u[0-9A-Fa-f]{0,3})?)?\Z")
_TOKEN = re.compile(
    rb"[\[\]{},:]|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null|NaN|-?Infinity"
)
_PART_OF_WORD = re.compile(rb"[\w.+-]")
_OPEN, _CLOSE = b"[{", b"]}"
_COMMA, _COLON = b",:"

REFUSED = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for what it does not take."""

_raw = msgspec.json.Decoder(Raw)
_raws = msgspec.json.Decoder(list[Raw])
_raw_by_key = msgspec.json.Decoder(dict[str, Raw])


class NotJson(ValueError):
    """``byte`` is where it stops being JSON; ``truncated`` whether it ends too early, being right until there."""

    def __init__(self, byte: int, *, truncated: bool) -> None:
        super().__init__(f"it ends too early, at byte {byte:,}" if truncated else f"it is no JSON at byte {byte:,}")
        self.byte = byte
        self.truncated = truncated


class Member(NamedTuple):
    """A member of an object: its key as it is written, quotes included, and its value."""

    raw_key: bytes
    value: Slice

    @property
    def key(self) -> str:
        """The key as text."""
        return text_of(self.raw_key)


def is_strict(data: bytes | Raw) -> bool:
    """Whether it is one JSON value as RFC 8259 has it, in well-formed Unicode."""
    try:
        _raw.decode(data)
    except REFUSED:
        return False
    return True


def count_of(array: bytes) -> int | None:
    """How many elements an array has; None if it is not strict JSON."""
    try:
        return len(_raws.decode(array))
    except REFUSED:
        return None


def require_json(data: bytes) -> None:
    """Raises `NotJson` where ``data`` is not one JSON value."""
    if not is_strict(data):
        end = skip_space(data, end_of_value(data, skip_space(data, 0)))
        if end != len(data):
            raise NotJson(end, truncated=False)


def elements(array: Slice) -> list[Slice]:
    """The elements of an array."""
    try:
        return list(_raws.decode(array))
    except REFUSED:
        data = bytes(array)
        return [data[start:end] for _, start, end in _spans(data, b"[")]


def members(thing: Slice) -> list[Member]:
    """The members of an object in their order; a key that is there twice is twice there."""
    data = bytes(thing)
    try:
        found = _lined_up(data, _raw_by_key.decode(data))
    except REFUSED:
        found = None
    if found is not None:
        return found
    return [Member(key, data[start:end]) for key, start, end in _spans(data, b"{")]


def _lined_up(data: bytes, last_by_key: dict[str, Raw]) -> list[Member] | None:
    """The members by the lengths of their values; None where a key is there twice, since one of the two was lost."""
    found = []
    at = skip_space(data, 0) + 1
    for value in last_by_key.values():
        key_start = skip_space(data, at)
        key_end = end_of_string(data, key_start)
        if key_end is None:
            return None
        start = skip_space(data, skip_space(data, key_end) + 1)
        raw = bytes(value)
        end = start + len(raw)
        if data[start:end] != raw:
            return None
        found.append(Member(data[key_start:key_end], value))
        at = skip_space(data, end) + 1
    is_end = at == len(data.rstrip()) or (not last_by_key and data[skip_space(data, at)] == _CLOSE[1])
    return found if is_end else None


def by_key(thing: Slice) -> dict[str, Slice]:
    """The members of an object by their keys; of a key that is twice there the last."""
    try:
        return dict(_raw_by_key.decode(thing))
    except REFUSED:
        return {member.key: member.value for member in members(thing)}


def values(data: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each of the JSON values that stand one after another."""
    at = skip_space(data, 0)
    while at < len(data):
        end = end_of_value(data, at)
        yield at, end
        at = skip_space(data, end)


def text_of(string: Slice) -> str:
    """The text of a JSON string; halves of surrogate pairs stay as they are."""
    data = bytes(string)
    if b"\\" in data:
        text: str = json.loads(data)
        return text
    return data[1:-1].decode()


def skip_space(data: bytes, at: int) -> int:
    """The place of the next byte that is no white space."""
    found = _SPACE.match(data, at)
    assert found is not None  # noqa: S101  it matches nothing too
    return found.end()


def end_of_string(data: bytes, at: int) -> int | None:
    """The byte after the JSON string at ``at``; None if there is none that is whole."""
    if data[at : at + 1] != b'"':
        return None
    end = _end_of_runs(data, at + 1)
    return end + 1 if data[end : end + 1] == b'"' else None


def _end_of_runs(data: bytes, at: int) -> int:
    """Where what may stand in a string ends."""
    while True:
        found = _RUN.match(data, at)
        assert found is not None  # noqa: S101  it matches nothing too
        if found.end() == at:
            return at
        at = found.end()


def end_of_value(data: bytes, at: int) -> int:
    """The byte after the JSON value at ``at``; raises `NotJson`."""
    closers: list[int] = []
    wants_value, may_close = True, False
    while True:
        at = skip_space(data, at)
        if wants_value and data[at : at + 1] == b'"':
            end = end_of_string(data, at)
            if end is None:
                raise _fault(data, at)
            at, wants_value, may_close = end, False, False
            if not closers:
                return at
            continue
        token = _TOKEN.match(data, at)
        if token is None:
            raise _fault(data, at)
        first = data[at]
        if first in _CLOSE:
            if not closers or closers.pop() != first or not (may_close or not wants_value):
                raise NotJson(at, truncated=False)
            at, wants_value, may_close = token.end(), False, False
        elif not wants_value:
            if first != _COMMA or not closers:
                raise NotJson(at, truncated=False)
            at = token.end()
            if closers[-1] == _CLOSE[1]:
                at = _after_key(data, at)
            wants_value, may_close = True, False
        elif first in _OPEN:
            closers.append(_CLOSE[_OPEN.index(first)])
            at, may_close = token.end(), True
            if closers[-1] == _CLOSE[1]:
                following = skip_space(data, at)
                if data[following : following + 1] != b"}":
                    at, may_close = _after_key(data, at), False
        elif first in (_COMMA, _COLON):
            raise NotJson(at, truncated=False)
        elif _PART_OF_WORD.match(data, token.end()):
            is_cut = _BEGUN_NUMBER.fullmatch(data, token.end()) is not None
            raise NotJson(len(data) if is_cut else at, truncated=is_cut)
        else:
            at, wants_value, may_close = token.end(), False, False
        if not closers and not wants_value:
            return at


def _after_key(data: bytes, at: int) -> int:
    at = skip_space(data, at)
    end = end_of_string(data, at)
    if end is None:
        raise _fault(data, at)
    at = skip_space(data, end)
    if data[at : at + 1] != b":":
        raise NotJson(at, truncated=at == len(data))
    return at + 1


_BEGUN_NUMBER = re.compile(rb"\.|(?:\.[0-9]++)?[eE][+-]?")
_WORDS = (b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity")


def _fault(data: bytes, at: int) -> NotJson:
    """What is wrong at ``at``: nothing but the end, if what stands there is the beginning of something right."""
    rest = data[at : at + 9]
    is_cut = at == len(data) or (at + len(rest) == len(data) and any(word.startswith(rest) for word in _WORDS))
    is_cut = is_cut or (data[at : at + 1] == b'"' and _BEGUN_ESCAPE.match(data, _end_of_runs(data, at + 1)) is not None)
    return NotJson(len(data) if is_cut else at, truncated=is_cut)


def _spans(data: bytes, opener: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Key as written (empty in an array), start and end of what a container holds; raises `NotJson`, for another kind too."""
    at = skip_space(data, 0)
    if data[at : at + 1] != opener:
        raise NotJson(at, truncated=at == len(data))
    is_object = opener == b"{"
    closer = b"}" if is_object else b"]"
    at = skip_space(data, at + 1)
    if data[at : at + 1] == closer:
        return
    while True:
        key = b""
        if is_object:
            after = _after_key(data, at)
            key = data[at : after - 1].rstrip()
            at = after
        start = skip_space(data, at)
        end = end_of_value(data, start)
        yield key, start, end
        at = skip_space(data, end)
        if data[at : at + 1] == closer:
            return
        if data[at : at + 1] != b",":
            raise NotJson(at, truncated=at == len(data))
        at = skip_space(data, at + 1)
