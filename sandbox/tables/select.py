"""The rows that a builder writes: columns in an order, sorted by one of them, a range of them."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path

from sandbox.errors import InvalidSource
from sandbox.tables.cells import Cell, quoted
from sandbox.tables.sort import Sorter
from sandbox.tables.source import Run, Source

Rows = list[tuple[Cell, ...]]
Picker = Callable[[Rows], Rows]

_MAX_PICKERS = 1000
_MAX_NAMES = 50
_MAX_CELLS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Selection:
    """Which columns (None: all), in which order of rows, and which of these: ``count`` from ``start`` on, counted from 0."""

    columns: tuple[str, ...] | None = None
    sort_by: str | None = None
    descending: bool = False
    sort_texts_as_numbers: bool = False
    start: int = 0
    count: int | None = None


class Selected:
    """Rows of a source. ``rows_total`` and ``rows_written`` are true when `runs` has come to its end."""

    def __init__(self, source: Source, selection: Selection, *, spool_folder: Path) -> None:
        self.source = source
        self._selection = selection
        self._spool_folder = spool_folder
        self._seen: dict[str, None] = {}
        self.rows_total = self.rows_written = 0
        self.notes: list[str] = []
        self.names = list(selection.columns or ())
        """Of the columns."""
        if selection.columns is None or source.has_header:
            survey = source.survey()
            self._seen = dict.fromkeys(survey.columns)
            if selection.columns is None:
                self.names = survey.columns
            self._require_columns(survey.rows)

    def runs(self) -> Iterator[Rows]:
        """The rows, some at a time; raises `InvalidSource` at the end if no row had a column that is wanted."""
        self.rows_total = self.rows_written = 0
        is_sorted = self._selection.sort_by is not None
        rows = self._sorted() if is_sorted else (picked for _, picked in self._picked())
        start = self._selection.start
        end = None if self._selection.count is None else start + self._selection.count
        for some in rows:
            before, self.rows_total = self.rows_total, self.rows_total + len(some)
            some = some[max(0, start - before) : None if end is None else max(0, end - before)]
            self.rows_written += len(some)
            if some:
                yield some
        self._require_columns(self.rows_total)

    def _picked(self) -> Iterator[tuple[Run, Rows]]:
        """Each run as it is, and what is wanted of it."""
        pickers: dict[tuple[str, ...], Picker] = {}
        at_once = max(1, _MAX_CELLS_AT_ONCE // max(1, len(self.names)))
        for run in self.source.runs():
            pick = pickers.get(run.columns)
            if pick is None:
                self._seen.update(dict.fromkeys(run.columns))
                if len(pickers) == _MAX_PICKERS:
                    pickers.clear()
                pick = pickers[run.columns] = self._picker(run.columns)
            for first in range(0, max(1, len(run.rows)), at_once):  # a few rows may become many cells
                rows = run.rows[first : first + at_once]
                yield Run(run.columns, rows), pick(rows)

    def _picker(self, columns: tuple[str, ...]) -> Picker:
        if self.source.has_header and self._selection.columns is None:  # names may be equal, so positions count
            wanted: list[int | None] = [n if n < len(columns) else None for n in range(len(self.names))]
        else:
            wanted = [columns.index(name) if name in columns else None for name in self.names]
        if wanted == list(range(len(columns))):
            return lambda rows: rows
        there = [index for index in wanted if index is not None]
        if len(there) == len(wanted) > 1:
            get = itemgetter(*there)
            return lambda rows: list(map(get, rows))
        return lambda rows: [tuple(None if index is None else row[index] for index in wanted) for row in rows]

    def _sorted(self) -> Iterator[Rows]:
        name = self._selection.sort_by or ""
        with Sorter(self._spool_folder, texts_as_numbers=self._selection.sort_texts_as_numbers) as sorter:
            for run, picked in self._picked():
                index = run.columns.index(name) if name in run.columns else None
                for row, wanted in zip(run.rows, picked, strict=True):
                    sorter.add(None if index is None else row[index], wanted)
            if sorter.are_numbers_as_texts():
                self.notes.append(
                    f"The values of {quoted(name)} are numbers written as texts, and sorted as texts: 9 comes after 10. "
                    "Set sort_as to numbers to sort by value."
                )
            yield from sorter.rows(descending=self._selection.descending)

    def _require_columns(self, rows: int) -> None:
        """All columns that are asked for are there; where there is no row, any could be."""
        wanted = [*(self._selection.columns or ()), *([self._selection.sort_by] if self._selection.sort_by else [])]
        unknown = [name for name in wanted if name not in self._seen]
        if unknown and (rows or self._seen):
            near = difflib.get_close_matches(unknown[0][:100], [n[:100] for n in self._seen][:500], n=3, cutoff=0.5)
            advice = f"Did you mean {', '.join(map(quoted, near))}? " if near else ""
            outer = unknown[0].partition(".")[0]
            if outer != unknown[0] and outer in self._seen:
                advice = f"Columns are whole members: {quoted(outer)} is one, and a script can take its parts out. "
            raise InvalidSource(
                f"There is no column {quoted(unknown[0])} in the source. {advice}There are: {listed(self._seen)}."
            )


def listed(names: Iterable[str]) -> str:
    """Names for a message: the first of very many."""
    shown = list(map(quoted, islice(names, _MAX_NAMES + 1)))
    return ", ".join(shown[:_MAX_NAMES]) + (", …" if len(shown) > _MAX_NAMES else "")
