"""Every case of the manifest is shown by a test, and every marked case is in the manifest."""

import re
from pathlib import Path

from sandbox.doctor import attacks
from tests.cases import CASES

ATTACKS_FILE = Path(attacks.__file__)


def test_every_case_is_shown_by_a_test() -> None:
    marked: set[str] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        for arguments in re.findall(r"mark\.case\(([^)*]+)\)", path.read_text()):
            marked.update(re.findall(r'"(\w+)"', arguments))
    for cases in re.findall(r"cases=\(([^)]+)\)", ATTACKS_FILE.read_text()):
        marked.update(re.findall(r'"(\w+)"', cases))
    assert marked == set(CASES)
