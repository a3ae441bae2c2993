"""Tokens of an OpenID Connect issuer as an alternative to keys: JWTs, checked as RFC 8725 advises."""

import logging
import re
import threading
import time
from typing import Any

import httpx2
import jwt
from jwt import PyJWKClient, PyJWKClientConnectionError

from api.callers import Bearer
from sandbox.tenants import NAME

_log = logging.getLogger(__name__)

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""With a public key to check them; never one that the issuer and we would share, and never none."""
_LEEWAY_SECONDS = 30
_ISSUER_SECONDS = 10
_RETRY_SECONDS = 10
_KEYS_SECONDS = 3600
APPROVES = "spillbox.approve"
"""The scope of people who may decide over their tenant's approvals."""


def is_safe_issuer(url: str) -> bool:
    """Whether nobody on the way can answer in its place: TLS, or this machine itself."""
    return re.match(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/]", url) is not None


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
            self._require_plausible(text)
            key = self._issuers_keys().get_signing_key_from_jwt(text)
            claims = jwt.decode(
                text, key.key, algorithms=_ALGORITHMS, audience=self._audience, issuer=self._issuer, leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )  # fmt: skip
        except (jwt.PyJWTError, httpx2.HTTPError, TypeError, ValueError) as fault:  # also for a key of another type
            _log.info("a token was refused: %s: %a", type(fault).__name__, str(fault)[:200])
            return None
        tenant, scopes = claims.get(self._tenant_claim), claims.get("scope", "")
        if not isinstance(tenant, str) or not NAME.fullmatch(tenant):
            _log.info("a token was refused: its claim %s is no name of a tenant", self._tenant_claim)
            return None
        may_approve = isinstance(scopes, str) and APPROVES in scopes.split()
        return Bearer(tenant, f"token:{str(claims.get('sub', ''))[:200]}", may_approve)

    def _require_plausible(self, text: str) -> None:
        """Refuse what can't be right before the issuer is asked anything: anyone may send it."""
        if jwt.get_unverified_header(text).get("alg") not in _ALGORITHMS:
            raise ValueError("it is signed by no algorithm that is taken")
        if jwt.decode(text, options={"verify_signature": False}).get("iss") != self._issuer:
            raise ValueError("it is of another issuer")

    def _issuers_keys(self) -> PyJWKClient:
        """From where the issuer's own document says (OpenID Connect Discovery 1.0, 4)."""
        with self._lock:
            if self._keys is None:
                if time.monotonic() < self._next_try:
                    raise ValueError("the issuer could not be read a moment ago")
                try:
                    self._keys = self._discovered()
                finally:
                    self._next_try = time.monotonic() + _RETRY_SECONDS
            return self._keys

    def _discovered(self) -> PyJWKClient:
        place = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        about = httpx2.get(place, timeout=_ISSUER_SECONDS).raise_for_status().json()
        if not isinstance(about, dict) or about.get("issuer") != self._issuer:
            raise ValueError(f"{place} is of another issuer")
        keys = str(about.get("jwks_uri"))
        if not is_safe_issuer(keys):
            raise ValueError(f"the keys of {self._issuer} are not served over TLS")
        return _IssuersKeys(keys, timeout=_ISSUER_SECONDS, lifespan=_KEYS_SECONDS)


class _IssuersKeys(PyJWKClient):
    """Asks an issuer that has failed again only after a while, however many tokens come with keys that nobody knows."""

    _next_try = 0.0

    def fetch_data(self) -> Any:
        if time.monotonic() < self._next_try:
            raise PyJWKClientConnectionError("the issuer's keys could not be read a moment ago")
        self._next_try = time.monotonic() + _RETRY_SECONDS
        found = super().fetch_data()
        self._next_try = 0.0
        return found
