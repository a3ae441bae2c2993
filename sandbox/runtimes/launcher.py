"""The service's side of a launcher: an interpreter in an outer nsjail that has imported the libraries and forks warm jails."""

import select
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sandbox.errors import JailFailed
from sandbox.guest import wire
from sandbox.job import Limits
from sandbox.runtimes import policy, seccomp
from sandbox.runtimes.cgroups import RunCgroup
from sandbox.runtimes.identities import Identities
from sandbox.runtimes.jail import Channels, Jail, join
from sandbox.runtimes.nsjail_config import Walls, build_launcher_config
from sandbox.runtimes.nsjail_process import NsjailProcess
from sandbox.workspace import READ_ONLY_FOLDERS, Identity

_UP_SECONDS, _LEAVE_SECONDS = 60, 5


class Launcher:
    """One launcher. It is used from one thread; any surprise on its wire ends it."""

    def __init__(self, kind: str, nsjail: Path, walls: Walls, workspaces: Path, identities: Identities) -> None:
        """Start one of a kind, ``plain`` or ``office``; raises `JailFailed`, with the cure, where it can't be."""
        self._walls = walls
        self._identities = identities
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(_UP_SECONDS)
        with theirs:
            self._process = NsjailProcess(nsjail, pass_fds=(theirs.fileno(),))
            config = build_launcher_config(
                walls, workspaces, kind, link_fd=theirs.fileno(), ids=identities.launcher_ids
            )
            self._process.begin(config)
        own = seccomp.program(also=seccomp.FOR_LAUNCHERS) if walls.seccomp else seccomp.NO_FILTER
        try:
            self.modules = frozenset(wire.decode_up(self.link.recv(wire.MAX_MESSAGE_BYTES)))
            self.link.send(wire.encode_filters(own, b""))
        except (OSError, ValueError):
            why = self._process.log()
            self.close()
            raise JailFailed(f"A launcher of warm jails did not start. {why}") from None

    @property
    def pid(self) -> int:
        """Of its nsjail, on the host."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, nor said anything that it should not."""
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        return not poll.poll(0)

    def spawn(self, limits: Limits, *, make_cgroup: Callable[[], RunCgroup] | None) -> Jail:
        """Make a jail; blocks until it is READY. Raises `JailFailed`; whether the launcher is still good, `is_alive` says."""
        with ExitStack() as holds:
            identity = holds.enter_context(self._identities.one())
            cgroup = None
            if make_cgroup is not None:
                cgroup = make_cgroup()
                holds.callback(cgroup.remove)
            channels = Channels()
            try:
                self._send(wire.encode_spawn(self._shape(limits, identity)), channels.jail_fds)
            except OSError as fault:
                channels.close()
                raise JailFailed(f"A launcher of warm jails has ended ({fault.strerror}).") from None
            finally:
                channels.close_jail_ends()
            try:
                pid, _ = channels.receive(wire.BORN)
                if cgroup is not None:
                    join(cgroup, pid)
                    cgroup.counters()  # so that its files are open when a run waits for them
                channels.send_filters(seccomp.NO_FILTER, self._walls.seccomp)
                return Jail.when_ready(channels, identity, cgroup, holds)
            except BaseException:
                channels.close()
                raise

    def _send(self, message: bytes, fds: tuple[int, ...]) -> None:
        self.link.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))])

    def _shape(self, limits: Limits, identity: Identity) -> dict[str, Any]:
        """All that `sandbox/guest/launcher.py` must know to build the jail."""
        flags = 0
        for name in self._walls.namespaces:
            flags |= policy.NAMESPACES[name]
        return {
            "uid": self._identities.inside(identity),
            "namespaces": flags,
            "hostname": policy.HOSTNAME,
            "read_only": READ_ONLY_FOLDERS,
            "tmpfs": [(mount.place, mount.options, mount.executable) for mount in policy.tmpfs_mounts(limits)],
            # Process 1 is in the outer user namespace, where the kernel does not count it against the guest.
            "rlimits": policy.resource_limits(limits, with_cgroup=self._walls.with_cgroup, own_processes=0),
        }

    def close(self) -> None:
        """End it, and with it everything that it has started."""
        self.link.close()  # it leaves by itself then
        self._process.close(within_seconds=_LEAVE_SECONDS)
