"""A case from production, replayed: 13 long texts go to a tool of another program.

    python scripts/replay.py [--data-dir DIR] [--readme FILE]

Done for real, twice, through the gateway to an MCP server in a process of its own: once a model types the texts as arguments,
once it writes a short script and makes delegating calls. What it writes is counted in bytes; what the server received is
compared with the source by sha256.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import mcp
import readme_parts
from example import query
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from sandbox.spills.spill import Received, estimate_tokens
from sandbox.tools.toolbox import open_toolbox

PAGES, CHARACTERS = 13, 89_337
SCRIPT = """\
import json
for n, p in enumerate(json.load(open({path!r}))):
    json.dump({{"title": p["title"], "body": p["body"], "space": "ISO"}}, open(f"p{{n}}.json", "w"))
"""


def source() -> list[dict[str, str]]:
    """What an agent has to publish: 13 texts of 89,337 characters in all."""
    lines = [
        f'* **{row["code"]}** "{row["name"]}" ({row["type"]}), {row["country"]}, no. {row["numeric"]}\n'
        for row in query()
    ]
    text = ("".join(lines) * 20)[:CHARACTERS]
    each = -(-CHARACTERS // PAGES)
    bodies = [text[start : start + each] for start in range(0, CHARACTERS, each)]
    return [{"title": f"Subdivisions, part {number + 1}", "body": body} for number, body in enumerate(bodies)]


class Model:
    """Calls tools over the protocol, and keeps the arguments that it wrote."""

    def __init__(self, client: mcp.Client) -> None:
        self._client = client
        self.written: list[str] = []

    async def call(self, tool: str, /, **arguments: Any) -> None:
        """Call, or end the replay with what went wrong."""
        self.written.append(json.dumps(arguments, ensure_ascii=False))
        result = await self._client.call_tool(tool, arguments)
        if result.is_error:
            raise SystemExit(f"{tool} failed: {result.content}")


async def run(data_dir: Path) -> str:
    """Do it; gives the table of the README."""
    pages = source()
    async with open_toolbox(data_dir, runtime="none") as box:
        spill = await box.spill("replay", Received.of("list_pages", pages))
    written, hashes = [], []
    for way in (typed, delegated):
        with tempfile.TemporaryDirectory() as folder:
            notes, servers = Path(folder) / "notes", Path(folder) / "servers.json"
            command = [str(Path(__file__).with_name("replay_server.py").resolve()), str(notes)]
            servers.write_text(json.dumps({"mcpServers": {"pages": {"command": sys.executable, "args": command}}}))
            ours = [
                "-m",
                "api",
                "mcp",
                "--workspace",
                "replay",
                "--data-dir",
                str(data_dir),
                "--upstream",
                str(servers),
            ]
            with (Path(folder) / "log").open("w") as log:
                transport = stdio_client(StdioServerParameters(command=sys.executable, args=ours), errlog=log)
                async with mcp.Client(transport) as client:
                    model = Model(client)
                    await way(model, pages, spill.path or "")
            written.append(model.written)
            hashes.append(notes.read_text().split())
    expected = [hashlib.sha256(page["body"].encode()).hexdigest() for page in pages]
    return markdown(written, [sum(map(str.__eq__, found, expected)) for found in hashes])


async def typed(model: Model, pages: list[dict[str, str]], _: str) -> None:
    """Every text as an argument."""
    for page in pages:
        await model.call("pages_create_page", **page, space="ISO")


async def delegated(model: Model, pages: list[dict[str, str]], path: str) -> None:
    """A script writes the arguments, and each call names a file."""
    await model.call("run_python", code=SCRIPT.format(path=path))
    for number in range(len(pages)):
        await model.call("call_tool", tool="pages_create_page", arguments_path=f"p{number}.json")


def markdown(written: list[list[str]], equal: list[int]) -> str:
    """The table: what a model writes, typed and delegated."""
    sizes = [sum(len(text.encode()) for text in texts) for texts in written]
    tokens = [sum(map(estimate_tokens, texts)) for texts in written]
    lines = [
        f"| {PAGES} texts of {CHARACTERS:,} characters in all, sent to another server's tool | typed | by `call_tool` |",
        "|---|---|---|",
        f"| bytes that the model writes | {sizes[0]:,} | {sizes[1]:,} |",
        f"| tokens of these, estimated | {tokens[0]:,} | {tokens[1]:,} |",
        f"| calls | {len(written[0])} | {len(written[1])} |",
        f"| texts received that are the source's, by sha256 | {equal[0]} of {PAGES} (if the model copies without a slip) | "
        f"{equal[1]} of {PAGES} |",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(readme_parts.main("replay", __doc__, run))
