"""What a tool is: a name, a description for a model, an input and an output model, and a function."""

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from sandbox.attachments import Attachments
from sandbox.catalog import Catalog
from sandbox.job import Limits
from sandbox.observers import Observers
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.streams import OnOutput
from sandbox.threads import Stopped, to_its_end
from sandbox.tools.outer import Caller
from sandbox.tools.queue import Queue
from sandbox.workspace import Workspace

Input = TypeVar("Input", bound=BaseModel)
Output = TypeVar("Output", bound=BaseModel)
T = TypeVar("T")


class ToolInput(BaseModel):
    """Arguments of a tool; unknown ones are refused, so that a model learns of its mistake."""

    model_config = ConfigDict(extra="forbid")


OnProgress = Callable[[dict[str, int]], None]
"""Told how far a long call is, such as ``{"rows_written": 120000}``; from another thread."""
Sign = Callable[[str], str]
"""Makes of a path of the service the link that a user can open."""


@dataclass(frozen=True)
class Call:
    """What a tool's function gets besides its input."""

    id: str
    workspace: Workspace
    runtime: Runtime
    queue: Queue
    limits: Limits
    catalog: Catalog
    attachments: Attachments
    sign: Sign = str
    on_output: OnOutput | None = None
    on_progress: OnProgress | None = None
    caller: Caller = field(default_factory=Caller)
    observers: Observers = field(default_factory=Observers)
    _stop: threading.Event = field(default_factory=threading.Event)

    def progress(self, **counts: int) -> None:
        """Tell how far it is; raises `Stopped` if the call is stopped."""
        if self._stop.is_set():
            raise Stopped
        if self.on_progress is not None:
            self.on_progress(counts)

    async def change(self, work: Callable[[], T]) -> T:
        """The last of a call: change files, on a thread. If the call is stopped meanwhile, it ends when the thread does, with what
        came of it, or, if it could be stopped at a `progress`, as one that changed nothing.
        """
        return await to_its_end(work, stop=self._stop.set)


@dataclass(frozen=True)
class Tool(Generic[Input, Output]):
    """One tool. Every surface (HTTP, MCP, command line, library) is made from these."""

    name: str
    description: str
    input: type[Input]
    output: type[Output]
    function: Callable[[Call, Input], Awaitable[Output]]
    read_only: bool
    destructive: bool = False
    idempotent: bool = False
    """Whether the same call twice leaves what one leaves; what is read-only surely does."""
    open_world: bool = False
    """Whether it reaches beyond this service."""

    def input_schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return self.input.model_json_schema()

    def output_schema(self) -> dict[str, Any]:
        """JSON schema of the answer."""
        return self.output.model_json_schema(mode="serialization")


AnyTool = Tool[Any, Any]
