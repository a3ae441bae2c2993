"""The one interface of everything that runs a job, and what wraps it."""

import asyncio
from typing import Protocol, runtime_checkable

from sandbox.errors import Busy
from sandbox.job import Execution, Job
from sandbox.runtimes.streams import OnOutput
from sandbox.workspace import Workspace


@runtime_checkable
class Runtime(Protocol):
    """Runs jobs.

    A wrapper of a Runtime is one too. `run` gives an `Execution` whatever the guest did; it raises only for a fault of our
    own (`JailFailed`) or of the caller. A cancelled `run` stops the job before it lets go.
    """

    @property
    def name(self) -> str:
        """Stands in `Execution.runtime`."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Limits that are weaker here than promised, each with how to mend it."""

    async def run(self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None) -> Execution:
        """Run one job in one workspace."""

    async def close(self) -> None:
        """Stop what is kept between runs."""


class Slots:
    """A Runtime that bounds how many runs go on at once, and how many wait; over both it raises `Busy`.

    Runs of one workspace go one after another, in the order in which they were asked for.
    """

    def __init__(self, inner: Runtime, *, slots: int, queue_length: int) -> None:
        self._inner = inner
        self._slots = asyncio.Semaphore(slots)
        self._room = slots + queue_length
        self._inside = 0
        self._order: dict[str, tuple[asyncio.Lock, int]] = {}

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._inner.warnings

    async def run(self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None) -> Execution:
        if self._inside >= self._room:
            raise Busy(
                f"All slots are taken and {self._room} runs are under way or waiting. Try again in a few seconds.",
                retry_after_seconds=2,
            )
        self._inside += 1
        try:
            async with self._slots:
                return await self._inner.run(job, workspace, run_id=run_id, on_output=on_output)
        finally:
            self._inside -= 1

    async def close(self) -> None:
        await self._inner.close()
