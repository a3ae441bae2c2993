"""Puts the service together."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import docs, errors, http
from api.auth import Guard, require_safe_binding
from api.settings import Settings
from sandbox.doctor.doctor import Finding, examine_quickly
from sandbox.errors import JailFailed
from sandbox.tools.toolbox import RuntimeName, Toolbox, open_toolbox

_log = logging.getLogger(__name__)


def create_app(settings: Settings, box: Toolbox, findings: list[Finding]) -> FastAPI:
    """The application over a toolbox, which it closes at its end, and what `prove` found of it."""
    require_safe_binding(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with box:
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
    app.include_router(http.routes(box, settings, findings))
    app.add_middleware(Guard, settings=settings)
    return app


async def prove(box: Toolbox) -> list[Finding]:
    """Try the walls and limits of the runtime really used, in the doctor's quick form, before anyone's script may run.

    Raises `JailFailed` where no jail can be made, with the cure, or where a wall is not there.
    """
    findings = await examine_quickly(box.workspaces, box.runtime)
    if missing := [finding for finding in findings if not finding.is_real]:
        first = missing[0]
        raise JailFailed(
            f"The service does not start, for {len(missing)} of {len(findings)} walls and limits are not real here, such as "
            f"{first.what} in {first.runtime} ({first.proof}). Run `spillbox doctor` for all of them."
        )
    for warning in box.runtime.warnings:
        _log.warning("%s", warning)
    return findings


def toolbox_of(settings: Settings, *, runtime: RuntimeName | None = None) -> Toolbox:
    """A toolbox as the settings say, but for the ``runtime`` if it is given."""
    return open_toolbox(
        settings.data_dir, limits=settings.limits, slots=settings.slots, queue_length=settings.queue_length,
        runtime=runtime or settings.runtime,
    )  # fmt: skip
