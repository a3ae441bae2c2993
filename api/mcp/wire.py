"""Keeps data out of the SDK's hands: it parses JSON to floats and writes it anew, which changes numbers and costs memory.

Where it sees a value it gets a stand-in, a string that begins with a token which only this process knows; on the way out, what
stands after the token is put in its place, as raw JSON. Everything that leaves goes through `fill`, so the token never does.
"""

import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from sandbox.errors import InvalidArguments
from sandbox.tables.cells import LiteralFloat
from sandbox.tables.literal_json import dump, parse
from sandbox.tables.slices import Slice, by_key

_TOKEN = f"spillbox-{secrets.token_hex(16)}:"
_OPENING = f'"{_TOKEN}'.encode()
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,1000}', re.DOTALL)
_MAY_CHANGE = re.compile(rb"[0-9][.eE]|-0|[0-9]{4000}")
"""What numbers have that Python might write otherwise."""
_ID = re.compile(rb'"id"\s*:\s*([0-9]{1,15}|"[^"\\]{1,100}")')


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
    if not _MAY_CHANGE.search(message):
        return message
    try:
        whole = by_key(message)
        if json.loads(bytes(whole.get("method", b"null"))) != "tools/call":
            return message
        params = by_key(whole["params"])
        params["arguments"] = json.dumps(_marked(parse(bytes(params["arguments"])))).encode()
        return _object({**whole, "params": _object(params)})
    except (ValueError, KeyError, RecursionError):  # the SDK will say what is wrong
        return message


def _object(members: Mapping[str, Slice]) -> bytes:
    return b"{%b}" % b",".join(json.dumps(key).encode() + b":" + bytes(value) for key, value in members.items())


def _marked(value: Any) -> Any:
    if isinstance(value, LiteralFloat):
        return value if repr(float(value)) == value.literal else stand_in(value.literal)
    if isinstance(value, dict):
        return {key: _marked(inner) for key, inner in value.items()}
    return [_marked(inner) for inner in value] if isinstance(value, list) else value


def unmarked(value: Any) -> Any:
    """Arguments from the SDK, as values of JSON whose numbers are as they were written.

    Raises `InvalidArguments` for NaN and the infinities, which are no JSON.
    """
    if type(value) is float and not math.isfinite(value):
        raise InvalidArguments(f"{value} is no number that JSON has. Send null, or a text. Nothing was done.")
    if isinstance(value, str):
        return parse(value[len(_TOKEN) :]) if value.startswith(_TOKEN) else value
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items()}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value


def arguments_stand_in(arguments: dict[str, Any]) -> str:
    """Of a tool's arguments, on their way to another server."""
    return stand_in(dump(arguments))


Awaited = dict[str | int, bytes | None]
"""Ids of requests that are under way: `WANTED` until the raw result has come, `OF_THE_SDK` where the SDK may read it."""
WANTED, OF_THE_SDK = None, b""


def without_result(message: bytes, awaited: Awaited) -> bytes:
    """Another server's message. If its result is wanted raw, it is put into ``awaited``, and the SDK sees an empty one.

    A question in the place of a result (the stateless era's ``input_required``) is left to the SDK.
    """
    if WANTED not in awaited.values():
        return message
    try:
        whole = by_key(message)
        if "method" in whole or "result" not in whole:
            return message
        key, result = json.loads(bytes(whole["id"])), by_key(whole["result"])
        if (
            awaited.get(key, OF_THE_SDK) is not WANTED
            or json.loads(bytes(result.get("resultType", b"null"))) == "input_required"
        ):
            return message
    except (ValueError, KeyError, TypeError, RecursionError):
        return message
    awaited[key] = bytes(whole["result"])
    return b'{"jsonrpc":"2.0","id":%b,"result":{"content":[]}}' % bytes(whole["id"])


def request_id_of(message: bytes, awaited: Awaited) -> str | int | None:
    """The id of a response that is no valid message, so that whoever waits for it can be told."""
    ids: Iterator[str | int] = (json.loads(found[1]) for found in _ID.finditer(message))
    return next((key for key in ids if key in awaited), None)
