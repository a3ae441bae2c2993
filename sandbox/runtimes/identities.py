"""The host's ids of guests."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import JailFailed
from sandbox.workspace import Identity

_FIRST_ID = 2_000_000_000  # far from any account; owns nothing on the host
MAX_JAILS = 256
"""At one time, in one process."""
_FALLBACK_ID = 65534  # "nobody"


@dataclass(frozen=True)
class IdRange:
    """Ids of a user namespace, and whose they are outside."""

    inside: int
    uid: int
    gid: int
    count: int


class Identities:
    """The ids of a service's guests. Where the service is root, each jail that is there at one time has an id of its own.

    The kernel counts some things for a user of the host, such as descriptors that are on their way between
    processes: guests that shared a user could use them up for each other. An ordinary user's guests have to share his.
    """

    def __init__(self, *, is_root: bool = os.geteuid() == 0, id_map: Path = Path("/proc/self/uid_map")) -> None:
        ranges = [(int(start), int(count)) for start, _, count in map(str.split, id_map.read_text().splitlines())]
        # The second is for a container that has few ids; one that has only root's own is like an ordinary user.
        candidates = (_FIRST_ID + os.getpid() * MAX_JAILS, _FALLBACK_ID - MAX_JAILS)
        firsts = [f for f in candidates if any(s <= f and f + MAX_JAILS <= s + n for s, n in ranges)]
        self.are_own = is_root and bool(firsts)
        self._first = firsts[0] if firsts else 0
        self._free = list(range(MAX_JAILS - 1, -1, -1))

    @property
    def launcher_ids(self) -> list[IdRange]:
        """What a launcher's user namespace maps; the first is its own id, the service's.

        An ordinary user is not 0 there: the kernel lets no process map an id 0 on without CAP_SETFCAP (since Linux 5.12).
        """
        own = IdRange(0 if self.are_own else 1, os.geteuid(), os.getegid(), 1)
        return [own, IdRange(1, self._first, self._first, MAX_JAILS)] if self.are_own else [own]

    def inside(self, identity: Identity) -> int:
        """An id as a launcher has it."""
        return identity.uid - self._first + 1 if self.are_own else 1

    @contextmanager
    def one(self) -> Iterator[Identity]:
        """An id for one jail, for as long as the ``with``."""
        if not self.are_own:
            yield Identity(os.geteuid(), os.getegid())
            return
        if not self._free:
            raise JailFailed(f"More than {MAX_JAILS} jails at once are not supported. Use fewer slots.")
        number = self._free.pop()
        try:
            yield Identity(self._first + number, self._first + number)
        finally:
            self._free.append(number)


@functools.cache
def process_identities() -> Identities:
    """Those of this process, whatever number of runtimes it has."""
    return Identities()
