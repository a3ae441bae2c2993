"""A Runtime for tests of what is built on one: it runs nothing, and gives the Executions that it was told to."""

from collections.abc import Awaitable, Mapping

from sandbox.job import Execution, FileChange, Job, Status, Stream
from sandbox.runtimes.base import Inspection, Runtime, Standing
from sandbox.runtimes.streams import OnOutput
from sandbox.workspace import GUEST_PATH, Workspace


class FakeRuntime:
    """Gives an `Execution` with ``stdout`` and ``status`` for every job, and keeps the jobs that it was given.

    ``writes`` are files, path to content, that each run puts into its workspace.
    """

    name = "fake"
    warnings: tuple[str, ...] = ()
    starts_cold = False
    standing: Mapping[str, Standing] = {}

    def __init__(
        self, *, stdout: str = "", status: Status = Status.SUCCEEDED, writes: dict[str, bytes] | None = None
    ) -> None:
        self.jobs: list[Job] = []
        self._stdout = stdout
        self._status = status
        self._writes = writes or {}

    @property
    def parts(self) -> tuple[Runtime, ...]:
        """None: no run goes anywhere, and there are no walls to prove."""
        return ()

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        if final is not None:
            job = await final
        self.jobs.append(job)
        if on_output is not None:
            on_output("stdout", self._stdout.encode())
        files: list[FileChange] = []
        if job.keeps_outputs:
            files = [workspace.write(path, content) for path, content in self._writes.items()]
        return Execution(
            id=run_id,
            status=self._status,
            exit_code=0 if self._status is Status.SUCCEEDED else 1,
            stdout=Stream(text=self._stdout, bytes=len(self._stdout.encode())),
            files=tuple(files),
            script_path=job.script_path.removeprefix(GUEST_PATH + "/"),
            runtime=self.name,
        )

    async def ready(self) -> None:
        """It is."""

    async def close(self) -> None:
        """Nothing to stop."""
