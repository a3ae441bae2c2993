"""What there is to reach on the host, while attacks are tried: all of it made for them."""

import ctypes
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.doctor.attacks import SECRET
from sandbox.workspace import Identity

_IPC_CREAT, _IPC_RMID = 0o1000, 0  # linux/ipc.h
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Targets:
    """A listener, an abstract socket, shared memory, a process of the guests' user, and a secret that anyone may read."""

    port: int
    socket_name: str
    victim: subprocess.Popen[bytes]
    secret_folder: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of an attack."""
        null = Path("/dev/null").stat()
        return (str(self.port), self.socket_name, str(self.victim.pid), SECRET, f"{null.st_dev}-{null.st_ino}")

    @property
    def victim_lives(self) -> bool:
        """Whether no attack has killed it."""
        return self.victim.poll() is None


@contextmanager
def targets(identity: Identity) -> Iterator[Targets]:
    """Make them, for as long as the ``with``; ``identity`` is the host's ids that a guest will have."""
    other = os.geteuid() != identity.uid
    name = f"spillbox-doctor-{os.getpid()}-{os.urandom(4).hex()}"
    with (
        tempfile.TemporaryDirectory(prefix="spillbox-doctor-") as folder,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        Path(folder).chmod(0o755)
        (Path(folder) / "service.key").write_text(SECRET)
        (Path(folder) / "service.key").chmod(0o644)
        segment = _libc.shmget(0, 4096, 0o600 | _IPC_CREAT)
        abstract.bind("\0" + name)
        abstract.listen()
        victim = subprocess.Popen(
            ["/bin/sleep", "600"],
            user=identity.uid if other else None,
            group=identity.gid if other else None,
            extra_groups=[] if other else None,
        )
        try:
            yield Targets(tcp.getsockname()[1], name, victim, Path(folder))
        finally:
            victim.kill()
            victim.wait()
            _libc.shmctl(segment, _IPC_RMID, None)
