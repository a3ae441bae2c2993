"""Servers and clients that are not ours, as they are published."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from mcp import StdioServerParameters

from tests.api.mcp.conftest import PROJECT, InFront, client_of, everything_over_stdio, text_of
from tests.conftest import DATA_FOLDER

ACCOUNT = 12_345
LONG = "".join(f"A line of text, number {number}.\n" for number in range(500))


def _server(node: Path, command: str, *arguments: str, **environment: str) -> dict[str, Any]:
    return {
        "command": str(node / command),
        "args": list(arguments),
        "env": {"PATH": f"{node}:/usr/bin:/bin", **environment},
    }


def _dumped(result: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "everything",
            [
                ("echo", {"message": "hello"}), ("get-sum", {"a": 1.5, "b": 2}), ("get-tiny-image", {}),
                ("get-structured-content", {"location": "New York"}), ("get-annotated-message", {"messageType": "error", "includeImage": True}),
                ("get-resource-links", {"count": 3}),
                ("echo", {"unknown": 1}),
            ],
        ),
        ("filesystem", [("list_directory", {"path": "."}), ("read_text_file", {"path": "short.txt"}), ("read_text_file", {"path": "nothing"})]),
        (
            "memory",
            [
                ("create_entities", {"entities": [{"name": "a", "entityType": "t", "observations": ["é"]}]}),
                ("read_graph", {}), ("search_nodes", {"query": "a"}), ("delete_entities", {"entityNames": ["a"]}),
            ],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("behind_walls", [False, True], ids=["outside", "behind walls"])
async def test_servers_of_others_answer_through_the_gateway_as_directly(
    node: Path, in_front_of: InFront, tmp_path: Path, name: str, calls: list[tuple[str, dict[str, Any]]],
    behind_walls: bool,
) -> None:  # fmt: skip
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "short.txt").write_text("short é\n")
    if os.geteuid() == 0:
        os.chown(folder, ACCOUNT, ACCOUNT)
    walls = {"walls": {"read": [str(node.parent)], "write": [str(folder)]}} if behind_walls else {}
    through: list[dict[str, Any]] = []
    directly: list[dict[str, Any]] = []
    for number, answers in enumerate((through, directly)):
        memory = str(folder / f"memory{number}.json")
        arguments = [str(folder)] if name == "filesystem" else []
        server = _server(node, f"mcp-server-{name}", *arguments, MEMORY_FILE_PATH=memory)
        given = [
            (tool, {**values, "path": str(folder / values["path"])} if "path" in values else values)
            for tool, values in calls
        ]
        if answers is through:
            with in_front_of({"s": server | walls}) as url:
                async with client_of(url, "legacy") as client:
                    answers += [_dumped(await client.call_tool(f"s_{tool}", values)) for tool, values in given]
        else:
            parameters = StdioServerParameters(command=server["command"], args=server["args"], env=server["env"])
            async with mcp.Client(parameters, mode="legacy") as client:
                answers += [_dumped(await client.call_tool(tool, values)) for tool, values in given]
    assert through == directly


async def test_a_large_file_of_another_server_spills(node: Path, in_front_of: InFront, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/long.txt").write_text(LONG)
    with in_front_of({"fs": _server(node, "mcp-server-filesystem", str(tmp_path / "files"))}) as url:
        async with client_of(url, "legacy") as client:
            result = await client.call_tool("fs_read_text_file", {"path": str(tmp_path / "files/long.txt")})
        saved = httpx.get(f"{url}/v1/workspaces/w/files/results/0001-fs_read_text_file.txt").text
    assert "results/0001-fs_read_text_file.txt" in text_of(result)
    assert saved == LONG


def _run(command: list[str], node: Path | None = None, **environment: str) -> str:
    path = os.environ["PATH"] if node is None else f"{node}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_inspector_lists_and_calls(node: Path, in_front_of: InFront) -> None:
    with in_front_of({"e": everything_over_stdio()}) as url:
        base = ["mcp-inspector", "--cli", f"{url}/mcp?workspace=w", "--transport", "http", "--method"]
        tools = json.loads(_run([*base, "tools/list"], node))["tools"]
        rows = json.loads(_run([*base, "tools/call", "--tool-name", "e_rows"], node))
        ran = json.loads(
            _run([*base, "tools/call", "--tool-name", "run_python", "--tool-arg", "code=print(6*7)"], node)
        )
    assert {"run_python", "e_rows"} <= {tool["name"] for tool in tools}
    assert "321 rows" in rows["content"][0]["text"]
    assert ran["structuredContent"]["stdout"]["text"] == "42\n"


def test_the_inspector_starts_the_command(node: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "api", "mcp", "--workspace", "inspected"]
    data = str(DATA_FOLDER.resolve())
    listed = json.loads(
        _run(["mcp-inspector", "--cli", *command, "--method", "tools/list"], node, SPILLBOX_DATA_DIR=data)
    )
    assert "call_tool" in {tool["name"] for tool in listed["tools"]}


def test_the_typescript_sdk_takes_every_answer(node: Path, in_front_of: InFront) -> None:
    """It checks structured content against the schemas that were listed."""
    with in_front_of({"e": everything_over_stdio()}) as url:
        for tool, arguments in (
            ("run_python", {"code": "print(1)"}), ("list_files", {}), ("write_file", {"path": "a.csv", "content": "a,b\n1,2\n"}),
            ("read_file", {"path": "a.csv"}), ("show_table", {"source": "a.csv"}), ("attach_file", {"path": "a.csv"}),
            ("build_excel", {"output": "a.xlsx", "sheets": [{"name": "A", "source": "a.csv"}]}),
            ("call_tool", {"tool": "list_files", "arguments": {}}), ("read_file", {"path": "nothing"}), ("e_rows", {}), ("e_small", {}),
        ):  # fmt: skip
            script = str(PROJECT / "tests/node/client.mjs")
            answer = json.loads(_run(["node", script, f"{url}/mcp?workspace=w", tool, json.dumps(arguments)], node))
            assert tool in answer["tools"]
            assert answer["result"]["content"], tool
