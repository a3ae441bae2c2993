"""The one interface of everything that runs a job, and what wraps it."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol
from weakref import WeakValueDictionary

from sandbox.errors import Busy
from sandbox.job import Execution, Job
from sandbox.runtimes.streams import OnOutput
from sandbox.workspace import Workspace


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

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None,
    ) -> Execution:  # fmt: skip
        """Run one job in one workspace. With ``final``, get ready for ``job``, then wait for its last form and run that."""

    async def close(self) -> None:
        """Stop what is kept between runs."""


class Wrapper:
    """A Runtime around another, for what adds to a run without changing it."""

    def __init__(self, inner: Runtime) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._inner.warnings

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None,
    ) -> Execution:  # fmt: skip
        return await self._inner.run(job, workspace, run_id=run_id, on_output=on_output, final=final)

    async def close(self) -> None:
        await self._inner.close()


class Turns:
    """One lock for each workspace: what changes files goes one after another, in the order in which it was asked for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, workspace_id: str) -> asyncio.Lock:
        """The workspace's lock; hold it while its files change."""
        return self._locks.setdefault(workspace_id, asyncio.Lock())


class Queued(Wrapper):
    """Bounds how many runs go on at once, and how many wait for their turn or a slot; over both it raises `Busy`.

    Runs that keep nothing, such as the check of a document, belong to a call that was let in before. They ride along:
    they need no turn and no room, and have slots of their own, since they may begin before their call's run has ended.
    """

    def __init__(self, inner: Runtime, turns: Turns, *, slots: int, queue_length: int) -> None:
        super().__init__(inner)
        self._turns = turns
        self._slots = asyncio.Semaphore(slots)
        self._ride_slots = asyncio.Semaphore(slots)
        self._room = slots + queue_length
        self._inside = 0

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None,
    ) -> Execution:  # fmt: skip
        if not job.keeps_outputs:
            async with self._ride_slots:
                return await super().run(job, workspace, run_id=run_id, on_output=on_output, final=final)
        if self._inside >= self._room:
            raise Busy(
                f"All slots are taken and {self._inside} runs are under way or waiting. Try again in a few seconds.",
                retry_after_seconds=2,
            )
        self._inside += 1
        try:
            async with self._turns.of(workspace.id), self._slots:
                return await super().run(job, workspace, run_id=run_id, on_output=on_output, final=final)
        finally:
            self._inside -= 1
