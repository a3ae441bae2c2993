"""Measures sandboxed runs side by side with a bare interpreter and with Docker, in one go and in turn, as ratios.

    python scripts/bench.py [--data-dir DIR] [--seconds S] [--json FILE] [--chart FILE] [--readme FILE]

Everything that a user of the tool run_python waits for is in a time of ours: the request, the jail, the record, the check of
the documents that the script made.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench_data
import bench_docker
import bench_gateway
import readme_parts
from bench_contenders import Bare, Contender, Docker, Library, Service, service
from bench_report import chart, markdown, table
from bench_timing import in_a_row, in_turn, summary, timed
from held import parents_of_all, processes_below

from sandbox.tools.toolbox import open_toolbox

SCRIPTS = {"print.py": 4, "workbook.py": 2, "documents.py": 1}
"""Each script, and how many times more often than the longest it is measured."""

CLIENTS = (1, 2, 8, 64)


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(".spillbox"), help="where the guest root is")
    parser.add_argument("--rounds", type=int, default=25, help="how often the longest script is measured")
    parser.add_argument("--seconds", type=float, default=5, help="how long each number of clients is measured")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--chart", type=Path, help="draw them into this SVG file")
    parser.add_argument("--readme", type=Path, help="write them between the marks in this file")
    arguments = parser.parse_args()
    figures = measure(arguments.data_dir / "guest-root", arguments.rounds, arguments.seconds)
    figures["docker"] = bench_docker.measure(arguments.data_dir / "guest-root", max(2, arguments.rounds // 2))
    figures["data"] = bench_data.measure(max(1, arguments.rounds // 5))
    figures["gateway"] = bench_gateway.measure(arguments.data_dir / "guest-root", arguments.rounds * 15)
    print(table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if arguments.chart:
        arguments.chart.write_bytes(chart(figures))
    if arguments.readme:
        readme_parts.replace_part("bench", markdown(figures), arguments.readme)
    return 0


def measure(guest_root: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as temporary, asyncio.Runner() as loop:
        folder = Path(temporary)
        folder.chmod(0o755)
        (folder / "library").mkdir()
        (folder / "library" / "guest-root").symlink_to(guest_root.resolve())
        with (
            service(folder / "cold", guest_root, "nsjail") as cold,
            service(folder / "warm", guest_root, "warm") as warm,
        ):
            box = open_toolbox(folder / "library")
            loop.run(box.runtime.ready())
            contenders: list[Contender] = [
                Bare(folder, guest_root),
                cold.client("bench", "nsjail"),
                warm.client("bench", "warm"),
                Library("warm", box, loop),
            ]
            if Docker.is_there():
                Docker.make_image(guest_root)
                contenders.append(Docker(folder))
            slow = {contender.name for contender in contenders if isinstance(contender, Docker)}
            figures: dict[str, Any] = {
                "machine": f"{os.cpu_count()} processors, Linux {platform.release()}, Python {platform.python_version()}",
                "rounds": rounds,
                "idle": {
                    script: in_turn(contenders, script, rounds * more, sparing=slow) for script, more in SCRIPTS.items()
                },
                "back to back": in_a_row(contenders, "print.py", rounds * SCRIPTS["print.py"], sparing=slow),
                "memory": _memory(warm.pid),
                "start seconds": {"nsjail": round(cold.start_seconds, 2), "warm": round(warm.start_seconds, 2)},
            }
            loop.run(box.close())
            figures["clients"] = {
                script: {
                    "nsjail": _by_clients(cold, script, seconds),
                    "warm": _by_clients(warm, script, seconds),
                }
                for script in ("print.py", "workbook.py")
            }
            if Docker.is_there():
                figures["clients"]["print.py"]["docker run"] = {
                    "8": _load([Docker(folder) for _ in range(8)], "print.py", seconds)
                }
    return figures


def _by_clients(served: Service, script: str, seconds: float) -> dict[str, Any]:
    """Runs a second by how many clients ask at the same time, each in a workspace of its own."""
    return {
        str(count): _load([served.client(f"client-{n}") for n in range(count)], script, seconds) for count in CLIENTS
    }


def _load(clients: Sequence[Contender], script: str, seconds: float) -> dict[str, Any]:
    times: list[float] = []
    faults: list[str] = []
    end = time.perf_counter() + seconds

    def ask(client: Contender) -> None:
        while time.perf_counter() < end:
            try:
                times.append(timed(client, script))
            except Exception as fault:  # noqa: BLE001  whatever it is, it is a run that was lost
                faults.append(repr(fault)[:200])

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = time.perf_counter() - started
    if faults:
        print(f"{len(faults)} runs were lost, such as {faults[0]}", file=sys.stderr)
    return {"runs": len(times), "lost": len(faults), "runs_per_second": round(len(times) / whole, 1), **summary(times)}


def _memory(service_pid: int) -> dict[str, Any]:
    """MiB of launchers and of the jails that stand spare, shared pages shared out among those who have them."""
    parents = parents_of_all()
    below = processes_below(service_pid, parents)
    launchers: dict[str, list[float]] = {"plain": [], "office": []}
    jails: dict[str, list[float]] = {"plain": [], "office": []}
    for pid in below:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"/opt/spillbox/launcher.pyc" not in command:
            continue
        kind = command[4].decode()
        memory = dict(
            line.split()[:2]
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.endswith("kB")
        )
        parent_command = Path(f"/proc/{parents[pid]}/cmdline").read_bytes()
        is_launcher = b"launcher.pyc" not in parent_command
        if is_launcher:
            launchers[kind].append(int(memory["Rss:"]) / 1024)
        else:
            jails[kind].append((int(memory["Private_Dirty:"]) + int(memory["Private_Clean:"])) / 1024)
    return {
        kind: {
            "launcher_mib": round(statistics.mean(launchers[kind]), 1),
            "jail_own_mib": round(2 * statistics.mean(jails[kind]), 1),  # two processes each
            "launchers": len(launchers[kind]),
            "spare_jails": len(jails[kind]) // 2,
        }
        for kind in launchers
    }


if __name__ == "__main__":
    sys.exit(main())
