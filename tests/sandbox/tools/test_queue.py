"""Turns, slots and room."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from sandbox.errors import Busy
from sandbox.tools.queue import FairShares, Queue


class Recorder:
    """Holds places until told to let go, and keeps the order in which they were had."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.had: list[str] = []
        self.let_go = asyncio.Event()

    async def hold(self, name: str, place: AbstractAsyncContextManager[None]) -> None:
        async with place:
            self.had.append(name)
            await self.let_go.wait()


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_waiting_workspace_holds_no_slot() -> None:
    recorder = Recorder(Queue(slots=2, length=10))
    async with asyncio.TaskGroup() as group:
        for name in ("a1", "a2", "a3", "b1"):
            group.create_task(recorder.hold(name, recorder.queue.place(name[0])))
            await _settle()
        assert recorder.had == ["a1", "b1"]
        recorder.let_go.set()
    assert recorder.had == ["a1", "b1", "a2", "a3"]


async def test_over_its_room_it_is_busy_and_recovers() -> None:
    queue = Queue(slots=1, length=1)
    recorder = Recorder(queue)
    async with asyncio.TaskGroup() as group:
        group.create_task(recorder.hold("a", queue.place("a")))
        group.create_task(recorder.hold("b", queue.slot("b")))
        await _settle()
        with pytest.raises(Busy):
            async with queue.slot("b"):
                raise AssertionError
        recorder.let_go.set()
    async with queue.slot("b"):
        pass


async def test_a_cancelled_wait_gives_its_room_back() -> None:
    queue = Queue(slots=1, length=1)
    recorder = Recorder(queue)
    async with queue.place("a"):
        waiting = asyncio.create_task(recorder.hold("b", queue.place("a")))
        await _settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        recorder.let_go.set()
        other = asyncio.create_task(recorder.hold("c", queue.place("c")))
        await _settle()
    await other
    assert recorder.had == ["c"]


async def test_file_changes_and_runs_of_a_workspace_take_turns() -> None:
    queue = Queue(slots=4, length=4)
    recorder = Recorder(queue)
    async with queue.turn("a"):
        waiting = asyncio.create_task(recorder.hold("run", queue.place("a")))
        await _settle()
        assert recorder.had == []
    recorder.let_go.set()
    await waiting


async def test_a_slot_goes_to_the_tenant_that_has_the_fewest() -> None:
    queue = Queue(slots=2, length=100)
    had: list[str] = []

    async def run(tenant: str, number: int) -> None:
        async with queue.place(f"{tenant}~{number}"):
            had.append(tenant)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(run("loud", number))
        await _settle()
        for number in range(5):
            group.create_task(run("quiet", number))
            group.create_task(run("shy", number))
    assert len(had) == 60
    assert all(had[2:17].count(tenant) >= 4 for tenant in ("loud", "quiet", "shy"))


async def test_a_tenant_that_fills_its_room_keeps_no_other_out() -> None:
    queue = Queue(slots=1, length=1)
    recorder = Recorder(queue)
    async with asyncio.TaskGroup() as group:
        for name in ("a~1", "a~2", "b~1"):
            group.create_task(recorder.hold(name, queue.place(name)))
        await _settle()
        with pytest.raises(Busy):
            async with queue.place("a~3"):
                raise AssertionError
        recorder.let_go.set()
    assert recorder.had == ["a~1", "b~1", "a~2"]


async def test_one_tenant_has_no_more_slots_than_it_may() -> None:
    queue = Queue(slots=3, length=10, tenant_slots=2)
    recorder = Recorder(queue)
    async with asyncio.TaskGroup() as group:
        for name in ("a~1", "a~2", "a~3", "b~1"):
            group.create_task(recorder.hold(name, queue.place(name)))
        await _settle()
        assert recorder.had == ["a~1", "a~2", "b~1"]
        recorder.let_go.set()
    assert recorder.had[-1] == "a~3"


async def test_whoever_leaves_while_waiting_takes_no_slot_along() -> None:
    queue = Queue(slots=1, length=10)
    recorder = Recorder(queue)
    async with asyncio.TaskGroup() as group:
        group.create_task(recorder.hold("a~1", queue.place("a~1")))
        await _settle()
        leaving = [group.create_task(recorder.hold(name, queue.place(name))) for name in ("b~1", "b~2")]
        await _settle()
        recorder.let_go.set()
        leaving[0].cancel()
        leaving[1].cancel()
        await _settle()
    async with asyncio.timeout(1), queue.place("c~1"), queue.look("c~1"), queue.memory("c~1", 1 << 30):
        pass


@pytest.mark.parametrize("kind", ["look", "memory"])
async def test_over_their_room_those_who_read_are_told_and_other_tenants_go_on(kind: str) -> None:
    queue = Queue(slots=1, length=1)
    recorder = Recorder(queue)

    def place(workspace: str) -> AbstractAsyncContextManager[None]:
        return queue.look(workspace) if kind == "look" else queue.memory(workspace, 1 << 30)

    async with asyncio.TaskGroup() as group:
        group.create_task(recorder.hold("a~1", place("a~1")))
        await _settle()
        group.create_task(recorder.hold("a~2", place("a~2")))
        await _settle()
        with pytest.raises(Busy, match="1 calls of this kind wait already"):
            async with place("a~3"):
                raise AssertionError
        group.create_task(recorder.hold("b~1", place("b~1")))
        await _settle()
        recorder.let_go.set()
    assert recorder.had == ["a~1", "b~1", "a~2"]
    async with place("a~1"):
        pass


async def test_a_result_that_is_there_waits_however_many_do() -> None:
    queue = Queue(slots=1, length=0)
    recorder = Recorder(queue)
    async with asyncio.TaskGroup() as group:
        for name in ("w1", "w2", "w3"):
            group.create_task(recorder.hold(name, queue.memory(name, 1 << 30, always=True)))
        await _settle()
        recorder.let_go.set()
    assert recorder.had == ["w1", "w2", "w3"]


async def test_a_large_share_is_not_kept_waiting_by_many_small_ones() -> None:
    shares = FairShares(10, 10)
    had: list[str] = []

    async def use(name: str, count: int) -> None:
        async with shares.some(name[0], count):
            had.append(name)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(use(f"s{number}", 2))
        await _settle()
        group.create_task(use("large", 9))
        await _settle()
        group.create_task(use("t", 2))
    assert len(had) == 12
    assert had[5] == "large", "who has nothing comes next, and waits for all that it needs"


async def test_of_bytes_nobody_has_more_than_there_are_or_one_may() -> None:
    shares = FairShares(10, 6, 20)
    held: dict[str, int] = {"a": 0, "b": 0, "c": 0}
    most = {"one": 0, "all": 0}

    async def use(tenant: str, count: int) -> None:
        async with shares.some(tenant, count):
            held[tenant] += count
            most["one"], most["all"] = max(most["one"], *held.values()), max(most["all"], sum(held.values()))
            await asyncio.sleep(0)
            held[tenant] -= count

    async with asyncio.TaskGroup() as group:
        for number in range(60):
            group.create_task(use("abc"[number % 3], number % 6 + 1))
    assert most == {"one": 6, "all": 10}


async def test_whoever_leaves_lets_those_go_on_that_waited_behind() -> None:
    shares = FairShares(10, 10)
    await shares.take("a", 5)
    large = asyncio.create_task(shares.take("b", 10))
    await _settle()
    small = asyncio.create_task(shares.take("c", 5))
    await _settle()
    assert not small.done()
    large.cancel()
    await asyncio.wait_for(small, 1)
