"""Per-run control groups: the kernel's own bounds for memory and processes, and its counters for what a run used.

Version 1 (separate hierarchies) and version 2 (one) behind one small interface. Version 2 follows the kernel's
Documentation/admin-guide/cgroup-v2.rst.
"""

import itertools
import os
import re
import secrets
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from sandbox.job import Limits
from sandbox.processes import has_ended, identity_of, pid_namespace

_PREFIX = "spillbox-"
_LOWER = f"{_PREFIX}service"
_NAME = re.compile(rf"{_PREFIX}(?P<identity>[0-9]+-[0-9]+)-(?P<namespace>[0-9]+)-[0-9]+")
_numbers = itertools.count()
_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_MAX_FILE_BYTES = 64 * 1024


class Counters(NamedTuple):
    """What the kernel counted for one run."""

    cpu_seconds: float
    max_memory_bytes: int
    oom_kills: int
    """Processes killed because the run was over its memory limit."""
    refused_forks: int
    """Times that a process or thread was refused because the run had too many."""


class RunCgroup(Protocol):
    """The control group of one run."""

    def join(self, pid: int) -> None:
        """Put a process in; its later children are in from their birth."""

    def counters(self) -> Counters:
        """What was counted so far."""

    def remove(self) -> None:
        """Kill what is still in it, and remove it."""


class CgroupHost(Protocol):
    """Makes the control groups of one service process."""

    version: int

    def create(self, name: str, *, memory_bytes: int, processes: int) -> RunCgroup:
        """A new group with these limits; no swap."""

    def close(self) -> None:
        """Remove the group that the runs' groups were in."""


class NoCgroups(Exception):
    """This process can't make control groups; the message says why and how to mend it."""


def find(mounts: Path = _MOUNTS, own: Path = _OWN) -> CgroupHost:
    """The control groups that this process may use, proved by making one; raises `NoCgroups`."""
    tried = []
    for kind in (_Version2, _Version1):
        try:
            host = kind(mounts.read_text(), own.read_text())
            try:
                _try_out(host)
            except OSError:
                host.close()
                raise
        except OSError as fault:
            tried.append(f"version {kind.version}: {fault.strerror} ({fault.filename or 'as it was written'})")
        except NoCgroups as fault:
            tried.append(f"version {kind.version}: {fault}")
        else:
            host.reap()
            return host
    raise NoCgroups("; ".join(tried))


def _try_out(host: CgroupHost) -> None:
    """Make a group with a process in it: to move one into a group needs more rights than to make the group."""
    group = host.create("probe", memory_bytes=32 << 20, processes=4)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:  # noqa: S607  wherever it is
        try:
            group.join(process.pid)
        finally:
            process.kill()
            process.wait()
            group.remove()


def find_for_service(*, wanted: bool = True) -> tuple[CgroupHost | None, tuple[str, ...]]:
    """The control groups, or none and the warning about what is weaker without."""
    try:
        if not wanted:
            raise NoCgroups("switched off")
        return find(), ()
    except NoCgroups as why:
        warning = (
            "Weaker limits: this process can't make control groups, so memory is bounded for each process by itself and for all "
            "of a run's processes together only by a look at them ten times a second; files that a run writes count to no memory "
            "limit; processor time is bounded for each process by itself; and who went over a process limit is not counted. To "
            f"mend it, run the service under systemd with Delegate=yes (deploy/systemd/spillbox.service), or as root. ({why})"
        )
        return None, (warning,)


def for_run(host: CgroupHost, limits: Limits, *, own_processes: int) -> RunCgroup:
    """A group with the limits of a run; ``own_processes`` of ours are in it too."""
    name = secrets.token_hex(8)
    return host.create(name, memory_bytes=limits.memory_bytes, processes=limits.processes + own_processes)


class _Version1:
    version = 1
    _NEEDED = ("memory", "pids", "cpuacct")

    def __init__(self, mounts: str, own: str) -> None:
        points = {}
        for line in mounts.splitlines():
            mount, _, system = line.partition(" - ")
            kind, *_, options = system.split()
            if kind == "cgroup":
                points.update({controller: Path(mount.split()[4]) for controller in options.split(",")})
        paths = {}
        for line in own.splitlines():
            _, controllers, path = line.split(":", 2)
            paths.update({controller: path.lstrip("/") for controller in controllers.split(",")})
        if missing := [c for c in self._NEEDED if c not in points]:
            raise NoCgroups(f"no controller {', '.join(missing)}")
        self._tops = {}
        name = _new_name()
        for controller in self._NEEDED:
            inside = points[controller] / paths.get(controller, "")
            self._tops[controller] = (inside if inside.is_dir() else points[controller]) / name

    def create(self, name: str, *, memory_bytes: int, processes: int) -> "_Run1":
        folders = {controller: top / name for controller, top in self._tops.items()}
        for folder in dict.fromkeys(folders.values()):
            try:
                folder.mkdir()
            except FileNotFoundError:  # the first run
                folder.mkdir(parents=True)
        memory = folders["memory"]
        _write(memory / "memory.limit_in_bytes", memory_bytes)
        with suppress(FileNotFoundError):  # a kernel without swap accounting has no such file; swappiness 0 remains
            _write(memory / "memory.memsw.limit_in_bytes", memory_bytes)
        _write(memory / "memory.swappiness", 0)
        _write(folders["pids"] / "pids.max", processes)
        return _Run1(folders)

    def reap(self) -> None:
        for top in self._tops.values():
            _reap(top.parent)

    def close(self) -> None:
        for top in dict.fromkeys(self._tops.values()):
            _remove_all(top)


class _Run1:
    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders
        memory, pids, cpu = (folders[controller] for controller in ("memory", "pids", "cpuacct"))
        self._cpu, self._peak, self._oom, self._forks = self._files = (
            _File(cpu / "cpuacct.usage"), _File(memory / "memory.max_usage_in_bytes"),
            _File(memory / "memory.oom_control"), _File(pids / "pids.events"),
        )  # fmt: skip

    def join(self, pid: int) -> None:
        for folder in dict.fromkeys(self._folders.values()):
            _write(folder / "cgroup.procs", pid)

    def counters(self) -> Counters:
        return Counters(
            cpu_seconds=int(self._cpu.text()) / 1e9,
            max_memory_bytes=int(self._peak.text()),
            oom_kills=self._oom.field("oom_kill"),
            refused_forks=self._forks.field("max"),
        )

    def remove(self) -> None:
        for file in self._files:
            file.close()
        for folder in dict.fromkeys(self._folders.values()):
            _remove(folder)


class _Version2:
    version = 2

    def __init__(self, mounts: str, own: str) -> None:
        point = next((line.split()[4] for line in mounts.splitlines() if " - cgroup2 " in line), None)
        path = next((line.split(":", 2)[2] for line in own.splitlines() if line.startswith("0::")), None)
        if point is None or path is None:
            raise NoCgroups("not mounted")
        self._top = _place(Path(point), Path(point) / path.lstrip("/")) / _new_name()
        self._top.mkdir()
        try:
            (self._top / "cgroup.subtree_control").write_text("+memory +pids")
        except OSError:
            self.close()
            raise

    def create(self, name: str, *, memory_bytes: int, processes: int) -> "_Run2":
        folder = self._top / name
        folder.mkdir()
        (folder / "memory.max").write_text(str(memory_bytes))
        (folder / "memory.oom.group").write_text("0")
        (folder / "pids.max").write_text(str(processes))
        if (folder / "memory.swap.max").exists():
            (folder / "memory.swap.max").write_text("0")
        return _Run2(folder)

    def reap(self) -> None:
        _reap(self._top.parent)

    def close(self) -> None:
        _remove_all(self._top)


def _place(point: Path, own: Path) -> Path:
    """A group in which this process may make others that have the controllers; raises `NoCgroups`.

    A group that hands controllers down may hold no process itself (cgroup-v2.rst, "No Internal Process Constraint"). If this
    process is alone in its own, as a service of systemd is, it goes a level lower. Where others are in it too, as in a session,
    it is the next one above that hands them down already: root may use that, and a user those of his own systemd.
    """
    if own.name == _LOWER:
        return own.parent
    missing = [one for one in ("memory", "pids") if one not in _words(own / "cgroup.controllers")]
    if not missing and os.access(own, os.W_OK) and _words(own / "cgroup.procs") <= {str(os.getpid())}:
        lower = own / _LOWER
        lower.mkdir(exist_ok=True)
        (lower / "cgroup.procs").write_text(str(os.getpid()))
        (own / "cgroup.subtree_control").write_text("+memory +pids")
        return own
    for group in (own, *own.parents):
        hands_down = {"memory", "pids"} <= _words(group / "cgroup.subtree_control")
        if hands_down and os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK):
            return group
        if group == point:
            break
    raise NoCgroups(
        f"no controller {', '.join(missing)} in {own}" if missing
        else f"neither {own}, in which other processes are too, nor a group above lets this user make groups"
    )  # fmt: skip


def _words(file: Path) -> set[str]:
    return set(file.read_text().split()) if file.exists() else set()


class _Run2:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        peak = _File(folder / "memory.peak", otherwise=folder / "memory.current")  # the first since Linux 5.19
        self._cpu, self._peak, self._oom, self._forks = self._files = (
            _File(folder / "cpu.stat"), peak,
            _File(folder / "memory.events"), _File(folder / "pids.events"),
        )  # fmt: skip

    def join(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def counters(self) -> Counters:
        return Counters(
            cpu_seconds=self._cpu.field("usage_usec") / 1e6,
            max_memory_bytes=int(self._peak.text()),
            oom_kills=self._oom.field("oom_kill"),
            refused_forks=self._forks.field("max"),
        )

    def remove(self) -> None:
        for file in self._files:
            file.close()
        with suppress(OSError):
            (self._folder / "cgroup.kill").write_text("1")  # since Linux 5.14
        _remove(self._folder)


def _write(file: Path, value: int) -> None:
    """To a file of the kernel's, which is there: each run needs seven of these, and `Path.write_text` takes twice as long."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"%d" % value)
    finally:
        os.close(fd)


class _File:
    """A file of the kernel's that is kept open once it was read, since each run waits until four of them are read."""

    def __init__(self, path: Path, *, otherwise: Path | None = None) -> None:
        self._path = path
        self._otherwise = otherwise
        self._fd = -1

    def text(self) -> str:
        if self._fd < 0:
            path = self._path if self._otherwise is None or self._path.exists() else self._otherwise
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._fd, _MAX_FILE_BYTES, 0).decode()

    def field(self, key: str) -> int:
        for line in self.text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
        return 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _new_name() -> str:
    """Of a service's group: with the process's id and where that holds, so that a later service knows whether it is orphaned."""
    return f"{_PREFIX}{identity_of(os.getpid())}-{pid_namespace()}-{next(_numbers)}"


def _reap(parent: Path) -> None:
    """Remove the groups of services that are no more, with every process left in them; those of other namespaces stay."""
    for top in parent.glob(f"{_PREFIX}*"):
        ours = _NAME.fullmatch(top.name)
        if ours and has_ended(ours["identity"], ours["namespace"]):
            _remove_all(top)


def _remove_all(top: Path) -> None:
    """Remove a service's group with those of its runs; waits a second for what the kernel holds on to."""
    for folder in [*(f for f in top.glob("*") if f.is_dir()), top]:
        _keep_removing(folder)


def _remove(folder: Path) -> None:
    """Kill what is in the group and remove it; what the kernel holds on to is tried again apart, for a second."""
    if not _try_to_remove(folder):
        threading.Thread(target=_keep_removing, args=(folder,), daemon=True).start()


def _keep_removing(folder: Path) -> None:
    for _ in range(200):
        if _try_to_remove(folder):
            return
        time.sleep(0.005)


def _try_to_remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        with suppress(OSError):
            for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                if pid:  # of another pid namespace; for kill(2) it would be our own process group
                    os.kill(pid, 9)
        return not folder.exists()  # a file system that is read-only says EROFS of a folder that is not there too
    return True
