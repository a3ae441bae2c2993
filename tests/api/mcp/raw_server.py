"""An MCP server of the handshake era, written by hand so that it can send what no library would: odd numbers, lies, floods.

``python -m tests.api.mcp.raw_server [STATE_FILE]``: what it is sent is appended there, as it came.
"""

import json
import sys
import time
from pathlib import Path

from tests.api.mcp.raw_server_texts import LITERALS

STATE = Path(sys.argv[1]) if len(sys.argv) > 1 else None
out = sys.stdout.buffer
calls = 0


def send(text: str | bytes) -> None:
    out.write(text if isinstance(text, bytes) else text.encode())
    out.write(b"\n")
    out.flush()


def answer(number: object, result: str) -> None:
    send(f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"result":{result}}}')


def text_of(text: str) -> str:
    return json.dumps({"content": [{"type": "text", "text": text}]})


def tool(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "description": name, "inputSchema": {"type": "object"}, **more}


TOOLS = [
    tool("literals", outputSchema={"type": "object", "properties": {"price": {"type": "string"}}}),
    tool("huge"),
    tool("endless"),
    tool("flood"),
    tool("bad_utf8"),
    tool("no_result"),
    tool("nonsense"),
    tool("count"),
    tool("slow"),
    tool("many_blocks"),
    tool("no_blocks"),
    tool("failing"),
    tool("refusing"),
    tool("unknown_kind"),
    tool("take", inputSchema={"type": "object", "properties": {"id": {"type": "integer"}}}),
    tool("lookahead", inputSchema={"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}),
    tool("broken_schema", inputSchema={"type": "object", "properties": {"a": {"type": "nothing"}}}),
    tool("die_once", annotations={"readOnlyHint": True}),
    tool("die"),
]


def call(number: int, name: str) -> None:
    global calls
    calls += 1
    if name == "literals":
        answer(number, f'{{"content":[{{"type":"text","text":"short"}}],"structuredContent":{LITERALS}}}')
    elif name == "huge":
        out.write(
            f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"result":{{"content":[{{"type":"text","text":"'.encode()
        )
        for _ in range(300):
            out.write(b"x" * (1 << 20))
        send('"}]}}')
    elif name == "endless":
        while True:
            out.write(b"x" * (1 << 16))
    elif name == "flood":
        for _ in range(20_000):
            send('{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"flood"}}')
        answer(number, text_of("flooded"))
    elif name == "bad_utf8":
        send(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\xff\xfe"}]}}' % number)
    elif name == "no_result":
        send(f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"result":[1,2]}}')
    elif name == "nonsense":
        send("this is no message")
        send(b"\xff\xfe\x00")
        answer(number, text_of("after nonsense"))
    elif name == "slow":
        time.sleep(3)
        answer(number, text_of("late"))
    elif name == "many_blocks":
        blocks = [
            {"type": "text", "text": json.dumps({"id": 947871269024436488 + row, "name": "x" * 20})}
            for row in range(50)
        ]
        answer(number, json.dumps({"content": blocks}))
    elif name == "no_blocks":
        answer(number, '{"content": []}')
    elif name == "failing":
        detail = "\n".join(["Traceback (most recent call last):", *["  File x"] * 900, "ValueError: the reason"])
        answer(
            number,
            json.dumps(
                {"isError": True, "content": [{"type": "text", "text": "failed"}, {"type": "text", "text": detail}]}
            ),
        )
    elif name == "refusing":
        send(
            f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"error":{{"code":-32050,"message":"no","data":{{"why":"because"}}}}}}'
        )
    elif name == "unknown_kind":
        answer(number, '{"content":[{"type":"hologram","depth":3.10},{"type":"text","text":"beside"}]}')
    elif name == "die_once" and STATE is not None and not STATE.with_suffix(".died").exists():
        STATE.with_suffix(".died").touch()
        sys.exit(3)
    elif name == "die":
        print("the reason of death", file=sys.stderr)
        sys.exit(3)
    else:
        answer(number, text_of(f"call {calls}"))


for line in sys.stdin.buffer:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if STATE is not None:
        with STATE.open("ab") as file:
            file.write(line)
    if method == "initialize":
        able = '{"tools":{"listChanged":true}}'
        answer(
            number,
            f'{{"protocolVersion":"2025-06-18","capabilities":{able},"serverInfo":{{"name":"raw","version":"1"}}}}',
        )
    elif method == "tools/list":
        cursor = int((message.get("params") or {}).get("cursor", 0))
        page = json.dumps(TOOLS[cursor : cursor + 5])
        following = f',"nextCursor":"{cursor + 5}"' if cursor + 5 < len(TOOLS) else ""
        answer(number, f'{{"tools":{page}{following}}}')
    elif method == "tools/call":
        call(number, message["params"]["name"])
    elif number is not None:
        send(f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"error":{{"code":-32601,"message":"Method not found"}}}}')
