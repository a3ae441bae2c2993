"""The short message never loses what matters, whatever the guest reports."""

import json
from typing import Any

import pytest

from sandbox.failures import MAX_SUMMARY_CHARACTERS, GuestReport, Surroundings, explain, hint_for, parse_report

REPORT: dict[str, Any] = {
    "type": "ValueError", "message": "bad", "message_characters": 3, "path": "/workspace/scripts/a.py", "line": 7,
    "function": "main", "source_line": "int('x')", "errno": None, "name": "", "leaf": None, "cause": None,
}  # fmt: skip


def _report(**changes: Any) -> GuestReport:
    return GuestReport.model_validate({**REPORT, **changes})


def test_the_summary_has_type_message_place_line_paths_and_hint() -> None:
    error = explain(_report(), otherwise=("", ""), traceback_path="errors/0001.txt", hint="do this")
    assert error.summary == (
        "ValueError: bad\n  at scripts/a.py, line 7, in main\n    int('x')\nFull text: errors/0001.txt\nHint: do this"
    )


@pytest.mark.parametrize("size", [0, 1, 500, 700, 900, 5_000, 20_000])
def test_it_stays_within_its_bound_and_keeps_everything(size: int) -> None:
    huge = "x" * size
    report = _report(
        type="T" + huge, message=huge, message_characters=size, path="/workspace/" + huge + "p.py", function=huge,
        source_line=huge, leaf=huge or None, cause=huge or None,
    )  # fmt: skip
    error = explain(report, otherwise=("", ""), traceback_path="errors/0001-run_python.txt", hint="h" + huge)
    assert len(error.summary) <= MAX_SUMMARY_CHARACTERS
    assert "line 7" in error.summary
    assert "Full text: errors/0001-run_python.txt" in error.summary
    assert "Hint: h" in error.summary
    if size > MAX_SUMMARY_CHARACTERS:
        assert f"({size:,} characters in all)" in error.summary


@pytest.mark.parametrize(
    "hostile",
    [None, b"", b"{", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000, json.dumps({**REPORT, "line": "x"}).encode(),
     json.dumps({**REPORT, "message_characters": -1}).encode()],
)  # fmt: skip
def test_a_report_that_is_none_is_no_report(hostile: bytes | None) -> None:
    assert parse_report(hostile) is None


def test_half_a_surrogate_pair_becomes_an_escape() -> None:
    report = parse_report(json.dumps({**REPORT, "message": "\ud800"}).encode())
    assert report is not None
    assert report.message == "\\ud800"


def test_an_unknown_mistake_gets_no_hint() -> None:
    assert hint_for(_report(), Surroundings(libraries={}, files=[])) is None
    assert hint_for(None, Surroundings(libraries={}, files=[])) is None
