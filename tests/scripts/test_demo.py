"""The demo is the main job, end to end: it compares every value of three documents with the source, by other code."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sandbox.guest_root import GuestRoot

PROJECT = Path(__file__).parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

import bench_data  # noqa: E402  beside the scripts
import example  # noqa: E402
import readme_parts  # noqa: E402
import replay  # noqa: E402


def test_the_demo_builds_breaks_mends_and_finds_every_value_as_it_was(root: GuestRoot, tmp_path: Path) -> None:
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    done = subprocess.run(
        [sys.executable, "scripts/demo.py", "--data-dir", str(tmp_path)], cwd=PROJECT, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    compared = re.findall(r"([\d,]+) values compared with the source, (\d+) differ", done.stdout)
    assert len(compared) == 5
    assert all(int(values.replace(",", "")) > 50 and differ == "0" for values, differ in compared)
    assert "KeyError: 'alpha3'" in done.stdout
    assert len(list(tmp_path.glob("workspaces/*/files/reports/*"))) == 3
    assert len([file for file in tmp_path.glob("attachments/*/*") if file.is_file()]) == 2


def test_the_benchmark_measures_everything_and_loses_no_run(root: GuestRoot, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "scripts/bench.py", "--data-dir", str(root.path.parent), "--rounds", "1", "--seconds", "0.3",
            "--json", str(tmp_path / "figures.json"), "--chart", str(tmp_path / "chart.svg"),
        ],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {"bare python", "nsjail", "warm", "warm, library"} <= set(figures["idle"]["documents.py"])
    assert all(
        one["lost"] == 0 and one["runs"] > 0
        for contenders in figures["clients"].values()
        for counts in contenders.values()
        for one in counts.values()
    )
    assert set(figures["data"]["ratios"]) == set(bench_data.WANTED)
    assert figures["memory"]["plain"]["spare_jails"] > 0
    assert all(one["gateway"] > one["direct"] > 0 for one in figures["gateway"]["small"].values())
    assert figures["gateway"]["large"]["bytes"] > 90e6
    assert (tmp_path / "chart.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("script", [example, replay], ids=["321 rows", "13 texts"])
def test_the_readme_says_what_the_examples_compute(root: GuestRoot, tmp_path: Path, script: ModuleType) -> None:
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    done = subprocess.run(
        [sys.executable, str(script.__file__), "--data-dir", str(tmp_path)], cwd=PROJECT, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert ("| 0 of 3,864 |" in done.stdout) or ("| 13 of 13 |" in done.stdout)
    assert readme_parts.part(script.__name__) == done.stdout
