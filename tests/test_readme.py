"""What the README shows is run, and what it lists is what there is."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api.__main__ import _parser
from api.results import spill_request
from sandbox.guest_root import GuestRoot
from sandbox.testing import FakeRuntime
from tests.conftest import box_over

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()


def _block(language: str) -> str:
    section = README.partition("### In an agent loop")[2]
    found = re.search(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_library_example_runs_and_prints_what_it_says(root: GuestRoot, tmp_path: Path) -> None:
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    code = _block("python").replace('".spillbox"', repr(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert done.stdout == _block("text")


def test_the_spill_example_answers_what_it_says(tmp_path: Path) -> None:
    section = README.partition("### Results of your own tools")[2]
    code = re.search(r"^python3 -c '(.*)' > result.json$", section, re.MULTILINE)
    assert code is not None
    made = subprocess.run([sys.executable, "-c", code[1]], capture_output=True, check=True).stdout
    box = box_over(tmp_path)
    calls = [json.loads(body) for body in re.findall(r"-d '(\{.*?\})'", section.partition("<!-- spill -->")[0])]

    async def run() -> tuple[str, list[Any]]:
        async with box:
            spill = await box.spill("chat-2", *spill_request(made))
            return spill.text, [
                await box.call(*pair)
                for pair in zip(("build_excel", "attach_file"), ("chat-2",) * 2, calls, strict=True)
            ]

    text, (built, attached) = asyncio.run(run())
    assert built.tables[0].rows_written == 321
    assert attached.name == "issues.xlsx"
    assert section.partition("<!-- spill -->\n```text\n")[2].partition("\n```\n<!-- /spill -->")[0] == text


def test_the_command_line_example_runs(root: GuestRoot, tmp_path: Path) -> None:
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    (tmp_path / "report.py").write_text("print(open('rows.json').read())")
    (tmp_path / "rows.json").write_text("[1]")
    for line in re.findall(r"^spillbox (run [^#\n]+?) *#", README, re.MULTILINE):
        command, *rest = line.split()
        done = subprocess.run(
            [sys.executable, "-m", "api", command, "--data-dir", str(tmp_path), *rest], cwd=tmp_path,
            env={"PYTHONPATH": str(PROJECT), "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        assert "[1]" in done.stdout


def test_the_table_of_tools_is_the_registry(root: GuestRoot, tmp_path: Path) -> None:
    box = box_over(tmp_path, runtime=FakeRuntime(), guest=root)
    section = README.partition("### The tools")[2].partition("###")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(box.tools)
    box.records.close()


def test_every_command_and_target_that_is_shown_exists(capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^(\w+):.*##", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make (\w+)", README, re.MULTILINE)) <= targets
    with pytest.raises(SystemExit):
        _parser().parse_args(["--help"])
    commands = set(re.findall(r"^    (\w+)  ", capsys.readouterr().out, re.MULTILINE))
    assert set(re.findall(r"^spillbox (\w+)", README, re.MULTILINE)) <= commands
    for line in re.findall(r"^spillbox ([^\[#\n]+)", README, re.MULTILINE):
        _parser().parse_args(line.split())


def test_the_figures_are_those_that_were_measured() -> None:
    sys.path.insert(0, str(PROJECT / "scripts"))
    from bench_report import markdown

    figures = json.loads((PROJECT / "docs" / "bench.json").read_text())
    assert README.partition("<!-- bench -->\n")[2].partition("<!-- /bench -->")[0] == markdown(figures)


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (PROJECT / target).exists(), target


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "SECURITY.md", "README.md"])
def test_every_file_that_is_named_exists(name: str) -> None:
    for path in re.findall(r"`((?:sandbox|api|tests|images|scripts)/[\w./]+)`", (PROJECT / name).read_text()):
        assert (PROJECT / path).exists(), path
