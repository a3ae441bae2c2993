"""No runtime: for a service that saves results and builds files, and runs no scripts."""

from collections.abc import Awaitable, Mapping

from sandbox.errors import NoSandbox
from sandbox.job import Execution, Job
from sandbox.runtimes.base import Inspection, Runtime, Standing
from sandbox.runtimes.streams import OnOutput
from sandbox.workspace import Workspace


class NoRuntime:
    """Refuses every run."""

    name = "none"
    warnings: tuple[str, ...] = ()
    starts_cold = False
    standing: Mapping[str, Standing] = {}
    parts: tuple[Runtime, ...] = ()

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        raise NoSandbox(
            "This service runs without a sandbox, so neither scripts nor what needs one (the text of office "
            "documents) are to be had. "
            "The operator can set SPILLBOX_RUNTIME=warm."
        )

    async def ready(self) -> None:
        """It is."""

    async def close(self) -> None:
        """Nothing to stop."""
