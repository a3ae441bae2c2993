"""A part of a JSON document by a path, with every literal as it is written.

The paths are a subset of JSONPath (RFC 9535): names, indices, slices, and wildcards of one level. Other than there, what is
missing below a wildcard or a slice is a null at its place, and counted, so that results of two paths line up.
"""

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec
from msgspec import Raw

from sandbox.errors import InvalidArguments, InvalidSource, NoSuchElement
from sandbox.tables.cells import quoted, without_lone_surrogates
from sandbox.tables.place import step
from sandbox.tables.slices import REFUSED, NotJson, Slice, by_key, elements, members, require_json, skip_space, values

MAX_TEXT_CHARACTERS = 20_000
_MAX_STRING_CHARACTERS = 4000
_MAX_STEPS = 50
_MAX_CUTS, _MAX_NAMED_KEYS, _MAX_KEY_CHARACTERS = 50, 30, 60
_BOM = b"\xef\xbb\xbf"
_STEP = re.compile(
    r"""\.(?P<wild>\*)|\.(?P<name>[^.\[\]*?@()"']+)|\[\s*(?:(?P<star>\*)|(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<slice>(?:-?\d+)?\s*:\s*(?:-?\d+)?(?:\s*:\s*(?:-?\d+)?)?)|(?P<index>-?\d+))\s*\]"""
)
_ADVICE = (
    "Write steps such as $.issues[0].title, $[\"a key\"], $.rows[10:20], $.rows[*].id. There are no filters and no '..': "
    "search_output finds lines, and a script can do the rest."
)

_raw_by_key = msgspec.json.Decoder(dict[str, Raw])


class Wildcard:
    """The step to all elements, or values."""


Step = str | int | slice | Wildcard
_ALL = Wildcard()


@dataclass(frozen=True)
class Cut:
    """Something that is not in the text."""

    at: str
    what: str


@dataclass
class Extract:
    """What a path leads to."""

    text: str
    total: int
    """Elements found; of a path to one array, its elements."""
    returned: int
    missing: int
    """Of the elements, those that are not there and stand as null."""
    cut: list[Cut] = field(default_factory=list)


def parse(expression: str) -> list[Step]:
    """The steps of a path; raises `InvalidArguments`, saying where it is wrong."""
    try:
        expression.encode()
    except UnicodeEncodeError:
        raise InvalidArguments("The path is not valid Unicode text: it has half of a surrogate pair.") from None
    text = expression.strip()
    text = text[1:] if text.startswith("$") else text
    if text and text[0] not in ".[":
        text = f".{text}"
    steps: list[Step] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise InvalidArguments(f"The path is not understood from {text[at : at + 40]!a} on. {_ADVICE}")
        steps.append(_step(found))
        at = found.end()
        if len(steps) > _MAX_STEPS:
            raise InvalidArguments(f"A path has at most {_MAX_STEPS} steps.")
    return steps


def _step(found: re.Match[str]) -> Step:
    if found["wild"] or found["star"]:
        return _ALL
    if found["name"] is not None:
        return found["name"]
    try:
        if found["quoted"] is not None:
            return _unquoted(found["quoted"])
        if found["index"] is not None:
            return int(found["index"])
        parts = [int(part) if part.strip() else None for part in found["slice"].split(":")]
    except ValueError:
        raise InvalidArguments(f"The step {found[0][:60]!a} is not right. {_ADVICE}") from None
    if len(parts) == 3 and parts[2] == 0:
        raise InvalidArguments("The step of a slice can't be 0.")
    return slice(*parts)


def _unquoted(quoted: str) -> str:
    if quoted[0] == "'":
        inner = re.sub(r"\\(.)|\"", lambda m: f"\\{m[1]}" if m[1] and m[1] != "'" else (m[1] or '\\"'), quoted[1:-1])
        quoted = f'"{inner}"'
    text: str = json.loads(quoted)
    return text


def extract(document: bytes, expression: str, *, max_items: int, max_depth: int) -> Extract:
    """The part of a document that a path leads to, bounded.

    Raises `InvalidArguments` for a path that is none, `NoSuchElement` for one that misses, naming the keys that are near,
    and `InvalidSource` for a file that is no JSON.
    """
    steps = parse(expression)
    found = _Search(steps)
    nodes: list[Slice | None] = [_root(document)]
    for depth, one in enumerate(steps):
        nodes = list(found.follow(nodes, depth, one))
    render = _Renderer(max_items, max_depth)
    if found.is_definite:
        assert nodes[0] is not None  # noqa: S101  a definite path that misses has raised
        return render.one(nodes[0], _path(steps))
    return render.many(nodes)


def _root(document: bytes) -> Slice:
    """The document's value; lines of values are an array."""
    try:
        document.decode()
    except UnicodeDecodeError as fault:
        raise InvalidSource(f"The file is not valid UTF-8 at byte {fault.start:,}.") from None
    data = document.removeprefix(_BOM)
    data = data[skip_space(data, 0) :].rstrip(b" \t\r\n")
    try:
        require_json(data)
    except NotJson as fault:
        if not fault.truncated and data[:1] in b"[{":
            try:
                return b"[" + b",".join(data[start:end] for start, end in values(data)) + b"]"
            except NotJson as inner:
                fault = inner
        raise InvalidSource(f"The file can't be read as JSON: {fault}. Use search_output or read_file.") from None
    return data


class _Search:
    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self.is_definite = True

    def follow(self, nodes: list[Slice | None], depth: int, one: Step) -> Iterator[Slice | None]:
        """What a step leads to from each node."""
        if isinstance(one, slice | Wildcard):
            if self.is_definite and (nodes[0] is None or bytes(nodes[0])[:1] not in b"[{"):
                raise NoSuchElement(
                    f"At {_path(self._steps[:depth])} there is {_kind(nodes[0])}, which has no elements."
                )
            self.is_definite = False
            for node in nodes:
                yield from _many(node, one)
            return
        is_any_there = False
        for node in nodes:
            child = _member(node, one) if isinstance(one, str) else _element(node, one)
            is_any_there = is_any_there or child is not None
            if child is None and self.is_definite:
                raise self._misses(node, depth, one)
            yield child
        there = [node for node in nodes if node is not None]
        if there and not is_any_there:
            raise self._misses(there[0], depth, one)

    def _misses(self, node: Slice | None, depth: int, one: str | int) -> NoSuchElement:
        where = _path(self._steps[:depth])
        data = bytes(node or b"null")
        if isinstance(one, int):
            count = len(elements(data)) if data[:1] == b"[" else 0
            return NoSuchElement(
                f"At {where} there is {_kind(node)}"
                + (f" of {count:,} elements" if count else "")
                + f": it has no element {one}."
            )
        if data[:1] != b"{":
            advice = f" Take its elements with [0] or [*], as in {where}[*]{step(one)}." if data[:1] == b"[" else ""
            return NoSuchElement(f"At {where} there is {_kind(node)}, which has no key {quoted(one)}.{advice}")
        keys = [member.key for member in islice(members(data), 1000)]
        shown = [key[:_MAX_KEY_CHARACTERS] for key in keys]
        near = difflib.get_close_matches(
            one[:_MAX_KEY_CHARACTERS].casefold(), [key.casefold() for key in shown], n=3, cutoff=0.4
        )
        near_keys = [key for key in shown if key.casefold() in near][:3]
        advice = f" Nearest: {', '.join(map(quoted, near_keys))}." if near_keys else ""
        more = f" and {len(keys) - _MAX_NAMED_KEYS} more" if len(keys) > _MAX_NAMED_KEYS else ""
        return NoSuchElement(
            f"At {where} there is no key {quoted(one)}.{advice} There are: "
            f"{', '.join(map(quoted, shown[:_MAX_NAMED_KEYS]))}{more}."
        )


def _member(node: Slice | None, key: str) -> Slice | None:
    if node is None or bytes(node)[:1] != b"{":
        return None
    try:
        return _raw_by_key.decode(node).get(key)
    except REFUSED:
        return by_key(node).get(key)


def _element(node: Slice | None, index: int) -> Slice | None:
    if node is None or bytes(node)[:1] != b"[":
        return None
    inner = elements(node)
    return inner[index] if -len(inner) <= index < len(inner) else None


def _many(node: Slice | None, which: slice | Wildcard) -> list[Slice]:
    if node is None:
        return []
    first = bytes(node)[:1]
    if first == b"[":
        return elements(node)[which] if isinstance(which, slice) else elements(node)
    return [member.value for member in members(node)] if first == b"{" and isinstance(which, Wildcard) else []


def _kind(node: Slice | None) -> str:
    first = bytes(node or b"null")[:1]
    kinds = {b"{": "an object", b"[": "an array", b'"': "a string", b"t": "a boolean", b"f": "a boolean", b"n": "null"}
    return kinds.get(first, "a number")


def _path(steps: list[Step]) -> str:
    text = "$"
    for one in steps:
        if isinstance(one, Wildcard):
            text += "[*]"
        elif isinstance(one, slice):
            parts = ["" if part is None else str(part) for part in (one.start, one.stop, one.step)]
            text += f"[{':'.join(parts[: 3 if parts[2] else 2])}]"
        else:
            text += step(one) if isinstance(one, str) else f"[{one}]"
    return text


class _Renderer:
    """Values as text, within bounds; what is over them stands as null, or shortened, and is listed."""

    def __init__(self, max_items: int, max_depth: int) -> None:
        self._max_items = max_items
        self._max_depth = max_depth
        self._cut: list[Cut] = []
        self._left = MAX_TEXT_CHARACTERS

    def one(self, node: Slice, at: str) -> Extract:
        if bytes(node)[:1] != b"[":
            return Extract(self._text(node, at, 1), 1, 1, 0, self._cut)
        return self._listed(elements(node), at, 0)

    def many(self, nodes: list[Slice | None]) -> Extract:
        missing = sum(node is None for node in nodes)
        return self._listed([b"null" if node is None else node for node in nodes], "", missing)

    def _listed(self, nodes: list[Slice], at: str, missing: int) -> Extract:
        lines: list[str] = []
        for index, node in enumerate(nodes[: self._max_items]):
            text = self._text(node, f"{at}[{index}]", 1)
            if lines and self._left < 0:
                break
            lines.append(text)
        self._note(at, len(lines), len(nodes), "elements")
        text = "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"
        return Extract(text, len(nodes), len(lines), missing, self._cut)

    def _text(self, node: Slice, at: str, depth: int) -> str:
        data = bytes(node)
        first = data[:1]
        if first == b"{" and depth < self._max_depth + 1:
            inner = members(data)
            parts = []
            for member in inner[: self._max_items]:
                if self._left < 0:
                    break
                key = member.raw_key.decode()
                self._left -= len(key) + 4
                parts.append(
                    f"{key}: {self._text(member.value, at + step(member.key[:_MAX_KEY_CHARACTERS]), depth + 1)}"
                )
            self._note(at, len(parts), len(inner), "keys")
            return "{" + ", ".join(parts) + "}"
        if first == b"[" and depth < self._max_depth + 1:
            all_of_them = elements(data)
            parts = []
            for index, element in enumerate(all_of_them[: self._max_items]):
                if self._left < 0:
                    break
                self._left -= 2
                parts.append(self._text(element, f"{at}[{index}]", depth + 1))
            self._note(at, len(parts), len(all_of_them), "elements")
            return "[" + ", ".join(parts) + "]"
        if first in (b"{", b"["):
            self._add(at, f"{_kind(data)} of {len(data):,} bytes, deeper than max_depth, stands as null")
            self._left -= 4
            return "null"
        text = data.decode("utf-8", "replace")
        if first == b'"' and len(text) > _MAX_STRING_CHARACTERS:
            whole = json.loads(text)
            text = json.dumps(without_lone_surrogates(whole[:_MAX_STRING_CHARACTERS]), ensure_ascii=False)
            self._add(at, f"the first {_MAX_STRING_CHARACTERS:,} of {len(whole):,} characters")
        elif len(text) > _MAX_STRING_CHARACTERS:
            self._add(at, f"a number of {len(text):,} characters stands as null")
            text = "null"
        self._left -= len(text)
        return text

    def _note(self, at: str, shown: int, whole: int, what: str) -> None:
        if shown < whole:
            self._add(at, f"the first {shown:,} of {whole:,} {what}")

    def _add(self, at: str, what: str) -> None:
        if len(self._cut) < _MAX_CUTS:
            self._cut.append(Cut(without_lone_surrogates(at[:500]) or "$", what))
