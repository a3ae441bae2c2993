"""Where in a JSON document the rows are: ``$.result.rows``, or ``$.hits.hits[*]._source`` if each is inside of an element."""

import json
import re
from dataclasses import dataclass

from sandbox.tables.slices import Slice, elements, end_of_value, members

_MAX_DEPTH = 5
HEADER_KEYS = ("columns", "fields", "header", "headers", "column_names", "columnNames", "schema")
"""Names of the member, beside rows that are arrays, that has the names of their columns."""
_NAME_KEYS = ("name", "column", "field", "key", "label", "columnName", "column_name")

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEP = re.compile(r"\.(?P<plain>[^.\[\]\s\"']+)|\[(?P<quoted>\"(?:[^\"\\]|\\.)*\"|'[^'\\]*')\]")
_FIRST_ELEMENT = re.compile(rb"\[[ \t\n\r]*(?:null[ \t\n\r]*,[ \t\n\r]*)*+(.)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """The keys that lead to the array of rows, and the member of each element that is the row, if it is not the element."""

    keys: tuple[str, ...] = ()
    inside: str | None = None

    def __str__(self) -> str:
        return "$" + "".join(map(step, self.keys)) + (f"[*]{step(self.inside)}" if self.inside is not None else "")


def step(key: str) -> str:
    """A key as a step of a path."""
    return f".{key}" if _PLAIN.fullmatch(key) else f"[{json.dumps(key, ensure_ascii=False)}]"


def parse_place(text: str) -> Place:
    """A place from its text; raises ValueError with a sentence that says what is right."""
    advice = 'Write it as $, $.issues, $.result.rows, $["a key"], or $.hits.hits[*]._source.'
    outer, wildcard, inner = text.strip().removeprefix("$").partition("[*]")
    keys, inside = _keys(outer), _keys(inner)
    if keys is None or inside is None or len(inside) > 1 or (wildcard and "[*]" in inner):
        raise ValueError(f"rows_at is not the place of an array. {advice}")
    return Place(tuple(keys), inside[0] if inside else None)


def _keys(text: str) -> list[str] | None:
    if text and text[0] not in ".[":
        text = f".{text}"
    found, at = [], 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            return None
        quoted = match["quoted"]
        if quoted is None:
            found.append(match["plain"])
        else:
            found.append(json.loads(quoted) if quoted[0] == '"' else quoted[1:-1])
        at = match.end()
    return found


def find_place(document: Slice) -> Place | None:
    """The largest array of records in a document; None where there is none. Arrays of arrays count if columns stand beside them."""
    data = bytes(document).lstrip()
    if data[:1] == b"[":
        return Place((), _inside(data))
    found = _arrays(data, ()) if data[:1] == b"{" else []
    return max(found, key=lambda one: one[0])[1] if found else None


def _arrays(thing: bytes, above: tuple[str, ...]) -> list[tuple[int, Place]]:
    """Size and place of each array of rows in an object."""
    found: list[tuple[int, Place]] = []
    inner = members(thing)
    has_header = any(member.key in HEADER_KEYS for member in inner)
    for member in inner:
        value = bytes(member.value)
        keys = (*above, member.key)
        if value[:1] == b"{" and len(keys) < _MAX_DEPTH:
            found += _arrays(value, keys)
        first = _FIRST_ELEMENT.match(value)
        if first is not None and first[1] == b"{" and not (has_header and member.key in HEADER_KEYS):
            found.append((len(value), Place(keys, _inside(value))))
        elif first is not None and first[1] == b"[" and (has_header or _has_header_row(value, first.start(1))):
            found.append((len(value), Place(keys)))
    return found


def _inside(array: bytes) -> str | None:
    """The member that is the record, if elements wrap it: `_source` in Elasticsearch's hits, `node` in GraphQL's edges."""
    first = _FIRST_ELEMENT.match(array)
    if first is None or first[1] != b"{":
        return None
    start = first.start(1)
    wrapper = members(array[start : end_of_value(array, start)])
    names = {member.key for member in wrapper if bytes(member.value)[:1] == b"{"}
    if "_source" in names:
        return "_source"
    return "node" if "node" in names and len(wrapper) <= 2 else None


def _has_header_row(array: bytes, start: int) -> bool:
    return header_row(array[start : end_of_value(array, start)]) is not None


def header_row(row: bytes) -> list[str] | None:
    """The names of columns, if a row of a table of arrays has nothing but them: several texts, none empty, none twice."""
    names = names_in(row) if all(bytes(cell)[:1] == b'"' for cell in elements(row)) else None
    return names if names and len(set(names)) == len(names) > 1 and all(names) else None


def names_in(header: Slice) -> list[str] | None:
    """The names that a value beside the rows gives to their columns; None if it gives none."""
    data = bytes(header)
    if data[:1] == b"{":  # such as {"schema": {"fields": […]}}
        inner = [member.value for member in members(data) if member.key in HEADER_KEYS]
        return names_in(inner[0]) if inner else None
    if data[:1] != b"[":
        return None
    names = []
    for element in map(bytes, elements(data)):
        name = element
        if element[:1] == b"{":
            by_key = {member.key: bytes(member.value) for member in members(element)}
            name = next((by_key[key] for key in _NAME_KEYS if key in by_key), b"")
        if name[:1] != b'"':
            return None
        names.append(json.loads(name))
    return names
