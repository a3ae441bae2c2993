"""Checks arguments against the JSON schema of a tool of another program, which may be hostile."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import re2
from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from sandbox.errors import InvalidArguments, OuterFailed
from sandbox.tables.cells import quoted
from sandbox.tables.literal_json import dump

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]
"""Yields what is wrong, of a validator, the keyword's value, the instance, and the schema that the keyword is in."""

_MAX_MESSAGE = 300
_MAX_SCHEMA_CHARACTERS = 1 << 20
MAX_SECONDS = 5.0
"""That a check may take."""
_ends_at: ContextVar[float] = ContextVar("_ends_at")


def require_valid(tool: str, schema: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Raises `InvalidArguments` naming the field that does not fit, `OuterFailed` if the schema is none that can be used.

    It holds a thread for up to `MAX_SECONDS`.
    """
    whole = dict(schema)
    kind = validator_for(whole, default=Draft202012Validator)
    try:
        _require_small(whole)
        kind.check_schema(whole)
        # References stay in the document: nothing is fetched.
        checker: Validator = _bounded(kind)(whole, registry=Registry())
        _ends_at.set(time.monotonic() + MAX_SECONDS)
        fault = best_match(checker.iter_errors(arguments))
    except (SchemaError, Unresolvable, RecursionError, TimeoutError) as broken:
        why = str(broken).partition("\n")[0][:_MAX_MESSAGE]
        raise OuterFailed(f"The input schema of {tool} can't be used, so nothing was sent: {why}.") from None
    if fault is not None:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.absolute_path).lstrip(
            "."
        )
        message = fault.message if len(fault.message) <= _MAX_MESSAGE else f"{fault.message[:_MAX_MESSAGE]}…"
        at = f"at {quoted(where)}" if where else "at the top"
        raise InvalidArguments(f"The arguments do not fit {tool}, so nothing was sent: {at}: {message}.")


def _pattern(_: Validator, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance[:_MAX_MESSAGE]!r} does not match {pattern!r}")


def _pattern_properties(checker: Any, patterns: Mapping[str, Any], instance: Any, _: Any) -> Iterator[ValidationError]:
    for pattern, inner in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from checker.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(checker: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items() if isinstance(instance, dict) else ():
        if name in named or any(_matches(pattern, name) for pattern in patterns):
            continue
        if allowed is False:
            known = f"; there are: {', '.join(named)}" if named else ""
            yield ValidationError(f"{name[:_MAX_MESSAGE]!r} is not one of its properties{known}")
        elif isinstance(allowed, dict):
            yield from checker.descend(value, allowed, path=name)


def _unique_items(_: Validator, wanted: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    if wanted is True and isinstance(instance, list):
        texts = [dump(value) for value in instance]
        if len(set(texts)) < len(texts):
            yield ValidationError("its elements are not all different")


def _left_to_the_tool(_: Validator, __: Any, ___: Any, ____: Any) -> Iterator[ValidationError]:
    """Of a keyword that is checked by the tool only: the library's way has expressions that can hang."""
    return iter(())


def _matches(pattern: str, text: str) -> bool:
    """Whether a text has a match; true also where RE2 has not what the pattern needs, for then the tool itself checks."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options).search(text) is not None
    except re2.error:
        return True


def _require_small(schema: Mapping[str, Any]) -> None:
    if len(json.dumps(schema)) > _MAX_SCHEMA_CHARACTERS:
        raise TimeoutError(f"it has over {_MAX_SCHEMA_CHARACTERS:,} characters")


@lru_cache
def _bounded(kind: type[Validator]) -> Any:
    """A validator whose expressions run in linear time, and whose every step looks at the clock: a few references, each
    twice to the next, are millions of steps.
    """
    keywords = {**kind.VALIDATORS, **{name: mine for name, mine in _LINEAR.items() if name in kind.VALIDATORS}}
    return extend(kind, {name: _timed(function) for name, function in keywords.items()})  # type: ignore[no-untyped-call]


def _timed(function: Keyword) -> Keyword:
    def step(checker: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if time.monotonic() > _ends_at.get():
            raise TimeoutError(f"to check the arguments takes over {MAX_SECONDS:g} s")
        yield from function(checker, value, instance, schema) or ()

    return step


_LINEAR: dict[str, Keyword] = {
    "pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional_properties,
    "unevaluatedProperties": _left_to_the_tool, "uniqueItems": _unique_items,
}  # fmt: skip
"""As shipped, an expression of one of these could hang the service."""
