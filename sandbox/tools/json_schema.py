"""Checks arguments against the JSON schema of a tool of another program, which may be hostile."""

from collections.abc import Iterator, Mapping
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

_MAX_MESSAGE = 300


def require_valid(tool: str, schema: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Raises `InvalidArguments` naming the field that does not fit, `OuterFailed` if the schema is none."""
    whole = dict(schema)
    kind = validator_for(whole, default=Draft202012Validator)
    try:
        kind.check_schema(whole)
        # References stay in the document: nothing is fetched.
        checker: Validator = extend(kind, _LINEAR)(whole, registry=Registry())  # type: ignore[no-untyped-call]
        fault = best_match(checker.iter_errors(arguments))
    except (SchemaError, Unresolvable, RecursionError) as broken:
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


def _matches(pattern: str, text: str) -> bool:
    """Whether a text has a match; true also where RE2 has not what the pattern needs, for then the tool itself checks."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options).search(text) is not None
    except re2.error:
        return True


_LINEAR = {"pattern": _pattern, "patternProperties": _pattern_properties}
"""Expressions of a schema run in linear time; as shipped, one could hang the service."""
