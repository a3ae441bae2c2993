"""Two tenants of one service, who attack each other over every route and tool: nothing of one reaches the other."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import httpx2
import mcp
import pytest
from fastapi.routing import APIRoute
from mcp import MCPError
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult

from api.app import create_app
from api.links import link_secret
from api.settings import Settings
from sandbox.approvals import Approvals
from sandbox.database import Database
from sandbox.guest_root import GuestRoot
from sandbox.keys import Keys
from tests.api.mcp.conftest import raw_server
from tests.conftest import make_toolbox
from tests.surfaces.conftest import serving

SECRET = "947871269024436488"  # noqa: S105  a value of a file
NOT_OF_A_WORKSPACE = {
    "/healthz": "whether the process answers",
    "/readyz": "what the service is",
    "/metrics": "all tenants, so the operator alone: see test_metrics.py",
    "/v1/tools": "the same for everyone",
    "/v1/approvals": "the bearer's tenant",
    "/v1/approvals/{approval}": "the bearer's tenant",
    "/docs": "the same for everyone",
    "/openapi.json": "the same for everyone",
}
"""What a route that is no workspace's shows. One that is in no rule fails the test below."""
NAMES_OF_A = ("a~w", "a%7Ew", "A~w", "b~a~w", "..%2fa~w", "w%2F..%2Fa~w", "~w", "a~w/../a~w", "./a~w")


@dataclass
class Two:
    """A service, its two tenants, and ids of the first one's things."""

    url: str
    a: httpx.Client
    b: httpx.Client
    agent_of_a: httpx.Client
    """Bears a key that may not approve."""
    ids: dict[str, str]


@pytest.fixture
def two(root: GuestRoot, tmp_path: Path) -> Iterator[Two]:
    database = Database.in_folder(tmp_path)
    keys = Keys(database)
    texts = [keys.create(tenant, approves=True)[1] for tenant in ("a", "b")]
    texts.append(keys.create("a")[1])
    approval = Approvals(database).ask("a~w", "call", "send_mail", f'{{"body": {SECRET}}}', "0" * 64)
    database.close()
    link_secret(tmp_path, make=True)
    servers = tmp_path / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"r": raw_server(tmp_path / "sent", permission="ask")}}))
    with serving(root, tmp_path, mcp_servers=servers) as url:
        a, b, agent = (
            httpx.Client(base_url=url, headers={"Authorization": f"Bearer {text}"}, timeout=60) for text in texts
        )
        with a, b, agent:
            ids = {"approval": approval.id, "path": "secret.json", "tool": "read_file"}
            place = "/v1/workspaces/w"
            assert a.put(f"{place}/files/secret.json", content=f'[{{"id": {SECRET}}}]').status_code == 200
            body = {"path": "secret.json"}
            ids["attachment"] = a.post(f"{place}/tools/attach_file", json=body).json()["id"]
            ids["table"] = a.post(f"{place}/tools/show_table", json={"source": "secret.json"}).json()["id"]
            ids["call_id"] = a.get(f"{place}/records").json()[0]["id"]
            yield Two(url, a, b, agent, ids)


def _routes(root: GuestRoot, folder: Path) -> list[APIRoute]:
    app = create_app(Settings(data_dir=folder), make_toolbox(root, folder), [])
    found: list[APIRoute] = []

    def walk(routes: Any) -> None:
        for route in routes:
            inner = getattr(route, "original_router", None)
            if isinstance(route, APIRoute):
                found.append(route)
            elif inner is not None:
                walk(inner.routes)

    walk(app.routes)
    return found


def test_every_route_has_a_rule_and_none_lets_a_tenant_at_anothers(two: Two, root: GuestRoot, tmp_path: Path) -> None:
    routes = _routes(root, tmp_path / "routes")
    assert len(routes) > 25
    tried = 0
    for route in routes:
        if route.path in NOT_OF_A_WORKSPACE:
            continue
        assert route.path.startswith("/v1/workspaces/{workspace}/"), f"{route.path} has no rule about tenants"
        for method in sorted(route.methods or ()):
            for name in (*NAMES_OF_A, "w"):
                path = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: two.ids.get(found[1], name), route.path)  # noqa: B023
                answer = two.b.request(method, path, json={"path": "secret.json"})
                tried += 1
                assert SECRET not in answer.text, (method, path)
                assert answer.status_code != 500, (method, path, answer.text)
                assert name == "w" or answer.status_code in (400, 404, 405), (method, path, answer.text)
    assert tried > 250
    content = two.a.get("/v1/workspaces/w/files/secret.json").text
    assert content == f'[{{"id": {SECRET}}}]', "the other tenant has changed it"
    listed = two.b.get("/v1/workspaces/w/files").json()["files"]
    assert [file["path"] for file in listed if not file["path"].startswith(("results", "errors"))] == []


def test_the_tenant_itself_reaches_everything(two: Two) -> None:
    """The control: the same requests by whom they belong to."""
    for name in ("w", "a~w"):
        place = f"/v1/workspaces/{name}"
        for path in (
            "files/secret.json",
            f"tables/{two.ids['table']}",
            f"attachments/{two.ids['attachment']}",
            "records",
        ):
            assert two.a.get(f"{place}/{path}").status_code == 200, path
        assert SECRET in two.a.post(f"{place}/tools/read_file", json={"path": "secret.json"}).text
        code = "print(open('secret.json').read())"
        ran = two.a.post(f"{place}/tools/run_python", json={"code": code}).json()
        assert SECRET in ran["stdout"]["text"]


def test_without_the_rule_a_tenant_reads_anothers(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the guard does to a path is what keeps tenants apart."""
    monkeypatch.setattr("api.auth._in_own_workspace", lambda scope, tenant: scope)
    assert SECRET in two.b.get("/v1/workspaces/a~w/files/secret.json").text


def test_approvals_are_seen_and_decided_by_their_own_tenants_people(two: Two) -> None:
    path = f"/v1/approvals/{two.ids['approval']}"
    decision = {"granted": True, "sha256": "0" * 64}
    assert two.b.get("/v1/approvals").json() == []
    assert two.b.post(path, json=decision).status_code == 404
    for answer in (two.agent_of_a.get("/v1/approvals"), two.agent_of_a.post(path, json=decision)):
        assert (answer.status_code, answer.json()["code"]) == (403, "denied")
    assert [one["id"] for one in two.a.get("/v1/approvals").json()] == [two.ids["approval"]]
    assert two.a.post(path, json=decision).json()["state"] == "granted"


def test_a_signed_link_opens_what_it_was_made_for_and_nothing_else(two: Two) -> None:
    link = two.a.get("/v1/workspaces/w/attachments").json()[0]["url"]
    assert httpx.get(f"{two.url}{link}").text == f'[{{"id": {SECRET}}}]'
    for other in (link.replace("a~w", "b~w"), link.replace("a~w", "w"), link.replace("/attachments/", "/tables/")):
        assert httpx.get(f"{two.url}{other}").status_code == 401


@asynccontextmanager
async def _client(
    two: Two, who: httpx.Client, workspace: str, mode: Any = "legacy", **more: Any
) -> AsyncIterator[mcp.Client]:
    url = f"{two.url}/mcp?workspace={quote(workspace)}"
    async with (
        httpx2.AsyncClient(headers={"Authorization": who.headers["Authorization"]}, timeout=30) as http,
        mcp.Client(streamable_http_client(url, http_client=http), mode=mode, **more) as client,
    ):
        yield client


async def test_the_protocol_shows_a_tenant_its_own_only(two: Two) -> None:
    uris = (f"spillbox://attachments/{two.ids['attachment']}", "spillbox://workspace/secret.json")
    async with _client(two, two.a, "w") as a, _client(two, two.b, "w") as b:
        assert SECRET in str(await a.call_tool("read_file", {"path": "secret.json"}))
        assert all([SECRET in str(await a.read_resource(uri)) for uri in uris])
        refused = await b.call_tool("read_file", {"path": "secret.json"})
        assert refused.is_error
        assert SECRET not in str(refused)
        assert SECRET not in str(await b.list_resources())
        for uri in uris:
            with pytest.raises(MCPError):
                await b.read_resource(uri)
    async with _client(two, two.b, "a~w") as b:
        with pytest.raises(MCPError, match="refused"):
            await b.call_tool("read_file", {"path": "secret.json"})


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_person_is_asked_by_the_client_and_an_agent_is_not(two: Two, tmp_path: Path, mode: str) -> None:
    asked: list[str] = []

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": True})

    async with _client(two, two.agent_of_a, "w", mode, elicitation_callback=answer) as agent:
        refused = await agent.call_tool("r_take", {"id": 1})
    assert "not_approved" in str(refused)
    assert asked == []
    async with _client(two, two.a, "w", mode, elicitation_callback=answer) as person:
        made = await person.call_tool("r_take", {"id": 2})
    assert not made.is_error, made
    assert len(asked) == 1
    sent = [json.loads(line) for line in (tmp_path / "sent").read_text().splitlines()]
    assert [one["params"]["arguments"] for one in sent if one["method"] == "tools/call"] == [{"id": 2}]


async def test_what_one_tenant_is_listed_by_another_server_the_other_is_not(two: Two) -> None:
    async with _client(two, two.a, "w") as a, _client(two, two.b, "w") as b:
        listed = [str(one.uri) for one in (await a.list_resources()).resources if "mem://" in str(one.uri)]
        others = [str(one.uri) for one in (await b.list_resources()).resources if "mem://" in str(one.uri)]
    assert (len(listed), len(others)) == (1, 1)
    assert listed != others


def test_a_session_of_another_tenant_can_not_be_used(two: Two) -> None:
    headers = {"accept": "application/json, text/event-stream"}
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}  # fmt: skip
    begun = two.a.post("/mcp?workspace=w", headers=headers, json=begin)
    headers |= {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert two.b.post("/mcp?workspace=w", headers=headers, json=ping).status_code == 404
    assert two.b.delete("/mcp?workspace=w", headers=headers).status_code == 404
    assert two.agent_of_a.post("/mcp?workspace=w", headers=headers, json=ping).status_code == 200


def test_without_a_key_or_with_a_revoked_one_nothing_is_answered(two: Two, tmp_path: Path) -> None:
    paths = ("/v1/tools", "/v1/workspaces/w/files", "/v1/workspaces/a~w/files", "/openapi.json", "/docs")
    for headers in (
        {},
        {"Authorization": "Bearer x"},
        {"Authorization": "Bearer sbx_0_0"},
        {"Authorization": "Basic eDp5"},
    ):
        assert {httpx.get(f"{two.url}{path}", headers=headers).status_code for path in paths} == {401}
    keys = Keys(Database.in_folder(tmp_path))
    keys.revoke(next(key.id for key in keys.all() if key.tenant == "b"))
    assert two.b.get("/v1/tools").status_code == 401
    assert two.a.get("/v1/tools").status_code == 200


def test_pages_of_other_sites_are_not_answered(two: Two) -> None:
    own = two.url.removeprefix("http://")
    for origin, status in (("https://evil.example", 403), ("null", 403), (f"http://{own}", 200)):
        assert two.a.get("/v1/tools", headers={"Origin": origin}).status_code == status
    evil = two.a.post("/mcp?workspace=w", headers={"Origin": "https://evil.example"}, json={})
    assert (evil.status_code, evil.json()["code"]) == (403, "forbidden")
    answer = two.a.get("/v1/tools")
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
    assert "access-control-allow-origin" not in answer.headers


def test_one_tenants_name_in_a_record_is_its_own(two: Two) -> None:
    assert {record["workspace"] for record in two.a.get("/v1/workspaces/w/records").json()} == {"a~w"}
    assert json.loads(two.b.get("/v1/workspaces/w/records").text) == []


async def test_a_record_says_who_called_and_no_caller_can_write_it(two: Two, tmp_path: Path) -> None:
    database = Database.in_folder(tmp_path)
    person, agent = (
        next(key.id for key in Keys(database).all() if key.tenant == "a" and key.approves == is_persons)
        for is_persons in (True, False)
    )
    database.close()
    place = "/v1/workspaces/called"
    forged = {"X-Caller": "b", "caller": "b", "Idempotency-Key": "first"}
    body = {"path": "a.txt", "content": "x"}
    assert two.agent_of_a.post(f"{place}/tools/write_file", json=body, headers=forged).status_code == 200
    assert two.a.post(f"{place}/tools/write_file", json=body, headers=forged).status_code == 200, "the same call again"
    stream = {"Accept": "text/event-stream"}
    assert "event: result" in two.a.post(f"{place}/tools/write_file", json=body, headers=stream).text
    assert two.a.post(f"{place}/tools/write_file", json={**body, "caller": "b"}).status_code == 422
    for mode in ("legacy", "2026-07-28"):
        async with _client(two, two.agent_of_a, "called", mode) as client:
            forged_too: Any = {"caller": "b", "identity": "b"}
            await client.call_tool("read_file", {"path": "a.txt"}, meta=forged_too)
            await client.call_tool("r_take", {"id": 1})  # another server's; it waits for nobody, and is recorded
    found = [(one["tool"], one["caller"]) for one in two.a.get(f"{place}/records").json()]
    assert found == [("r_take", agent), ("read_file", agent)] * 2 + [("write_file", person), ("write_file", agent)]
    assert two.b.get(f"{place}/records").json() == []
    assert two.a.get(f"{place}/records/first").json()["caller"] == agent


def test_the_bearer_of_the_services_own_key_has_a_fixed_name_and_without_keys_there_is_none(
    root: GuestRoot, tmp_path: Path
) -> None:
    body = {"path": "a.txt", "content": "x"}
    for folder, key, caller in (("one", "0123456789abcdef", "api-key"), ("other", None, None)):
        with serving(root, tmp_path / folder, api_key=key) as url:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            httpx.post(f"{url}/v1/workspaces/w/tools/write_file", json=body, headers=headers)
            (record,) = httpx.get(f"{url}/v1/workspaces/w/records", headers=headers).json()
            assert record["caller"] == caller
