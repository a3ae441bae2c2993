"""A map of any document in 1,024 bytes, in which no column is hidden while there is room."""

import json
import random
from typing import Any

import pytest

from sandbox.spills.shape import MAX_SHAPE_BYTES, shape_of
from tests.sandbox.tables.test_slices import any_value


def shape(value: Any, **more: Any) -> str:
    return shape_of(json.dumps(value).encode(), **more)


@pytest.mark.case("S16")
def test_arrays_objects_and_leaves_are_told() -> None:
    value = {
        "total": 2,
        "issues": [
            {"id": 1, "body": "x" * 1204, "tags": ["a"]},
            {"id": 2, "body": None, "tags": [], "who": {"n": "x"}},
        ],
        "next": None,
    }
    assert shape(value) == (
        "{total: number, issues: array[2] of {id: number, body: string(≤1,204) | null, tags: array[0 to 1] of string, "
        "who?: {n: string}}, next: null}"
    )


@pytest.mark.case("S16")
def test_types_of_elements_are_merged_and_columns_of_late_rows_are_there() -> None:
    assert shape([None, {"a": 1}, {"b": "x"}]) == "array[3] of {a?: number, b?: string} | null"
    rows: list[Any] = [{"a": 1}] * 1000 + [{"late": 1}]
    assert "late" in shape(rows, columns=("a", "late"), rows_at="$")
    assert "late" in shape(
        {"hits": {"hits": [{"_source": row} for row in rows]}}, columns=("a", "late"), rows_at="$.hits.hits[*]._source"
    )


@pytest.mark.case("S16")
def test_maps_keyed_by_ids_are_collapsed_and_words_are_not() -> None:
    assert shape({f"user_{n}": {"n": n} for n in range(50)}) == "map[50] of {n: number}"
    assert shape({f"{n:08x}-aa": [1] for n in range(50)}) == "map[50] of array[1] of number"
    words = {f"{a}{b}_name": 1 for a in "abcdefghij" for b in "klmnop"}
    assert all(word in shape(words) for word in words)


@pytest.mark.case("S16")
def test_400_keys_stay_within_the_bound_and_say_how_many_more_there_are() -> None:
    keys = [f"column_of_{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(400)]
    text = shape(dict.fromkeys(keys, 1))
    assert len(text.encode()) <= MAX_SHAPE_BYTES
    shown = sum(key in text for key in keys)
    assert f"… {400 - shown} more keys" in text
    assert shown >= 40


@pytest.mark.parametrize("seed", range(40))
def test_any_document_fits(seed: int) -> None:
    rng = random.Random(seed)
    value = {f"ключ {n}" * rng.randrange(1, 5): [any_value(rng) for _ in range(20)] for n in range(rng.randrange(60))}
    assert len(shape(value).encode()) <= MAX_SHAPE_BYTES
