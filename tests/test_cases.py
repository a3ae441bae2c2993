"""Every case of the manifest is shown by a test, and every marked case is in the manifest."""

import re
from pathlib import Path

from tests.cases import CASES


def test_every_case_is_shown_by_a_test() -> None:
    marked: set[str] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        for arguments in re.findall(r"mark\.case\(([^)*]+)\)", path.read_text()):
            marked.update(re.findall(r'"(\w+)"', arguments))
    for attacks in re.findall(r"cases=\(([^)]+)\)", (Path(__file__).parent / "escapes" / "attacks.py").read_text()):
        marked.update(re.findall(r'"(\w+)"', attacks))
    assert marked == set(CASES)
