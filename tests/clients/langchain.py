"""LangChain: the tools of a service, called without a model."""

import asyncio
import sys

from langchain_mcp_adapters.client import MultiServerMCPClient


async def main(url: str) -> None:
    client = MultiServerMCPClient({"spillbox": {"transport": "streamable_http", "url": url}})
    tools = {tool.name: tool for tool in await client.get_tools()}
    print(await tools["run_python"].ainvoke({"code": "print(6 * 7)"}))
    print(await tools["e_rows"].ainvoke({}))
    print(await tools["write_file"].ainvoke({"path": "a.txt", "content": "x"}))
    print(await tools["attach_file"].ainvoke({"path": "a.txt"}))


asyncio.run(main(sys.argv[1]))
