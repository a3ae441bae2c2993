"""Who may call: without any key everyone on this machine, else the bearer of a key, for the workspaces of its tenant."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.callers import OPERATOR, Bearer, Callers
from api.errors import Problem, refusal_of, response_of
from api.links import Links
from api.mcp.endpoint import is_endpoint
from api.metrics import PATH as METRICS_PATH
from api.rates import Rates
from api.settings import Settings
from sandbox.errors import BadRequest, Busy, InvalidWorkspace
from sandbox.tenants import tenant_of, workspace_id

_HEALTH, _READY = "/healthz", "/readyz"
"""Asked by whoever watches over the service, who need not have a key, and are never counted; `_READY` says more to who has one."""
_WORKSPACES = "/v1/workspaces/"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of each response that says nothing else of it."""


class UnsafeBinding(Exception):
    """The settings would let anyone on the network run code."""


def require_safe_binding(host: str, *, has_keys: bool) -> None:
    """Refuse to listen beyond loopback without a key."""
    if not has_keys and not _is_local(host):
        raise UnsafeBinding(
            f"Refusing to listen on {host} without an API key: anyone who reaches it could run code. Set "
            "SPILLBOX_API_KEY, make a key with `spillbox keys create`, or listen on 127.0.0.1."
        )


class Guard:
    """ASGI middleware. Where there are keys one must be borne; without, only names of this machine are answered.

    The second keeps a web page in this machine's browser from calling the service: by DNS rebinding it would have
    another Host, and from its own site another Origin. With keys too, no page of another site is answered.

    The workspace in a path becomes the id of the tenant's own: no route behind ever sees the name of another's. And what a
    tenant asks is counted here, whatever it asks for and over which surface.
    """

    def __init__(self, app: ASGIApp, settings: Settings, links: Links, callers: Callers) -> None:
        self._app = app
        self._rates = Rates(settings.tenant_calls_per_minute)
        self._links = links
        self._callers = callers
        self._own_names = frozenset({_host_name(settings.public_url)} - {None})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _with_headers(send)
        path: str = scope["path"]
        if path == _HEALTH:
            await self._app(scope, receive, send)
            return
        try:
            if self._links.allow(scope["method"], path, scope["query_string"]):
                self._rates.count(
                    "requests for signed links", tenant_of(path.removeprefix(_WORKSPACES).partition("/")[0])
                )
            else:
                found = await self._bearer(scope)
                if isinstance(found, Bearer):
                    if path != _READY:
                        self._rates.count("requests", found.tenant)
                    found.enter(scope)
                    scope = _in_own_workspace(scope, found.tenant)
                elif path != _READY:
                    headers = {"WWW-Authenticate": "Bearer"} if found.status == 401 else None
                    await response_of(found, headers)(scope, receive, send)
                    return
        except (Busy, BadRequest) as fault:
            await refusal_of(fault, over_mcp=is_endpoint(path))(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _bearer(self, scope: Scope) -> Bearer | Problem:
        """Who calls, or why there is no answer."""
        headers = Headers(scope=scope)
        if not self._callers.are_known:
            names = [_host_name(f"//{headers.get('host', '')}"), *_origin_in(headers)]
            if all(_is_local(name) for name in names) and headers.get("sec-fetch-site") != "cross-site":
                return OPERATOR
            return _forbidden(
                "Without an API key, only requests to and from this machine's own names (localhost) are answered."
            )
        own = {_host_name(f"//{headers.get('host', '')}"), *self._own_names}
        if not all(name in own or _is_local(name) for name in _origin_in(headers)):
            return _forbidden("Requests of web pages of other sites are not answered.")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found = self._callers.find_scraper(given.strip()) if scope["path"] == METRICS_PATH else None
            found = found or await self._callers.find(given.strip())
            if found is not None:
                return found
        detail = "This service needs a key: send the header `Authorization: Bearer <key>`."
        if b"signature=" in scope["query_string"]:
            detail = "This link's time is over, or it was changed. Ask for a new one."
        return Problem(title="Unauthorized", status=401, code="unauthorized", detail=detail)


def _in_own_workspace(scope: Scope, tenant: str) -> Scope:
    """The request with the id of the tenant's workspace in the place of the name that was given."""
    path: str = scope["path"]
    if not path.startswith(_WORKSPACES):
        return scope
    name, slash, rest = path.removeprefix(_WORKSPACES).partition("/")
    raw: bytes = scope.get("raw_path") or quote(path).encode()
    raw_name, raw_slash, raw_rest = raw.removeprefix(_WORKSPACES.encode()).partition(b"/")
    # Unlike it are an escaped slash, and a place that only looks like this one.
    if unquote(raw_name.decode("ascii", "replace")) != name:
        raise InvalidWorkspace("The workspace in this path is refused: write its name without escapes.")
    own = workspace_id(tenant, name)
    return {
        **scope,
        "path": f"{_WORKSPACES}{own}{slash}{rest}",
        "raw_path": f"{_WORKSPACES}{quote(own)}".encode() + raw_slash + raw_rest,
    }


def _with_headers(send: Send) -> Send:
    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return adding


def _forbidden(detail: str) -> Problem:
    return Problem(title="Forbidden", status=403, code="forbidden", detail=detail)


def _origin_in(headers: Headers) -> Iterable[str | None]:
    origin = headers.get("origin")
    return () if origin is None else (_host_name(origin),)


def _is_local(name: str | None) -> bool:
    """Whether a host name or address is this machine's own loopback."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
