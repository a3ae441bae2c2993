"""A jail that stands: made by a runtime, used for one run, buried."""

import os
import select
import signal
import socket
import struct
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

from sandbox.errors import JailLost
from sandbox.guest import wire
from sandbox.runtimes.cgroups import RunCgroup
from sandbox.workspace import Identity

START_SECONDS = 20
_BURY_SECONDS = 10
_MAX_SAID_CHARACTERS = 500
_CREDENTIALS = "3i"


class Channels:
    """The wire and the output pipes of a jail that is to be: the service's ends, and the jail's until it has them."""

    def __init__(self) -> None:
        self.control, self._jail_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # messages bring process 1's id on the host
        self.control.settimeout(START_SECONDS)
        self.stdout_fd, self._stdout_write = os.pipe()
        self.stderr_fd, self._stderr_write = os.pipe()

    @property
    def jail_fds(self) -> tuple[int, int, int]:
        """The jail's ends: of the wire, of stdout, of stderr."""
        return self._jail_end.fileno(), self._stdout_write, self._stderr_write

    def close_jail_ends(self) -> None:
        """When the jail has them."""
        self._jail_end.close()
        os.close(self._stdout_write)
        os.close(self._stderr_write)

    def close(self) -> None:
        """Close the service's ends."""
        self.control.close()
        os.close(self.stdout_fd)
        os.close(self.stderr_fd)

    def send_filters(self, first: bytes, script: bytes = b"") -> None:
        """Send FILTERS; raises `JailLost`."""
        try:
            self.control.send(wire.encode_filters(first, script))
        except OSError as fault:
            raise JailLost(f"The jail ended at its start ({fault.strerror}). {self._said()}") from None

    def receive(self, expected: bytes, *, descriptors: int = 0) -> tuple[int, list[int]]:
        """Wait for a message of process 1: gives its id on the host, and the descriptors that must come with it.

        Raises `JailLost` if another message comes or none, with what was said on stderr: no guest code has run yet.
        """
        space = socket.CMSG_SPACE(2 * 4) + socket.CMSG_SPACE(struct.calcsize(_CREDENTIALS))
        try:
            message, ancillary, _, _ = self.control.recvmsg(64, space)
        except TimeoutError:
            raise JailLost(f"The jail did not start within {START_SECONDS} s. {self._said()}") from None
        except OSError as fault:
            raise JailLost(f"The jail did not start ({fault.strerror}). {self._said()}") from None
        fds: list[int] = []
        pid = 0
        for _level, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS:
                fds += struct.unpack(f"{len(data) // 4}i", data)
            elif kind == socket.SCM_CREDENTIALS:
                pid = struct.unpack(_CREDENTIALS, data)[0]
        if message != expected or len(fds) != descriptors or pid <= 0:
            for fd in fds:
                os.close(fd)
            raise JailLost(f"The jail did not start. {self._said()}")
        return pid, fds

    def _said(self) -> str:
        os.set_blocking(self.stderr_fd, False)
        with suppress(BlockingIOError):
            if said := os.read(self.stderr_fd, 4 * _MAX_SAID_CHARACTERS).decode(errors="replace").strip():
                return f"It said: {said[-_MAX_SAID_CHARACTERS:]}"
        return ""


@dataclass
class Jail:
    """A jail that is READY: a tree to fill, and a process 1 that waits for GO. All that it holds is let go of by `bury`."""

    channels: Channels
    identity: Identity
    pid: int
    pidfd: int
    cgroup: RunCgroup | None
    workspace_fd: int
    report_fd: int
    holds: ExitStack
    """What is let go of when nothing of the jail lives."""

    @classmethod
    def when_ready(cls, channels: Channels, identity: Identity, cgroup: RunCgroup | None, holds: ExitStack) -> Self:
        """Wait for READY, and take over all of ``holds``. Raises `JailLost`; then nothing was taken over."""
        pid, (workspace_fd, report_fd) = channels.receive(wire.READY, descriptors=2)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as fault:
            os.close(workspace_fd)
            os.close(report_fd)
            raise JailLost(f"The jail ended at its start ({fault.strerror}).") from None
        channels.control.setblocking(False)
        for fd in (channels.stdout_fd, channels.stderr_fd):
            os.set_blocking(fd, False)
        return cls(channels, identity, pid, pidfd, cgroup, workspace_fd, report_fd, holds.pop_all())

    @property
    def is_alive(self) -> bool:
        """Whether process 1 has not ended."""
        return not self._ends_within(0)

    def kill(self) -> None:
        """Kill process 1, and with it the kernel kills everything in the jail; a pidfd can't hit another process."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until process 1 has ended, which the kernel lets it only after all others of its jail."""
        self._ends_within(None)

    def bury(self) -> None:
        """Kill what lives, wait for its end, and let go of everything. Blocks for the few milliseconds that this takes."""
        self.kill()
        self._ends_within(_BURY_SECONDS)
        self.channels.close()
        for fd in (self.pidfd, self.workspace_fd, self.report_fd):
            os.close(fd)
        self.holds.close()

    def _ends_within(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))


def join(cgroup: RunCgroup, pid: int) -> None:
    """Put a process into a run's control group; raises `JailLost`."""
    try:
        cgroup.join(pid)
    except OSError as fault:
        raise JailLost(f"The run could not be put into its control group: {fault}.") from None
