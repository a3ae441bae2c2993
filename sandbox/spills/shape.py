"""A structural map of a JSON document in at most 1,024 bytes: what there is, how many, how long; never a value."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from sandbox.tables.cells import without_lone_surrogates
from sandbox.tables.place import Place, parse_place
from sandbox.tables.slices import Slice, elements, members

MAX_SHAPE_BYTES = 1024
_MAX_DEPTH = 4
_SAMPLED_ELEMENTS = 200
_LONG_CHARACTERS = 200
_MIN_MAP_KEYS = 8
_ID = re.compile(r"[0-9]+|[0-9a-fA-F-]{8,}|\w*[-_:/.]?\d[\w-]*|[\w.+-]+@[\w.-]+")
_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$-]*")
_SCALARS = {b'"': "string", b"t": "boolean", b"f": "boolean", b"n": "null", b"N": "number"}


@dataclass
class _Shape:
    """Everything that was seen at one place of a document, in one."""

    kinds: dict[str, None] = field(default_factory=dict)
    seen: int = 0
    longest: int = 0
    members: dict[str, "_Shape"] = field(default_factory=dict)
    objects: int = 0
    element: "_Shape | None" = None
    lengths: list[int] = field(default_factory=list)

    def add(self, value: Slice, depth: int) -> None:
        """Take another value in, down to ``depth`` levels below it."""
        data = bytes(value)
        self.seen += 1
        first = data[:1]
        if first == b"{":
            self.kinds["object"] = None
            self.objects += 1
            for member in members(data):
                shape = self.members.setdefault(without_lone_surrogates(member.key), _Shape())
                if depth > 0:
                    shape.add(member.value, depth - 1)
        elif first == b"[":
            self.kinds["array"] = None
            inner = elements(data)
            self.lengths.append(len(inner))
            self.element = self.element or _Shape()
            for element in inner[:_SAMPLED_ELEMENTS] if depth > 0 else ():
                self.element.add(element, depth - 1)
        else:
            kind = _SCALARS.get(first, "number")
            self.kinds[kind] = None
            if kind == "string":
                self.longest = max(self.longest, len(data) - 2)

    def absorb(self, other: "_Shape") -> "_Shape":
        """Take in all that another place saw."""
        self.kinds.update(other.kinds)
        self.seen += other.seen
        self.objects += other.objects
        self.longest = max(self.longest, other.longest)
        self.lengths += other.lengths
        for key, inner in other.members.items():
            self.members.setdefault(key, _Shape()).absorb(inner)
        if other.element is not None:
            self.element = (self.element or _Shape()).absorb(other.element)
        return self

    def merged(self) -> "_Shape":
        """What the members have in common."""
        all_of_them = _Shape()
        for shape in self.members.values():
            all_of_them.absorb(shape)
        return all_of_them

    def is_map(self) -> bool:
        """Whether the keys are ids: many, none of them a word, and with the same kind of value."""
        if len(self.members) < _MIN_MAP_KEYS or self.objects != 1:
            return False
        kinds = {tuple(shape.kinds) for shape in self.members.values()}
        return len(kinds) == 1 and all(len(key) <= 100 and _ID.fullmatch(key) for key in self.members)


def shape_of(document: Slice, *, columns: tuple[str, ...] = (), rows_at: str | None = None) -> str:
    """The map, such as ``{total: number, issues: array[321] of {id: number, title: string(≤1,204), labels?: …}}``.

    ``columns`` are all that the rows at ``rows_at`` have; the map itself looks at the first 200 elements of an array.
    """
    place = None if rows_at is None else parse_place(rows_at)
    # The columns of the rows are never below the map, however deep they are.
    least = 2 if place is None else len(place.keys) + 2 + (place.inside is not None)
    most = max(_MAX_DEPTH, least)
    shape = _Shape()
    shape.add(document, most)
    if place is not None:
        _add_columns(shape, place, columns)
    forms = [_Form(depth) for depth in range(most, least - 1, -1)]
    forms += [_Form(least, names_only=True, keys=keys) for keys in (None, 200, 100, 60, 40, 20, 10, 5, 2)]
    for form in forms:
        text = _text(shape, form.depth, form)
        if len(text.encode()) <= MAX_SHAPE_BYTES:
            return text
    return text.encode()[: MAX_SHAPE_BYTES - 3].decode("utf-8", "ignore") + "…"


class _Form(NamedTuple):
    """How much a map tells."""

    depth: int
    names_only: bool = False
    keys: int | None = None


def _add_columns(shape: _Shape, place: Place, columns: tuple[str, ...]) -> None:
    """Columns that no sampled row has."""
    at: _Shape | None = shape
    for key in place.keys:
        at = at and at.members.get(key)
    at = at and at.element
    if place.inside is not None:
        at = at and at.members.get(place.inside)
    if at is not None and "object" in at.kinds:
        for name in columns:
            at.members.setdefault(name, _Shape())


def _text(shape: _Shape, depth: int, form: _Form) -> str:
    texts = [_kind(shape, kind, depth, form) for kind in shape.kinds if kind != "null"]
    if "null" in shape.kinds:
        texts.append("null")
    return " | ".join(texts) or "unknown"


def _kind(shape: _Shape, kind: str, depth: int, form: _Form) -> str:
    if kind == "string":
        return f"string(≤{shape.longest:,})" if shape.longest > _LONG_CHARACTERS else "string"
    if kind == "array":
        few, many = min(shape.lengths), max(shape.lengths)
        count = f"{many}" if few == many else f"{few} to {many}"
        if depth <= 0 or not many or shape.element is None:
            return f"array[{count}]"
        return f"array[{count}] of {_text(shape.element, depth - 1, form)}"
    if kind == "object":
        if depth <= 0:
            return f"object of {len(shape.members)} keys"
        if shape.is_map():
            return f"map[{len(shape.members)}] of {_text(shape.merged(), depth - 1, form)}"
        shown = list(shape.members.items())[: form.keys]
        rest = len(shape.members) - len(shown)
        inner = [_member(shape, key, one, depth - 1, form) for key, one in shown]
        return "{" + ", ".join([*inner, *([f"… {rest} more keys"] if rest else [])]) + "}"
    return kind


def _member(above: _Shape, key: str, shape: _Shape, depth: int, form: _Form) -> str:
    name = key if _PLAIN_KEY.fullmatch(key) else f'"{key[:60]}"'
    is_container = "array" in shape.kinds or "object" in shape.kinds
    if form.names_only and (not is_container or depth <= 0):
        return name
    optional = "?" if above.objects > 1 and shape.seen < above.objects else ""
    return f"{name}{optional}: {_text(shape, depth, form)}"
