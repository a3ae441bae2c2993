"""Python values as JSON, without a change: what the standard library can't write, msgspec writes as one expects."""

import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

from sandbox.errors import InvalidArguments

_encoder = msgspec.json.Encoder(decimal_format="number")


def encoded(value: Any) -> bytes:
    """JSON of a value; decimals are numbers as they are written, dates ISO 8601, NaN is NaN.

    Raises `InvalidArguments` for what JSON has no word for.
    """
    try:
        return _with_standard_library(value)
    except TypeError:
        pass  # a decimal, a date, a data class …
    except (ValueError, RecursionError) as fault:
        raise InvalidArguments(
            f"A result can't be written as JSON: {fault}. Give it as text, or as JSON text."
        ) from None
    try:
        plain = msgspec.to_builtins(value, builtin_types=(Decimal, bytes, bytearray, memoryview))
        _refuse_what_changes(plain)
        return _encoder.encode(plain)
    except (TypeError, ValueError, RecursionError) as fault:
        raise InvalidArguments(
            f"A result can't be written as JSON: {fault}. Give it as text, or as JSON text."
        ) from None


def _with_standard_library(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
        return json.dumps(value).encode()


def _refuse_what_changes(value: Any) -> None:
    """Raises ValueError for what msgspec would write as something else: NaN as null, bytes in base64."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN and infinity beside decimals or dates would become null")
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes have no JSON")
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str):
        for inner in value:
            _refuse_what_changes(inner)
