"""An MCP server of the handshake era, written by hand so that it can send what no library would: odd numbers, lies, floods.

``python -m tests.api.mcp.raw_server [STATE_FILE [silent]]``: what it is sent is appended there, as it came. A silent one
answers no question for its tools.
"""

import json
import os
import sys
import time
from pathlib import Path

from tests.api.mcp.raw_server_texts import LITERALS

STATE = Path(sys.argv[1]) if len(sys.argv) > 1 else None
out = sys.stdout.buffer
OURS = '{"uri":"spillbox://workspace/secret.txt","name":"a place of the service"}'
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
    tool("asks"),
    tool("blank_lines"),
    tool("takes_nothing"),
    tool("structured_only"),
    tool("half_pair"),
    tool("not_a_number"),
    tool("tab"),
    tool("odd_blocks"),
    tool("a[b]"),
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
        for _ in range(5_000):
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
    elif name == "asks":
        for n in range(100_000):
            send(f'{{"jsonrpc":"2.0","id":"q{n}","method":"ping","params":{{"pad":"{"x" * 5000}"}}}}')
    elif name == "blank_lines":
        for _ in range(100):
            out.write(b"\n" * (1 << 16))
        answer(number, text_of("after blank lines"))
    elif name == "takes_nothing":
        time.sleep(60)
    elif name == "structured_only":
        answer(number, f'{{"structuredContent":{LITERALS}}}')
    elif name == "half_pair":
        answer(number, '{"content":[{"type":"text","text":"half \\ud83d"}],"structuredContent":{"a":1.10}}')
    elif name == "not_a_number":
        answer(number, '{"content":[{"type":"text","text":"x"}],"structuredContent":{"a":NaN,"b":1.10}}')
    elif name == "tab":
        answer(number, '{"content":[{"type":"text","text":"a\ttab"}]}')
    elif name == "odd_blocks":
        answer(number, json.dumps({"content": [{"type": 5}, {"type": "text", "text": "x" * 20_000}]}))
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
        able = '{"tools":{"listChanged":true},"resources":{}}'
        answer(
            number,
            f'{{"protocolVersion":"2025-06-18","capabilities":{able},"serverInfo":{{"name":"raw","version":"1"}}}}',
        )
    elif method == "resources/list":
        answer(number, f'{{"resources":[{{"uri":"mem://{os.getpid()}","name":"of this process"}},{OURS}]}}')
    elif method == "resources/read":
        answer(number, f'{{"contents":[{{"uri":"mem://{os.getpid()}","text":"of {os.getpid()}"}}]}}')
    elif method == "tools/list" and "silent" in sys.argv:
        pass
    elif method == "tools/list":
        cursor = int((message.get("params") or {}).get("cursor", 0))
        page = json.dumps(TOOLS[cursor : cursor + 5])
        following = f',"nextCursor":"{cursor + 5}"' if cursor + 5 < len(TOOLS) else ""
        answer(number, f'{{"tools":{page}{following}}}')
    elif method == "tools/call":
        call(number, message["params"]["name"])
    elif number is not None:
        send(f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"error":{{"code":-32601,"message":"Method not found"}}}}')
