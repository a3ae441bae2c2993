"""Who may go on when: turns in a workspace, slots of the machine, and room to wait; fair between tenants."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import NamedTuple
from weakref import WeakValueDictionary

from sandbox.errors import Busy
from sandbox.tenants import tenant_of

_LARGE_BYTES = 16 << 20


class Queue:
    """Bounds how many calls use jails, or read through files, at once, and how many of a tenant wait; over both, `Busy`.

    A slot belongs to a call, not to a run: the check of a document rides on the slot of the run that made it. What changes a
    workspace's files goes one after another, in the order in which it was asked for.
    """

    def __init__(self, *, slots: int, length: int, tenant_slots: int | None = None) -> None:
        """``tenant_slots``: the most that one tenant has at once, also while others are free."""
        self._slots = FairShares(slots, tenant_slots or slots)  # whoever waits was let in
        self._large = FairShares(1, 1, length)
        self._looking = FairShares(slots, tenant_slots or slots, length)
        self._room = slots + length
        self._inside: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def slots(self) -> int:
        """How many calls can use jails at once."""
        return self._slots.total

    @property
    def held(self) -> int:
        """How many do now."""
        return self._slots.held

    @property
    def waiting(self) -> int:
        """How many wait for that, for their turn in a workspace or for a slot."""
        return self._inside.total() - self._slots.held

    def turn(self, workspace_id: str) -> AbstractAsyncContextManager[None]:
        """For changing a workspace's files without a jail."""
        return self._turns.setdefault(workspace_id, asyncio.Lock())

    @asynccontextmanager
    async def slot(self, workspace_id: str) -> AsyncIterator[None]:
        """For using a jail without changing a workspace."""
        tenant = tenant_of(workspace_id)
        with self._let_in(tenant):
            async with self._slots.some(tenant):
                yield

    @asynccontextmanager
    async def place(self, workspace_id: str) -> AsyncIterator[None]:
        """For a run. It waits for its turn first, so that a busy workspace holds no slot while it waits."""
        tenant = tenant_of(workspace_id)
        with self._let_in(tenant):
            async with self.turn(workspace_id), self._slots.some(tenant):
                yield

    def memory(self, workspace_id: str, size_bytes: int, *, always: bool = False) -> AbstractAsyncContextManager[None]:
        """For work without a jail that holds several times ``size_bytes`` in memory: if they are many, one at a time.

        With ``always`` it waits, however many do: for what can't be asked for again.
        """
        if size_bytes <= _LARGE_BYTES:
            return nullcontext()
        return self._large.some(tenant_of(workspace_id), always=always)

    def look(self, workspace_id: str) -> AbstractAsyncContextManager[None]:
        """For reading through files, without a jail: as many at a time as there are slots."""
        return self._looking.some(tenant_of(workspace_id))

    @contextmanager
    def _let_in(self, tenant: str) -> Iterator[None]:
        inside = self._inside[tenant]
        if inside >= self._room:
            raise Busy(f"All slots are taken and {inside} calls are under way or waiting. Try again in a few seconds.")
        self._inside[tenant] += 1
        try:
            yield
        finally:
            self._inside[tenant] -= 1
            if not self._inside[tenant]:
                del self._inside[tenant]


class FairShares:
    """A number of slots, or of bytes. What gets free goes to the tenant that has least, of several to whose turn is longest ago.

    Nobody goes before the one whose turn it is, also if he needs more than is free: many small ones keep no large one waiting.
    """

    def __init__(self, total: int, most_of_one: int, most_waiting: int | None = None) -> None:
        """``most_of_one``: what one tenant has at once; ``most_waiting``: its calls that wait, any number if None."""
        self.total = total
        self._free = total
        self._most_of_one = most_of_one
        self._most_waiting = most_waiting
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Waiter]] = {}
        """By tenant; those who left are in it until it is their turn."""
        self._wait: Counter[str] = Counter()
        """How many of a tenant wait really."""
        self._turns = itertools.count(1)
        self._last_turn: dict[str, int] = {}

    @property
    def held(self) -> int:
        """How many are taken."""
        return self.total - self._free

    @asynccontextmanager
    async def some(self, tenant: str, count: int = 1, *, always: bool = False) -> AsyncIterator[None]:
        """For as long as the ``with``; see `take`."""
        await self.take(tenant, count, always=always)
        try:
            yield
        finally:
            self.give_back(tenant, count)

    async def take(self, tenant: str, count: int = 1, *, always: bool = False) -> None:
        """Wait for as many, which are no more than one tenant may have; raises `Busy` where too many wait, unless ``always``."""
        if not self._waiting and self._may_have(tenant, count) and count <= self._free:
            self._let(tenant, count)
            return
        mine = _Waiter(asyncio.get_running_loop().create_future(), count)
        self._waiting.setdefault(tenant, deque()).append(mine)
        self._let_following()
        if mine.turn.done():
            return
        if not always and self._most_waiting is not None and self._wait[tenant] >= self._most_waiting:
            mine.turn.cancel()
            raise Busy(f"{self._wait[tenant]} calls of this kind wait already. Try again in a few seconds.")
        self._wait[tenant] += 1
        try:
            await mine.turn
        except asyncio.CancelledError:
            if not mine.turn.cancelled():
                self.give_back(tenant, count)
            else:
                self._let_following()  # they may have waited for this one only
            raise
        finally:
            self._wait[tenant] -= 1
            if not self._wait[tenant]:
                del self._wait[tenant]

    def give_back(self, tenant: str, count: int = 1) -> None:
        """Let others have as many."""
        self._free += count
        self._held[tenant] -= count
        if not self._held[tenant]:
            del self._held[tenant]
        self._let_following()

    def _may_have(self, tenant: str, count: int) -> bool:
        return self._held[tenant] + count <= self._most_of_one

    def _let(self, tenant: str, count: int) -> None:
        self._free -= count
        self._held[tenant] += count
        self._last_turn[tenant] = next(self._turns)

    def _let_following(self) -> None:
        while (tenant := self._following()) is not None:
            first = self._waiting[tenant][0]
            if first.size > self._free:
                return
            self._let(tenant, first.size)
            first.turn.set_result(None)

    def _following(self) -> str | None:
        """Whose turn it is, of those that may have what they wait for; who has left is forgotten."""
        able = []
        for tenant, waiting in list(self._waiting.items()):
            while waiting and waiting[0].turn.done():
                waiting.popleft()
            if not waiting:
                del self._waiting[tenant]
            elif self._may_have(tenant, waiting[0].size):
                able.append(tenant)
        return min(able, key=lambda one: (self._held[one], self._last_turn.get(one, 0)), default=None)


class _Waiter(NamedTuple):
    turn: asyncio.Future[None]
    size: int
