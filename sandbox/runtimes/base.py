"""The one interface of everything that runs a job, and what wraps it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sandbox.job import Execution, Job
from sandbox.runtimes.streams import OnOutput
from sandbox.workspace import Workspace


class Standing(NamedTuple):
    """What a runtime keeps between runs, of one kind."""

    launchers: int
    """That are up."""
    spares: int
    """Jails that wait for a run."""


@dataclass
class Inspection:
    """A program of ours that looks at what a script left: where it lies, if a runtime can, when nothing of the script lives."""

    job_after: Callable[[Execution], Job | None]
    """The program's job, for what came of the script; None if there is nothing to look at. Called once, from any thread."""
    printed: str | None = None
    """Its stdout, if it was run and ended well; if None, it is for the caller to run it."""


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

    @property
    def parts(self) -> tuple["Runtime", ...]:
        """The runtimes that runs really go to: itself, and what it falls back on."""

    @property
    def starts_cold(self) -> bool:
        """Whether it pays to have a jail got ready, and libraries imported in it, while something else goes on."""

    @property
    def standing(self) -> Mapping[str, Standing]:
        """What is kept between runs, by kind; nothing where each run makes all that it needs."""

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        """Run one job in one workspace. With ``final``, get ready for ``job``, then wait for its last form and run that.

        An ``inspection`` is made where the job ran, or not at all; whatever comes of it, the job's `Execution` is given.
        """

    async def ready(self) -> None:
        """Wait until runs are as fast as they will be, or it is clear that they will not become faster."""

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

    @property
    def parts(self) -> tuple[Runtime, ...]:
        return self._inner.parts

    @property
    def starts_cold(self) -> bool:
        return self._inner.starts_cold

    @property
    def standing(self) -> Mapping[str, Standing]:
        return self._inner.standing

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        return await self._inner.run(
            job, workspace, run_id=run_id, on_output=on_output, final=final, inspection=inspection
        )

    async def ready(self) -> None:
        await self._inner.ready()

    async def close(self) -> None:
        await self._inner.close()
