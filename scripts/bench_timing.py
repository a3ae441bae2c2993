"""Times of contenders: in turn on an idle machine, or one run after another."""

import time
from collections.abc import Collection, Sequence
from typing import Any

from bench_contenders import Contender

_IDLE_SECONDS = 0.05


def in_turn(
    contenders: Sequence[Contender], script: str, rounds: int, *, sparing: Collection[str] = ()
) -> dict[str, Any]:
    """One after another, each after a pause in which the machine is idle; ``sparing``: who runs in each fifth round only."""
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for round_ in range(-2, rounds):
        for contender in contenders:
            if contender.name in sparing and round_ % 5:
                continue
            time.sleep(_IDLE_SECONDS)
            seconds = timed(contender, script)
            if round_ >= 0:
                times[contender.name].append(seconds)
    return _summaries(times)


def in_a_row(
    contenders: Sequence[Contender], script: str, rounds: int, *, sparing: Collection[str] = ()
) -> dict[str, Any]:
    """Each as often as it goes, one run at a time, without a pause; ``sparing``: who runs eight times only."""
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(4):  # in turn too, since a machine's speed changes over time
        for contender in contenders:
            for _ in range(max(1, rounds // 4) if contender.name not in sparing else 2):
                times[contender.name].append(timed(contender, script))
    return _summaries(times)


def timed(contender: Contender, script: str) -> float:
    """Seconds of one run, which has to succeed."""
    started = time.perf_counter()
    answer = contender.run(script)
    seconds = time.perf_counter() - started
    contender.check(answer)
    return seconds


def _summaries(times: dict[str, list[float]]) -> dict[str, Any]:
    return {name: summary(values) for name, values in times.items()}


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds: percentiles, and the spread between the quartiles."""
    ordered = sorted(seconds)
    if not ordered:
        return {}

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 2)

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "spread": round(at(0.75) - at(0.25), 2)}
