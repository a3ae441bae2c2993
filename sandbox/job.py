"""What is run (`Job`, `Limits`) and what came of it (`Execution`): frozen values, the same for every runtime."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MIB = 1024 * 1024


class Value(BaseModel):
    """A frozen value that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Value):
    """The bounds of one run. Every one is enforced by the kernel or reported as weaker in `Execution.warnings`."""

    wall_seconds: float = Field(30, gt=0, description="Real time from the start of the script to its end.")
    cpu_seconds: int = Field(30, ge=1, description="Processor time of all of the run's processes.")
    memory_bytes: int = Field(512 * MIB, ge=32 * MIB, description="Memory, files the run writes included; no swap.")
    processes: int = Field(64, ge=1, description="Processes and threads alive at once.")
    file_bytes: int = Field(64 * MIB, ge=MIB, multiple_of=MIB, description="Size of one file.")
    workspace_bytes: int = Field(256 * MIB, ge=MIB, description="Size of what scripts and tools wrote, in 4 KiB pages.")
    workspace_files: int = Field(10_000, ge=16, description="Files and folders that scripts and tools made.")
    results_bytes: int = Field(
        1 << 30, ge=MIB, description="Size up to which results/ and errors/ take output of runs."
    )
    tmp_bytes: int = Field(64 * MIB, ge=MIB, description="Size of /tmp and, apart from it, of /dev/shm.")
    output_text_bytes: int = Field(64 * 1024, ge=1024, description="Bytes of stdout, and of stderr, in the answer.")
    output_disk_bytes: int = Field(64 * MIB, ge=64 * 1024, description="Bytes of stdout, and of stderr, kept on disk.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Those that a jail or a container is made with; the others are kept by the service, or come with the job."""
        return (
            self.memory_bytes, self.processes, self.file_bytes, self.workspace_bytes, self.workspace_files, self.tmp_bytes
        )  # fmt: skip


class Job(Value):
    """One script to run, by its path as the guest sees it."""

    script_path: str
    """``/workspace/…`` for a user's script, ``/opt/spillbox/…`` for a program of our own."""
    arguments: tuple[str, ...] = ()
    limits: Limits = Limits()
    inputs: tuple[str, ...] | None = None
    """The workspace files that the run gets; None for all of them."""
    keeps_outputs: bool = True
    """Whether files that the run writes are taken into the workspace."""
    libraries: tuple[str, ...] = ()
    """Office libraries that the script names: a warm jail has them, a cold one that is got ready imports them meanwhile."""
    tool: str = "run_python"
    """Names the files under ``errors/`` and ``results/``."""


class Status(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MANY_PROCESSES = "too_many_processes"
    DISK_FULL = "disk_full"
    OUTPUT_LIMIT = "output_limit"
    BLOCKED_SYSCALL = "blocked_syscall"
    KILLED = "killed"


class Stream(Value):
    """One output stream of a run."""

    text: str = Field("", description="The output; its head and tail with a line about the gap if it is truncated.")
    bytes: int = Field(0, description="How many bytes the script wrote.")
    truncated: bool = False
    path: str | None = Field(None, description="Where more of a truncated stream is kept.")


class ErrorReport(Value):
    """Why a run did not succeed."""

    summary: str = Field(description="At most 1,000 characters: type, message, place, source line, paths, hint.")
    type: str = Field(description="Exception type, signal name, or status.")
    message: str
    path: str | None = Field(None, description="File of the innermost frame of the user's own code.")
    line: int | None = None
    source_line: str | None = None
    traceback_path: str | None = Field(None, description="The full text: traceback with chained causes, stderr.")
    hint: str | None = Field(None, description="What to do next.")


class FileChange(Value):
    """A file that a run made, wrote to or deleted."""

    path: str
    bytes: int
    change: Literal["created", "modified", "deleted"]


class Skipped(Value):
    """Something that a run left in its workspace and that was not taken, with the reason."""

    path: str
    reason: str


class Usage(Value):
    """What a run used."""

    wall_seconds: float = 0
    cpu_seconds: float | None = Field(0, description="Null if it is not known.")
    max_memory_bytes: int | None = Field(0, description="Null if it is not known.")
    check_seconds: float = Field(
        0, description="Real time from the end of the script to the end of the documents' check."
    )


class DocumentCheck(Value):
    """The result of re-opening a document that a run made."""

    path: str
    ok: bool | None = Field(description="Whether it is whole; null if it was not checked.")
    format: str
    problem: str | None = Field(None, description="What is wrong, with the name of the part, if not ok.")
    sheets: dict[str, str] | None = Field(
        None, description="xlsx: the used range of each sheet, or its number of rows, by name."
    )
    slides: int | None = None
    paragraphs: int | None = None
    tables: int | None = None
    rows: int | None = Field(None, description="csv: records, the header included.")
    columns: int | None = None


class Execution(Value):
    """The outcome of a run. A guest's failure is a value of this type, never an exception."""

    id: str
    status: Status
    exit_code: int | None = Field(None, description="None if the script was ended by a signal or stopped.")
    signal: str | None = None
    stdout: Stream = Stream()
    stderr: Stream = Stream()
    error: ErrorReport | None = None
    files: tuple[FileChange, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    documents: Annotated[tuple[DocumentCheck, ...], Field(description="One for each document made or changed.")] = ()
    warnings: tuple[str, ...] = ()
    usage: Usage = Usage()
    script_path: str
    runtime: str
