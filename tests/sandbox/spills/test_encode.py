"""Python values as JSON: nothing rounded, nothing turned into null."""

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from sandbox.errors import InvalidArguments
from sandbox.spills.encode import encoded


@dataclass
class Row:
    id: int
    price: Decimal


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2.5, "é", None, True], '[1, 2.5, "é", null, true]'),
        (float("nan"), "NaN"),
        ("\ud800", '"\\ud800"'),
        ([Row(10**18 + 1, Decimal("1.10"))], '[{"id":1000000000000000001,"price":1.10}]'),
        (
            {"d": date(2024, 1, 2), "t": datetime(2024, 1, 2, 3, tzinfo=UTC)},
            '{"d":"2024-01-02","t":"2024-01-02T03:00:00Z"}',
        ),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    ],
)
def test_a_value_is_written_as_it_is(value: Any, expected: str) -> None:
    assert encoded(value).decode() == expected


@pytest.mark.parametrize("value", [object(), [Decimal(1), float("nan")], {"a": [Decimal(1), (float("inf"),)]}])
def test_what_can_not_be_written_without_a_change_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArguments, match="text"):
        encoded(value)
