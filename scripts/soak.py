"""Does many runs through HTTP, of many kinds, and looks for what is lost, mixed up, or left over.

    python scripts/soak.py [--data-dir DIR] [--runs N] [--clients N]

What the service and its launchers hold (memory, descriptors, threads, processes, mounts, control groups) is compared
after the first twentieth of the runs and at the end.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from bench import parents_of_all, processes_below
from bench_contenders import Http, service

from sandbox.job import Execution

KINDS = {
    "print": ("import sys; print(sys.argv[1])", "succeeded"),
    "fail": ("import sys; print(sys.argv[1]); 1/0", "failed"),
    "exit": ("import os, sys; print(sys.argv[1], flush=True); os._exit(3)", "failed"),
    "fork": (
        "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\nprint(sys.argv[1])",
        "succeeded",
    ),
    "files": ("import sys; open(f'f{int(sys.argv[1]) % 7}', 'w').write('x' * 5000); print(sys.argv[1])", "succeeded"),
    "office": ("import openpyxl, sys; openpyxl.Workbook(); print(sys.argv[1])", "succeeded"),
    "forbidden": ("import ctypes, sys; print(sys.argv[1], flush=True); ctypes.CDLL(None).ptrace(0)", "blocked_syscall"),
}
LEFT_TO_SETTLE_SECONDS = 3
ALLOWED_MIB = 40


def main() -> int:
    """Soak a service; the exit status says whether nothing was lost or left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(".spillbox"), help="where the guest root is")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        with service(folder / "soak", arguments.data_dir / "guest-root", "warm") as served:
            for client in range(arguments.clients):
                files = served.folder / "workspaces" / f"soak-{client}" / "files"
                files.mkdir(parents=True)
                for kind, (code, _) in KINDS.items():
                    (files / f"{kind}.py").write_text(code)
            names = count()
            faults = _run(served.port, names, arguments.runs // 20, arguments.clients)
            before = _held(served.pid)
            started = time.perf_counter()
            faults += _run(served.port, names, arguments.runs - arguments.runs // 20, arguments.clients)
            seconds = time.perf_counter() - started
            after = _held(served.pid)
    print(f"{arguments.runs:,} runs, {len(faults)} wrong or lost, {arguments.runs * 0.95 / seconds:.0f} a second")
    print(f"held after a twentieth: {json.dumps(before)}")
    print(f"held at the end:        {json.dumps(after)}")
    for fault in faults[:5]:
        print(f"wrong: {fault}")
    grown = [name for name, number in after.items() if number > before[name] + (ALLOWED_MIB if "MiB" in name else 3)]
    if grown:
        print(f"grown: {', '.join(grown)}")
    return 1 if faults or grown else 0


def _run(port: int, names: Iterator[int], runs: int, clients: int) -> list[str]:
    """So many runs; gives what was wrong with any."""
    faults: list[str] = []
    end = threading.Event()
    left = iter(range(runs))
    lock = threading.Lock()

    def next_name() -> int | None:
        with lock:
            return next(names) if next(left, None) is not None else None

    def ask(client: int) -> None:
        http = Http("soak", port, workspace=f"soak-{client}")
        while not end.is_set() and (name := next_name()) is not None:
            kind, (_, status) = list(KINDS.items())[name % len(KINDS)]
            try:
                answer = http.call({"path": f"{kind}.py", "arguments": [str(name)]})
                execution = Execution.model_validate_json(answer.partition(b"\r\n\r\n")[2])
                if execution.status != status or execution.stdout.text != f"{name}\n":
                    faults.append(f"run {name}: {execution.status} {execution.stdout.text!r} {execution.error}")
            except (OSError, ValueError) as fault:
                faults.append(f"run {name}: {fault!r}")
                http = Http("soak", port, workspace=f"soak-{client}")

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


def _held(service_pid: int) -> dict[str, Any]:
    """What the service and everything below it hold, when it has come to rest."""
    time.sleep(LEFT_TO_SETTLE_SECONDS)
    below = processes_below(service_pid, parents_of_all())
    memory = 0
    for pid in below:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                memory += int(line.split()[1]) if line.startswith("Pss:") else 0
    own = Path(f"/proc/{service_pid}")
    return {
        "processes": len(below),
        "descriptors": len(list((own / "fd").iterdir())),
        "threads": len(list((own / "task").iterdir())),
        "mounts": len((own / "mountinfo").read_text().splitlines()),
        "control groups": len(list(Path("/sys/fs/cgroup").glob(f"**/spillbox-{service_pid}-*/*/")))
        if os.geteuid() == 0
        else 0,
        "memory of all, MiB": memory // 1024,
    }


if __name__ == "__main__":
    sys.exit(main())
