"""JSON cut as it stands: strict and lenient ways agree with the standard library, and errors name the byte."""

import json
import random
from typing import Any

import pytest

from sandbox.tables.slices import NotJson, elements, members, require_json, text_of, values


def any_value(rng: random.Random, depth: int = 0) -> Any:
    """A value with all that makes cutting hard."""
    kind = rng.random()
    if depth > 3 or kind < 0.5:
        return rng.choice([1, -2.5, "a,b", "}],[{", None, True, 'é\\"', 12345678901234567890, "", "\u2028"])
    if kind < 0.75:
        return [any_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice('abc"\\}é') + str(n): any_value(rng, depth + 1) for n in range(rng.randrange(4))}


def encoded(rng: random.Random, value: Any) -> bytes:
    return json.dumps(value, indent=rng.choice([None, 1]), ensure_ascii=rng.choice([True, False])).encode()


@pytest.mark.parametrize("seed", range(50))
def test_elements_and_members_are_those_of_the_standard_library(seed: int) -> None:
    rng = random.Random(seed)
    values_ = [any_value(rng) for _ in range(rng.randrange(30))]
    data = encoded(rng, values_)
    assert [json.loads(bytes(element)) for element in elements(data)] == values_
    for value in values_:
        if isinstance(value, dict):
            found = members(encoded(rng, value))
            assert [(member.key, json.loads(bytes(member.value))) for member in found] == list(value.items())


@pytest.mark.case("S8")
@pytest.mark.parametrize("seed", range(20))
def test_every_beginning_of_a_document_is_told_as_cut(seed: int) -> None:
    rng = random.Random(seed)
    data = encoded(rng, [any_value(rng) for _ in range(1, 10)])
    require_json(data)
    for end in range(len(data)):
        with pytest.raises(NotJson) as fault:
            require_json(data[:end])
        assert fault.value.truncated, data[:end]


@pytest.mark.case("S8")
@pytest.mark.parametrize(
    ("data", "byte"),
    [
        (b"[1,]", 3), (b'{"a"}', 4), (b"[1 2]", 3), (b"nul1", 0), (b"[01]", 1), (b'{"a":1,}', 7), (b'["\x01"]', 1), (b"[}", 1),
        (b"1 2", 2), (b"{1:2}", 1), (b'{"a":1]', 6), (b"[1}", 2), (b"tru x", 0), (b'["\\x"]', 1), (b"]", 0), (b"[1.]", 1), (b"{,}", 1),
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused_at_its_byte(data: bytes, byte: int) -> None:
    with pytest.raises(NotJson) as fault:
        require_json(data)
    assert (fault.value.byte, fault.value.truncated) == (byte, False)


@pytest.mark.case("S8")
def test_nan_surrogates_and_keys_that_are_twice_there_are_kept_as_they_are() -> None:
    data = b'{"a":NaN, "a" : -Infinity,"b":"\\ud800", "c":[1.10,1E400]}'
    found = [(member.raw_key, bytes(member.value)) for member in members(data)]
    assert found == [(b'"a"', b"NaN"), (b'"a"', b"-Infinity"), (b'"b"', b'"\\ud800"'), (b'"c"', b"[1.10,1E400]")]
    twice = [(member.key, bytes(member.value)) for member in members(b'{"a":1,"a":1,"b":2}')]
    assert twice == [("a", b"1"), ("a", b"1"), ("b", b"2")]
    assert text_of(b'"\\ud83d\\ude00\\u0000"') == "😀\0"


def test_a_document_as_deep_as_one_likes_is_cut_without_recursion() -> None:
    data = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    require_json(data)
    assert [bytes(member.value) for member in members(data)] == [data[5:-1]]


def test_values_one_after_another() -> None:
    data = b'{"a":1}{"a":2}\n[3] 4 "x"'
    assert [data[start:end] for start, end in values(data)] == [b'{"a":1}', b'{"a":2}', b"[3]", b"4", b'"x"']
