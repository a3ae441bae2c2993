"""Python values as JSON, without a change: what the standard library can't write, msgspec writes as one expects."""

import json
import math
from collections.abc import Iterable
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
    if _has_no_number(value):
        raise InvalidArguments(
            "A result has NaN or infinity beside types that only msgspec writes, as null. Give it as JSON text."
        )
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError) as fault:
        raise InvalidArguments(
            f"A result can't be written as JSON: {fault}. Give it as text, or as JSON text."
        ) from None


def _with_standard_library(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
        return json.dumps(value).encode()


def _has_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, Iterable) and not isinstance(value, str | bytes) and any(map(_has_no_number, value))
