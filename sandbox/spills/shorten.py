"""An error in full, and in a few lines that never lose the one which names the exception."""

import re2

from sandbox.tables.slices import Slice, elements, members, text_of

MAX_SHORT_CHARACTERS = 1000
_MAX_EXCEPTION_LINE = 300
_TRACEBACK = "Traceback (most recent call last):"
_NAMES_AN_EXCEPTION = re2.compile(
    r"\b[\w.$]*(?:Error|Exception|Fault|Interrupt|Timeout|Exit)\b|\b(?:panic|fatal|FATAL|ERROR)\b"
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
    line = _exception_line(text)
    room = (MAX_SHORT_CHARACTERS - len(line) - 60) // 2
    head, tail = text[:room], text[-room:]
    missing = len(text) - 2 * room
    middle = f"\n… ({missing:,} characters are left out) …\n"
    return head + middle + (f"{line}\n…\n" if line and line not in head and line not in tail else "") + tail


def _exception_line(text: str) -> str:
    """The line after the last Python traceback, or else the last that has the name of an exception."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if line.strip() == _TRACEBACK]
    if starts:
        after = (line for line in lines[starts[-1] + 1 :] if line and not line[0].isspace())
        return next(after, "").strip()[:_MAX_EXCEPTION_LINE]
    named = (line for line in reversed(lines) if _NAMES_AN_EXCEPTION.search(line))
    return next(named, "").strip()[:_MAX_EXCEPTION_LINE]
