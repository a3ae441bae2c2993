"""Puts the service together."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from sqlalchemy.exc import SQLAlchemyError

from api import docs, errors, http
from api.access import Access, Routed
from api.auth import Guard, require_safe_binding
from api.bodies import Bodies
from api.callers import Callers, FindByToken
from api.links import Links, link_secret
from api.mcp.endpoint import Endpoint, Mounted
from api.mcp.gateway import Gateway
from api.mcp.server import McpServer
from api.mcp.settings import load
from api.metrics import Metrics
from api.settings import Settings
from api.tokens import Tokens
from sandbox import guest_root
from sandbox.doctor.doctor import Finding, examine_quickly
from sandbox.errors import JailFailed, SpillboxError
from sandbox.keys import Keys
from sandbox.observers import Observers
from sandbox.runtimes.programs import Programs
from sandbox.tools.toolbox import RuntimeName, Toolbox, open_toolbox

VERSION = version("spillbox")

# The framework's own would tell paths and queries, signatures of links among them; `api.traces` tells routes.
_NO_TELEMETRY: TelemetryConfig = {"auto_configure": False, "tracing": False, "metrics": False, "logs": False}
_log = logging.getLogger(__name__)


def create_app(settings: Settings, box: Toolbox, findings: list[Finding]) -> FastAPI:
    """The application over a toolbox, which it closes at its end, and what `prove` found of it."""
    callers = Callers(
        settings.api_key, Keys(box.records.database), _find_by_token(settings), metrics_key=settings.metrics_key
    )
    require_safe_binding(settings.host, has_keys=callers.are_known)

    gateway = gateway_of(settings, box.observers)
    bodies = Bodies(settings)
    server = McpServer(box, gateway, version=VERSION)
    endpoint = Endpoint(server, bodies, max_request_bytes=settings.max_request_bytes)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(box)
            if gateway is not None:
                box.outer = await stack.enter_async_context(gateway)
            await stack.enter_async_context(endpoint.running())
            cleaning = asyncio.create_task(_clean_now_and_then(box, settings.clean_hours))
            yield
            cleaning.cancel()

    app = FastAPI(
        title="Spillbox",
        summary="Sandboxed Python runs and exact office documents for AI agents.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        telemetry=_NO_TELEMETRY,
    )
    docs.install(app)
    errors.install(app)
    app.include_router(http.routes(box, settings, findings, bodies, Metrics(box, version=VERSION)))
    app.add_middleware(Routed)
    app.add_middleware(Mounted, endpoint=endpoint)
    app.add_middleware(Guard, settings=settings, links=links_of(settings), callers=callers)
    app.add_middleware(Access, observers=box.observers)
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
    runtimes = " or ".join(part.name for part in box.runtime.parts)
    _log.info("scripts run in %s: %d walls and limits were tried and held", runtimes or "none", len(findings))
    return findings


def toolbox_of(settings: Settings, *, runtime: RuntimeName | None = None) -> Toolbox:
    """A toolbox as the settings say, but for the ``runtime`` if it is given."""
    return open_toolbox(
        settings.data_dir, limits=settings.limits, slots=settings.slots, queue_length=settings.queue_length,
        tenant_slots=settings.tenant_slots,
        runtime=runtime or settings.runtime, spills=settings.spill, keep_results=timedelta(days=settings.keep_results_days),
        disk_bytes=settings.disk_bytes, sign=links_of(settings).sign, approval_seconds=settings.approval_seconds,
        tenant_approvals=settings.tenant_approvals, tenant_disk_bytes=settings.tenant_disk_bytes,
        containers=settings.containers, guest=settings.guest_root_folder,
    )  # fmt: skip


def gateway_of(settings: Settings, observers: Observers) -> Gateway | None:
    """The gateway to other MCP servers, if the settings name any; raises `SetupFailed` for a file that is not right."""
    servers = {} if settings.mcp_servers is None else load(settings.mcp_servers)
    if not servers:
        return None
    have_walls = any(server.walls is not None for server in servers.values())
    programs = Programs(guest_root.load(settings.guest_root_folder)) if have_walls else None
    return Gateway(servers, programs, observers, version=VERSION)


def links_of(settings: Settings) -> Links:
    """Signs links for users, if there is a key."""
    return Links(
        lambda: settings.api_key or link_secret(settings.data_dir, make=settings.oidc_issuer is not None),
        seconds=settings.link_seconds,
        public_url=settings.public_url,
    )


def _find_by_token(settings: Settings) -> FindByToken | None:
    if settings.oidc_issuer is None or settings.oidc_audience is None:
        return None
    return Tokens(settings.oidc_issuer, settings.oidc_audience, settings.oidc_tenant_claim).find


async def _clean_now_and_then(box: Toolbox, hours: float) -> None:
    while True:
        try:
            cleaned = await box.clean()
        except (OSError, SQLAlchemyError, SpillboxError):
            _log.exception("the clean-up failed; it is tried again in %g hours", hours)
        else:
            if cleaned.files:
                _log.info("the clean-up removed %d files, %d bytes", cleaned.files, cleaned.bytes)
        await asyncio.sleep(hours * 3600)
