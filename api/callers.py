"""Who a request speaks for: the bearer of the service's own key, or of a tenant's."""

import asyncio
import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from pydantic import SecretStr
from starlette.requests import HTTPConnection
from starlette.types import Scope

from sandbox.keys import Keys

_STATE = "bearer"
API_KEY = "api-key"
"""Stands for the bearer of the service's own key; ids of keys are hexadecimal."""


@dataclass(frozen=True)
class Bearer:
    """Who was let in."""

    tenant: str = ""
    identity: str | None = None
    """Who it is, for the records: the id of a key, `API_KEY`, or ``token:`` and a token's subject."""
    approves: bool = True
    """Whether it may decide over the tenant's approvals."""
    reads_metrics: bool = False
    """Whether it may see figures of the whole service."""

    def enter(self, scope: Scope) -> None:
        """Let the routes behind know of it, and bind what the protocol's SDK keeps for a client to the tenant."""
        scope.setdefault("state", {})[_STATE] = self
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=self.tenant, scopes=[]))

    @classmethod
    def of(cls, connection: HTTPConnection) -> "Bearer":
        """Of a request; a signed link has none, and speaks for no one."""
        found = connection.scope.get("state", {}).get(_STATE)
        return found if isinstance(found, Bearer) else NOBODY


OPERATOR = Bearer(reads_metrics=True)
"""Who bears the service's own key, or may call a service without keys."""
NOBODY = Bearer(approves=False)
_SCRAPER = Bearer(approves=False, reads_metrics=True)

FindByToken = Callable[[str], Bearer | None]
_DOTS_OF_A_TOKEN = 2
_TOKEN_READERS = ThreadPoolExecutor(4, "read-token")
"""Threads of their own: an issuer that does not answer keeps nobody else waiting."""


class Callers:
    """Knows bearers by what they bear."""

    def __init__(
        self, api_key: SecretStr | None, keys: Keys, find_by_token: FindByToken | None = None, *,
        metrics_key: SecretStr | None = None,
    ) -> None:  # fmt: skip
        """``find_by_token``, of an issuer's tokens, may block."""
        self._api_key = None if api_key is None else api_key.get_secret_value().encode()
        self._metrics_key = None if metrics_key is None else metrics_key.get_secret_value().encode()
        self._keys = keys
        self._find_by_token = find_by_token
        self._are_known = api_key is not None or find_by_token is not None

    @property
    def are_known(self) -> bool:
        """Whether anyone has to prove who he is. A service without any key answers this machine, and nobody else."""
        self._are_known = (
            self._are_known or self._keys.any()
        )  # a key that was made once stays known, also when it is revoked
        return self._are_known

    async def find(self, text: str) -> Bearer | None:
        """Whose a key or a token is, if it is one."""
        if self._api_key is not None and hmac.compare_digest(text.encode(), self._api_key):
            return Bearer(identity=API_KEY, reads_metrics=True)
        key = self._keys.find(text)
        if key is not None:
            return Bearer(key.tenant, key.id, key.approves)
        if self._find_by_token is None or text.count(".") != _DOTS_OF_A_TOKEN:
            return None
        reading = partial(copy_context().run, self._find_by_token, text)
        return await asyncio.get_running_loop().run_in_executor(_TOKEN_READERS, reading)

    def find_scraper(self, text: str) -> Bearer | None:
        """Who bears the key for metrics, which opens nothing else."""
        is_it = self._metrics_key is not None and hmac.compare_digest(text.encode(), self._metrics_key)
        return _SCRAPER if is_it else None
