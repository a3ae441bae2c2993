"""OpenAI Agents SDK: the server as its agents use it, called without a model."""

import asyncio
import sys

from agents import Agent
from agents.mcp import MCPServerStreamableHttp


async def main(url: str) -> None:
    async with MCPServerStreamableHttp(params={"url": url}, name="spillbox") as server:
        agent = Agent(name="reporter", instructions="Use the files.", mcp_servers=[server])
        tools = {tool.name for tool in await server.list_tools()}
        assert {"run_python", "e_rows", "call_tool"} <= tools, tools
        print((await server.call_tool("run_python", {"code": "print(6 * 7)"})).content)
        print((await agent.mcp_servers[0].call_tool("e_rows", {})).content)


asyncio.run(main(sys.argv[1]))
