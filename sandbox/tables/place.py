"""Where in a JSON document the rows are: ``$.result.rows``, or ``$.hits.hits[*]._source`` if each is inside of an element."""

import json
import re
from dataclasses import dataclass

from sandbox.tables.cells import without_lone_surrogates
from sandbox.tables.slices import Member, Slice, by_key, elements, end_of_value, members, text_of

_MAX_DEPTH = 5
LOOKED_AT_ROWS = 100
HEADER_KEYS = ("columns", "fields", "header", "headers", "column_names", "columnNames", "schema")
"""Names of the member, beside rows that are arrays, that has the names of their columns."""
_BESIDE_SOURCE = ("sort", "highlight", "fields", "inner_hits", "matched_queries")
_NAME_KEYS = ("name", "column", "field", "key", "label", "columnName", "column_name")

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEP = re.compile(
    r"(?P<wild>\[\*\])|\.(?P<plain>[^.\[\]\s\"'*]+)|\[(?P<quoted>\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'[^'\\]*')\]"
)
_ADVICE = 'rows_at is not the place of an array. Write it as $, $.issues, $.result.rows, $["a key"], or $.hits.hits[*]._source.'
_FIRST_ELEMENT = re.compile(rb"\[[ \t\n\r]*(?:null[ \t\n\r]*,[ \t\n\r]*)*(.)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """The keys that lead to the array of rows, and the member of each element that is the row, if it is not the element."""

    keys: tuple[str, ...] = ()
    inside: str | None = None

    def __str__(self) -> str:
        return "$" + "".join(map(step, self.keys)) + (f"[*]{step(self.inside)}" if self.inside is not None else "")


def step(key: str) -> str:
    """A key as a step of a path."""
    if _PLAIN.fullmatch(key):
        return f".{key}"
    return f"[{json.dumps(key, ensure_ascii=False)}]".encode("utf-8", "backslashreplace").decode()


def parse_place(text: str) -> Place:
    """A place from its text; raises ValueError with a sentence that says what is right."""
    text = text.strip().removeprefix("$")
    text = f".{text}" if text and text[0] not in ".[" else text
    steps: list[str | None] = []  # None is the wildcard
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ValueError(_ADVICE)
        steps.append(None if found["wild"] else found["plain"] or _unquoted(found["quoted"]))
        at = found.end()
    keys = [key for key in steps if key is not None]
    if steps.count(None) > 1 or (None in steps and steps.index(None) < len(steps) - 2):
        raise ValueError(_ADVICE)
    if None in steps and steps[-1] is not None:
        return Place(tuple(keys[:-1]), keys[-1])
    return Place(tuple(keys))


def _unquoted(quoted: str) -> str:
    try:
        key: str = json.loads(quoted) if quoted[0] == '"' else quoted[1:-1]
        key.encode()
    except (ValueError, UnicodeEncodeError):
        raise ValueError(_ADVICE) from None
    return key


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
    inner = [member for member in members(thing) if without_lone_surrogates(member.key) == member.key]
    has_header = any(member.key in HEADER_KEYS for member in inner)
    has_rows = any(_starts_rows(member) for member in inner if member.key not in HEADER_KEYS)
    for member in inner:
        value = bytes(member.value)
        keys = (*above, member.key)
        if value[:1] == b"{" and len(keys) < _MAX_DEPTH:
            found += _arrays(value, keys)
        first = _FIRST_ELEMENT.match(value)
        is_header = member.key in HEADER_KEYS and has_rows
        if first is not None and first[1] == b"{" and not is_header:
            found.append((len(value), Place(keys, _inside(value))))
        is_table = first is not None and first[1] == b"[" and not is_header
        if is_table and (has_header or header_row(elements(value)[:LOOKED_AT_ROWS], key=member.key) is not None):
            found.append((len(value), Place(keys)))
    return found


def _starts_rows(member: Member) -> bool:
    first = _FIRST_ELEMENT.match(bytes(member.value))
    return first is not None and first[1] == b"["


def _inside(array: bytes) -> str | None:
    """The member that is the record, if elements wrap it: `_source` in Elasticsearch's hits, `node` in GraphQL's edges."""
    first = _FIRST_ELEMENT.match(array)
    if first is None or first[1] != b"{":
        return None
    start = first.start(1)
    wrapper = members(array[start : end_of_value(array, start)])
    objects = {member.key for member in wrapper if bytes(member.value)[:1] == b"{"}
    others = {member.key for member in wrapper}
    if "_source" in objects and all(key[:1] == "_" or key in _BESIDE_SOURCE for key in others):
        return "_source"
    return "node" if "node" in objects and others <= {"node", "cursor"} else None


def header_row(rows: list[Slice], *, key: str) -> list[str] | None:
    """The names of columns, if the first of some rows that are arrays has nothing but them: several texts, none empty or twice.

    It is taken for such only where a later row has a cell that is no text, or under `values`, as spreadsheets' servers give it.
    """
    if not rows or bytes(rows[0])[:1] != b"[":
        return None
    cells = [list(map(bytes, elements(row))) for row in rows if bytes(row)[:1] == b"["]
    has_other = any(cell[:1] != b'"' for row in cells[1:] for cell in row)
    if not (has_other or key == "values") or any(cell[:1] != b'"' for cell in cells[0]):
        return None
    names = names_in(rows[0])
    return names if names and len(set(names)) == len(names) > 1 and all(names) else None


def names_in(header: Slice, *, depth: int = 0) -> list[str] | None:
    """The names that a value beside the rows gives to their columns; None if it gives none."""
    data = bytes(header)
    if data[:1] == b"{":  # such as {"schema": {"fields": […]}}
        inner = [member.value for member in members(data) if member.key in HEADER_KEYS]
        return names_in(inner[0], depth=depth + 1) if inner and depth < _MAX_DEPTH else None
    if data[:1] != b"[":
        return None
    names = []
    for element in map(bytes, elements(data)):
        name = element
        if element[:1] == b"{":
            about = by_key(element)
            name = next((bytes(about[key]) for key in _NAME_KEYS if key in about), b"")
        if name[:1] != b'"':
            return None
        names.append(without_lone_surrogates(text_of(name)))
    return names
