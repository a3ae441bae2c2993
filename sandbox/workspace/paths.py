r"""The path language of the tools: relative to the workspace, or absolute under ``/workspace``; the same file either way.

Names on Linux are bytes. A name that is UTF-8 is written as it is; else its odd bytes are written ``\xNN``, and so are
backslashes then, and in names that would read as such an escape. Every name has one text, and it leads back to the name.
"""

import difflib
import os
import re
from collections.abc import Iterable

from sandbox.errors import InvalidPath

GUEST_PATH = "/workspace"
MAX_DEPTH = 32
_MAX_SEGMENT_BYTES = 255  # NAME_MAX of Linux file systems
_MAX_COMPARED = 500
_MAX_COMPARED_CHARACTERS = 100

Segments = tuple[bytes, ...]


def name_of(segments: Segments) -> str:
    """The path of ``segments`` as text."""
    raw = b"/".join(segments)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if text and "\\x" not in text:
        return text
    return raw.replace(b"\\", b"\\x5c").decode("utf-8", "backslashreplace")


def guest_name(path: str) -> str:
    """The path as a guest's Python has it: relative, bytes that are not UTF-8 as surrogate escapes."""
    return os.fsdecode(b"/".join(segments_of(path)))


def tool_path(guest_path: str) -> str:
    """A path of a file in the workspace as a guest has it, in the language of the tools."""
    return name_of((os.fsencode(guest_path.removeprefix(GUEST_PATH + "/")),))


def segments_of(path: str) -> Segments:
    """Parse a path; raises `InvalidPath` for one outside the workspace, or one that no file can have."""
    problem = None
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), _encoded(path))
    prefix = GUEST_PATH.encode() + b"/"
    raw = raw.removeprefix(prefix) if raw.startswith(prefix) else raw.removeprefix(b"./")
    segments = tuple(raw.split(b"/"))
    if not raw:
        problem = "it is empty"
    elif b"\0" in raw:
        problem = "it contains a NUL character"
    elif raw.startswith(b"/"):
        problem = f"it is outside {GUEST_PATH}"
    elif b".." in segments:
        problem = "it contains '..'"
    elif b"" in segments or b"." in segments:
        problem = "it has an empty part, a part '.', or ends in '/'"
    elif len(segments) > MAX_DEPTH:
        problem = f"it is more than {MAX_DEPTH} folders deep"
    elif any(len(s) > _MAX_SEGMENT_BYTES for s in segments):
        problem = f"a part of it is longer than {_MAX_SEGMENT_BYTES} bytes"
    if problem:
        shown = ascii(path if len(path) <= 100 else path[:100] + "…")
        raise InvalidPath(
            f"The path {shown} is refused: {problem}. Give a path inside the workspace, such as 'report.docx'."
        )
    return segments


def _encoded(path: str) -> bytes:
    try:
        return path.encode()
    except UnicodeEncodeError:
        raise InvalidPath(f"The path {path[:100]!a} is refused: it is not valid Unicode text.") from None


def near_paths(path: str, candidates: Iterable[str]) -> list[str]:
    """Up to three candidates that look like ``path``: the same file name elsewhere first, then similar spellings.

    The names may be a guest's, made so that comparing them takes long: few and short ones are compared.
    """
    names = list(candidates)
    wanted = path.removeprefix(GUEST_PATH + "/")
    last = wanted.rpartition("/")[2]
    same_name = [n for n in names if n.rpartition("/")[2] == last]
    similar: list[str] = []
    if len(wanted) <= _MAX_COMPARED_CHARACTERS:
        short = [n for n in names if len(n) <= _MAX_COMPARED_CHARACTERS][:_MAX_COMPARED]
        similar = difflib.get_close_matches(wanted, short, n=3, cutoff=0.6)
    return list(dict.fromkeys(same_name + similar))[:3]
