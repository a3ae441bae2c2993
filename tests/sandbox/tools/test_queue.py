"""Turns, slots and room."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from sandbox.errors import Busy
from sandbox.tools.queue import Queue


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
        group.create_task(recorder.hold("b", queue.slot()))
        await _settle()
        with pytest.raises(Busy):
            async with queue.slot():
                raise AssertionError
        recorder.let_go.set()
    async with queue.slot():
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
