"""Blocking work on threads, which go on when who waits for them is cancelled."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

import anyio

T = TypeVar("T")


class Stopped(Exception):
    """Raised by work that was told to stop, and has changed nothing."""


def _nothing() -> None:
    pass


async def on_thread(
    work: Callable[[], T], *, threads: Executor | None = None, cancel: Callable[[], None] = _nothing
) -> T:
    """Do work that must not be left alone: a cancelled caller calls ``cancel``, waits, and is cancelled afterwards.

    The thread would use descriptors that are closed, or another's, by then.
    """
    task = _begin(work, threads)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _end(task, cancel)
        raise


async def to_its_end(work: Callable[[], T], *, stop: Callable[[], None] = _nothing) -> T:
    """Do work that changes what others see: a cancelled caller calls ``stop``, waits, and gets what came of it all the same;
    only if that is `Stopped` it is cancelled.
    """
    task = _begin(work, None)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _end(task, stop)
        if isinstance(task.exception(), Stopped):
            raise
        return task.result()


def _begin(work: Callable[[], T], threads: Executor | None) -> asyncio.Future[T]:
    """No task, which the end of the event loop would cancel."""
    return asyncio.get_running_loop().run_in_executor(threads, copy_context().run, work)


async def _end(task: asyncio.Future[T], stop: Callable[[], None]) -> None:
    stop()
    # A cancelled scope of anyio's would cancel again at each turn of the event loop.
    with anyio.CancelScope(shield=True):
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
    task.exception()  # it has been seen
