"""What is wrong with arguments, in words that a model can act on."""

import difflib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_MAX_TOLD = 5


def readable(name: str, model: type[BaseModel], fault: ValidationError) -> str:
    """One sentence for each mistake; for an argument that there is not, those that there are."""
    problems = []
    errors = fault.errors(include_url=False, include_input=False)
    for error in errors[:_MAX_TOLD]:
        where = [part for part in error["loc"] if part != "function-before"]
        path = ".".join(str(part) for part in where)
        if error["type"] == "extra_forbidden":
            problems.append(_unknown(path, str(where[-1]), _fields(model, where[:-1])))
        else:
            message = error["msg"].removeprefix("Value error, ").rstrip(".")
            problems.append(f"{path}: {message}" if path else message)
    if len(errors) > _MAX_TOLD:
        problems.append(f"and {len(errors) - _MAX_TOLD:,} more")
    return f"The arguments of {name} do not fit: {'; '.join(problems)}."


def _unknown(path: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = [*_SYNONYMS.get(name, []), *difflib.get_close_matches(name[:60], names, n=1, cutoff=0.5)]
    meant = [one for one in near if one in names]
    advice = f"; did you mean {meant[0]}" if meant else ""
    return f"there is no {path[:100]}{advice} (there are: {', '.join(names)})"


_SYNONYMS = {
    "limit": ["count", "max_items", "max_matches", "line_count"],
    "name": ["sheet"],
    "query": ["pattern", "expression"],
}
_SYNONYMS |= {
    "file": ["path", "source"],
    "order_by": ["sort_by"],
    "offset": ["start", "start_line"],
    "filename": ["output", "name"],
}


def _fields(model: type[BaseModel], where: Iterable[Any]) -> list[str]:
    """The fields of the model that is at a place inside of another."""
    for part in where:
        if isinstance(part, str) and part in model.model_fields:
            inner = _model_in(model.model_fields[part].annotation)
            if inner is None:
                return []
            model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _model_in(one)) is not None), None)
