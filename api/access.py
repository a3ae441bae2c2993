"""Around everything else of a request: its id, its line in the log, its activity, and an answer if all else fails."""

import logging
import re
import secrets
from http import HTTPMethod

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.callers import Bearer
from api.errors import response_of, unexpected
from api.logs import request_id, with_facts
from sandbox.observers import Observers

_log = logging.getLogger(__name__)

_ID_HEADER = "X-Request-Id"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_TRACE_HEADERS = ("traceparent", "tracestate")
_ROUTE = "route"
_NO_ROUTE = "none"
_METHODS = frozenset(HTTPMethod)
_OF_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked for every few seconds: told of at the level DEBUG."""


class Access:
    """ASGI middleware, the outermost. An answer of status 500 is made here, so that it has the request's id too."""

    def __init__(self, app: ASGIApp, observers: Observers) -> None:
        self._app, self._observers = app, observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(_ID_HEADER, "")
        own_id = given if _ID.fullmatch(given) else secrets.token_hex(16)
        request_id.set(own_id)  # for as long as the task, which is the request's own
        scope.setdefault("state", {})
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        status: int | None = None

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[_ID_HEADER] = own_id
            await send(message)

        parent = {name: headers[name] for name in _TRACE_HEADERS if name in headers}
        try:
            with self._observers.watch("request", method, parent=parent) as answering:
                try:
                    await self._app(scope, receive, sending)
                except Exception as fault:  # noqa: BLE001  a surface: the last one
                    problem = unexpected(fault, f"{method} {_route_of(scope)}")
                    if status is None:
                        await response_of(problem)(scope, receive, sending)
                finally:
                    answering.labels = {"method": method, "route": _route_of(scope)}
                    answering.outcome = str(status or "none")
        finally:
            self._tell(scope, method, status, answering.seconds)

    def _tell(self, scope: Scope, method: str, status: int | None, seconds: float) -> None:
        route, tenant = _route_of(scope), Bearer.of(HTTPConnection(scope)).tenant
        is_probe = route in _OF_PROBES and status == 200
        facts = {"method": method, "route": route, "status": status, "duration_seconds": round(seconds, 6)}
        _log.log(
            logging.DEBUG if is_probe else logging.INFO, "%s %s %s in %.3f s%s", method, route, status, seconds,
            f" for {tenant}" if tenant else "", extra=with_facts(**facts, tenant=tenant or None),
        )  # fmt: skip


class Routed:
    """ASGI middleware, the innermost: notes the template of the route that was found, which no path of a caller's is in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            route = scope.get("route")
            if route is not None:
                note_route(scope, getattr(route, "path_format", route.path))


def note_route(scope: Scope, template: str) -> None:
    """Note which route answers the request."""
    scope["state"][_ROUTE] = template


def _route_of(scope: Scope) -> str:
    return str(scope["state"].get(_ROUTE, _NO_ROUTE))
