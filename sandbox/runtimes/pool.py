"""Launchers and the spare jails that they keep standing."""

import asyncio
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from sandbox.errors import JailFailed
from sandbox.job import Limits
from sandbox.runtimes import cgroups
from sandbox.runtimes.base import Standing
from sandbox.runtimes.cgroups import CgroupHost
from sandbox.runtimes.jail import Jail
from sandbox.runtimes.launcher import Launcher
from sandbox.runtimes.session import let_go

_log = logging.getLogger(__name__)

_OWN_PROCESSES = 1  # process 1 is in the group of the run too
_TRIES = 5
_AFTER_SECONDS = 0.003
"""After a run, before there is work for the next: until then the answer of this one needs the processors."""
_PAUSE_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 5, 30)
"""Before a launcher is started, or asked, again, by how often in a row it failed."""


class Down(Exception):
    """No jail can be had from any launcher."""


@dataclass
class _Order:
    """A jail that is wanted: by a run that waits for it, or to stand spare."""

    limits: Limits
    waiting: "Future[Jail] | None" = None
    failures: int = 0


class Pool:
    """Launchers, each on a thread of its own that makes one jail at a time, and the spare jails.

    A launcher that ends, or from which no jail comes, is replaced; meanwhile the others go on.
    """

    def __init__(
        self, start: Callable[[], Launcher], groups: CgroupHost | None, limits: Limits, *, launchers: int, spares: int
    ) -> None:
        self._start = start
        self._groups = groups
        self._limits = limits
        self._wanted = spares
        self._changed = threading.Condition()  # guards all that follows
        self._spares: deque[Jail] = deque()
        self._waiting: deque[_Order] = deque()
        self._in_the_making = 0
        self._up: set[Launcher] = set()
        self._failed: dict[int, str] = {}
        self._closed = False
        self.modules: frozenset[str] = frozenset()
        self._undertaker = ThreadPoolExecutor(1, thread_name_prefix="warm-bury")
        self._wakes = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(launchers)]
        self._threads = [
            threading.Thread(target=self._keep, args=(number,), name=f"launcher-{number}", daemon=True)
            for number in range(launchers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_up(self) -> bool:
        """Whether a launcher is there, and jails come from it as far as one knows."""
        return bool(self._up) and not self._is_down()

    @property
    def why_down(self) -> str:
        """Why no jail can be had; empty if one can, or if that is not known yet."""
        with self._changed:
            return next(iter(self._failed.values()), "") if self._is_down() else ""

    @property
    def launcher_pids(self) -> list[int]:
        """As of the runtime."""
        with self._changed:
            return [launcher.pid for launcher in self._up]

    @property
    def standing(self) -> Standing:
        """What is there now."""
        with self._changed:
            return Standing(len(self._up), len(self._spares))

    def _is_down(self) -> bool:
        return self._closed or len(self._failed) == len(self._threads)

    def wait_until_known(self) -> None:
        """Block until all spare jails stand, or it is clear that there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._spares) == self._wanted or self._is_down())

    async def take(self, limits: Limits) -> Jail:
        """A jail for these limits: a spare one, or a new one. Raises `Down` if there can be none."""
        order = _Order(limits, Future())
        assert order.waiting is not None  # noqa: S101  for the type checker
        spare_will_do = limits.shape == self._limits.shape
        with self._changed:
            while spare_will_do and self._spares:
                jail = self._spares.popleft()
                if jail.is_alive:
                    return jail
                self._undertaker.submit(jail.bury)
            if self._is_down():
                raise Down
            self._waiting.append(order)
        self._wake()
        try:
            return await asyncio.wrap_future(order.waiting)
        except asyncio.CancelledError:
            if not order.waiting.cancelled() and order.waiting.exception() is None:
                self.bury(order.waiting.result())
            raise

    def bury(self, jail: Jail) -> None:
        """Take back a jail that was used, and make a new one for it."""
        with suppress(RuntimeError):  # closed meanwhile, and with its launcher the jail has ended
            self._undertaker.submit(self._tidy, jail)

    def _tidy(self, jail: Jail) -> None:
        time.sleep(_AFTER_SECONDS)
        jail.bury()
        self._wake()

    def close(self) -> None:
        """End all launchers, and with them every jail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._wake()
        for thread in self._threads:
            if thread is not threading.current_thread():  # as when the garbage collector found the runtime here
                thread.join()
        let_go(self._undertaker)
        while self._waiting:
            _give(self._waiting.popleft(), Down())
        for jail in self._spares:
            jail.bury()
        for wake in self._wakes:
            os.close(wake)
        self._wakes = []

    def _wake(self) -> None:
        for wake in self._wakes:
            os.eventfd_write(wake, 1)

    # On a launcher's thread

    def _keep(self, number: int) -> None:
        """Keep one launcher up until the end."""
        failures = 0
        while not self._closed:
            try:
                launcher = self._start()
            except JailFailed as fault:
                self._note_down(number, str(fault))
                self._pause(failures)
                failures += 1
                continue
            with self._changed:
                self._up.add(launcher)
                self.modules = launcher.modules
            try:
                made, why = self._serve(number, launcher)
            finally:
                with self._changed:
                    self._up.remove(launcher)
                launcher.close()
                self._bury_dead_spares()
            failures = 0 if made else failures + 1
            if not made and not self._closed:
                self._note_down(number, why)
                self._pause(failures)

    def _bury_dead_spares(self) -> None:
        """Make room for new ones in the place of those that ended with their launcher."""
        living: deque[Jail] = deque()
        dead: list[Jail] = []
        with self._changed:
            for jail in self._spares:
                (living if jail.is_alive else dead).append(jail)
            self._spares = living
        for jail in dead:
            jail.bury()

    def _pause(self, failures: int) -> None:
        with self._changed:
            seconds = _PAUSE_SECONDS[min(failures, len(_PAUSE_SECONDS) - 1)]
            self._changed.wait_for(lambda: self._closed, seconds)

    def _note_down(self, number: int, why: str) -> None:
        """Note that no jail comes from this place; those who wait get nothing if it was the last."""
        with self._changed:
            if number not in self._failed:
                _log.warning("%s", why)
            self._failed[number] = why
            if self._is_down():
                while self._waiting:
                    _give(self._waiting.popleft(), Down())
            self._changed.notify_all()

    def _serve(self, number: int, launcher: Launcher) -> tuple[int, str]:
        """Make jails until the launcher ends, or seems to be no good; gives how many were made, and what went wrong last.

        A launcher that has made jails is let alone whatever fails later: scripts may be running in them.
        """
        poll = select.poll()
        poll.register(launcher.link, select.POLLIN)
        poll.register(self._wakes[number], select.POLLIN)
        made = failed = 0
        why = ""
        while launcher.is_alive:
            if order := self._next_order():
                jail, fault = self._make(launcher, order)
                if jail is not None:
                    made, failed = made + 1, 0
                    self._deliver(number, jail, order)
                    continue
                why, failed = fault, failed + 1
                self._put_back(order)
                if made == 0 and failed == _TRIES:
                    return 0, why
                self._pause(failed - 1)
            elif self._closed:
                break
            else:
                poll.poll()
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wakes[number])
        if not self._closed:
            _log.warning("a launcher of warm jails has ended; another is started")
        return made, why

    def _next_order(self) -> _Order | None:
        with self._changed:
            if self._closed:
                return None
            if self._waiting:
                return self._waiting.popleft()
            if len(self._spares) + self._in_the_making < self._wanted:
                self._in_the_making += 1
                return _Order(self._limits)
            return None

    def _make(self, launcher: Launcher, order: _Order) -> tuple[Jail | None, str]:
        make_cgroup = None
        if self._groups is not None:
            make_cgroup = partial(cgroups.for_run, self._groups, order.limits, own_processes=_OWN_PROCESSES)
        try:
            return launcher.spawn(order.limits, make_cgroup=make_cgroup), ""
        except (JailFailed, OSError) as fault:
            _log.warning("a warm jail could not be made: %s", fault)
            return None, str(fault)

    def _deliver(self, number: int, jail: Jail, order: _Order) -> None:
        with self._changed:
            self._failed.pop(number, None)
            if order.waiting is None:
                self._in_the_making -= 1
                self._spares.append(jail)
                self._changed.notify_all()
                return
        if not _give(order, jail):
            self._undertaker.submit(jail.bury)

    def _put_back(self, order: _Order) -> None:
        """For another launcher to try; who has waited for too many gets none, and runs cold."""
        with self._changed:
            order.failures += 1
            if order.waiting is None:
                self._in_the_making -= 1
            elif order.failures == _TRIES:
                _give(order, Down())
            else:
                self._waiting.appendleft(order)
        self._wake()


def _give(order: _Order, result: Jail | BaseException) -> bool:
    """Answer who waits; False if nobody does any more."""
    assert order.waiting is not None  # noqa: S101  for the type checker
    try:
        if isinstance(result, BaseException):
            order.waiting.set_exception(result)
        else:
            order.waiting.set_result(result)
    except InvalidStateError:  # cancelled
        return False
    return True
