"""JSON to values and back without changing how a number is written."""

import json
from typing import Any

from sandbox.tables.cells import LiteralFloat

_MAX_INT_DIGITS = 4000  # of which Python makes an int; see `sys.set_int_max_str_digits`


def parse(text: str | bytes) -> Any:
    """A JSON document as Python values; every number that Python would write otherwise is a `LiteralFloat`.

    Raises `ValueError` if it is not JSON, `RecursionError` if it is nested too deeply.
    """
    return json.loads(text, parse_float=LiteralFloat, parse_int=_integer, parse_constant=_no_constant)


def dump(value: Any) -> str:
    """The JSON of a value, every number as it was written, half of a surrogate pair as its escape, on one line.

    NaN and the infinities, which only a program's own values have, are as Python writes them.
    """
    return _dumped(value).encode("utf-8", "backslashreplace").decode()


def _dumped(value: Any) -> str:
    if isinstance(value, LiteralFloat):
        return value.literal
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_dumped(str(key))}: {_dumped(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dumped, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _integer(literal: str) -> int | float:
    return LiteralFloat(literal) if literal == "-0" or len(literal) > _MAX_INT_DIGITS else int(literal)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
