"""Lines by patterns: the right ones, the right numbers, all of them counted, in bounded time and space."""

import io
import re
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import InvalidArguments
from sandbox.spills import search
from sandbox.spills.search import MAX_TEXT_CHARACTERS, Found, compiled


def find(text: str | bytes, pattern: str, *, literal: bool = False, ignore_case: bool = False, **page: Any) -> Found:
    data = text.encode() if isinstance(text, str) else text
    arguments = {"context_lines": 0, "offset": 0, "max_matches": 100, **page}
    return search.search(io.BytesIO(data), compiled(pattern, literal=literal, ignore_case=ignore_case), **arguments)


LINES = "".join(f"line {n} of {'even' if n % 2 == 0 else 'odd'} number\n" for n in range(1, 501))


@pytest.mark.parametrize("block_bytes", [7, 1000, 1 << 22])
@pytest.mark.parametrize(
    "pattern", ["even", "line [0-9]*5 ", "^line 4", "number$", "x*", "^$", "(?i)ODD", "o(dd|f e)", "7"]
)
def test_the_lines_are_those_that_match(pattern: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_BLOCK_BYTES", block_bytes)
    text = LINES + "\n\nlast line without an end, even"
    expected = [(n, line) for n, line in enumerate(text.split("\n"), 1) if re.search(pattern, line)]
    found = find(text, pattern, max_matches=1000)
    assert found.total == len(expected)
    assert [(match.line, match.text) for match in found.matches] == expected[: len(found.matches)]
    pages = []
    offset = 0
    while offset < found.total:
        page = find(text, pattern, offset=offset, max_matches=37)
        assert page.matches
        assert page.total == found.total
        pages += [match.line for match in page.matches]
        offset += len(page.matches)
    assert pages == [n for n, _ in expected]


def test_context_is_around_each_match() -> None:
    match = find("one\ntwo\nthree\nfour\n", "three", context_lines=2).matches[0]
    assert (match.line, match.before, match.after) == (3, ["one", "two"], ["four"])
    assert find("a\r\nb\r\n", "a", context_lines=1).matches[0].after == ["b"]
    assert find("one", "one", context_lines=3).matches[0].before == []


@pytest.mark.case("S14")
def test_a_pattern_that_hangs_backtracking_engines_is_done() -> None:
    assert find("a" * 50_000 + "!", "(a+)+$").total == 0
    assert find("a" * 50_000, "(a+)+$").total == 1
    assert find("a" * 50_000, "(a|aa)*b").total == 0


@pytest.mark.case("S14")
@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "missing \\)"),
        ("a)", "unexpected \\)"),
        ("(?=a)", "look-arounds"),
        ("[", "missing ]"),
        ("a\nb", "line break"),
    ],
)
def test_a_pattern_that_is_none_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(InvalidArguments, match=why):
        find("x", pattern)
    if "\n" not in pattern:
        assert find(f"x{pattern}y", pattern, literal=True).total == 1


@pytest.mark.case("S14")
def test_of_a_long_line_the_part_around_the_match_comes_with_its_place(tmp_path: Path) -> None:
    line = "é" * 600_000 + "needle" + "y" * 500_000
    match = find("first\n" + line + "\n", "need.e", context_lines=1).matches[0]
    assert match.line == 2
    assert "needle" in match.text
    assert len(match.text) < 1100
    assert line[match.start_character :].startswith(match.text)
    assert match.line_characters == len(line)


def test_an_answer_is_bounded_and_the_rest_is_a_page_further() -> None:
    found = find(("x" * 900 + "\n") * 100, "x")
    assert found.total == 100
    assert sum(len(match.text) for match in found.matches) <= MAX_TEXT_CHARACTERS


def test_letters_of_either_case_on_request() -> None:
    assert find("One\none\nONE\n", "one").total == 1
    assert find("One\none\nONE\n", "one", ignore_case=True).total == 3
    assert find("a.b\naxb\n", "a.b", literal=True, ignore_case=True).total == 1
