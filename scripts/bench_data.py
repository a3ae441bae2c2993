"""The data's path, side by side with what one would use instead: a spill, the builders, search and extraction.

    python scripts/bench_data.py [one NAME FOLDER]

Each figure is the median of several processes of its own, taken in turn, with the most memory that one of them had. The source
is a table of 427,140 rows and ten columns (100 MB of JSON), for workbooks the first 100,000 of them. With `one`, it is such a
process: it imports only what its contender needs, does it once, and prints seconds and memory.
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS, WORKBOOK_ROWS = 427_140, 100_000
PATTERN = "00012345"
_MATCHES = 11
_WORKSPACE = "bench"

# Contenders: each gives the seconds of its work, without its imports.


def json_load(files: Path) -> float:
    """All of the source, as most programs would begin."""
    started = time.perf_counter()
    with (files / "all.json").open() as file:
        json.load(file)
    return time.perf_counter() - started


def grep(files: Path) -> float:
    """Counting lines."""
    started = time.perf_counter()
    done = subprocess.run(["grep", "-c", PATTERN, files / "all.json"], capture_output=True, check=True)
    seconds = time.perf_counter() - started
    assert int(done.stdout) == _MATCHES
    return seconds


def openpyxl_write_only(files: Path) -> float:
    """The same rows into a workbook, its rows being there."""
    import openpyxl

    rows = json.loads((files / "some.json").read_bytes())
    started = time.perf_counter()
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(list(rows[0]))
    for row in rows:
        sheet.append(list(row.values()))
    book.save(files / "openpyxl.xlsx")
    return time.perf_counter() - started


def writer_alone(files: Path) -> float:
    """What build_excel does, without the service around it."""
    from sandbox.documents.excel import Sheet, write_workbook
    from sandbox.tables.select import Selected, Selection
    from sandbox.tables.source import open_source

    path = files / "some.json"
    started = time.perf_counter()
    source = open_source(lambda: path.open("rb"), path=path.name, rows_at=None)
    selected = Selected(source, Selection(), spool_folder=files)
    with (files / "writer.xlsx").open("wb") as target:
        write_workbook(target, [Sheet("rows", selected.names, selected.runs())], source_bytes=path.stat().st_size)
    seconds = time.perf_counter() - started
    assert selected.rows_written == WORKBOOK_ROWS
    return seconds


def spill(files: Path) -> float:
    """The source as the result of a tool."""
    from sandbox.spills.spill import Received

    content = (files / "all.json").read_bytes()

    async def work(box: Any) -> None:
        assert (await box.spill("spills", Received("query", content=content))).rows == ROWS

    return _in_toolbox(files, work)


def _tool(name: str, check: Callable[[Any], bool], **arguments: Any) -> Callable[[Path], float]:
    def contender(files: Path) -> float:
        async def work(box: Any) -> None:
            assert check(await box.call(name, _WORKSPACE, arguments))

        return _in_toolbox(files, work)

    return contender


def _in_toolbox(files: Path, work: Callable[[Any], Any]) -> float:
    from sandbox.tools.toolbox import open_toolbox

    async def timed() -> float:
        async with open_toolbox(files.parents[2], runtime="none") as box:
            started = time.perf_counter()
            await work(box)
            return time.perf_counter() - started

    return asyncio.run(timed())


CONTENDERS: dict[str, Callable[[Path], float]] = {
    "json.load": json_load,
    "spill": spill,
    "build_csv": _tool("build_csv", lambda made: made.rows_written == ROWS, source="all.json", output="all.csv"),
    "extract_json_path": _tool(
        "extract_json_path", lambda found: '"00400000"' in found.text, path="all.json", expression="$[400000]"
    ),
    "grep -c": grep,
    "search_output": _tool(
        "search_output", lambda found: found.total_matches == _MATCHES, path="all.json", pattern=PATTERN
    ),
    "openpyxl, write-only": openpyxl_write_only,
    "build_excel": _tool(
        "build_excel", lambda made: made.tables[0].rows_written == WORKBOOK_ROWS, source="some.json", output="some.xlsx"
    ),
    "build_excel, its writer alone": writer_alone,
}
WANTED: dict[str, tuple[str, float]] = {
    "spill": ("json.load", 1.5),
    "build_csv": ("json.load", 3.5),
    "extract_json_path": ("json.load", 1.0),
    "search_output": ("grep -c", 4.0),
    "build_excel": ("openpyxl, write-only", 0.25),
    "build_excel, its writer alone": ("openpyxl, write-only", 0.25),
}
"""What each is measured against, and the most that it may take, as a multiple of that."""


def measure(rounds: int = 5) -> dict[str, Any]:
    """Seconds, MiB and ratios by name."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary, "workspaces", _WORKSPACE, "files")
        files.mkdir(parents=True)
        _write(files / "all.json", ROWS)
        _write(files / "some.json", WORKBOOK_ROWS)
        for _ in range(rounds):
            for name in CONTENDERS:
                done = subprocess.run(
                    [sys.executable, __file__, "one", name, files], stdout=subprocess.PIPE, check=True
                )
                found[name].append(json.loads(done.stdout))
        size = (files / "all.json").stat().st_size
    measured = {
        name: {
            "seconds": round(statistics.median(one["seconds"] for one in runs), 3),
            "peak_mib": round(max(one["mib"] for one in runs)),
        }
        for name, runs in found.items()
    }
    against = {name: other for name, (other, _) in WANTED.items()}
    ratios = {name: round(measured[name]["seconds"] / measured[other]["seconds"], 2) for name, other in against.items()}
    return {
        "bytes": size, "rows": ROWS, "workbook_rows": WORKBOOK_ROWS, "against": against, "measured": measured, "ratios": ratios,
    }  # fmt: skip


def _write(path: Path, count: int) -> None:
    """Rows with what a query gives: long ids, codes with zeros in front, decimals, times with zones, texts, nulls."""
    rng = random.Random(7)  # noqa: S311  the same rows each time
    notes = ("a, b", "plain text of a note", "=x", "한국어 값", "", "word " * 6)
    with path.open("w") as file:
        for n in range(count):
            row = (
                f'{{"id":{10**18 + n},"name":"libpthread.so.{n % 7} item","price":{n % 1000}.{n % 100:02d},'
                f'"created_at":"2024-{n % 12 + 1:02d}-{n % 28 + 1:02d}T{n % 24:02d}:00:00+09:00",'
                f'"status":"{rng.choice(("open", "closed", "in progress"))}","count":{n % 9999},'
                f'"ratio":0.{rng.randrange(10**6):06d},"code":"{n:08d}","note":"{rng.choice(notes)} of it all",'
                f'"flag":{rng.choice(("true", "false", "null"))}}}'
            )
            file.write((",\n" if n else "[\n") + row)
        file.write("\n]\n")


def _peak_kib() -> int:
    """The most memory of this process since its exec; ru_maxrss begins with what its parent had (proc(5), getrusage(2))."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def main() -> int:
    """Print the figures; 1 if one is over what is wanted."""
    if sys.argv[1:2] == ["one"]:
        seconds = CONTENDERS[sys.argv[2]](Path(sys.argv[3]))
        print(json.dumps({"seconds": seconds, "mib": _peak_kib() / 1024}))
        return 0
    figures = measure()
    for name, one in figures["measured"].items():
        other, most = WANTED.get(name, ("", 0))
        against = f"{figures['ratios'][name]:>7.2f} x {other}, wanted at most {most:g}" if other else ""
        print(f"{name:<30}{one['seconds']:>8.3f} s{one['peak_mib']:>7} MiB {against}")
    return int(any(figures["ratios"][name] > most for name, (_, most) in WANTED.items()))


if __name__ == "__main__":
    sys.exit(main())
