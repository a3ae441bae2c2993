"""JSON to values and back without changing how a number is written."""

import json
from typing import Any

from sandbox.tables.cells import LiteralFloat

_MAX_INT_DIGITS = 4000  # of which Python makes an int; see `sys.set_int_max_str_digits`


def parse(text: str | bytes) -> Any:
    """A JSON document as Python values; every number that Python would write otherwise is a `LiteralFloat`.

    Raises `ValueError` if it is not JSON, `RecursionError` if it is nested too deeply.
    """
    return json.loads(text, parse_float=LiteralFloat, parse_int=_integer)


def dump(value: Any) -> str:
    """The JSON of a value, every number as it was written, on one line."""
    if isinstance(value, LiteralFloat):
        return value.literal
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump(str(key))}: {dump(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _integer(literal: str) -> int | float:
    return LiteralFloat(literal) if literal == "-0" or len(literal) > _MAX_INT_DIGITS else int(literal)
