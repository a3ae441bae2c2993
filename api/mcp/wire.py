"""Keeps data out of the SDK's hands: it parses JSON to floats and writes it anew, which changes numbers and costs memory.

Where it sees a value it gets a stand-in, a string that begins with a token which only this process knows; on the way out, what
stands after the token is put in its place, as raw JSON. Everything that leaves goes through `fill`, so the token never does.
"""

import json
import re
import secrets
from typing import Any

import msgspec

from sandbox.tables.cells import LiteralFloat
from sandbox.tables.literal_json import dump, parse

_TOKEN = f"spillbox-{secrets.token_hex(16)}:"
_OPENING = f'"{_TOKEN}'.encode()
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,1000}', re.DOTALL)
_MAY_CHANGE = re.compile(rb"[0-9][.eE]|-0|[0-9]{4000}")
"""What numbers have that Python might write otherwise."""
_NOT_READABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Message(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()


def stand_in(raw: str | bytes) -> str:
    """A string that goes through the SDK in the place of JSON."""
    return _TOKEN + (raw if isinstance(raw, str) else raw.decode("utf-8", "replace"))


def fill(data: bytes) -> bytes:
    """What the SDK wrote, with the JSON in the place of each stand-in."""
    start = data.find(_OPENING)
    if start < 0:
        return data
    parts, done = [], 0
    while start >= 0:
        end = start + len(_OPENING)
        while data[end : end + 1] != b'"':
            found = _INSIDE.match(data, end)
            if found is None or found.end() == end:
                raise ValueError("a stand-in has no end")
            end = found.end()
        parts += [data[done:start], json.loads(b'"' + data[start + len(_OPENING) : end] + b'"').encode()]
        done = end + 1
        start = data.find(_OPENING, done)
    return b"".join([*parts, data[done:]])


def with_marked_arguments(message: bytes) -> bytes:
    """A client's message; of a tool call, each number that Python would write otherwise is a stand-in."""
    if b"tools/call" not in message or not _MAY_CHANGE.search(message):
        return message
    try:
        decoded = msgspec.json.decode(message, type=_Message)
        params = msgspec.json.decode(decoded.params, type=dict[str, msgspec.Raw])
        arguments = params.get("arguments")
        if decoded.method != "tools/call" or arguments is None or not _MAY_CHANGE.search(bytes(arguments)):
            return message
        params["arguments"] = msgspec.Raw(json.dumps(_marked(parse(bytes(arguments)))).encode())
        whole = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**whole, "params": params})
    except (ValueError, RecursionError):  # also a DecodeError: the SDK will say what is wrong
        return message


def _marked(value: Any) -> Any:
    if isinstance(value, LiteralFloat):
        return value if repr(float(value)) == value.literal else stand_in(value.literal)
    if isinstance(value, dict):
        return {key: _marked(inner) for key, inner in value.items()}
    return [_marked(inner) for inner in value] if isinstance(value, list) else value


def unmarked(value: Any) -> Any:
    """Arguments from the SDK, as values of JSON whose numbers are as they were written."""
    if isinstance(value, str):
        return parse(value[len(_TOKEN) :]) if value.startswith(_TOKEN) else value
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items()}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value


def arguments_stand_in(arguments: dict[str, Any]) -> str:
    """Of a tool's arguments, on their way to another server."""
    return stand_in(dump(arguments))


def without_result(message: bytes, awaited: dict[str | int, bytes | None]) -> bytes:
    """Another server's message. If it is the result of a tool call that is ``awaited``, the result is put there, and the SDK
    sees an empty one.
    """
    if not awaited or b'"content"' not in message:
        return message
    try:
        decoded = msgspec.json.decode(message, type=_Message)
        key = msgspec.json.decode(decoded.id, type=str | int)
        if key not in awaited or decoded.method is not None:
            return message
        if "content" not in msgspec.json.decode(decoded.result, type=dict[str, msgspec.Raw]):
            return message
    except _NOT_READABLE:
        return message
    awaited[key] = bytes(decoded.result)
    return b'{"jsonrpc":"2.0","id":%b,"result":{"content":[]}}' % bytes(decoded.id)


def request_id_of(message: bytes) -> str | int | None:
    """The id of a response that is no valid message, so that whoever waits for it can be told."""
    try:
        decoded = msgspec.json.decode(message, type=_Message)
        return None if decoded.method is not None else msgspec.json.decode(decoded.id, type=str | int)
    except _NOT_READABLE:
        return None
