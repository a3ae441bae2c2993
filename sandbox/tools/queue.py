"""Who may go on when: turns in a workspace, slots of the machine, and room to wait; fair between tenants."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from weakref import WeakValueDictionary

from sandbox.errors import Busy
from sandbox.tenants import tenant_of

_LARGE_BYTES = 16 << 20


class Queue:
    """Bounds how many calls use jails at once, and how many of a tenant wait; over both, `Busy`.

    A slot belongs to a call, not to a run: the check of a document rides on the slot of the run that made it. What changes a
    workspace's files goes one after another, in the order in which it was asked for.
    """

    def __init__(self, *, slots: int, length: int, tenant_slots: int | None = None) -> None:
        """``tenant_slots``: the most that one tenant has at once, also while others are free."""
        self._slots = FairSlots(slots, tenant_slots or slots)
        self._large = FairSlots(1, 1)
        self._looking = FairSlots(slots, tenant_slots or slots)
        self._room = slots + length
        self._inside: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def slots(self) -> int:
        """How many calls can use jails at once."""
        return self._slots.count

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
            async with self._slots.one(tenant):
                yield

    @asynccontextmanager
    async def place(self, workspace_id: str) -> AsyncIterator[None]:
        """For a run. It waits for its turn first, so that a busy workspace holds no slot while it waits."""
        tenant = tenant_of(workspace_id)
        with self._let_in(tenant):
            async with self.turn(workspace_id), self._slots.one(tenant):
                yield

    def memory(self, workspace_id: str, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """For work without a jail that holds several times ``size_bytes`` in memory: if they are many, one at a time."""
        return self._large.one(tenant_of(workspace_id)) if size_bytes > _LARGE_BYTES else nullcontext()

    def look(self, workspace_id: str) -> AbstractAsyncContextManager[None]:
        """For reading through files, without a jail: as many at a time as there are slots."""
        return self._looking.one(tenant_of(workspace_id))

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


class FairSlots:
    """A number of slots. One that gets free goes to the tenant that has the fewest, of several to whose turn is longest ago."""

    def __init__(self, slots: int, most_of_one: int) -> None:
        self.count = slots
        self._free = slots
        self._most_of_one = most_of_one
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant; those who left are in it until it is their turn."""
        self._turns = itertools.count(1)
        self._last_turn: dict[str, int] = {}

    @property
    def held(self) -> int:
        """How many are taken."""
        return self.count - self._free

    @asynccontextmanager
    async def one(self, tenant: str) -> AsyncIterator[None]:
        """For as long as the ``with``."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def _take(self, tenant: str) -> None:
        # While a slot is free, whoever waits has as many as one may.
        if self._free and self._held[tenant] < self._most_of_one:
            self._let(tenant)
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                self._give_back(tenant)
            raise

    def _let(self, tenant: str) -> None:
        self._free -= 1
        self._held[tenant] += 1
        self._last_turn[tenant] = next(self._turns)

    def _give_back(self, tenant: str) -> None:
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        while self._free and (following := self._following()) is not None:
            tenant, waiting = following
            self._let(tenant)
            waiting.set_result(None)

    def _following(self) -> "tuple[str, asyncio.Future[None]] | None":
        """Whose turn it is, taken out of those that wait."""
        able = (tenant for tenant in self._waiting if self._held[tenant] < self._most_of_one)
        for tenant in sorted(able, key=lambda one: (self._held[one], self._last_turn.get(one, 0))):
            waiting = self._waiting[tenant]
            found = None
            while waiting and found is None:
                first = waiting.popleft()
                found = None if first.done() else first  # it may have left
            if not waiting:
                del self._waiting[tenant]
            if found is not None:
                return tenant, found
        return None
