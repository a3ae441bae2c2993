"""Several changes of a workspace's files, all or none."""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from sandbox.workspace.paths import Segments
from sandbox.workspace.store import Store


class Changes:
    """Used in a ``with``: if it ends by an exception, all files are as before.

    What is replaced or removed stays under ``incoming/`` until the end. If the service is killed, or the machine, some changes may
    be made and others not; each file is whole all the same, the old one or the new one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._undoing = ExitStack()
        self._aside: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            if kind is not None:
                self._undoing.close()
        finally:
            self._store.discard(self._aside)

    def place(self, name: str, segments: Segments) -> bool:
        """As `Store.place`; gives whether there was a file before."""
        was_there = self._store.size(segments) is not None
        if was_there:
            self._keep(segments)
        self._store.place(name, segments)
        if not was_there:
            self._undoing.callback(self._store.remove, segments)
        return was_there

    def remove(self, segments: Segments) -> None:
        """Remove a file."""
        self._keep(segments)
        self._store.remove(segments)

    def make_folder(self, segments: Segments) -> None:
        """Make a folder where nothing is."""
        self._store.make_folder(segments)
        self._undoing.callback(self._store.drop_folder, segments)

    def drop_folder(self, segments: Segments) -> None:
        """Remove a folder if it is empty."""
        if self._store.drop_folder(segments):
            self._undoing.callback(self._store.make_folder, segments)

    def _keep(self, segments: Segments) -> None:
        """Have a file back if it comes to that."""
        name = self._store.link_aside(segments)
        self._aside.append(name)
        self._undoing.callback(self._store.place, name, segments)
