"""Puts the service together."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import docs, errors, http
from api.auth import Guard, require_safe_binding
from api.settings import Settings
from sandbox.tools.toolbox import Toolbox, open_toolbox

_log = logging.getLogger(__name__)


def create_app(settings: Settings, *, toolbox: Callable[[], Toolbox] | None = None) -> FastAPI:
    """The application. ``toolbox`` makes the toolbox when the service starts; by default from the settings.

    At the start one trivial script is run, so that a host on which no jail can be made is found out then.
    """
    require_safe_binding(settings)
    box = (toolbox or (lambda: toolbox_of(settings)))()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with box:
            await box.prove()
            for warning in box.runtime.warnings:
                _log.warning("%s", warning)
            yield

    app = FastAPI(
        title="Spillbox",
        summary="Sandboxed Python runs and exact office documents for AI agents.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    docs.install(app)
    errors.install(app)
    app.include_router(http.routes(box, settings))
    app.add_middleware(Guard, settings=settings)
    return app


def toolbox_of(settings: Settings) -> Toolbox:
    """A toolbox as the settings say."""
    return open_toolbox(
        settings.data_dir, limits=settings.limits, slots=settings.slots, queue_length=settings.queue_length
    )
