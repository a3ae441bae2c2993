"""Traces for OpenTelemetry, if the settings name a collector: of requests, calls, runs, spills, builds, other servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.settings import Settings
from sandbox.errors import SetupFailed
from sandbox.observers import Observers


@asynccontextmanager
async def tracing(settings: Settings, observers: Observers, *, version: str) -> AsyncIterator[None]:
    """Send traces meanwhile; what is left is sent at the end. Raises `SetupFailed` if the packages for it are missing."""
    if settings.otlp_endpoint is None:
        yield
        return
    try:
        # Only here: who sends no traces neither needs these packages nor waits for them at each start.
        from api.traces import Traces
    except ImportError as fault:
        raise SetupFailed(
            f"SPILLBOX_OTLP_ENDPOINT is set, and what sends traces is not installed ({fault}). In a clone of the project: pip "
            "install '.[traces]', with the Python of the service. The image and the bundle have it not."
        ) from None
    traces = Traces(str(settings.otlp_endpoint), version=version)
    observers.add(traces)
    try:
        yield
    finally:
        await asyncio.to_thread(traces.close)
