"""How many calls a tenant makes in a minute: one count for all that it asks, and none of another's."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import httpx2
import mcp
import pytest
from mcp import MCPError
from mcp.client.streamable_http import streamable_http_client

from api.links import link_secret
from sandbox.database import Database
from sandbox.guest_root import GuestRoot
from sandbox.keys import Keys
from tests.surfaces.conftest import serving

MOST = 6


@dataclass
class Served:
    url: str
    a: httpx.Client
    b: httpx.Client


@pytest.fixture
def served(root: GuestRoot, tmp_path: Path) -> Iterator[Served]:
    database = Database.in_folder(tmp_path)
    texts = [Keys(database).create(tenant)[1] for tenant in ("a", "b")]
    database.close()
    link_secret(tmp_path, make=True)
    with serving(root, tmp_path, tenant_calls_per_minute=MOST) as url:
        a, b = (httpx.Client(base_url=url, headers={"Authorization": f"Bearer {text}"}, timeout=60) for text in texts)
        with a, b:
            yield Served(url, a, b)


def _use_up(client: httpx.Client) -> None:
    while client.get("/v1/tools").status_code == 200:
        pass


def test_one_more_is_refused_with_when_to_try_again_and_other_tenants_are_not(served: Served) -> None:
    paths = (
        "/v1/tools",
        "/v1/workspaces/w/files",
        "/v1/workspaces/v/records",
        "/v1/workspaces/w/files/none",
        "/none",
        "/docs",
    )
    assert len(paths) == MOST
    assert 429 not in [served.a.get(path).status_code for path in paths]
    for path in paths:
        over = served.a.get(path)
        assert (over.status_code, over.json()["code"]) == (429, "rate_limited")
        assert over.headers["content-type"] == "application/problem+json"
        assert 50 <= int(over.headers["retry-after"]) <= 60
    assert served.b.get("/v1/tools").status_code == 200


def test_it_goes_on_when_the_minute_is_over_and_what_was_refused_did_not_count(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_up(served.a)
    now, wait = time.time, int(served.a.get("/v1/tools").headers["retry-after"])
    monkeypatch.setattr(time, "time", lambda: now() + wait)
    assert served.a.get("/v1/tools").status_code == 200
    monkeypatch.setattr(time, "time", lambda: now() + wait + 61)
    assert [served.a.get("/v1/tools").status_code for _ in range(MOST + 1)] == [200] * MOST + [429]


def test_health_is_not_counted(served: Served) -> None:
    _use_up(served.a)
    for _ in range(MOST * 2):
        assert httpx.get(f"{served.url}/healthz").status_code == 200
        assert served.a.get("/readyz").status_code == 200
        assert httpx.get(f"{served.url}/readyz").json() == {"status": "ready"}


def test_who_has_no_key_uses_up_nobodys_calls(served: Served) -> None:
    for _ in range(MOST * 2):
        assert httpx.get(f"{served.url}/v1/workspaces/a~w/files").status_code == 401
        assert served.b.get("/v1/workspaces/a~w/files").status_code in (400, 429)
    assert served.a.get("/v1/tools").status_code == 200


def test_signed_links_have_a_count_of_their_own(served: Served) -> None:
    served.a.put("/v1/workspaces/w/files/a.txt", content=b"x")
    link = served.a.post("/v1/workspaces/w/tools/attach_file", json={"path": "a.txt"}).json()["url"]
    opened = [httpx.get(f"{served.url}{link}") for _ in range(MOST + 1)]
    assert [one.status_code for one in opened] == [200] * MOST + [429]
    assert opened[-1].json()["code"] == "rate_limited"
    assert served.a.get("/v1/tools").status_code == 200, "who opens links takes nothing from the agent"
    _use_up(served.a)


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_client_of_the_protocol_is_told_the_same(served: Served, era: str) -> None:
    async with (
        httpx2.AsyncClient(headers={"Authorization": served.a.headers["Authorization"]}, timeout=30) as http,
        mcp.Client(streamable_http_client(f"{served.url}/mcp?workspace=w", http_client=http), mode=era) as client,
    ):
        _use_up(served.a)
        with pytest.raises(MCPError, match="Try again in") as fault:
            await client.call_tool("list_files", {})
        assert fault.value.error.data["code"] == "rate_limited"
        assert served.b.get("/v1/tools").status_code == 200


async def test_calls_over_the_protocol_count_too(served: Served) -> None:
    async with (
        httpx2.AsyncClient(headers={"Authorization": served.a.headers["Authorization"]}, timeout=30) as http,
        mcp.Client(
            streamable_http_client(f"{served.url}/mcp?workspace=w", http_client=http), mode="2026-07-28"
        ) as client,
    ):
        for _ in range(MOST - 1):
            await client.list_tools()
    assert [served.a.get("/v1/tools").status_code for _ in range(2)][-1] == 429


def test_without_the_setting_nothing_is_counted(root: GuestRoot, tmp_path: Path) -> None:
    with serving(root, tmp_path) as url, httpx.Client(base_url=url) as client:
        assert {client.get("/v1/tools").status_code for _ in range(200)} == {200}
