"""An error in full, and in a few lines that never lose the one which names the exception."""

import re

from sandbox.tables.slices import Slice, elements, members, text_of

MAX_SHORT_CHARACTERS = 1000
_MAX_EXCEPTION_LINE = 300
_EXCEPTION_LINE = re.compile(
    r"^.*?(?:\b[\w.$]*(?:Error|Exception|Fault|Interrupt|Timeout|Exit)\b|\b(?:panic|fatal|FATAL|ERROR)\b).*$",
    re.MULTILINE,
)


def full_text(result: Slice) -> str:
    """All that a raw MCP result of a failed call says: its texts, and its structured part as it is written."""
    parts = []
    for member in members(result):
        value = bytes(member.value)
        if member.key == "content" and value[:1] == b"[":
            for block in elements(value):
                inner = {one.key: bytes(one.value) for one in members(block)} if bytes(block)[:1] == b"{" else {}
                parts.append(text_of(inner["text"]) if inner.get("text", b"")[:1] == b'"' else bytes(block).decode())
        elif member.key == "structuredContent" and value != b"null":
            parts.append(value.decode())
    return "\n".join(parts) or bytes(result).decode("utf-8", "replace")


def shortened(text: str) -> str:
    """Head and tail of an error, never without the line that names the exception."""
    text = text.strip()
    if len(text) <= MAX_SHORT_CHARACTERS:
        return text
    lines = [found[0].strip()[:_MAX_EXCEPTION_LINE] for found in _EXCEPTION_LINE.finditer(text)]
    line = lines[-1] if lines else ""
    room = (MAX_SHORT_CHARACTERS - len(line) - 60) // 2
    head, tail = text[:room], text[-room:]
    missing = len(text) - 2 * room
    middle = f"\n… ({missing:,} characters are left out) …\n"
    return head + middle + (f"{line}\n…\n" if line and line not in head and line not in tail else "") + tail
