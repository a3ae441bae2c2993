"""What a service and everything below it hold of the machine."""

import os
import time
from contextlib import suppress
from pathlib import Path

_SETTLE_SECONDS = 3
_COMES_AND_GOES = {"memory of all, MiB": 40, "threads": 10}
"""By how much a figure changes from one look to the next, pools of threads being filled when they are needed."""
_OF_OTHERS = 3


def parents_of_all() -> dict[int, int]:
    """Every process of the machine, with its parent."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return found


def processes_below(ancestor: int, parents: dict[int, int]) -> set[int]:
    """The process and all that descend from it."""
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def control_groups(service_pid: int) -> list[Path]:
    """Those that a service made for its runs and launchers; none as an ordinary user."""
    return list(Path("/sys/fs/cgroup").glob(f"**/spillbox-{service_pid}-*/*/")) if os.geteuid() == 0 else []


def held(service_pid: int) -> dict[str, int]:
    """What it is when it has come to rest; memory that processes share is shared out among them."""
    time.sleep(_SETTLE_SECONDS)
    below = processes_below(service_pid, parents_of_all())
    memory_kib = 0
    for pid in below:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                memory_kib += int(line.split()[1]) if line.startswith("Pss:") else 0
    own = Path(f"/proc/{service_pid}")
    return {
        "processes": len(below),
        "descriptors": len(list((own / "fd").iterdir())),
        "threads": len(list((own / "task").iterdir())),
        "mounts": len((own / "mountinfo").read_text().splitlines()),
        "control groups": len(control_groups(service_pid)),
        "memory of all, MiB": memory_kib // 1024,
    }


def grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What is more than it was, by more than comes and goes."""
    return [
        f"{name} from {before[name]:,} to {number:,}"
        for name, number in after.items()
        if number > before[name] + _COMES_AND_GOES.get(name, _OF_OTHERS)
    ]
