"""Figures for Prometheus at `/metrics`: of the whole service, so for its operator alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from api.callers import Bearer
from sandbox.errors import Denied
from sandbox.observers import Activity
from sandbox.tools.toolbox import Toolbox

PATH = "/metrics"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Upper bounds of the histograms' buckets."""


class Metrics:
    """An `Observer` that counts. No label has what a caller, a guest or a tenant chose."""

    def __init__(self, box: Toolbox, *, version: str) -> None:
        """Watches from now on what the toolbox does."""
        self.registry = CollectorRegistry()
        self._take_by_kind: dict[str, Callable[[Activity], None]] = {
            "request": self._requests(), "tool": self._tools(), "run": self._runs(), "spill": self._spills(),
            "build": self._builds(), "clean": self._cleanings(), "gateway": self._gateway_calls(),
            "connect": self._connections(),
        }  # fmt: skip
        self._gauge("slots", "Slots for runs and builders.", lambda: box.queue.slots)
        self._gauge("slots_held", "Slots that are taken.", lambda: box.queue.held)
        self._gauge(
            "queue_waiting", "Calls that wait for their turn in a workspace or for a slot.", lambda: box.queue.waiting
        )
        launchers = self._labelled_gauge("launchers", "Launchers of warm jails that are up.", "kind")
        spares = self._labelled_gauge("spare_jails", "Warm jails that wait for a run.", "kind")
        for kind in box.runtime.standing:
            launchers.labels(kind).set_function(partial(lambda one: box.runtime.standing[one].launchers, kind))
            spares.labels(kind).set_function(partial(lambda one: box.runtime.standing[one].spares, kind))
        Info("spillbox_build", "The version of the service.", registry=self.registry).info({"version": version})
        ProcessCollector(registry=self.registry)
        box.observers.add(self)

    @contextmanager
    def watch(self, activity: Activity) -> Iterator[None]:
        """Count it when it has ended."""
        try:
            yield
        finally:
            self._take_by_kind[activity.kind](activity)

    def text(self) -> bytes:
        """All figures, in the text format."""
        return generate_latest(self.registry)

    # Families, each with what an activity adds to them

    def _requests(self) -> Callable[[Activity], None]:
        count = self._counter("http_requests", "Answered requests.", "method", "route", "status")
        seconds = self._histogram("http_request_duration_seconds", "Until the last byte of an answer.", "route")

        def take(activity: Activity) -> None:
            route = activity.labels["route"]
            count.labels(activity.labels["method"], route, activity.outcome).inc()
            seconds.labels(route).observe(activity.seconds)

        return take

    def _tools(self) -> Callable[[Activity], None]:
        return self._counted("tool_calls", "tool_call", "Calls of tools, those refused included.", "tool", "outcome")

    def _runs(self) -> Callable[[Activity], None]:
        return self._counted("runs", "run", "Runs of scripts.", "runtime", "status")

    def _gateway_calls(self) -> Callable[[Activity], None]:
        return self._counted("gateway_calls", "gateway_call", "Requests to other MCP servers.", "server", "outcome")

    def _spills(self) -> Callable[[Activity], None]:
        saved = self._counter("spills_saved", "Results that were saved as files.")
        size = self._counter("spills_saved_bytes", "Of these files.")

        def take(activity: Activity) -> None:
            if activity.amounts:
                saved.inc()
                size.inc(activity.amounts["bytes"])

        return take

    def _builds(self) -> Callable[[Activity], None]:
        files = self._counter("built_files", "Files that builders wrote.", "format")
        size = self._counter("built_bytes", "Of these files.", "format")
        rows = self._counter("built_rows", "Rows in these files.", "format")

        def take(activity: Activity) -> None:
            if activity.amounts:
                files.labels(activity.name).inc()
                size.labels(activity.name).inc(activity.amounts["bytes"])
                rows.labels(activity.name).inc(activity.amounts["rows"])

        return take

    def _cleanings(self) -> Callable[[Activity], None]:
        files = self._counter("cleaned_files", "Saved results and errors that were removed when their time was over.")
        size = self._counter("cleaned_bytes", "Of these files.")
        last = Gauge("spillbox_last_clean_timestamp_seconds", "When a clean-up last succeeded.", registry=self.registry)

        def take(activity: Activity) -> None:
            if activity.amounts:
                files.inc(activity.amounts["files"])
                size.inc(activity.amounts["bytes"])
                last.set_to_current_time()

        return take

    def _connections(self) -> Callable[[Activity], None]:
        count = self._counter("gateway_connections", "Connections to other MCP servers.", "server", "outcome")
        return lambda activity: count.labels(activity.name, activity.outcome).inc()

    def _counted(self, plural: str, singular: str, what: str, name: str, outcome: str) -> Callable[[Activity], None]:
        """Activities by name and outcome, and how long they take."""
        count = self._counter(plural, what, name, outcome)
        seconds = self._histogram(f"{singular}_duration_seconds", "How long they take.", name)

        def take(activity: Activity) -> None:
            count.labels(activity.name, activity.outcome).inc()
            seconds.labels(activity.name).observe(activity.seconds)

        return take

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"spillbox_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, *labels: str) -> Histogram:
        return Histogram(f"spillbox_{name}", what, labels, buckets=_SECONDS, registry=self.registry)

    def _labelled_gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"spillbox_{name}", what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, look: Callable[[], float]) -> None:
        self._labelled_gauge(name, what).set_function(look)


def add_routes(router: APIRouter, metrics: Metrics) -> None:
    """The figures, for whoever may read them."""

    def operator(request: Request) -> None:
        if not Bearer.of(request).reads_metrics:
            raise Denied(
                "This key may not read the metrics. Use the service's own (SPILLBOX_API_KEY, SPILLBOX_METRICS_KEY)."
            )

    @router.get(
        PATH, tags=["health"], response_class=Response, responses={200: {"content": {"text/plain": {}}}},
        dependencies=[Depends(operator)],
    )  # fmt: skip
    async def figures() -> Response:
        """Figures of the whole service, for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
