"""The MCP server behind the gateway in the benchmark: a tool that does nothing, a query, and a large table."""

import json
import sqlite3

from mcp.server import MCPServer

server = MCPServer("bench")
database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("create table library (id integer, name text)")
database.executemany("insert into library values (?, ?)", ((n, f"library-{n}.so.{n % 7}") for n in range(400_000)))
table = json.dumps(
    [{"id": 947871269024436488 + n, "name": f"library-{n}", "price": n / 7, "note": "x" * 120} for n in range(460_000)]
)


@server.tool(structured_output=False)
def nothing() -> str:
    """Nothing."""
    return "done"


@server.tool(structured_output=False)
def query(pattern: str) -> str:
    """Count libraries."""
    (count,) = database.execute("select count(*) from library where name like ?", (pattern,)).fetchone()
    return f"{count} libraries"


@server.tool(structured_output=False)
def everything() -> str:
    """The whole table."""
    return table


server.run()
