"""Work on threads whose caller is cancelled."""

import asyncio
import threading
from collections.abc import Callable

import anyio
import pytest

from sandbox.threads import Stopped, on_thread, to_its_end


def _work(result: str | Exception) -> tuple[asyncio.Event, threading.Event, Callable[[], str]]:
    """Work that tells when it has begun, and ends when it may."""
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def work() -> str:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(10)
        if isinstance(result, Exception):
            raise result
        return result

    return begun, may_end, work


async def test_a_cancelled_caller_waits_and_is_cancelled_then() -> None:
    begun, may_end, work = _work("done")
    told = threading.Event()
    task = asyncio.create_task(on_thread(work, cancel=told.set))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0.05)
    assert told.is_set()
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_was_changed_is_told_to_a_cancelled_caller() -> None:
    begun, may_end, work = _work("done")
    task = asyncio.create_task(to_its_end(work, stop=may_end.set))
    await begun.wait()
    task.cancel()
    assert await task == "done"


async def test_a_fault_is_told_to_a_cancelled_caller() -> None:
    begun, may_end, work = _work(ValueError("no room"))
    task = asyncio.create_task(to_its_end(work, stop=may_end.set))
    await begun.wait()
    task.cancel()
    with pytest.raises(ValueError, match="no room"):
        await task


async def test_what_was_stopped_is_cancelled() -> None:
    begun, may_end, work = _work(Stopped())
    task = asyncio.create_task(to_its_end(work, stop=may_end.set))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_caller_in_a_cancelled_scope_of_anyio_is_cancelled_once_and_not_at_each_turn_of_the_loop() -> None:
    begun, may_end, work = _work("done")
    scope, told = anyio.CancelScope(), list[object]()

    async def call() -> None:
        with scope:
            told.append(await to_its_end(work))
            told.append(_task().cancelling())

    task = asyncio.create_task(call())
    await begun.wait()
    scope.cancel()
    await asyncio.sleep(0.05)
    may_end.set()
    await task
    assert told == ["done", 1]


def _task() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    assert task is not None
    return task


def test_the_end_of_an_event_loop_waits_for_what_is_under_way() -> None:
    came: list[str] = []

    async def main() -> None:
        begun, may_end, work = _work("done")

        async def change() -> None:
            came.append(await to_its_end(work, stop=may_end.set))

        main.change = asyncio.create_task(change())  # type: ignore[attr-defined]  # so that it lives
        await begun.wait()

    asyncio.run(main())
    assert came == ["done"]
