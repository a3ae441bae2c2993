"""The tool that runs a script."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from sandbox.documents.check import checking, describe_problem, libraries_in
from sandbox.errors import InvalidArguments
from sandbox.job import MIB, Execution, Job, Limits
from sandbox.tools.registry import Call, Tool, ToolInput
from sandbox.workspace import GUEST_PATH, guest_name

_MAX_ARGUMENTS_BYTES = 100_000
"""Less than one message of the wire; see `sandbox/guest/wire.py`."""

_LOOKED_AT_BYTES = 256 * 1024
"""Of a script, for the libraries that it names; so little is read at once, since a thread for it would take longer."""

_MAX_TOLD, _MAX_DOCUMENTS = 10, 100
_NAMED_LIBRARIES = ("lxml", "openpyxl", "pillow", "python-docx", "python-pptx", "xlsxwriter")

# At most 1,024 characters, which is what OpenAI takes; what belongs to one argument is said there.
_DESCRIPTION = """\
Run a Python {python} script in a sandbox; get its output and the files it made. It starts in /workspace, where tool results are \
files (results/…, read-only): read them by path, never copy rows into code.
There are the standard library and {libraries}; no other packages, no network, no shell, no stdin.
Word, PowerPoint, Excel and CSV files are re-opened and checked: say that one is ready only if it is in `files` and its check in \
`documents` is ok. Write ids and numbers of more than 15 digits as text: openpyxl rounds them. Prefer native charts; fonts have \
only ASCII letters.
Limits: {seconds} s, {memory} MiB of memory, {file} MiB a file; {output} KiB of what is printed comes back.
If it fails, `error.summary` says what and where, `error.traceback_path` has all. Mend the script with edit_file, run it by path.\
"""


class RunPythonInput(ToolInput):
    """Arguments of run_python."""

    code: Annotated[
        str | None,
        Field(description="A new script's source. It is saved, and its path comes back as script_path.", min_length=1),
    ] = None
    path: Annotated[
        str | None,
        Field(
            description="Instead of code: a script in the workspace, such as scripts/0003.py. Never type a script twice."
        ),
    ] = None
    arguments: Annotated[list[str], Field(description="The script's sys.argv[1:].")] = []
    timeout_seconds: Annotated[
        float | None, Field(gt=0, description="A shorter time limit than the usual one, if wanted.")
    ] = None

    @model_validator(mode="after")
    def _one_script(self) -> Self:
        if (self.code is None) == (self.path is None):
            raise ValueError("give either `code` (a new script) or `path` (a script in the workspace), not both")
        if any("\0" in argument for argument in self.arguments):
            raise ValueError("an argument contains a NUL character")
        try:
            size = sum(len(argument.encode()) + 1 for argument in self.arguments)
        except UnicodeEncodeError:
            raise ValueError("an argument is not valid Unicode text: it has half of a surrogate pair") from None
        if size > _MAX_ARGUMENTS_BYTES:
            raise ValueError(
                f"arguments are over {_MAX_ARGUMENTS_BYTES:,} bytes together: write them to a file and pass its path"
            )
        return self


async def run_python(call: Call, given: RunPythonInput) -> Execution:
    """Run the script, then check the documents that it made."""
    workspace, limits = call.workspace, call.limits
    if given.timeout_seconds is not None:
        if given.timeout_seconds > limits.wall_seconds:
            raise InvalidArguments(
                f"timeout_seconds can be at most {limits.wall_seconds:g}, the limit of this service."
            )
        limits = limits.model_copy(update={"wall_seconds": given.timeout_seconds})
    async with call.queue.place(workspace.id):
        path = given.path
        if path is None:
            path = await asyncio.to_thread(workspace.write_script, given.code or "")
        libraries = libraries_in(workspace.head(path, bytes=_LOOKED_AT_BYTES))
        job = Job(
            script_path=f"{GUEST_PATH}/{guest_name(path)}", arguments=tuple(given.arguments), limits=limits, libraries=libraries
        )  # fmt: skip
        async with checking(call.runtime, workspace, libraries, run_id=call.id) as check:
            execution = await call.runtime.run(
                job, workspace, run_id=call.id, on_output=call.on_output, inspection=check.inspection
            )
            documents = await check.of(execution.files)
            usage = execution.usage.model_copy(update={"check_seconds": round(check.seconds, 6)})
    broken = [describe_problem(result) for result in documents if not result.ok]
    if len(broken) > _MAX_TOLD:
        broken[_MAX_TOLD:] = [f"{len(broken) - _MAX_TOLD:,} more documents are broken or not checked."]
    listed = documents[:_MAX_DOCUMENTS]
    return execution.model_copy(
        update={"documents": listed, "usage": usage, "warnings": (*broken, *execution.warnings)}
    )


def tool(python_version: str, libraries: Mapping[str, str], limits: Limits) -> Tool[RunPythonInput, Execution]:
    """The tool, described for these libraries and limits."""
    return Tool(
        name="run_python",
        description=_DESCRIPTION.format(
            python=python_version,
            libraries=", ".join(f"{name} {libraries[name]}" for name in _NAMED_LIBRARIES if name in libraries),
            output=limits.output_text_bytes // 1024,
            seconds=f"{limits.wall_seconds:g}",
            memory=limits.memory_bytes // MIB,
            file=limits.file_bytes // MIB,
        ),
        input=RunPythonInput,
        output=Execution,
        function=run_python,
        read_only=False,
        destructive=True,
    )
