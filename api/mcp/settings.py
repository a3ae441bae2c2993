"""Which other servers there are, and the rules for their tools: the common ``mcpServers`` file, with a few words more."""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from sandbox.errors import SetupFailed
from sandbox.job import Value
from sandbox.tools.outer import Permission

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_OF_OTHER_PROGRAMS = frozenset({"alwaysAllow", "autoApprove", "description", "icon", "timeout"})
"""What other programs' files have, and means nothing here."""


class ToolRules(Value):
    """How tools are called, and what becomes of their results."""

    permission: Permission = Field(
        "allow", description="`allow`; `ask`: a person approves each call; `deny`: hidden and refused."
    )
    spill: bool = Field(
        True, description="Whether long results are saved as files; else they are handed on as they came."
    )
    inline_bytes: int | None = Field(
        None,
        ge=0,
        description="Up to this a saved result is also in the answer; if not set, as the service's settings say.",
    )
    hint: str | None = Field(None, description="What a model is told about large results of the tool.")
    timeout_seconds: float = Field(120, gt=0, description="How long a call may take.")


class SomeRules(Value):
    """Rules for some tools of a server, where they differ from the server's."""

    permission: Permission | None = None
    spill: bool | None = None
    inline_bytes: Annotated[int | None, Field(ge=0)] = None
    hint: str | None = None
    timeout_seconds: Annotated[float | None, Field(gt=0)] = None


class WallsSettings(Value):
    """What a server behind walls sees and may use besides the machine's programs in /usr. It has no network."""

    read: tuple[Path, ...] = Field((), description="Folders that it may read, by their full paths.")
    write: tuple[Path, ...] = Field((), description="Folders that it may also change.")
    memory_mb: int = Field(1024, ge=32, description="Memory of all its processes, what it has in /tmp included.")
    processes: int = Field(256, ge=1, description="Processes and threads at once.")


class ServerSettings(ToolRules):
    """Another server: a ``command`` that is started, or a ``url``."""

    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = Field(
        None, description="As other programs write it; `command` or `url` says enough."
    )
    command: str | None = Field(None, description="A program to start, spoken to over its standard input and output.")
    args: tuple[str, ...] = Field((), description="Its arguments.")
    env: dict[str, str] = Field(
        {},
        description="All that its process has besides a few that tell nothing, such as HOME and PATH.",
    )
    cwd: Path | None = Field(None, description="The folder that it starts in.")
    walls: WallsSettings | None = Field(
        None, description="If given, the program runs behind walls, without a network; else outside of them."
    )
    url: str | None = Field(None, description="Instead of a command: an endpoint of streamable HTTP.")
    headers: dict[str, str] = Field({}, description="Sent with each request: its own credentials, never the caller's.")
    disabled: bool = Field(False, description="Whether it is left out.")
    prefix: str | None = Field(
        None, description="Before the names of its tools and prompts; the server's name and `_` if not set."
    )
    tools: dict[str, SomeRules] = Field(
        {}, description="Rules by name of the tool, as the server calls it; `*` and `?` stand for other characters."
    )
    disabledTools: tuple[str, ...] = Field(
        (),
        description="Tools that are hidden and refused, as other programs write it; the last word on their permission.",
    )
    max_message_bytes: int = Field(256 << 20, ge=1 << 16, description="The largest message that is read from it.")
    connect_seconds: float = Field(30, gt=0, description="How long it may take to start and answer.")
    idle_seconds: float = Field(
        600, gt=0, description="After this long without a call a conversation's connection is closed."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_others(cls, given: Any) -> Any:
        return (
            {key: value for key, value in given.items() if key not in _OF_OTHER_PROGRAMS}
            if isinstance(given, dict)
            else given
        )

    @field_validator("prefix")
    @classmethod
    def _is_a_name(cls, prefix: str | None) -> str | None:
        if prefix and not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", prefix):
            raise ValueError("a prefix is at most 40 letters, digits, '_', '.' or '-', or empty")
        return prefix

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command` (a process to start) or `url` (streamable HTTP), not both")
        if self.url is not None and self.walls is not None:
            raise ValueError("walls stand around a program that is started here: give `command`, not `url`")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError("url begins with http:// or https://")
        return self

    def rules_of(self, tool: str) -> ToolRules:
        """The rules for a tool, by its name at the server: of each pattern that fits, in their order, the last word counts."""
        rules = self.model_dump(include=set(ToolRules.model_fields))
        for pattern, some in self.tools.items():
            if _fits(tool, pattern):
                rules |= some.model_dump(exclude_none=True)
        if tool in self.disabledTools:
            rules["permission"] = "deny"
        return ToolRules.model_validate(rules)


def _fits(tool: str, pattern: str) -> bool:
    """Whether a name has a pattern's form; nothing but ``*`` and ``?`` is special in it."""
    form = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(form, tool, re.DOTALL) is not None


class _File(Value):
    mcpServers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,40}$")], ServerSettings]


def load(path: Path) -> dict[str, ServerSettings]:
    """The servers of a file, by name, without disabled ones; ``${NAME}`` and ``${NAME:-else}`` come from the environment.

    Raises `SetupFailed` naming what is wrong.
    """
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise SetupFailed(f"The file of MCP servers {path} can't be read: {fault}.") from None
    try:
        servers = _File.model_validate(_with_variables(given, path)).mcpServers
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        known = f" There are: {', '.join(ServerSettings.model_fields)}." if first["type"] == "extra_forbidden" else ""
        raise SetupFailed(f"The file of MCP servers {path} is not right at {where}: {first['msg']}.{known}") from None
    enabled = {name: server for name, server in servers.items() if not server.disabled}
    prefixes = [prefix_of(name, server) for name, server in enabled.items()]
    if len(set(prefixes)) < len(prefixes):
        raise SetupFailed(f"Two servers of {path} have one prefix. Give each its own `prefix`.")
    return enabled


def prefix_of(name: str, server: ServerSettings) -> str:
    """What stands before the names of a server's tools."""
    return f"{name}_" if server.prefix is None else server.prefix


def _with_variables(value: Any, path: Path) -> Any:
    def of_environment(found: re.Match[str]) -> str:
        name, otherwise = found.groups()
        if (given := os.environ.get(name, otherwise)) is None:
            raise SetupFailed(f"{path} needs the environment variable {name}, which is not set.")
        return given

    if isinstance(value, str):
        return _VARIABLE.sub(of_environment, value)
    if isinstance(value, dict):
        return {key: _with_variables(inner, path) for key, inner in value.items()}
    return [_with_variables(inner, path) for inner in value] if isinstance(value, list) else value
