"""Tokens of an issuer: only one that is right in every part speaks for a tenant."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from api.callers import Bearer
from api.settings import Settings
from api.tokens import Tokens
from sandbox.guest_root import GuestRoot
from tests.surfaces.conftest import serving, serving_app

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
AUDIENCE = "spillbox"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A real issuer on loopback, as far as discovery and keys go."""

    async def about(request: Request) -> JSONResponse:
        base = str(request.base_url).rstrip("/")
        return JSONResponse({"issuer": base, "jwks_uri": f"{base}/keys"})

    async def keys(_: Request) -> JSONResponse:
        public = json.loads(RSAAlgorithm.to_jwk(KEY.public_key()))
        return JSONResponse({"keys": [{**public, "kid": "one", "use": "sig"}]})

    routes = [Route("/.well-known/openid-configuration", about), Route("/keys", keys)]
    with serving_app(lambda: Starlette(routes=routes)) as url:
        yield url


@pytest.fixture(scope="module")
def tokens(issuer: str) -> Tokens:
    return Tokens(issuer, AUDIENCE, "tenant")


@pytest.fixture(scope="module")
def make(issuer: str) -> Callable[..., str]:
    def made(key: Any = KEY, *, algorithm: str = "RS256", kid: str = "one", **claims: Any) -> str:
        usual = {"iss": issuer, "aud": AUDIENCE, "exp": time.time() + 60, "sub": "ann", "tenant": "acme"} | claims
        given = {name: value for name, value in usual.items() if value is not None}
        return jwt.encode(given, key, algorithm=algorithm, headers={"kid": kid})

    return made


def test_a_token_speaks_for_the_tenant_that_it_names(tokens: Tokens, make: Callable[..., str]) -> None:
    assert tokens.find(make()) == Bearer("acme", "token:ann", approves=False)
    assert tokens.find(make(scope="openid spillbox.approve")) == Bearer("acme", "token:ann", approves=True)
    assert tokens.find(make(aud=["other", AUDIENCE])) == Bearer("acme", "token:ann", approves=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"exp": 1.0}, {"exp": None}, {"aud": "other"}, {"aud": None}, {"iss": "https://other.example"}, {"iss": None},
        {"nbf": time.time() + 3600}, {"tenant": None}, {"tenant": "A B"}, {"tenant": "a~b"}, {"tenant": ["acme"]}, {"tenant": ""},
        {"kid": "two"}, {"key": OTHER}, {"key": ec.generate_private_key(ec.SECP256R1()), "algorithm": "ES256"},
        {"key": None, "algorithm": "none"}, {"key": b"shared" * 8, "algorithm": "HS256"},
    ],
    ids=str,
)  # fmt: skip
def test_one_that_is_wrong_in_any_part_speaks_for_none(
    tokens: Tokens, make: Callable[..., str], wrong: dict[str, Any]
) -> None:
    assert tokens.find(make(**wrong)) is None


@pytest.mark.parametrize("text", ["", "a.b.c", "..", "é.é.é"])
def test_what_is_no_token_speaks_for_none(tokens: Tokens, text: str) -> None:
    assert tokens.find(text) is None


def test_keys_that_are_not_served_safely_are_not_taken(make: Callable[..., str]) -> None:
    async def about(request: Request) -> JSONResponse:
        return JSONResponse({"issuer": str(request.base_url).rstrip("/"), "jwks_uri": "http://keys.example/keys"})

    routes = [Route("/.well-known/openid-configuration", about)]
    with serving_app(lambda: Starlette(routes=routes)) as url:
        assert Tokens(url, AUDIENCE, "tenant").find(make(iss=url)) is None


def test_an_issuer_that_is_not_there_or_is_another_lets_nobody_in(issuer: str, make: Callable[..., str]) -> None:
    assert Tokens("http://127.0.0.1:9", AUDIENCE, "tenant").find(make(iss="http://127.0.0.1:9")) is None
    assert Tokens(f"{issuer}/", AUDIENCE, "tenant").find(make(iss=f"{issuer}/")) is None


def test_the_service_takes_tokens_in_the_place_of_keys(
    root: GuestRoot, tmp_path: Path, issuer: str, make: Callable[..., str]
) -> None:
    with serving(root, tmp_path, oidc_issuer=issuer, oidc_audience=AUDIENCE) as url:
        for name in ("acme", "other"):
            headers = {"Authorization": f"Bearer {make(tenant=name)}"}
            httpx.put(f"{url}/v1/workspaces/w/files/{name}.txt", headers=headers, content=b"x")
            body = {"path": f"{name}.txt"}
            attached = httpx.post(f"{url}/v1/workspaces/w/tools/attach_file", headers=headers, json=body).json()
            listed = httpx.get(f"{url}/v1/workspaces/w/files", headers=headers).json()["files"]
            assert [file["path"] for file in listed] == [f"{name}.txt"]
            assert httpx.get(f"{url}{attached['url']}").content == b"x"
        wrong = {"Authorization": f"Bearer {make(exp=1.0)}"}
        assert httpx.get(f"{url}/v1/workspaces/w/files", headers=wrong).status_code == 401


@pytest.mark.parametrize(
    "wrong",
    [
        {"oidc_issuer": "https://id.example"},
        {"oidc_audience": "x"},
        {"oidc_issuer": "http://id.example", "oidc_audience": "x"},
        {"oidc_issuer": "http://localhost.example", "oidc_audience": "x"},
    ],
)
def test_settings_that_would_let_in_anyone_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="OIDC"):
        Settings(**wrong)


def test_an_issuer_whose_keys_can_not_be_read_is_asked_now_and_then_only(make: Callable[..., str]) -> None:
    """Also for one token after another with keys that nobody knows; those that are known go on to be taken."""
    public = json.loads(RSAAlgorithm.to_jwk(KEY.public_key()))
    asked: list[int] = []
    works = [True]

    async def about(request: Request) -> JSONResponse:
        base = str(request.base_url).rstrip("/")
        return JSONResponse({"issuer": base, "jwks_uri": f"{base}/keys"})

    async def keys(_: Request) -> JSONResponse:
        asked.append(1)
        return JSONResponse({"keys": [{**public, "kid": "one"}]}, status_code=200 if works[0] else 500)

    routes = [Route("/.well-known/openid-configuration", about), Route("/keys", keys)]
    with serving_app(lambda: Starlette(routes=routes)) as url:
        found = Tokens(url, AUDIENCE, "tenant")
        assert found.find(make(iss=url)) is not None
        source = found._keys
        assert source is not None
        works[0] = False
        source._last_successful_fetch = None  # as if the time were over, for which an unknown key asks for nothing
        for number in range(5):
            assert found.find(make(iss=url, kid=f"unknown-{number}")) is None
        assert len(asked) == 2
        assert found.find(make(iss=url)) is not None
        works[0], source._next_try = True, 0.0  # type: ignore[attr-defined]
        source._last_successful_fetch = None
        found.find(make(iss=url, kid="unknown"))
        assert len(asked) == 3
