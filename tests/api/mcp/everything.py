"""An MCP server with one of everything, in both eras: what conformance scenarios call, and what the gateway's tests want.

``python -m tests.api.mcp.everything`` serves over the standard streams, with ``--port N`` over HTTP.
"""

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import struct
import zlib
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

JsonObject = dict[str, Any]


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")


PNG = base64.b64encode(_png()).decode()
WAV = base64.b64encode(
    b"RIFF" + struct.pack("<I", 38) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16) + b"data"
    + struct.pack("<I", 2) + b"\0\0"
).decode()  # fmt: skip

SCHEMA_2020_12: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

PAYLOAD: JsonObject = {"id": 9007199254740993, "price": 1.10, "big": "see text"}
ROWS = [{"id": 947871269024436488 + number, "price": "1.10", "name": f"library-{number}.so.0"} for number in range(321)]
_STATE_KEY = b"of this test server"


def _sealed(text: str) -> str:
    return f"{text}.{hmac.new(_STATE_KEY, text.encode(), hashlib.sha256).hexdigest()}"


def _opened(state: str | None) -> str:
    text, _, _ = (state or "").rpartition(".")
    if state is None or not hmac.compare_digest(_sealed(text), state):
        raise MCPError(code=INVALID_PARAMS, message="Invalid requestState")
    return text


def _form(message: str, **properties: JsonObject) -> JsonObject:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def _sampling(text: str, most: int) -> JsonObject:
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": most}}


_ROOTS: JsonObject = {"method": "roots/list", "params": {}}
_STRING: JsonObject = {"type": "string"}


def _text(text: str) -> JsonObject:
    return {"content": [{"type": "text", "text": text}]}


def _asking(requests: JsonObject, state: str | None = None) -> JsonObject:
    asked: JsonObject = {"resultType": "input_required", "inputRequests": requests}
    return asked if state is None else asked | {"requestState": _sealed(state)}


class Everything:
    """The server's tools, prompts and resources."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.calls: list[JsonObject] = []
        server: Server[Any] = Server(
            "everything", version="1", on_list_tools=self.list_tools, on_call_tool=self.call_tool,
            on_list_resources=self.list_resources, on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource, on_list_prompts=self.list_prompts, on_get_prompt=self.get_prompt,
            on_completion=self.complete, on_subscriptions_listen=ListenHandler(self.bus),
        )  # fmt: skip
        for method, params in (
            ("resources/subscribe", types.SubscribeRequestParams),
            ("resources/unsubscribe", types.UnsubscribeRequestParams),
            ("logging/setLevel", types.SetLevelRequestParams),
        ):
            server.add_request_handler(method, params, self.nothing)
        self.server = server
        self.options = server.create_initialization_options(
            NotificationOptions(tools_changed=True, prompts_changed=True, resources_changed=True)
        )

    async def nothing(self, ctx: Any, params: Any) -> Any:
        if ctx.method == "resources/subscribe":
            await ctx.session.send_resource_updated(str(params.uri))
        return {}

    async def list_tools(self, ctx: Any, params: Any) -> Any:
        def entry(name: str, schema: JsonObject | None = None, **more: Any) -> JsonObject:
            return {
                "name": name,
                "description": f"The tool {name}.",
                "inputSchema": schema or {"type": "object"},
                **more,
            }

        one = {"type": "object", "properties": {"prompt": _STRING}, "required": ["prompt"]}
        asks = {"type": "object", "properties": {"message": _STRING}, "required": ["message"]}
        header = {
            "type": "object",
            "properties": {"region": {**_STRING, "x-mcp-header": "Region"}, "count": {"type": "integer"}},
        }
        page = {
            "type": "object", "additionalProperties": False, "required": ["title", "body"],
            "properties": {"title": _STRING, "body": _STRING, "views": {"type": "number"}, "tags": {"type": "array", "items": _STRING}},
        }  # fmt: skip
        shaped = {"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]}
        plain = [name for name in dir(self) if name.startswith("test_") and name != "test_headers"]
        special = {"test_sampling": one, "test_elicitation": asks, "json_schema_2020_12_tool": SCHEMA_2020_12}
        tools = [entry(name, special.get(name)) for name in sorted({*plain, "json_schema_2020_12_tool"})]
        tools += [
            entry("test_headers", header),
            entry("create_page", page),
            entry("rows", outputSchema=shaped, annotations={"readOnlyHint": True}),
            entry("small", outputSchema={"type": "object", "properties": {"id": {"type": "integer"}}}),
            entry("die", annotations={"destructiveHint": True}),
            entry("die_once", {"type": "object", "properties": {"flag": _STRING}}, annotations={"readOnlyHint": True}),
            entry("sleep", {"type": "object", "properties": {"seconds": {"type": "number"}}}),
            entry("blocks"),
            entry("echo"),
        ]
        return {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        name = params.name
        method = getattr(self, name if name.startswith("test_") else f"tool_{name}", None)
        if method is None:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {name}")
        self.calls.append({"name": name, "arguments": params.arguments})
        result = await method(ctx, params)
        return {"resultType": "complete", **result}

    # What scenarios call

    async def test_simple_text(self, ctx: Any, params: Any) -> JsonObject:
        return _text("This is a simple text response for testing.")

    async def test_image_content(self, ctx: Any, params: Any) -> JsonObject:
        return {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}

    async def test_audio_content(self, ctx: Any, params: Any) -> JsonObject:
        return {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]}

    async def test_embedded_resource(self, ctx: Any, params: Any) -> JsonObject:
        resource = {
            "uri": "test://embedded-resource",
            "mimeType": "text/plain",
            "text": "This is an embedded resource content.",
        }
        return {"content": [{"type": "resource", "resource": resource}]}

    async def test_multiple_content_types(self, ctx: Any, params: Any) -> JsonObject:
        resource = {
            "uri": "test://mixed-content-resource",
            "mimeType": "application/json",
            "text": '{"test":"data","value":123}',
        }
        return {
            "content": [
                {"type": "text", "text": "Multiple content types test:"},
                {"type": "image", "data": PNG, "mimeType": "image/png"},
                {"type": "resource", "resource": resource},
            ]
        }

    async def test_error_handling(self, ctx: Any, params: Any) -> JsonObject:
        return _text("This tool intentionally returns an error for testing") | {"isError": True}

    async def test_tool_with_logging(self, ctx: Any, params: Any) -> JsonObject:
        for number, said in enumerate(("Tool execution started", "Tool processing data", "Tool execution completed")):
            if number:
                await asyncio.sleep(0.05)
            note = types.LoggingMessageNotification(
                params=types.LoggingMessageNotificationParams(level="info", data=said)
            )
            await ctx.session.send_notification(note, ctx.request_id)
        return _text("Tool with logging executed successfully")

    async def test_logging_tool(self, ctx: Any, params: Any) -> JsonObject:
        wanted = (ctx.meta or {}).get("io.modelcontextprotocol/logLevel")
        return await self.test_tool_with_logging(ctx, params) if wanted else _text("silent")

    async def test_tool_with_progress(self, ctx: Any, params: Any) -> JsonObject:
        for done in (0, 50, 100):
            if done:
                await asyncio.sleep(0.05)
            await ctx.session.report_progress(done, 100)
        return _text("Tool with progress executed successfully")

    async def test_sampling(self, ctx: Any, params: Any) -> JsonObject:
        asked = types.CreateMessageRequestParams.model_validate(_sampling(params.arguments["prompt"], 100)["params"])
        made = await ctx.session.send_request(
            types.CreateMessageRequest(params=asked), types.CreateMessageResult, metadata=self._related(ctx)
        )
        return _text(f"LLM response: {made.content.text}")

    def _related(self, ctx: Any) -> Any:
        from mcp.shared.message import ServerMessageMetadata

        return ServerMessageMetadata(related_request_id=ctx.request_id)

    async def _elicit(self, ctx: Any, message: str, schema: JsonObject) -> str:
        got = await ctx.session.elicit_form(message, schema, ctx.request_id)
        return f"action={got.action}, content={json.dumps(got.content)}"

    async def test_elicitation(self, ctx: Any, params: Any) -> JsonObject:
        fields = {
            "username": {**_STRING, "description": "User's response"},
            "email": {**_STRING, "description": "User's email address"},
        }
        schema = {"type": "object", "properties": fields, "required": list(fields)}
        return _text(f"User response: {await self._elicit(ctx, params.arguments['message'], schema)}")

    async def test_elicitation_sep1034_defaults(self, ctx: Any, params: Any) -> JsonObject:
        fields = {
            "name": {**_STRING, "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {**_STRING, "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        schema = {"type": "object", "properties": fields, "required": []}
        return _text(f"Elicitation completed: {await self._elicit(ctx, 'Defaults', schema)}")

    async def test_elicitation_sep1330_enums(self, ctx: Any, params: Any) -> JsonObject:
        plain, titles = ["option1", "option2", "option3"], ["First", "Second", "Third"]
        titled = [{"const": f"value{number + 1}", "title": f"{title} Option"} for number, title in enumerate(titles)]
        choices = [{"const": f"value{number + 1}", "title": f"{title} Choice"} for number, title in enumerate(titles)]
        fields = {
            "untitledSingle": {**_STRING, "enum": plain},
            "titledSingle": {**_STRING, "oneOf": titled},
            "legacyEnum": {
                **_STRING, "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {**_STRING, "enum": plain}},
            "titledMulti": {"type": "array", "items": {"anyOf": choices}},
        }  # fmt: skip
        schema = {"type": "object", "properties": fields, "required": []}
        return _text(f"Elicitation completed: {await self._elicit(ctx, 'Enums', schema)}")

    async def test_input_required_result_elicitation(self, ctx: Any, params: Any) -> JsonObject:
        answer = _answers(ctx).get("user_name")
        given = answer.get("content") if isinstance(answer, dict) else None
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            return _asking({"user_name": _form("What is your name?", name=_STRING)})
        return _text(f"Hello, {given['name']}!")

    async def test_input_required_result_sampling(self, ctx: Any, params: Any) -> JsonObject:
        answer = _answers(ctx).get("capital_question")
        if answer is None:
            return _asking({"capital_question": _sampling("What is the capital of France?", 100)})
        return _text(answer["content"]["text"])

    async def test_input_required_result_list_roots(self, ctx: Any, params: Any) -> JsonObject:
        answer = _answers(ctx).get("client_roots")
        if answer is None:
            return _asking({"client_roots": _ROOTS})
        return _text(f"Roots: {json.dumps(answer['roots'])}")

    async def test_input_required_result_request_state(self, ctx: Any, params: Any) -> JsonObject:
        if "confirm" not in _answers(ctx):
            return _asking({"confirm": _form("Please confirm", ok={"type": "boolean"})}, "confirming")
        return _text(f"state-ok: {_opened(params.request_state)}")

    async def test_input_required_result_tampered_state(self, ctx: Any, params: Any) -> JsonObject:
        return await self.test_input_required_result_request_state(ctx, params)

    async def test_input_required_result_multiple_inputs(self, ctx: Any, params: Any) -> JsonObject:
        requests = {
            "user_name": _form("What is your name?", name=_STRING),
            "greeting": _sampling("Generate a greeting", 50),
            "client_roots": _ROOTS,
        }
        if not set(requests) <= set(_answers(ctx)):
            return _asking(requests, "three")
        return _text(f"All inputs: {_opened(params.request_state)}")

    async def test_input_required_result_multi_round(self, ctx: Any, params: Any) -> JsonObject:
        answers = _answers(ctx)
        if "step2" in answers:
            return _text(f"Done: {_opened(params.request_state)}")
        if "step1" in answers:
            return _asking(
                {"step2": _form("Step 2: What is your favorite color?", color=_STRING)},
                _opened(params.request_state) + "+1",
            )
        return _asking({"step1": _form("Step 1: What is your name?", name=_STRING)}, "round")

    async def test_input_required_result_capabilities(self, ctx: Any, params: Any) -> JsonObject:
        able = ctx.session.client_capabilities
        requests: JsonObject = {}
        if able is not None and able.sampling is not None:
            requests["sample"] = _sampling("Say something", 50)
        if able is not None and able.elicitation is not None:
            requests["form"] = _form("Your name?", name=_STRING)
        if not requests or set(requests) <= set(_answers(ctx)):
            return _text("complete")
        return _asking(requests)

    async def test_missing_capability(self, ctx: Any, params: Any) -> JsonObject:
        able = ctx.session.client_capabilities
        if able is None or able.sampling is None:
            data: JsonObject = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(
                code=types.MISSING_REQUIRED_CLIENT_CAPABILITY, message="Missing required client capability", data=data
            )
        return _text("capable")

    async def test_streaming_elicitation(self, ctx: Any, params: Any) -> JsonObject:
        if "name" in _answers(ctx):
            return _text("thank you")
        return _asking({"name": _form("Your name?", name=_STRING)})

    async def test_trigger_tool_change(self, ctx: Any, params: Any) -> JsonObject:
        await self.bus.publish(ToolsListChanged())
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await ctx.session.send_tool_list_changed()
        return _text("changed")

    async def tool_json_schema_2020_12_tool(self, ctx: Any, params: Any) -> JsonObject:
        return _text(json.dumps(params.arguments))

    async def test_headers(self, ctx: Any, params: Any) -> JsonObject:
        return _text(json.dumps(params.arguments))

    # What the gateway's tests want

    async def tool_create_page(self, ctx: Any, params: Any) -> JsonObject:
        body = str((params.arguments or {}).get("body", ""))
        return _text(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "characters": len(body)}))

    async def tool_rows(self, ctx: Any, params: Any) -> JsonObject:
        return {
            **_text(json.dumps({"rows": ROWS})),
            "structuredContent": {"rows": ROWS},
            "_meta": {"example.org/trace": "t-1"},
        }

    async def tool_small(self, ctx: Any, params: Any) -> JsonObject:
        return {**_text('{"id": 7}'), "structuredContent": {"id": 7}}

    async def tool_die(self, ctx: Any, params: Any) -> JsonObject:
        raise SystemExit(3)

    async def tool_sleep(self, ctx: Any, params: Any) -> JsonObject:
        await asyncio.sleep(params.arguments["seconds"])
        return _text("slept")

    async def tool_echo(self, ctx: Any, params: Any) -> JsonObject:
        return _text(json.dumps(params.arguments))

    async def tool_blocks(self, ctx: Any, params: Any) -> JsonObject:
        return {
            "content": [
                {"type": "text", "text": "first", "annotations": {"audience": ["user"], "priority": 0.5}},
                {"type": "image", "data": PNG, "mimeType": "image/png", "_meta": {"example.org/n": 1}},
                {"type": "resource_link", "uri": "test://static-text", "name": "static", "description": "a link"},
                {"type": "text", "text": "last"},
            ],
            "_meta": {"example.org/trace": {"id": "t-2"}},
        }

    # Resources and prompts

    async def list_resources(self, ctx: Any, params: Any) -> Any:
        kinds = {
            "test://static-text": "text/plain",
            "test://static-binary": "image/png",
            "test://watched-resource": "text/plain",
        }
        listed = [{"uri": uri, "name": uri[7:], "description": uri, "mimeType": kind} for uri, kind in kinds.items()]
        return {"resources": listed, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    async def list_templates(self, ctx: Any, params: Any) -> Any:
        made = [{"uriTemplate": "test://template/{id}/data", "name": "data", "mimeType": "application/json"}]
        return {"resourceTemplates": made, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    async def read_resource(self, ctx: Any, params: Any) -> Any:
        uri = str(params.uri)
        found: JsonObject
        if uri in ("test://static-text", "test://watched-resource"):
            found = {"mimeType": "text/plain", "text": "This is the content of the static text resource."}
        elif uri == "test://static-binary":
            found = {"mimeType": "image/png", "blob": PNG}
        elif uri.startswith("test://template/"):
            number = uri.split("/")[3]
            text = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
            found = {"mimeType": "application/json", "text": text}
        else:
            raise MCPError(code=INVALID_PARAMS, message="Resource not found", data={"uri": uri})
        return {"contents": [{"uri": uri, **found}], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    async def list_prompts(self, ctx: Any, params: Any) -> Any:
        def entry(name: str, *arguments: str) -> JsonObject:
            needs = [{"name": argument, "required": True} for argument in arguments]
            return {"name": name, "description": f"The prompt {name}.", "arguments": needs}

        prompts = [
            entry("test_simple_prompt"),
            entry("test_prompt_with_arguments", "arg1", "arg2"),
            entry("test_prompt_with_embedded_resource", "resourceUri"),
            entry("test_prompt_with_image"),
            entry("test_input_required_result_prompt"),
        ]
        return {"prompts": prompts, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    async def get_prompt(self, ctx: Any, params: types.GetPromptRequestParams) -> Any:
        given = params.arguments or {}
        blocks: list[JsonObject]
        if params.name == "test_simple_prompt":
            blocks = _text("This is a simple prompt for testing.")["content"]
        elif params.name == "test_prompt_with_arguments":
            blocks = _text(f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'")["content"]
        elif params.name == "test_prompt_with_embedded_resource":
            resource = {
                "uri": given.get("resourceUri"),
                "mimeType": "text/plain",
                "text": "Embedded resource content for testing.",
            }
            blocks = [
                {"type": "resource", "resource": resource},
                *_text("Please process the embedded resource above.")["content"],
            ]
        elif params.name == "test_prompt_with_image":
            image = {"type": "image", "data": PNG, "mimeType": "image/png"}
            blocks = [image, *_text("Please analyze the image above.")["content"]]
        elif params.name == "test_input_required_result_prompt":
            if "user_context" not in _answers(ctx):
                return _asking({"user_context": _form("What context should the prompt use?", context=_STRING)})
            blocks = _text("With context.")["content"]
        else:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown prompt: {params.name}")
        return {"messages": [{"role": "user", "content": block} for block in blocks], "resultType": "complete"}

    async def complete(self, ctx: Any, params: types.CompleteRequestParams) -> Any:
        values = [word for word in ("paris", "park", "party") if word.startswith(params.argument.value)]
        return {"completion": {"values": values, "total": len(values), "hasMore": False}, "resultType": "complete"}


def _answers(ctx: Any) -> JsonObject:
    found = (ctx.params or {}).get("inputResponses")
    return found if isinstance(found, dict) else {}


async def _over_stdio(everything: Everything) -> None:
    async with stdio_server() as (read, write):
        await everything.server.run(read, write, everything.options)


def main() -> None:
    """Serve until the client leaves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    port = parser.parse_args().port
    everything = Everything()
    if port is None:
        asyncio.run(_over_stdio(everything))
    else:
        everything.server.create_initialization_options = lambda *_, **__: everything.options  # type: ignore[method-assign]
        uvicorn.run(everything.server.streamable_http_app(), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
