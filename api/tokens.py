"""Tokens of an OpenID Connect issuer as an alternative to keys: JWTs, checked as RFC 8725 advises."""

import logging
import threading
import time

import httpx2
import jwt
from jwt import PyJWKClient

from api.callers import Bearer
from sandbox.tenants import NAME

_log = logging.getLogger(__name__)

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""With a public key to check them; never one that the issuer and we would share, and never none."""
_LEEWAY_SECONDS = 30
_ISSUER_SECONDS = 10
_RETRY_SECONDS = 10
APPROVES = "spillbox.approve"
"""The scope of people who may decide over their tenant's approvals."""


class Tokens:
    """Those of one issuer, for one audience. Its keys are fetched when the first token comes, and when it has new ones."""

    def __init__(self, issuer: str, audience: str, tenant_claim: str) -> None:
        self._issuer, self._audience, self._tenant_claim = issuer, audience, tenant_claim
        self._keys: PyJWKClient | None = None
        self._next_try = 0.0
        self._lock = threading.Lock()

    def find(self, text: str) -> Bearer | None:
        """Whom a token speaks for, if it is right. It blocks, on the issuer too."""
        try:
            key = self._issuers_keys().get_signing_key_from_jwt(text)
            claims = jwt.decode(
                text, key, algorithms=_ALGORITHMS, audience=self._audience, issuer=self._issuer, leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )  # fmt: skip
        except (jwt.PyJWTError, httpx2.HTTPError, ValueError) as fault:
            _log.info("a token was refused: %s: %s", type(fault).__name__, fault)
            return None
        tenant, scopes = claims.get(self._tenant_claim), claims.get("scope", "")
        if not isinstance(tenant, str) or not NAME.fullmatch(tenant):
            _log.info("a token was refused: its claim %s is no name of a tenant", self._tenant_claim)
            return None
        may_approve = isinstance(scopes, str) and APPROVES in scopes.split()
        return Bearer(tenant, str(claims.get("sub", ""))[:200], may_approve)

    def _issuers_keys(self) -> PyJWKClient:
        """From where the issuer's own document says (OpenID Connect Discovery 1.0, 4)."""
        with self._lock:
            if self._keys is None:
                if time.monotonic() < self._next_try:
                    raise ValueError("the issuer could not be read a moment ago")
                self._next_try = time.monotonic() + _RETRY_SECONDS
                place = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
                about = httpx2.get(place, timeout=_ISSUER_SECONDS).raise_for_status().json()
                if not isinstance(about, dict) or about.get("issuer") != self._issuer:
                    raise ValueError(f"{place} is of another issuer")
                self._keys = PyJWKClient(str(about.get("jwks_uri")), timeout=_ISSUER_SECONDS)
            return self._keys
