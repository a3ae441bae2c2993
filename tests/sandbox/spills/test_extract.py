"""Parts of documents by paths: as RFC 9535 has it where both know the path, and aligned where something is missing."""

import json
import random
from typing import Any

import jsonpath_rfc9535
import pytest

from sandbox.errors import InvalidArguments, InvalidSource, NoSuchElement
from sandbox.spills.extract import MAX_TEXT_CHARACTERS, Extract, extract

DOCUMENT = {
    "total": 3,
    "issue-list": [
        {"id": 10**18 + 1, "a b": 1.5, "이름": "x", "sub": {"z": [1, 2, 3]}},
        {"id": 2},
        {"id": 3, "a b": None},
    ],
    "m": {"u1": 1, "u2": 2},
}


def get(value: Any, expression: str, *, max_items: int = 1000, max_depth: int = 20) -> Extract:
    data = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    return extract(data, expression, max_items=max_items, max_depth=max_depth)


@pytest.mark.case("S13")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("$.total", 3), ("total", 3), ("$['issue-list'][0].id", 10**18 + 1), ("$.issue-list[1].id", 2), ("$.issue-list[-1].id", 3),
        ('$.issue-list[0]["a b"]', 1.5), ("$.issue-list[0].이름", "x"), ("$.issue-list[0].a b", 1.5), ("$.issue-list[*].id", [10**18 + 1, 2, 3]),
        ("$.issue-list[0:2].id", [10**18 + 1, 2]), ("$.issue-list[::-1].id", [3, 2, 10**18 + 1]), ("$.m.*", [1, 2]), ("$.m[*]", [1, 2]),
        ("$.issue-list[0].sub.z[1:]", [2, 3]), ("$", DOCUMENT),
    ],
)  # fmt: skip
def test_paths_lead_where_they_should(expression: str, expected: Any) -> None:
    assert json.loads(get(DOCUMENT, expression).text) == expected


def random_path(rng: random.Random) -> str:
    steps = []
    for _ in range(rng.randrange(1, 5)):
        steps.append(
            rng.choice(
                [
                    f".{rng.choice('ab')}0",
                    f"['{rng.choice('abc')}1']",
                    f"[{rng.randrange(-3, 3)}]",
                    "[*]",
                    ".*",
                    f"[{rng.choice(['', '0', '1', '-2'])}:{rng.choice(['', '2', '-1'])}]",
                    f"[::{rng.choice([1, 2, -1, -2])}]",
                ]
            )
        )
    return "$" + "".join(steps)


@pytest.mark.case("S13")
@pytest.mark.parametrize("seed", range(300))
def test_what_is_found_is_what_an_implementation_of_rfc_9535_finds(seed: int) -> None:
    rng = random.Random(seed)

    def value(depth: int) -> Any:
        kind = rng.random() if depth else 0.9
        if depth > 4 or kind < 0.25:
            return rng.choice([1, "x", None, True, 2.5])
        if kind < 0.6:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        return {key: value(depth + 1) for key in ("a0", "b0", "a1", "b1", "c1") if rng.random() < 0.8}

    document, expression = value(0), random_path(rng)
    expected = jsonpath_rfc9535.find(expression, document).values()
    try:
        found = get(document, expression)
    except NoSuchElement:
        assert expected == []
        return
    is_definite = not any(mark in expression for mark in "*:")
    values = [json.loads(found.text)] if is_definite else json.loads(found.text)
    kept = list(values)
    for _ in range(found.missing):
        kept.remove(None)
    if (
        found.missing
    ):  # a null that is there and one that stands for nothing look alike, so the order of nulls is not told
        assert sorted(map(json.dumps, kept)) == sorted(map(json.dumps, expected))
    else:
        assert values == expected


@pytest.mark.case("S13")
def test_what_is_missing_is_a_null_in_its_place_and_counted() -> None:
    found = get(DOCUMENT, "$.issue-list[*]['a b']")
    assert (json.loads(found.text), found.total, found.missing) == ([1.5, None, None], 3, 1)
    found = get(DOCUMENT, "$.issue-list[*].sub.z")
    assert (json.loads(found.text), found.missing) == ([[1, 2, 3], None, None], 2)


@pytest.mark.case("S13")
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("$.totl", r'At \$ there is no key "totl"\. Nearest: "total"\.'),
        ("$.issue-list.id", r"\[0\] or \[\*\]"),
        ("$.issue-list[9]", "an array of 3 elements: it has no element 9"),
        ("$.total.x", "a number"),
        ("$.total[*]", "no elements"),
    ],
)
def test_a_path_that_misses_says_what_is_there(expression: str, message: str) -> None:
    with pytest.raises(NoSuchElement, match=message):
        get(DOCUMENT, expression)


def test_a_name_that_no_element_has_is_told_and_not_nulls_alone() -> None:
    with pytest.raises(NoSuchElement, match='no key "titel"'):
        get([{"title": 1}, {"title": 2}], "$[*].titel")


@pytest.mark.parametrize("expression", ["$..id", "$.a[?(@.b>1)]", "$.a[", "$.a['b','c']", "$[0:1:0]", "$.a[1", "$['x]"])
def test_what_is_no_path_of_ours_is_refused_with_what_is(expression: str) -> None:
    with pytest.raises(InvalidArguments):
        get(DOCUMENT, expression)


@pytest.mark.case("S10")
def test_every_literal_is_as_it_is_written() -> None:
    document = b'{"rows": [{"id": 947871269024436488, "p": 1.10, "e": 1e400, "n": NaN, "u": "\\u00e9"}]}'
    assert (
        get(document, "$.rows[0]").text == '{"id": 947871269024436488, "p": 1.10, "e": 1e400, "n": NaN, "u": "\\u00e9"}'
    )
    assert get(document, "$.rows[*].p").text == "[\n1.10\n]"


def test_items_depth_and_length_are_bounded_and_what_is_cut_is_listed() -> None:
    deep = {"a": [{"b": {"c": {"d": 1}}}] * 100, "long": "x" * 9000}
    found = get(deep, "$", max_items=3, max_depth=3)
    value = json.loads(found.text)
    assert value["a"] == [{"b": None}] * 3
    assert len(value["long"]) == 4000
    cuts = {cut.at: cut.what for cut in found.cut}
    assert cuts["$.a"] == "the first 3 of 100 elements"
    assert cuts["$.long"] == "the first 4,000 of 9,000 characters"
    assert "deeper than max_depth" in cuts["$.a[0].b"]
    rows = get([{"n": n, "t": "y" * 100} for n in range(10_000)], "$[*]", max_items=1000)
    assert rows.total == 10_000
    assert rows.returned == len(json.loads(rows.text)) < 1000
    assert len(rows.text) < MAX_TEXT_CHARACTERS + 500


def test_lines_of_values_are_an_array_and_other_files_are_refused() -> None:
    assert json.loads(get(b'{"a":1}\n{"a":2}\n', "$[*].a").text) == [1, 2]
    assert json.loads(get(b'\xef\xbb\xbf{"a":1}', "$.a").text) == 1
    for data in (b"plain text", b'{"a": 1', b""):
        with pytest.raises(InvalidSource, match="search_output"):
            get(data, "$.a")
