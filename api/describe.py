"""Tools as the APIs of model providers, or the Model Context Protocol, take them."""

from typing import Any, Literal

from sandbox.tools.registry import AnyTool

Format = Literal["mcp", "openai", "anthropic"]


def describe(tool: AnyTool, style: Format) -> dict[str, Any]:
    """A tool's name, description and schemas."""
    if style == "openai":
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema()}
        return {"type": "function", "function": function}
    if style == "anthropic":
        return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema()}
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema(),
        "outputSchema": tool.output_schema(),
        "annotations": {
            "readOnlyHint": tool.read_only,
            "destructiveHint": tool.destructive,
            "idempotentHint": tool.read_only or tool.idempotent,
            "openWorldHint": tool.open_world,
        },
    }
