"""What MCP and its servers put around a result, taken off by rules; each that was used is written down.

A rule of form (a JSON string that holds JSON, a wrapper with one member, one block for each record) loses nothing. A
heuristic (JSON inside of prose) may, so where one fired the result as it was received is to be kept too.
"""

import base64
import binascii
import json
import re
from dataclasses import dataclass, field, replace

from sandbox.errors import InvalidArguments
from sandbox.tables.cells import without_lone_surrogates
from sandbox.tables.slices import (
    Member,
    NotJson,
    Slice,
    elements,
    end_of_value,
    members,
    require_json,
    skip_space,
    text_of,
)

_MAX_NESTED = 4
_MAX_COMPARED_BYTES = 16 << 20
_BLOCKS = ("text", "image", "audio", "resource", "resource_link")
_FENCE = re.compile(
    r"^(?P<fence>```+|~~~+)[ \t]*(?P<language>\w*)[ \t]*\r?\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL
)
_CONTAINER_LINE = re.compile(r"^[ \t]*(?=[\[{])", re.MULTILINE)
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]{64,}={0,2}\s*")
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
        by_key = {member.key: bytes(member.value) for member in inner}
        if _is_block_list(by_key.get("content", b"")) and set(by_key) <= {
            "content", "structuredContent", "isError", "_meta", "resultType",
        }:  # fmt: skip
            return _result(inner, depth).within("MCP result")
        if list(by_key) == ["result"] and len(inner) == 1 and depth < _MAX_NESTED:
            return _value(by_key["result"].strip(), depth + 1).within("result")
    elif _is_block_list(data) and data != b"[]":
        return _blocks([_Block.of(element) for element in elements(data)], depth).within("MCP blocks")
    return Unwrapped(data)


def _text(text: str, depth: int) -> Unwrapped:
    stripped = text.strip().removeprefix("\ufeff").lstrip()
    if stripped[:1] in ("{", "[", '"') and depth < _MAX_NESTED:
        data = stripped.encode("utf-8", "surrogatepass")
        try:
            require_json(data)
        except NotJson:
            pass
        else:
            return _value(data, depth + 1)
    if (blob := _blob_in(stripped)) is not None:
        return Unwrapped(None, ("base64 text",), is_heuristic=True, blobs=(blob,))
    return _inside_prose(text, depth) or _plain(text)


def _plain(text: str) -> Unwrapped:
    clean = without_lone_surrogates(text)
    trail = ("halves of surrogate pairs replaced by U+FFFD",) if clean != text else ()
    return Unwrapped(clean.encode(), trail)


def _inside_prose(text: str, depth: int) -> Unwrapped | None:
    """The one JSON document in a text that is otherwise prose: in a fence, or from a line that begins with it."""
    fences = [found for found in _FENCE.finditer(text) if found["body"].lstrip()[:1] in ("{", "[")]
    if len(fences) == 1:
        start, end = fences[0].span("body")
        found, rule = text[start:end], "fence in prose"
    else:
        line = _CONTAINER_LINE.search(text)
        if fences or line is None:
            return None
        start = line.end()
        data = text[start:].encode("utf-8", "surrogatepass")
        try:
            size = end_of_value(data, 0)
        except NotJson:
            return None
        found, rule = data[:size].decode("utf-8", "surrogatepass"), "JSON in prose"
        end = start + len(found)
    prose = text[:start] + text[end:]
    if (
        text[end:].lstrip()[:1] in ("{", "[")
        or _CONTAINER_LINE.search(text, end) is not None
        or len(found) < len(prose)
    ):
        return None
    try:
        data = found.strip().encode("utf-8", "surrogatepass")
        require_json(data)
    except NotJson:
        return None
    return replace(_value(data, depth + 1), is_heuristic=True, beside=prose.strip()).within(rule)


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
        by_key = {member.key: bytes(member.value) for member in members(element)}
        kind = text_of(by_key["type"])
        inner = by_key
        if kind == "resource" and by_key.get("resource", b"")[:1] == b"{":
            inner = {member.key: bytes(member.value) for member in members(by_key["resource"])}
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
    """Whether a value is a list of content blocks; an empty list is."""
    if data[:1] != b"[":
        return False
    start = skip_space(data, 1)
    if data[start : start + 1] == b"{" and not _is_block(data[start : end_of_value(data, start)]):
        return False  # so that a large table is not cut for nothing
    return all(map(_is_block, elements(data)))


def _is_block(element: Slice) -> bool:
    if bytes(element)[:1] != b"{":
        return False
    kind = next((bytes(member.value) for member in members(element) if member.raw_key == b'"type"'), b"")
    return kind[1:-1].decode("ascii", "replace") in _BLOCKS


def _result(inner: list[Member], depth: int) -> Unwrapped:
    by_key = {member.key: bytes(member.value) for member in inner}
    is_error = by_key.get("isError") == b"true"
    content = by_key.get("content", b"[]")
    blocks = [_Block.of(element) for element in elements(content)] if _is_block_list(content) else []
    structured = by_key.get("structuredContent", b"null")
    if structured == b"null":
        return replace(_blocks(blocks, depth), is_error=is_error)
    said = _value(structured, depth).within("structuredContent")
    texts = [block.text for block in blocks if block.text is not None]
    blobs = tuple(block.blob for block in blocks if block.blob is not None)
    told = _blocks([block for block in blocks if block.blob is None], depth) if texts else None
    if told is None:
        return replace(said, is_error=is_error, blobs=blobs)
    if _are_equal(told.body, said.body):
        return replace(told, is_error=is_error, blobs=blobs).within("structuredContent says the same")
    return replace(said, is_error=is_error, blobs=blobs, beside="\n".join(texts)).within(
        "structuredContent says something else than the text"
    )


def _blocks(blocks: list[_Block], depth: int) -> Unwrapped:
    blobs = tuple(block.blob for block in blocks if block.blob is not None)
    others = [block for block in blocks if block.blob is None]
    texts = [block.text for block in others if block.text is not None]
    if not blocks:
        return Unwrapped(b"[]", ("no blocks: an empty list",))
    if not others:
        return Unwrapped(None, blobs=blobs)
    if len(texts) < len(others):  # links, and what a later version of the protocol brings
        return Unwrapped(
            b"[" + b",".join(block.raw for block in others) + b"]", ("blocks that are no text",), blobs=blobs
        )
    if len(texts) == 1:
        return replace(_text(texts[0], depth), blobs=blobs).within("text block")
    whole = [_text(text, depth) for text in texts]
    is_json = [
        one.body is not None and one.body[:1] in (b"{", b"[") and not one.is_heuristic and _parses(one.body)
        for one in whole
    ]
    if all(is_json):
        body = b"[" + b",".join(one.body or b"" for one in whole) + b"]"
        return Unwrapped(body, ("one block for each record",), blobs=blobs)
    if sum(is_json) == 1:
        index = is_json.index(True)
        beside = "\n".join(text for number, text in enumerate(texts) if number != index)
        return replace(whole[index], is_heuristic=True, beside=beside, blobs=blobs).within("one block among prose")
    return replace(_plain("\n".join(texts)), blobs=blobs).within("text blocks")


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
