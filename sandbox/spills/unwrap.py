"""What MCP and its servers put around a result, taken off by rules; each that was used is written down.

A rule of form (a JSON string that holds JSON, a wrapper with one member, one block for each record) loses nothing. A
heuristic (JSON inside of prose) may, so where one fired the result as it was received is to be kept too.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sandbox.errors import InvalidArguments
from sandbox.tables.cells import without_lone_surrogates
from sandbox.tables.slices import (
    Member,
    NotJson,
    Slice,
    by_key,
    elements,
    end_of_value,
    members,
    require_json,
    skip_space,
    text_of,
)

_MAX_NESTED = 4
_MAX_BLOBS = 100
_MAX_COMPARED_BYTES = 16 << 20
_RESULT_MEMBERS = {"content", "structuredContent", "isError", "_meta", "resultType"}
_BLOCK_MEMBERS = {
    "type",
    "text",
    "data",
    "mimeType",
    "resource",
    "uri",
    "name",
    "title",
    "description",
    "size",
    "icons",
}
_BLOCK_MEMBERS |= {"annotations", "_meta"}
_BLOCKS = ("text", "image", "audio", "resource", "resource_link")
_FENCE = re.compile(r"(?:```|~~~)[`~]*+")
_CONTAINER_LINE = re.compile(r"^[ \t]*(?=[\[{])", re.MULTILINE)
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]{64,}+={0,2}+\s*+")
_MAGIC = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"PK\x03\x04", "application/zip"),
)


@dataclass(frozen=True)
class Blob:
    """A file that was in a result, in base64."""

    content: bytes
    media_type: str
    name: str | None = None


@dataclass(frozen=True)
class Unwrapped:
    """``body`` is JSON as it was written, or text in UTF-8; None if there are nothing but files."""

    body: bytes | None
    trail: tuple[str, ...] = ()
    """The rules that were used, from the outside to the inside."""
    is_error: bool = False
    is_heuristic: bool = False
    beside: str = ""
    """Text that is not in the body: that of a result which says something else in its structured part, or prose around it."""
    blobs: tuple[Blob, ...] = field(default=(), repr=False)

    def with_blobs(self, blobs: tuple[Blob, ...], *, is_partial: bool = False) -> "Unwrapped":
        """With the files around it, up to a bound; ``is_partial`` if something around it is left out."""
        all_of_them = (*blobs, *self.blobs)
        is_partial = is_partial or len(all_of_them) > _MAX_BLOBS
        return replace(self, blobs=all_of_them[:_MAX_BLOBS], is_heuristic=self.is_heuristic or is_partial)

    def within(self, *trail: str) -> "Unwrapped":
        """The same inside of something."""
        return replace(self, trail=(*trail, *self.trail))


def unwrap_json(value: Slice) -> Unwrapped:
    """Take off what is around a JSON value, which may be a raw MCP result."""
    return _value(bytes(value).strip(), 0)


def unwrap_text(text: str) -> Unwrapped:
    """Take off what is around a text."""
    return _text(text, 0)


def unwrap_result(result: Slice) -> Unwrapped:
    """Take a raw MCP tool result apart (MCP 2025-11-25, CallToolResult); raises `InvalidArguments` for what is none."""
    inner = members(result) if bytes(result).lstrip()[:1] == b"{" else []
    if not {"content", "structuredContent"} & {member.key for member in inner}:
        raise InvalidArguments(
            "result is a raw MCP tool result, an object with content or structuredContent. Give any other JSON as content."
        )
    return _result(inner, 0)


def _value(data: bytes, depth: int) -> Unwrapped:
    if data[:1] == b'"':
        return _text(text_of(data), depth).within("JSON string")
    if data[:1] == b"{":
        inner = members(data)
        parts = {member.key: bytes(member.value) for member in inner}
        is_result = set(parts) <= _RESULT_MEMBERS and _is_block_list(parts.get("content", b""))
        if is_result and (parts["content"] != b"[]" or len(parts) > 1):
            return _result(inner, depth).within("MCP result")
        if list(parts) == ["result"] and len(inner) == 1 and depth < _MAX_NESTED:
            return _value(parts["result"].strip(), depth + 1).within("result")
    elif _is_block_list(data) and data != b"[]":
        return _blocks([_Block.of(element) for element in elements(data)], depth).within("MCP blocks")
    return Unwrapped(data)


def _text(text: str, depth: int) -> Unwrapped:
    stripped = text.strip().removeprefix("\ufeff").lstrip()
    if stripped[:1] in ("{", "[", '"') and depth < _MAX_NESTED:
        data = _json_bytes(stripped)
        if _parses(data):
            found = _value(data, depth + 1)
            is_guess = data[:1] == b'"' and (found.body or b"")[:1] not in (
                b"{",
                b"[",
            )  # it may be a text in quotation marks
            return replace(found, is_heuristic=found.is_heuristic or is_guess)
    if (blob := _blob_in(stripped)) is not None:
        return Unwrapped(None, ("base64 text",), is_heuristic=True, blobs=(blob,))
    return _inside_prose(text, depth) or _plain(text)


def _json_bytes(text: str) -> bytes:
    """The text in UTF-8; a half of a surrogate pair becomes the escape that JSON has for it."""
    return text.encode("utf-8", "backslashreplace")


def _plain(text: str) -> Unwrapped:
    clean = without_lone_surrogates(text)
    trail = ("halves of surrogate pairs replaced by U+FFFD",) if clean != text else ()
    return Unwrapped(clean.encode(), trail)


def _inside_prose(text: str, depth: int) -> Unwrapped | None:
    """The one JSON document in a text that is otherwise prose: in a fence, or from a line that begins with it."""
    if without_lone_surrogates(text) != text:
        return None
    fences = [(start, end) for start, end in _fences(text) if text[start:end].lstrip()[:1] in ("{", "[")]
    if len(fences) == 1:
        start, end = fences[0]
        found, rule = text[start:end], "fence in prose"
    else:
        line = _CONTAINER_LINE.search(text)
        if fences or line is None:
            return None
        start = line.end()
        data = _json_bytes(text[start:])
        try:
            size = end_of_value(data, 0)
        except NotJson:
            return None
        found, rule = data[:size].decode(), "JSON in prose"
        end = start + len(found)
    prose = text[:start] + text[end:]
    if (
        text[end:].lstrip()[:1] in ("{", "[")
        or _CONTAINER_LINE.search(text, end) is not None
        or len(found) < len(prose)
    ):
        return None
    data = _json_bytes(found.strip())
    if not _parses(data):
        return None
    return replace(_value(data, depth + 1), is_heuristic=True, beside=prose.strip()).within(rule)


def _fences(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of what stands in each fenced block (CommonMark 4.5)."""
    opener, start, at = "", 0, 0
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line)
        if fence is not None and not opener:
            opener, start = fence[0], at + len(line)
        elif fence is not None and fence[0].startswith(opener) and not line[fence.end() :].strip():
            yield start, at
            opener = ""
        at += len(line)


def _blob_in(text: str) -> Blob | None:
    """The file that a text is in base64, by the bytes that it begins with."""
    if not _BASE64.fullmatch(text):
        return None
    try:
        content = base64.b64decode(text, validate=False)
    except binascii.Error:
        return None
    return next((Blob(content, media_type) for magic, media_type in _MAGIC if content.startswith(magic)), None)


# MCP


@dataclass(frozen=True)
class _Block:
    kind: str
    raw: bytes
    text: str | None
    blob: Blob | None

    @classmethod
    def of(cls, element: Slice) -> "_Block":
        inner = {key: bytes(value) for key, value in by_key(element).items()}
        kind = text_of(inner["type"])
        if kind == "resource" and inner.get("resource", b"")[:1] == b"{":
            inner = {key: bytes(value) for key, value in by_key(inner["resource"]).items()}
        text = text_of(inner["text"]) if inner.get("text", b"")[:1] == b'"' else None
        raw = inner.get("data" if kind in ("image", "audio") else "blob", b"")
        blob = None
        if raw[:1] == b'"':
            named = {key: text_of(inner[key]) for key in ("mimeType", "uri") if inner.get(key, b"")[:1] == b'"'}
            try:
                content = base64.b64decode(text_of(raw), validate=True)
            except (binascii.Error, ValueError):
                return cls(kind, bytes(element), text, None)
            blob = Blob(
                content,
                named.get("mimeType", "application/octet-stream"),
                named.get("uri", "").rpartition("/")[2] or None,
            )
        return cls(kind, bytes(element), text, blob)


def _is_block_list(data: bytes) -> bool:
    """Whether a value is surely a list of content blocks, outside of a result; an empty list may be one."""
    if data[:1] != b"[":
        return False
    start = skip_space(data, 1)
    if data[start : start + 1] == b"{" and not _is_block(data[start : end_of_value(data, start)]):
        return False  # so that a large table is not cut for nothing
    return all(map(_is_block, elements(data)))


def _is_block(element: Slice) -> bool:
    """Whether it has a type that the protocol has, and no member that it has not: a record may have a `type` too."""
    if bytes(element)[:1] != b"{":
        return False
    inner = by_key(element)
    kind = bytes(inner.get("type", b""))
    return kind[1:-1].decode("ascii", "replace") in _BLOCKS and set(inner) <= _BLOCK_MEMBERS


def _result(inner: list[Member], depth: int) -> Unwrapped:
    parts = {member.key: bytes(member.value).strip() for member in inner}
    content, structured = parts.get("content", b"null"), parts.get("structuredContent", b"null")
    if content[:1] == b"[" and all(map(_has_type, elements(content))):
        found = _of_blocks([_Block.of(element) for element in elements(content)], structured, depth)
    elif structured != b"null":
        found = _value(structured, depth).within("structuredContent")
        found = replace(found, is_heuristic=found.is_heuristic or content != b"null")
    else:
        found = _value(content, depth).within("content that is no list of blocks")
    is_error = parts.get("isError") == b"true" or found.is_error
    return replace(found, is_error=is_error, is_heuristic=found.is_heuristic or not set(parts) <= _RESULT_MEMBERS)


def _has_type(element: Slice) -> bool:
    return bytes(element)[:1] == b"{" and bytes(by_key(element).get("type", b""))[:1] == b'"'


def _of_blocks(blocks: list[_Block], structured: bytes, depth: int) -> Unwrapped:
    if structured == b"null":
        return _blocks(blocks, depth)
    said = _value(structured, depth).within("structuredContent")
    texts = [block.text for block in blocks if block.text is not None]
    blobs = tuple(block.blob for block in blocks if block.blob is not None)
    is_partial = len(texts) + len(blobs) < len(blocks)  # a link, or what a later version of the protocol brings
    told = _blocks([block for block in blocks if block.text is not None], depth) if texts else None
    if told is not None and (_are_equal(told.body, said.body) or _is_wrapped(structured, "\n".join(texts))):
        return told.with_blobs(blobs, is_partial=is_partial).within("structuredContent says the same")
    if told is None:
        return said.with_blobs(blobs, is_partial=is_partial)
    both = replace(said, beside="\n".join(texts), is_error=said.is_error or told.is_error)
    return both.with_blobs(blobs, is_partial=is_partial).within("structuredContent says something else than the text")


def _is_wrapped(structured: bytes, text: str) -> bool:
    """Whether it is an object of nothing but the text, under whatever name, as servers make for a tool that gives a text."""
    if structured[:1] != b"{":
        return False
    inside = members(structured)
    return len(inside) == 1 and bytes(inside[0].value)[:1] == b'"' and text_of(inside[0].value) == text


def _blocks(blocks: list[_Block], depth: int) -> Unwrapped:
    blobs = tuple(block.blob for block in blocks if block.blob is not None)
    others = [block for block in blocks if block.blob is None]
    texts = [block.text for block in others if block.text is not None]
    if not blocks:
        return Unwrapped(b"[]", ("no blocks: an empty list",))
    if not others:
        return Unwrapped(None).with_blobs(blobs)
    if len(texts) < len(others):  # links, and what a later version of the protocol brings
        body = b"[" + b",".join(block.raw for block in others) + b"]"
        return Unwrapped(body, ("blocks that are no text",), blobs=blobs)
    if len(texts) == 1:
        return _text(texts[0], depth).with_blobs(blobs).within("text block")
    whole = [_text(text, depth) for text in texts]
    is_error = any(one.is_error for one in whole)
    is_json = [
        one.body is not None and one.body[:1] in (b"{", b"[") and not one.is_heuristic and _parses(one.body)
        for one in whole
    ]
    if all(is_json):
        body = b"[" + b",".join(one.body or b"" for one in whole) + b"]"
        return Unwrapped(body, ("one block for each record",), is_error=is_error, blobs=blobs)
    if sum(is_json) == 1:
        index = is_json.index(True)
        beside = "\n".join(text for number, text in enumerate(texts) if number != index)
        found = replace(whole[index], is_heuristic=True, beside=beside, is_error=is_error)
        return found.with_blobs(blobs).within("one block among prose")
    is_partial = any(block.kind == "resource" for block in others)  # which text was which resource
    return (
        replace(_plain("\n".join(texts)), is_error=is_error)
        .with_blobs(blobs, is_partial=is_partial)
        .within("text blocks")
    )


def _parses(data: bytes) -> bool:
    try:
        require_json(data)
    except NotJson:
        return False
    return True


def _are_equal(one: bytes | None, other: bytes | None) -> bool:
    """Whether two documents say the same: the same literals under the same keys, in whatever order and spacing."""
    if one == other or one is None or other is None:
        return one == other
    if max(len(one), len(other)) > _MAX_COMPARED_BYTES:
        return False
    try:
        return bool(_with_literals(one) == _with_literals(other))
    except (ValueError, RecursionError):
        return False


def _with_literals(data: bytes) -> object:
    def number(literal: str) -> tuple[str]:
        return (literal,)

    return json.loads(data, parse_int=number, parse_float=number, parse_constant=number)
