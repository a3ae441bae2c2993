"""How many calls a tenant makes in a minute."""

import math
import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from sandbox.errors import TooManyCalls


class Rates:
    """Counts the calls of each tenant over the last minute, in memory: a service that is started again counts anew."""

    def __init__(self, calls_per_minute: int | None) -> None:
        """None is no limit."""
        self._most = None if calls_per_minute is None else RateLimitItemPerMinute(calls_per_minute)
        self._counts = MovingWindowRateLimiter(MemoryStorage())

    def count(self, what: str, tenant: str) -> None:
        """Count a call; raises `TooManyCalls` if the tenant has had all of this kind, and then it does not count."""
        if self._most is None or self._counts.hit(self._most, what, tenant):
            return
        wait = self._counts.get_window_stats(self._most, what, tenant).reset_time - time.time()
        raise TooManyCalls(
            f"This tenant has made {self._most.amount:,} {what} in the last minute, which is all that it may. Try again in "
            f"{max(1, math.ceil(wait))} s.",
            retry_after_seconds=max(1, math.ceil(wait)),
        )
