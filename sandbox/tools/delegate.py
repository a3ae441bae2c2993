"""The delegating call: another tool is called with arguments that a script wrote to a file."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import re2
from pydantic import BaseModel, Field, ValidationError

from sandbox.errors import InvalidArguments, NotFound, TooLarge
from sandbox.spills.spill import Spill
from sandbox.tables.literal_json import parse
from sandbox.tools.arguments import readable
from sandbox.tools.files import PathField
from sandbox.tools.json_schema import require_valid
from sandbox.tools.outer import OuterCall, OuterTool, OuterTools
from sandbox.tools.permit import Desk, Expanded, permit
from sandbox.tools.registry import AnyTool, Call, Tool, ToolInput
from sandbox.workspace import Workspace

NAME = "call_tool"
MAX_ARGUMENTS_BYTES = 1 << 20

_DESCRIPTION = f"""\
Call another tool with arguments from a file, so that long or many values are never typed out.
Step 1: a script (run_python) reads the saved result and writes one JSON object, the arguments, to a file \
of at most {MAX_ARGUMENTS_BYTES >> 20} MiB. Step 2: call_tool with the tool's name and \
that path; short values can be laid on top in `arguments`.
Example: a script does json.dump({{"title": "Q3", "body": text}}, open("arguments.json", "w")), then \
{{"tool": "create_page", "arguments_path": "arguments.json", "arguments": {{"parent": "42"}}}}.
Objects merge, anything else replaces, null stays null. Permission and approval are those of the other tool and judge the whole \
arguments, which are checked against its schema before anything is sent.\
"""


class CallToolInput(ToolInput):
    """Arguments of call_tool."""

    tool: Annotated[str, Field(description="Name of the tool to call, as it is listed.")]
    arguments_path: Annotated[
        PathField | None, Field(description="A file of the workspace with one JSON object: the tool's arguments.")
    ] = None
    arguments: Annotated[
        dict[str, Any], Field(description="Laid on top of the file's: objects merge, everything else replaces.")
    ] = {}


class CallToolOutput(BaseModel):
    """What the other tool gave."""

    tool: str
    arguments_bytes: int = Field(description="Of the arguments that it was sent.")
    arguments_sha256: str
    is_error: bool = False
    text: str | None = Field(None, description="Of a tool of another program: its result, or what stands for it.")
    path: str | None = Field(None, description="Where the whole result is saved, if it is.")
    output: dict[str, Any] | None = Field(None, description="Of a tool of this service: its output.")
    warnings: tuple[str, ...] = ()


class Ledger(Protocol):
    """Keeps what was really sent."""

    def note(self, workspace: str, call_id: str, tool: str, arguments: str, sha256: str) -> None:
        """Note the expanded arguments of a call, whole."""


_CHECKERS = ThreadPoolExecutor(2, "check-arguments")
"""Threads of their own: a schema that takes long keeps nobody from anything else."""


@dataclass(frozen=True)
class Delegation:
    """What the delegating call reaches."""

    tools: Mapping[str, AnyTool]
    outer: Callable[[], OuterTools | None]
    desk: Desk
    ledger: Ledger
    hand_out: Callable[[OuterTool, OuterCall], Awaitable[Spill]]
    """Calls an outer tool, and saves its result by the rules of spills."""

    async def call(self, call: Call, given: CallToolInput) -> CallToolOutput:
        """Expand the arguments, judge them, call."""
        target = await self._target(given.tool, call)
        expanded = await asyncio.to_thread(_expanded, call.workspace, given)
        own_input = await asyncio.get_running_loop().run_in_executor(_CHECKERS, _checked, target, expanded)
        permission = target.permission if isinstance(target, OuterTool) else "allow"
        grant = await permit(
            self.desk, target.name, permission, expanded,
            workspace_id=call.workspace.id, call_id=call.id, caller=call.caller,
        )  # fmt: skip

        async def send() -> CallToolOutput:
            await asyncio.to_thread(
                self.ledger.note, call.workspace.id, call.id, target.name, expanded.text, expanded.sha256
            )
            output = CallToolOutput(
                tool=target.name, arguments_bytes=len(expanded.text.encode()), arguments_sha256=expanded.sha256
            )
            if not isinstance(target, OuterTool):
                made: BaseModel = await target.function(call, own_input)
                return output.model_copy(update={"output": made.model_dump(mode="json")})
            sent = OuterCall(call.workspace.id, expanded.value, call.caller, call.on_progress)
            spill = await self.hand_out(target, sent)
            return output.model_copy(
                update={
                    "is_error": spill.is_error,
                    "text": spill.text,
                    "path": spill.path,
                    "warnings": spill.warnings,
                }
            )

        if grant.approval is None:
            return await send()
        # A person took their time: the file may be another by now.
        now = await asyncio.to_thread(_expanded, call.workspace, given)
        return await grant.spend(now, send)

    async def _target(self, name: str, call: Call) -> AnyTool | OuterTool:
        if name == NAME:
            raise InvalidArguments(f"{NAME} can't call itself. Name the tool that is wanted in the end.")
        outer = self.outer()
        found = self.tools.get(name) or (outer and await outer.find(name, call.workspace.id, call.caller))
        if not found:
            known = [*self.tools, *(outer.names(call.workspace.id) if outer else ())]
            raise NotFound(f"There is no tool {name[:80]!a}. There are: {', '.join(known)}.")
        return found


def _expanded(workspace: Workspace, given: CallToolInput) -> Expanded:
    """The file's object with the arguments on top; every number as it is written."""
    below: dict[str, Any] = {}
    if given.arguments_path is not None:
        below = _object_in(workspace, given.arguments_path)
    try:
        expanded = Expanded(_laid_over(below, given.arguments))
        size = len(expanded.text.encode())
        if "NaN" in expanded.text or "Infinity" in expanded.text:
            parse(expanded.text)  # it may be in a text only
    except RecursionError:
        raise InvalidArguments("The arguments are nested too deeply.") from None
    except ValueError as fault:
        raise InvalidArguments(f"The arguments can't be sent: {fault}. Send null, or a text.") from None
    if size > 2 * MAX_ARGUMENTS_BYTES:
        raise TooLarge(f"The arguments have over {2 * MAX_ARGUMENTS_BYTES:,} bytes together.")
    return expanded


def _object_in(workspace: Workspace, path: str) -> dict[str, Any]:
    if (size := workspace.size(path)) > MAX_ARGUMENTS_BYTES:
        raise TooLarge(
            f"{path} has {size:,} bytes; a file of arguments has at most {MAX_ARGUMENTS_BYTES:,}. Pass large data to a tool that "
            "takes a path, or in several calls."
        )
    try:
        value = parse(workspace.read_bytes(path, max_bytes=MAX_ARGUMENTS_BYTES).decode("utf-8-sig"))
    except UnicodeDecodeError as fault:
        raise InvalidArguments(f"{path} is not valid UTF-8 at byte {fault.start:,}.") from None
    except (ValueError, RecursionError) as fault:
        why = "it is nested too deeply" if isinstance(fault, RecursionError) else str(fault)
        raise InvalidArguments(
            f"{path} is not JSON: {why}. Let the script write it with json.dump(arguments, file)."
        ) from None
    if not isinstance(value, dict):
        raise InvalidArguments(f"{path} must have one JSON object, the tool's arguments; it has a {_kind(value)}.")
    return value


def _kind(value: Any) -> str:
    return {list: "list", str: "text", bool: "boolean", type(None): "null"}.get(type(value), "number")


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = _laid_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _checked(target: AnyTool | OuterTool, expanded: Expanded) -> Any:
    """The target's input, if it is one of our own; raises `InvalidArguments` naming the field that does not fit."""
    if isinstance(target, OuterTool):
        try:
            return require_valid(target.name, target.input_schema, expanded.value)
        finally:
            re2.purge()  # its cache would keep each pattern of each schema
    try:
        return target.input.model_validate(expanded.value)
    except ValidationError as fault:
        raise InvalidArguments(readable(target.name, target.input, fault)) from None


def tool(delegation: Delegation) -> AnyTool:
    """The tool, over what it reaches."""
    return Tool(
        name=NAME,
        description=_DESCRIPTION,
        input=CallToolInput,
        output=CallToolOutput,
        function=delegation.call,
        read_only=False,
        destructive=True,
        open_world=True,
    )
