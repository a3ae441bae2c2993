"""Who may call: on loopback everyone on this machine, elsewhere the bearer of the API key."""

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import Problem, response_of
from api.links import Links
from api.settings import Settings

_OPEN_PATHS = ("/healthz",)


class UnsafeBinding(Exception):
    """The settings would let anyone on the network run code."""


def require_safe_binding(settings: Settings) -> None:
    """Refuse to listen beyond loopback without a key."""
    if settings.api_key is None and not _is_local(settings.host):
        raise UnsafeBinding(
            f"Refusing to listen on {settings.host} without an API key: anyone who reaches it could run code. Set "
            "SPILLBOX_API_KEY, or listen on 127.0.0.1."
        )


class Guard:
    """ASGI middleware. With a key it must be borne; without one, only names of this machine are answered.

    The second keeps a web page in this machine's browser from calling the service: by DNS rebinding it would have
    another Host, and from its own site another Origin.
    """

    def __init__(self, app: ASGIApp, settings: Settings, links: Links) -> None:
        self._app = app
        self._links = links
        self._key = None if settings.api_key is None else settings.api_key.get_secret_value().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in _OPEN_PATHS
        if is_open or self._links.allow(scope["method"], scope["path"], scope["query_string"]):
            await self._app(scope, receive, send)
            return
        problem = self._refusal(Headers(scope=scope), is_link=b"signature=" in scope["query_string"])
        if problem is None:
            await self._app(scope, receive, send)
        else:
            headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else None
            await response_of(problem, headers)(scope, receive, send)

    def _refusal(self, headers: Headers, *, is_link: bool) -> Problem | None:
        if self._key is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key):
                return None
            detail = "This service needs a key: send the header `Authorization: Bearer <key>`."
            if is_link:
                detail = "This link's time is over, or it was changed. Ask for a new one."
            return Problem(title="Unauthorized", status=401, code="unauthorized", detail=detail)
        origin = headers.get("origin")
        names = [_host_name(f"//{headers.get('host', '')}"), *([] if origin is None else [_host_name(origin)])]
        if all(_is_local(name) for name in names) and headers.get("sec-fetch-site") != "cross-site":
            return None
        detail = "Without an API key, only requests to and from this machine's own names (localhost) are answered."
        return Problem(title="Forbidden", status=403, code="forbidden", detail=detail)


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
