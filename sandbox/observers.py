"""Where it is told what goes on: to those who count it, log it or trace it, which this package knows nothing of."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sandbox.errors import SpillboxError

Kind = Literal["request", "tool", "run", "spill", "build", "clean", "connect", "gateway"]


@dataclass
class Activity:
    """Something that takes time. Who does it fills in what comes of it until its end."""

    kind: Kind
    name: str
    """A tool's of ours, a runtime's, a format's, another server's in the settings: never what a caller or a guest chose."""
    parent: Mapping[str, str] = field(default_factory=dict)
    """The trace that a caller says it belongs to: ``traceparent``, ``tracestate``."""
    outcome: str = "ok"
    """``ok`` or how a run ended; the code of an error; ``interrupted`` if it was cancelled."""
    amounts: dict[str, int] = field(default_factory=dict)
    """How much, such as ``{"bytes": 21217}``."""
    labels: dict[str, str] = field(default_factory=dict)
    """What else there is to know, as bounded as the name."""
    seconds: float = 0


class Observer(Protocol):
    """Watches activities."""

    def watch(self, activity: Activity) -> AbstractContextManager[None]:
        """Stands around the activity, in its own context; when it is left, all fields are filled in."""


class Observers:
    """All who watch, of one toolbox; nobody at first."""

    def __init__(self) -> None:
        self._all: list[Observer] = []

    def add(self, observer: Observer) -> None:
        """Tell it of every activity that begins from now on."""
        self._all.append(observer)

    @contextmanager
    def watch(self, kind: Kind, name: str, *, parent: Mapping[str, str] | None = None) -> Iterator[Activity]:
        """An activity, for as long as the ``with``."""
        activity = Activity(kind, name, parent or {})
        started = time.monotonic()
        with ExitStack() as stack:
            for observer in self._all:
                stack.enter_context(observer.watch(activity))
            try:
                yield activity
            except SpillboxError as fault:
                activity.outcome = fault.code
                raise
            except asyncio.CancelledError:
                activity.outcome = "interrupted"
                raise
            except BaseException:
                activity.outcome = "internal_error"
                raise
            finally:
                activity.seconds = time.monotonic() - started
