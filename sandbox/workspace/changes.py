"""Several changes of a workspace's files, all or none."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from sandbox.errors import ServiceFault, SpillboxError
from sandbox.workspace.paths import Segments, name_of
from sandbox.workspace.store import Store, Version

_log = logging.getLogger(__name__)


class Vanished(Exception):
    """Another process has removed the file that was to be replaced or removed; nothing was changed."""


class _Step(NamedTuple):
    """How to take one change back."""

    segments: Segments
    aside: str
    """The file under ``incoming/`` that has the old content; empty if there was none."""
    take_back: Callable[[], object]


class Changes:
    """Used in a ``with``: if it ends by an exception, all files are as before, but for what another process wrote meanwhile.

    What is replaced or removed stays under ``incoming/`` until the end. If the service is killed, some changes may be made and
    others not; each file is whole all the same, the old one or the new one. Only where a file and a folder change places the
    old may be gone and the new not yet there.

    Raises `ServiceFault` where files could not be put back; what they held stays under ``incoming/`` then, and is named in the log.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._steps: list[_Step] = []
        self._aside: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        lost = [] if kind is None else self._take_back()
        kept = {step.aside for step in lost}
        self._store.discard(name for name in self._aside if name not in kept)
        if lost:
            content = ", and where their content is kept for a day" if any(kept) else ""
            raise ServiceFault(
                f"What the script wrote could not be kept, and {len(lost):,} files or folders of the workspace could not be put "
                f"back as they were, such as {name_of(lost[0].segments)}. Tell the operator: the log of the service says "
                f"why{content}."
            )

    def place(self, name: str, segments: Segments) -> int | None:
        """As `Store.place`; gives how many bytes the file had that was there, or None. Raises `Vanished`."""
        old_size = self._store.size(segments)
        aside = self._keep(segments) if old_size is not None else ""
        self._will_be(segments, self._store.version_of_new(name), aside)
        self._store.place(name, segments)
        return old_size

    def remove(self, segments: Segments) -> None:
        """Remove a file; raises `Vanished`."""
        self._will_be(segments, None, self._keep(segments))
        self._store.remove(segments)

    def make_folder(self, segments: Segments) -> None:
        """Make a folder where nothing is."""
        self._store.make_folder(segments)
        self._steps.append(_Step(segments, "", partial(self._store.drop_folder, segments)))

    def drop_folder(self, segments: Segments) -> None:
        """Remove a folder if it is empty."""
        if self._store.drop_folder(segments):

            def make_again() -> None:
                with suppress(FileExistsError):  # another process has made it
                    self._store.make_folder(segments)

            self._steps.append(_Step(segments, "", make_again))

    def _keep(self, segments: Segments) -> str:
        """The name that a file has under ``incoming/`` now too."""
        try:
            name = self._store.link_aside(segments)
        except FileNotFoundError:
            raise Vanished from None
        self._aside.append(name)
        return name

    def _will_be(self, segments: Segments, version: Version | None, aside: str) -> None:
        """Have the file back if it comes to that, and if what is there then is what this change will make of it."""

        def take_back() -> None:
            if self._store.version(segments) != version:
                return  # the change was not made, or another process has written it since
            if aside:
                self._store.place(aside, segments)
            else:
                self._store.remove(segments)

        self._steps.append(_Step(segments, aside, take_back))

    def _take_back(self) -> list[_Step]:
        """All that was done, the last first; gives the steps for which that failed."""
        lost = []
        for step in reversed(self._steps):
            try:
                step.take_back()
            except (OSError, SpillboxError) as fault:
                kept = f"; what it held is {self._store.incoming / step.aside}" if step.aside else ""
                _log.error("%s could not be put back (%s)%s", self._store.files / name_of(step.segments), fault, kept)
                lost.append(step)
        return lost
