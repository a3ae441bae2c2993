"""Pydantic AI: an agent whose model is a function, so that it runs without one."""

import asyncio
import sys

sys.path.pop(0)  # this folder, where a file has the package's name

from pydantic_ai import Agent, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.function import AgentInfo, FunctionModel

CALLS = [ToolCallPart("run_python", {"code": "print(6 * 7)"}), ToolCallPart("e_rows", {})]


def model(messages: list, info: AgentInfo) -> ModelResponse:
    assert {"run_python", "e_rows", "call_tool"} <= {tool.name for tool in info.function_tools}
    returned = [
        part
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    if len(returned) < len(CALLS):
        return ModelResponse(parts=[CALLS[len(returned)]])
    return ModelResponse(parts=[TextPart("\n".join(str(part.content) for part in returned))])


async def main(url: str) -> None:
    agent = Agent(FunctionModel(model), toolsets=[MCPToolset(url)])
    async with agent:
        print((await agent.run("go")).output)


asyncio.run(main(sys.argv[1]))
