"""Programs of the operator's choice behind walls, such as other MCP servers: no runs, but guests that stay."""

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sandbox.errors import SetupFailed
from sandbox.guest_root import GuestRoot
from sandbox.runtimes import seccomp
from sandbox.runtimes.cgroups import RunCgroup, find_for_service
from sandbox.runtimes.identities import process_identities
from sandbox.runtimes.nsjail_config import PROGRAM_CONFIG_FILE, Program, Walls, build_program_config
from sandbox.runtimes.nsjail_process import find_nsjail
from sandbox.workspace import Identity

_log = logging.getLogger(__name__)

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108  the jail's own
    "TMPDIR": "/tmp",  # noqa: S108  the jail's own
    "LANG": "C.UTF-8",
}
"""What a program has of an environment, where its own says nothing else."""

_OWN_PROCESSES = 2  # nsjail and process 1 are in the program's group too


class Start:
    """How one program is started: run ``command`` with ``fds`` keeping their numbers, then call `begin`."""

    def __init__(
        self, config: str, config_pipe: tuple[int, int], jail_fds: tuple[int, ...], group: RunCgroup | None
    ) -> None:
        self._config, self._pipe, self._group = config, config_pipe, group
        self.command = (str(find_nsjail()), "--config", f"/proc/self/fd/{config_pipe[0]}")
        self.fds = (config_pipe[0], *jail_fds)

    def begin(self, pid: int) -> None:
        """Let the process that was started, which waits, build its walls and become the program."""
        if self._group is not None:
            self._group.join(pid)
        os.close(self._pipe[0])
        with suppress(BrokenPipeError), os.fdopen(self._pipe[1], "w", closefd=False) as writer:
            writer.write(self._config)
        os.close(self._pipe[1])
        self._pipe = (-1, -1)

    def close(self) -> None:
        """Let go of what was not used."""
        for fd in self._pipe:
            if fd >= 0:
                os.close(fd)


def require_folders(program: Program) -> None:
    """Raises `SetupFailed` for a folder that can't be shown to a program, `PermissionError` for one that this user can't see."""
    for folder in (*program.read, *program.write):
        if not folder.is_absolute() or folder == Path("/") or not folder.exists():
            raise SetupFailed(
                f"{folder} can't be shown to a program behind walls. Give the full path of a folder that is there."
            )


class Programs:
    """Puts walls around programs."""

    def __init__(self, root: GuestRoot, *, use_cgroups: bool = True) -> None:
        """``use_cgroups`` off gives the weaker limits of a host without them, for tests."""
        self._cgroups, warnings = find_for_service(wanted=use_cgroups)
        if warnings:
            _log.warning(
                "The memory of programs behind walls is not bounded, since this process can't make control groups. To mend it, "
                "run the service as root, or under systemd with Delegate=yes."
            )
        self._identities = process_identities()
        self._walls = Walls(
            root=root.path.resolve(), with_cgroup=self._cgroups is not None, root_is_known=self._identities.are_own,
            config_file=PROGRAM_CONFIG_FILE, environment={}, seccomp=seccomp.program(also=seccomp.FOR_PROGRAMS, kills=False),
        )  # fmt: skip

    @property
    def bounds_memory(self) -> bool:
        """Whether this host can."""
        return self._cgroups is not None

    def check(self, program: Program) -> None:
        """Raises `SetupFailed` for a program that can't be started as it is meant."""
        try:
            require_folders(program)
        except PermissionError as fault:
            raise SetupFailed(
                f"{fault.filename} can't be shown to a program behind walls: this service's user can't see it. Let it read there."
            ) from None
        if self._identities.are_own and program.write:
            owner = program.write[0].stat()
            if 0 in (owner.st_uid, owner.st_gid):
                raise SetupFailed(
                    f"A service that is root runs a program behind walls as the owner of the first folder that it may write to, "
                    f"and {program.write[0]} belongs to root, or to root's group. Give it to an account of its own: "
                    f"chown -R ACCOUNT: {program.write[0]}"
                )

    @contextmanager
    def behind_walls(self, program: Program) -> Iterator[Start]:
        """How to start it; at the end of the ``with`` it is killed, with all that it started. Raises as `check` does."""
        self.check(program)
        with ExitStack() as holds:
            identity = holds.enter_context(self._identity(program))
            group = None
            if self._cgroups is not None:
                group = self._cgroups.create(
                    secrets.token_hex(8),
                    memory_bytes=program.memory_bytes,
                    processes=program.processes + _OWN_PROCESSES,
                )
                holds.callback(group.remove)
            filter_fd = os.memfd_create("filter")
            holds.callback(os.close, filter_fd)
            os.write(filter_fd, self._walls.seccomp)
            os.lseek(filter_fd, 0, os.SEEK_SET)
            life_fd, our_end = os.pipe()  # the kernel closes ours however this process ends
            holds.callback(os.close, life_fd)
            holds.callback(os.close, our_end)
            config = build_program_config(program, self._walls, identity, filter_fd=filter_fd, life_fd=life_fd)
            start = Start(config, os.pipe(), (filter_fd, life_fd), group)
            holds.callback(start.close)
            yield start

    @contextmanager
    def _identity(self, program: Program) -> Iterator[Identity]:
        if self._identities.are_own and program.write:
            owner = program.write[0].stat()
            yield Identity(owner.st_uid, owner.st_gid)
        else:
            with self._identities.one() as identity:
                yield identity

    def close(self) -> None:
        """Remove the control group that the programs' groups were in."""
        if self._cgroups is not None:
            self._cgroups.close()
