"""One policy for every runtime: what a guest has of an environment, of resource limits and of places to write to."""

from dataclasses import dataclass

from sandbox.job import MIB, Limits
from sandbox.workspace import GUEST_PATH, READ_ONLY_FOLDERS

GUEST_UID = 1000
HOSTNAME = "spillbox"

ENVIRONMENT = {
    "PATH": "/opt/venv/bin",
    "HOME": "/tmp",  # noqa: S108  the jail's own
    "TMPDIR": "/tmp",  # noqa: S108  the jail's own
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONUTF8": "1",
    "PYTHONIOENCODING": "utf-8:backslashreplace",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""All that a guest sees of an environment."""

NAMESPACES = {"mnt": 0x00020000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "net": 0x40000000}
"""Flags of unshare(2), by the names under /proc/self/ns; user and pid namespaces, which have steps of their own, apart."""

FIXED_RESOURCE_LIMITS = {"core": 0, "stack": 8 * MIB, "nofile": 1024, "memlock": 0, "msgqueue": 0, "rtprio": 0}
_REPORT_OPTIONS = "size=2097152,nr_inodes=8,mode=0755"


def resource_limits(limits: Limits, *, with_cgroup: bool, own_processes: int) -> dict[str, int]:
    """Soft and hard limits by the names of getrlimit(2), in bytes or numbers; the limit of processor time comes with GO.

    Control groups count all processes of a run together. Without them, each process is bounded by itself, and the kernel
    counts the processes of the jail's user in the jail's user namespace, ``own_processes`` of ours among them.
    """
    values = {**FIXED_RESOURCE_LIMITS, "fsize": limits.file_bytes}
    if not with_cgroup:
        values |= {"as": limits.memory_bytes, "nproc": limits.processes + own_processes}
    return values


@dataclass(frozen=True)
class Tmpfs:
    """A place that a guest can write to, and the quota that the kernel holds there."""

    place: str
    options: str
    executable: bool = True


def tmpfs_mounts(limits: Limits) -> list[Tmpfs]:
    """All places that a guest can write to."""
    # Some inodes are not the guest's: the root of the tmpfs and the places for the mounts.
    inodes = limits.workspace_files + 1 + len(READ_ONLY_FOLDERS)
    tmp = f"size={limits.tmp_bytes},nr_inodes={limits.workspace_files},mode=1777"
    return [
        Tmpfs(GUEST_PATH, f"size={limits.workspace_bytes},nr_inodes={inodes},mode=0755"),
        Tmpfs("/tmp", tmp),  # noqa: S108  the jail's own
        Tmpfs("/dev/shm", tmp),  # noqa: S108  the jail's own
        Tmpfs("/run/report", _REPORT_OPTIONS, executable=False),
    ]
