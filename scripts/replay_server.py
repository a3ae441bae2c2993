"""An MCP server of someone else's, for the replay: it makes pages, and notes the sha256 of each body that it received.

python scripts/replay_server.py NOTES
"""

import hashlib
import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("pages")
notes = Path(sys.argv[1])


@server.tool()
def create_page(title: str, body: str, space: str) -> str:
    """Make a page."""
    with notes.open("a") as file:
        file.write(f"{hashlib.sha256(body.encode()).hexdigest()}\n")
    return f"made {title} in {space}: {len(body)} characters"


if __name__ == "__main__":
    server.run()
