"""A host that forbids user namespaces is recognised, with the cure."""

from pathlib import Path

import pytest

from sandbox.runtimes.host import cure_for_no_namespaces

REFUSED = "raise SystemExit(1)"


def test_a_host_that_allows_them_needs_no_cure() -> None:
    assert cure_for_no_namespaces(probe="pass") == ""


def test_the_switch_that_forbids_them_is_named_with_the_command(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    switch.write_text("1\n")
    assert cure_for_no_namespaces({str(switch): ("1", "sysctl -w x=0")}, REFUSED) == "sysctl -w x=0"


@pytest.mark.parametrize("value", ["0\n", None])
def test_without_such_a_switch_it_is_the_container(tmp_path: Path, value: str | None) -> None:
    switch = tmp_path / "switch"
    if value is not None:
        switch.write_text(value)
    assert "seccomp" in cure_for_no_namespaces({str(switch): ("1", "no")}, REFUSED)
