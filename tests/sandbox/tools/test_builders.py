"""Builders under faults, and on much data: nothing lost, nothing half, memory that does not grow."""

import csv
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import python_calamine

from sandbox.errors import QuotaExceeded
from sandbox.job import MIB, Limits
from tests.conftest import box_over

PROJECT = Path(__file__).parents[3]
RECORD = '{"id":%d,"code":"%08d","price":%d.%02d,"at":"2024-01-02T03:04:05+09:00","text":"row %d, \\u00e9"}'


def write_rows(path: Path, count: int) -> None:
    with path.open("w") as file:
        file.write("[")
        file.writelines((",\n" if n else "") + RECORD % (10**18 + n, n, n, n % 100, n) for n in range(count))
        file.write("]")


def program(code: str, folder: Path) -> list[str]:
    head = """
        import asyncio, sys
        from pathlib import Path
        from tests.conftest import box_over
        async def main():
            async with box_over(Path(sys.argv[1])) as box:
    """
    body = textwrap.indent(textwrap.dedent(code), " " * 8)
    return [sys.executable, "-c", f"{textwrap.dedent(head)}{body}\nasyncio.run(main())", str(folder)]


@pytest.mark.parametrize(("tool", "output"), [("build_csv", "rows.csv"), ("build_excel", "rows.xlsx")])
def test_a_build_that_is_killed_leaves_the_old_file_and_no_half_one(tmp_path: Path, tool: str, output: str) -> None:
    files = tmp_path / "workspaces/w/files"
    files.mkdir(parents=True)
    write_rows(files / "rows.json", 200_000)
    (files / output).write_text("the old one")
    command = program(f"await box.call({tool!r}, 'w', {{'source': 'rows.json', 'output': {output!r}}})", tmp_path)
    process = subprocess.Popen(command, cwd=PROJECT)
    incoming = tmp_path / "workspaces/w/incoming"
    while process.poll() is None and not any(file.stat().st_size > MIB for file in incoming.glob("*") if file.exists()):
        time.sleep(0.002)
    assert process.poll() is None, "it was done before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (files / output).read_text() == "the old one"
    assert sorted(file.name for file in files.iterdir() if file.is_file()) == sorted(["rows.json", output])
    # The next build does it, and the left-over is swept when it is a day old.
    subprocess.run(command, cwd=PROJECT, check=True)
    assert (files / output).stat().st_size > MIB


async def test_a_disk_that_fills_up_in_mid_write_changes_nothing(tmp_path: Path) -> None:
    limits = Limits(workspace_bytes=8 * MIB, file_bytes=8 * MIB)
    async with box_over(tmp_path, limits=limits) as box:
        box.workspaces.open("w").make()
        files = tmp_path / "workspaces/w/files"
        write_rows(files / "rows.json", 60_000)
        for tool, output in (("build_csv", "rows.csv"), ("build_excel", "rows.xlsx")):
            (files / output).write_text("the old one")
            with pytest.raises(QuotaExceeded):
                await box.call(tool, "w", {"source": "rows.json", "output": output})
            assert (files / output).read_text() == "the old one"
        assert list((tmp_path / "workspaces/w/incoming").iterdir()) == []


@pytest.mark.parametrize(("tool", "output"), [("build_csv", "rows.csv"), ("build_excel", "rows.xlsx")])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, tool: str, output: str) -> None:
    peaks = []
    for count in (50_000, 250_000):
        folder = tmp_path / str(count)
        files = folder / "workspaces/w/files"
        files.mkdir(parents=True)
        write_rows(files / "rows.json", count)
        code = f"""
            made = await box.call({tool!r}, 'w', {{'source': 'rows.json', 'output': {output!r}}})
            print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
        """
        done = subprocess.run(program(code, folder), cwd=PROJECT, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout) * 1024)
    assert peaks[1] - peaks[0] < 8 * MIB


@pytest.mark.case("D2", "S10")
def test_a_100_mb_source_goes_to_csv_and_excel_with_no_cell_changed(tmp_path: Path) -> None:
    files = tmp_path / "workspaces/w/files"
    files.mkdir(parents=True)
    count = 427_140
    with (files / "rows.json").open("w") as file:
        file.write("[")
        for n in range(count):
            filler = (
                f'"note":"{"words, of a note; " * 6}{n}","flag":{"true" if n % 2 else "null"},"ratio":0.{n % 1000:03d}0'
            )
            file.write((",\n" if n else "") + RECORD[:-1] % (10**18 + n, n, n, n % 100, n) + f",{filler}}}")
        file.write("]")
    assert (files / "rows.json").stat().st_size > 100_000_000
    code = """
        for tool, output in (("build_csv", "rows.csv"), ("build_excel", "rows.xlsx")):
            await box.call(tool, "w", {"source": "rows.json", "output": output})
    """
    subprocess.run(program(code, tmp_path), cwd=PROJECT, check=True)
    changed = total = 0
    sheet = python_calamine.CalamineWorkbook.from_path(str(files / "rows.xlsx")).get_sheet_by_index(0).iter_rows()
    assert next(sheet) == ["id", "code", "price", "at", "text", "note", "flag", "ratio"]
    with (files / "rows.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        next(rows)
        for n, (row, cells) in enumerate(zip(rows, sheet, strict=True)):
            flag = "true" if n % 2 else ""
            note = "words, of a note; " * 6 + str(n)
            literals = [
                str(10**18 + n),
                f"{n:08d}",
                f"{n}.{n % 100:02d}",
                "2024-01-02T03:04:05+09:00",
                f"row {n}, é",
                note,
                flag,
                f"0.{n % 1000:03d}0",
            ]
            typed = [literals[0], literals[1], float(literals[2]), *literals[3:6], bool(flag) or "", float(literals[7])]
            changed += sum(map(str.__ne__, row, literals)) + sum(a != b for a, b in zip(cells, typed, strict=True))
            total += len(row) + len(cells)
    assert (n + 1, total, changed) == (count, count * 16, 0)
