"""Who may go on when: turns in a workspace, slots of the machine, and room to wait."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from weakref import WeakValueDictionary

from sandbox.errors import Busy

_LARGE_BYTES = 16 << 20


class Queue:
    """Bounds how many calls use jails at once, and how many wait; over both, `Busy`.

    A slot belongs to a call, not to a run: the check of a document rides on the slot of the run that made it. What changes a
    workspace's files goes one after another, in the order in which it was asked for.
    """

    def __init__(self, *, slots: int, length: int) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._large = asyncio.Semaphore(1)
        self._looking = asyncio.Semaphore(slots)
        self._room = slots + length
        self._inside = 0
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, workspace_id: str) -> AbstractAsyncContextManager[None]:
        """For changing a workspace's files without a jail."""
        return self._turns.setdefault(workspace_id, asyncio.Lock())

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """For using a jail without changing a workspace."""
        with self._let_in():
            async with self._slots:
                yield

    @asynccontextmanager
    async def place(self, workspace_id: str) -> AsyncIterator[None]:
        """For a run. It waits for its turn first, so that a busy workspace holds no slot while it waits."""
        with self._let_in():
            async with self.turn(workspace_id), self._slots:
                yield

    def memory(self, size_bytes: int) -> AbstractAsyncContextManager[object]:
        """For work without a jail that holds several times ``size_bytes`` in memory: if they are many, one at a time."""
        return self._large if size_bytes > _LARGE_BYTES else nullcontext()

    def look(self) -> AbstractAsyncContextManager[None]:
        """For reading through files, without a jail: as many at a time as there are slots."""
        return self._looking

    @contextmanager
    def _let_in(self) -> Iterator[None]:
        if self._inside >= self._room:
            raise Busy(
                f"All slots are taken and {self._inside} calls are under way or waiting. Try again in a few seconds."
            )
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
