"""Rows in the order of one column. Memory holds a key and a place for each row; the rows are in an unnamed file."""

import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from sandbox.tables.cells import Cell, SortKey, is_number, sort_key

_ROWS_AT_ONCE = 1000

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple)


class Sorter:
    """Takes rows, then gives them sorted: stable in both directions, rows without a value last in both."""

    def __init__(self, folder: Path, *, texts_as_numbers: bool = False) -> None:
        self._texts_as_numbers = texts_as_numbers
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  it is closed at the end of the ``with``
        self._keys: list[SortKey] = []
        self._keyed, self._without = array("q"), array("q")
        self._starts, self._end = array("q"), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, cell: Cell, row: tuple[Cell, ...]) -> None:
        """Take a row, to be sorted by ``cell``."""
        key = sort_key(cell, texts_as_numbers=self._texts_as_numbers)
        number = len(self._starts)
        if key is None:
            self._without.append(number)
        else:
            self._keys.append(key)
            self._keyed.append(number)
        self._starts.append(self._end)
        plain = [cell if cell is None or isinstance(cell, str) else bytes(cell) for cell in row]
        self._end += self._file.write(_encoder.encode(plain))

    def are_numbers_as_texts(self) -> bool:
        """Whether all keys are texts that are numbers: their order is hardly what is wanted."""
        return bool(self._keys) and all(isinstance(text, str) and is_number(text) for _, text in self._keys)

    def rows(self, *, descending: bool) -> Iterator[list[tuple[Cell, ...]]]:
        """The rows in order, some at a time."""
        self._file.flush()
        self._starts.append(self._end)
        keys, keyed = self._keys, self._keyed
        order = array("q", (keyed[n] for n in sorted(range(len(keys)), key=keys.__getitem__, reverse=descending)))
        order.extend(self._without)
        for first in range(0, len(order), _ROWS_AT_ONCE):
            yield [self._row(number) for number in order[first : first + _ROWS_AT_ONCE]]

    def _row(self, number: int) -> tuple[Cell, ...]:
        start = self._starts[number]
        self._file.seek(start)
        row: tuple[Cell, ...] = _decoder.decode(self._file.read(self._starts[number + 1] - start))
        return row
