"""Every code has its HTTP status, and every code is stable."""

import re
from collections.abc import Iterator
from pathlib import Path

from api.errors import STATUS_BY_CODE, problem_of
from sandbox import errors
from sandbox.errors import SpillboxError

PROJECT = Path(__file__).parents[2]


def _classes(base: type[SpillboxError] = SpillboxError) -> Iterator[type[SpillboxError]]:
    yield base
    for below in base.__subclasses__():
        yield from _classes(below)


def test_every_code_has_a_status() -> None:
    codes = {kind.code for kind in _classes()}
    assert codes <= set(STATUS_BY_CODE)
    assert all(400 <= STATUS_BY_CODE[kind.code] < 500 for kind in _classes(errors.BadRequest))
    assert problem_of(errors.NotFound("there is none")).model_dump() == {
        "type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found", "detail": "there is none",
    }  # fmt: skip


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    assert errors.__doc__ is not None
    for kind in _classes():
        assert kind.__name__ in errors.__doc__


def test_the_list_for_callers_is_the_real_one() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\d+) \| .+ \|$", (PROJECT / "docs/errors.md").read_text(), re.MULTILINE)
    assert sorted((code, int(status)) for code, status in listed) == sorted(STATUS_BY_CODE.items())
