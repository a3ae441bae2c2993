"""Memory of a process and its descendants, for hosts that give no control groups."""

import time
from pathlib import Path


def proportional_memory_bytes(pid: int, *, enough_bytes: int, until: float) -> int:
    """Sum of the proportional set sizes (proc(5), smaps_rollup) of all descendants of ``pid``; shared pages count once.

    Stops at ``enough_bytes``, and at the time ``until`` of `time.monotonic`: a guest can make each look take long.
    """
    total, waiting = 0, [pid]
    while waiting and total < enough_bytes and time.monotonic() < until:
        folder = Path("/proc", str(waiting.pop()))
        try:
            for children in folder.glob("task/*/children"):  # any thread may have forked
                waiting += map(int, children.read_text().split())
            for line in (folder / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except (OSError, ValueError):
            continue  # it has ended meanwhile, or is process 1 of a jail, which nobody may read
    return total
