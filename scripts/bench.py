"""Measures sandboxed runs side by side with a bare interpreter, in one process and in turn, as ratios.

    python scripts/bench.py [--data-dir DIR] [--repeat N] [--json FILE]

`bare` is `python script.py` of the same version, with no jail, no limits, and the same libraries. `nsjail` is a call of the
tool run_python through the library, by path: everything that a user of the tool waits for, the check of documents included.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox.job import Execution, Status
from sandbox.tools.toolbox import Toolbox, load_guest_root, open_toolbox

SCRIPTS = Path(__file__).parent / "bench"
AT_ONCE, WORKSPACES = 64, 16


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(".spillbox"), help="where the guest root is")
    parser.add_argument("--repeat", type=int, default=30, help="how often each is measured")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    figures = asyncio.run(_measure_all(arguments.data_dir, arguments.repeat))
    print(_table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def rows() -> list[dict[str, Any]]:
    """321 rows of six columns, the same at each call."""
    names = ("libpthread.so.0", "libcrypto.so.3", "00012", "MAR1", "한글")
    return [
        {
            "id": f"{n:05}",
            "name": names[n % 5],
            "count": n * 37 % 1000,
            "ratio": n / 7,
            "ok": n % 2 == 0,
            "note": "x" * (n % 40),
        }
        for n in range(321)
    ]


async def _measure_all(data_folder: Path, repeat: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "guest-root").symlink_to((data_folder / "guest-root").resolve())
        async with open_toolbox(folder) as box:
            figures: dict[str, Any] = {"repeat": repeat, "processors": os.cpu_count(), "runtime": box.runtime.name}
            for script in ("print.py", "documents.py"):
                figures[script] = await _side_by_side(box, folder, script, repeat)
            figures["at once"] = await _at_once(box)
    return figures


async def _side_by_side(box: Toolbox, folder: Path, script: str, repeat: int) -> dict[str, Any]:
    bare_folder = folder / "bare"
    bare_folder.mkdir(exist_ok=True)
    data = json.dumps(rows()).encode()
    for name, content in (("rows.json", data), (script, (SCRIPTS / script).read_bytes())):
        (bare_folder / name).write_bytes(content)
        box.workspaces.open("bench").write(name, content)
    site = next((load_guest_root(folder).path / "opt/venv/lib").glob("python*/site-packages"))
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}

    def bare() -> None:
        subprocess.run([sys.executable, script], cwd=bare_folder, env=environment, check=True, capture_output=True)

    async def jailed() -> None:
        _succeeded(await box.call("run_python", "bench", {"path": script}))

    times: dict[str, list[float]] = {"bare": [], "nsjail": []}
    for _ in range(repeat + 2):
        times["bare"].append(_seconds(bare))
        started = time.perf_counter()
        await jailed()
        times["nsjail"].append(time.perf_counter() - started)
    figures: dict[str, Any] = {name: _summary(values[2:]) for name, values in times.items()}
    figures["ratio"] = round(figures["nsjail"]["p50_ms"] / figures["bare"]["p50_ms"], 2)
    return figures


async def _at_once(box: Toolbox) -> dict[str, Any]:
    async def one(number: int) -> float:
        started = time.perf_counter()
        output = _succeeded(await box.call("run_python", f"w{number % WORKSPACES}", {"code": f"print({number})"}))
        if output.stdout.text != f"{number}\n":
            raise RuntimeError(f"run {number} got the answer of another: {output.stdout.text!r}")
        return time.perf_counter() - started

    started = time.perf_counter()
    times = await asyncio.gather(*(one(number) for number in range(AT_ONCE)))
    whole = time.perf_counter() - started
    return {
        "runs": len(times),
        "workspaces": WORKSPACES,
        "lost": AT_ONCE - len(times),
        "runs_per_second": round(AT_ONCE / whole, 1),
    }


def _succeeded(output: object) -> Execution:
    if not isinstance(output, Execution) or output.status is not Status.SUCCEEDED:
        raise RuntimeError(f"a run did not succeed: {output}")
    if broken := [result for result in output.documents if not result.ok]:
        raise RuntimeError(f"a document is broken: {broken}")
    return output


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50_ms": round(statistics.median(ordered) * 1000, 1),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)] * 1000, 1),
        "min_ms": round(ordered[0] * 1000, 1),
    }


def _table(figures: dict[str, Any]) -> str:
    lines = [f"{'script':<14}{'':<8}{'p50':>10}{'p95':>10}{'min':>10}{'ratio':>8}"]
    for script in ("print.py", "documents.py"):
        for kind in ("bare", "nsjail"):
            one = figures[script][kind]
            ratio = f"{figures[script]['ratio']:>8}" if kind == "nsjail" else ""
            lines.append(f"{script:<14}{kind:<8}{one['p50_ms']:>7} ms{one['p95_ms']:>7} ms{one['min_ms']:>7} ms{ratio}")
    at_once = figures["at once"]
    lines.append(
        f"{at_once['runs']} runs at once in {at_once['workspaces']} workspaces: {at_once['lost']} lost, "
        f"{at_once['runs_per_second']} runs a second on {figures['processors']} processors"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
