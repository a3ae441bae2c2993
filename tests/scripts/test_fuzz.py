"""`scripts/fuzz.py` finds mistakes where there are some, and is not content with having tried nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox.guest_root import GuestRoot
from tests.conftest import unavailable

PROJECT = Path(__file__).parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

import fuzz  # noqa: E402  beside the scripts

CLEAN: dict[str, Any] = {
    "operations": {"tested": 29, "selected": 29}, "test_cases": {"generated": 900, "without_checks": 12}, "failures": [],
    "errors": [], "exit_code": 0,
}  # fmt: skip


def test_two_planted_mistakes_are_found(root: GuestRoot, tmp_path: Path) -> None:
    if not (PROJECT / "tests/fuzz/.installed").exists():
        unavailable("fuzz", "`sh scripts/others.sh` installs it")
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    done = subprocess.run(
        [sys.executable, "scripts/fuzz.py", "--control", "--data-dir", str(tmp_path)],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "planted mistakes that were not found: none" in done.stdout


def test_a_report_without_a_fault_is_taken() -> None:
    assert fuzz.faults_of(CLEAN) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"failures": [{"title": "Server error", "operations": ["GET /x"]}], "exit_code": 1}, "Server error (GET /x)"),
        ({"errors": ["no connection"], "exit_code": 1}, "schemathesis could not go on: no connection"),
        ({"operations": {"tested": 28, "selected": 29}}, "28 of 29 operations were tried"),
        ({"operations": {"tested": 0, "selected": 0}}, "0 of 0 operations were tried"),
        ({"test_cases": {"generated": 0}}, "there were fewer requests than operations"),
        ({"test_cases": {"generated": 40, "without_checks": 12}}, "there were fewer requests than operations"),
        ({"exit_code": 2}, "schemathesis failed, and its report does not say why"),
    ],
)
def test_a_report_of_a_fault_or_of_nothing_is_not(changes: dict[str, Any], told: str) -> None:
    assert told in fuzz.faults_of({**CLEAN, **changes})


def test_no_report_at_all_is_a_fault() -> None:
    assert fuzz.faults_of({})
