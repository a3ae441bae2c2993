"""What is written about MCP is what there is."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp import StdioServerParameters
from pydantic import BaseModel

from api.mcp.settings import ServerSettings, WallsSettings, load
from tests.api.mcp.conftest import PROJECT, InFront, everything_over_stdio, text_of
from tests.conftest import DATA_FOLDER, unavailable

README = (PROJECT / "README.md").read_text()
PAGE = (PROJECT / "docs" / "gateway.md").read_text()
URL = "http://127.0.0.1:8750"

USED = {
    "langchain": """
        by_name = {tool.name: tool for tool in tools}
        print(await by_name["run_python"].ainvoke({"code": "print(6 * 7)"}))
        print(await by_name["e_rows"].ainvoke({}))
        print(await by_name["write_file"].ainvoke({"path": "a.txt", "content": "x"}))
        print(await by_name["attach_file"].ainvoke({"path": "a.txt"}))
        """,
    "pydantic_ai": """
        from pydantic_ai import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
        from pydantic_ai.models.function import FunctionModel

        calls = [ToolCallPart("run_python", {"code": "print(6 * 7)"}), ToolCallPart("e_rows", {})]

        def model(messages, info):
            assert {"run_python", "e_rows", "call_tool"} <= {tool.name for tool in info.function_tools}
            parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
            returned = [part for part in parts if isinstance(part, ToolReturnPart)]
            if len(returned) < len(calls):
                return ModelResponse(parts=[calls[len(returned)]])
            return ModelResponse(parts=[TextPart("\\n".join(str(part.content) for part in returned))])

        with agent.override(model=FunctionModel(model)):
            print((await agent.run("go")).output)
        """,
    "openai_agents": """
            assert {"run_python", "e_rows", "call_tool"} <= {tool.name for tool in await spillbox.list_tools()}
            print((await agent.mcp_servers[0].call_tool("run_python", {"code": "print(6 * 7)"})).content)
            print((await agent.mcp_servers[0].call_tool("e_rows", {})).content)
        """,
}


def _block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1]


@pytest.fixture(scope="session")
def clients() -> Path:
    """The interpreter that has agent frameworks for Python."""
    if not (PROJECT / "tests/clients/.installed").exists():
        unavailable("clients", "`sh scripts/others.sh` installs them")
    return PROJECT / "tests/clients/.venv/bin/python"


@pytest.mark.parametrize("name", USED)
def test_agent_frameworks_use_the_tools_as_the_readme_says(
    clients: Path, in_front_of: InFront, tmp_path: Path, name: str
) -> None:
    with in_front_of({"e": everything_over_stdio()}) as url:
        body = _block(name).replace(URL, url).rstrip() + "\n" + textwrap.dedent(USED[name]).strip("\n")
        if name == "openai_agents":
            body = _block(name).replace(URL, url).rstrip() + textwrap.indent(textwrap.dedent(USED[name]), " " * 4)
        script = tmp_path / "main.py"
        script.write_text(
            "import asyncio\n\nasync def main():\n" + textwrap.indent(body, "    ") + "\n\nasyncio.run(main())\n"
        )
        environment = {**os.environ, "OPENAI_API_KEY": "none is used"}
        done = subprocess.run(
            [str(clients), str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "321 rows" in done.stdout
    assert "42" in done.stdout


async def test_the_configuration_for_claude_desktop_starts(tmp_path: Path) -> None:
    given = json.loads(_block("claude"))["mcpServers"]["spillbox"]
    assert given["command"] == "spillbox"
    (tmp_path / "guest-root").symlink_to((DATA_FOLDER / "guest-root").resolve())
    arguments = [str(tmp_path) if argument == "/home/me/.spillbox" else argument for argument in given["args"]]
    command = StdioServerParameters(command=sys.executable, args=["-m", "api", *arguments], cwd=PROJECT)
    async with mcp.Client(command, mode="legacy") as client:
        ran = await client.call_tool("run_python", {"code": "print(6 * 7)"})
    assert "42" in text_of(ran)


async def test_the_configuration_for_vs_code_connects(base_url: str) -> None:
    given = json.loads(_block("vscode"))["servers"]["spillbox"]
    assert given["type"] == "http"
    async with mcp.Client(given["url"].replace(URL, base_url), mode="legacy") as client:
        assert "call_tool" in [tool.name for tool in (await client.list_tools()).tools]


def test_the_file_of_servers_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKETS_TOKEN", "x")
    (tmp_path / "servers.json").write_text(_block("servers"))
    servers = load(tmp_path / "servers.json")
    assert servers["files"].rules_of("write_file").permission == "ask"
    assert servers["tickets"].headers == {"Authorization": "Bearer x"}


def table_of(settings: type[BaseModel]) -> str:
    """A table of docs/gateway.md, made of the settings."""
    lines = ["| word | default | meaning |", "|---|---|---|"]
    for name, field in settings.model_fields.items():
        default: Any = field.default
        shown = "" if default in (None, (), {}) else f"`{json.dumps(default)}`".replace('"', "")
        lines.append(f"| `{name}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("mark", "settings"), [("server", ServerSettings), ("walls", WallsSettings)])
def test_a_table_of_words_is_the_settings(mark: str, settings: type[BaseModel]) -> None:
    assert PAGE.partition(f"<!-- {mark} -->\n")[2].partition(f"<!-- /{mark} -->")[0] == table_of(settings)
