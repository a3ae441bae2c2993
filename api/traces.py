"""Spans of what a toolbox does. Needs the packages of `spillbox[traces]`; `api.tracing` imports it."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from sandbox.observers import Activity

_PATH = "v1/traces"
_SERVER_ERROR = "5"
"""What statuses of answers begin with that are faults of the service."""


class Traces:
    """An `Observer` that makes a span of each activity, and sends them all to a collector (OTLP over HTTP).

    It is the process's tracer too, so that the protocol's SDK adds its own spans, of each message of MCP.
    """

    def __init__(self, endpoint: str, *, version: str) -> None:
        """``endpoint``: the collector's address, without the path of traces."""
        resource = Resource.create({"service.name": "spillbox", "service.version": version})
        self._provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/{_PATH}")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(self._provider)
        self._tracer = self._provider.get_tracer("spillbox", version)

    @contextmanager
    def watch(self, activity: Activity) -> Iterator[None]:
        """Make its span: within that of whoever does it, or of the trace that a caller names."""
        is_request = activity.kind == "request"
        with self._tracer.start_as_current_span(
            _name_of(activity),
            context=propagate.extract(activity.parent) if activity.parent else None,
            kind=trace.SpanKind.SERVER if is_request else trace.SpanKind.INTERNAL,
            record_exception=False,  # its message may have what a caller sent
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            finally:
                _fill(span, activity)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _name_of(activity: Activity) -> str:
    return activity.kind if activity.name == activity.kind else f"{activity.kind} {activity.name}"


def _fill(span: trace.Span, activity: Activity) -> None:
    """What is known at the end. There is nothing among it that a caller or a guest sent."""
    if activity.kind == "request":
        method, route = activity.labels["method"], activity.labels["route"]
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.request.method": method, "http.route": route})
        if activity.outcome.isdecimal():
            span.set_attribute("http.response.status_code", int(activity.outcome))
        is_fault = activity.outcome.startswith(_SERVER_ERROR)
    else:
        span.update_name(_name_of(activity))  # a run's is its runtime's, which is known now
        span.set_attribute("spillbox.outcome", activity.outcome)
        span.set_attributes({f"spillbox.{name}": amount for name, amount in activity.amounts.items()})
        is_fault = activity.outcome == "internal_error"
    if is_fault:
        span.set_status(trace.StatusCode.ERROR)
