"""Calls that a person has to approve: asked over the protocol where the client can, else over HTTP."""

import concurrent.futures
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from tests.api.mcp.conftest import ERAS, InFront, client_of, raw_call, raw_server

ELICITS = '{"elicitation":{"form":{}}}'
ASK: dict[str, Any] = {"permission": "ask"}


def calls_in(state: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, state.read_text().splitlines())
    return [line["params"]["arguments"] for line in lines if line["method"] == "tools/call"]


def answering(action: str, asked: list[str], **content: Any) -> Any:
    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult.model_validate({"action": action, "content": content or None})

    return answer


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("action", "content", "sent"),
    [
        ("accept", {"approve": True}, 1),
        ("accept", {"approve": False}, 0),
        ("accept", {"approve": "yes"}, 0),
        ("decline", {}, 0),
        ("cancel", {}, 0),
    ],
)
async def test_the_user_is_asked_and_decides(
    in_front_of: InFront, tmp_path: Path, era: str, action: str, content: dict[str, Any], sent: int
) -> None:
    asked: list[str] = []
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}) as url:
        async with client_of(url, era, elicitation_callback=answering(action, asked, **content)) as client:
            result = await client.call_tool("r_take", {"id": 7, "price": 1.5})
    assert len(asked) == 1
    assert "r_take" in asked[0]
    assert '{"id": 7, "price": 1.5}' in asked[0]
    assert len(calls_in(tmp_path / "state")) == sent
    assert result.is_error == (not sent)


@pytest.mark.parametrize("era", ERAS)
async def test_a_delegating_call_shows_what_would_be_sent(in_front_of: InFront, tmp_path: Path, era: str) -> None:
    asked: list[str] = []
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}) as url:
        async with client_of(url, era, elicitation_callback=answering("accept", asked, approve=True)) as client:
            await client.call_tool(
                "write_file", {"path": "a.json", "content": '{"id": 1, "body": "' + "x" * 9000 + '"}'}
            )
            made = await client.call_tool(
                "call_tool", {"tool": "r_take", "arguments_path": "a.json", "arguments": {"id": 2}}
            )
    assert not made.is_error
    assert '{"id": 2, "body": "xxx' in asked[0]
    assert "sha256" in asked[0], "a long one is cut, with its size and hash"
    assert len(asked[0]) < 5000
    assert calls_in(tmp_path / "state") == [{"id": 2, "body": "x" * 9000}]


def _rounds(url: str, tool: str, arguments: str) -> Callable[[str], dict[str, bytes]]:
    first = raw_call(url, tool, arguments, capabilities=ELICITS)
    assert first["resultType"] == b'"input_required"'
    state = first["requestState"].decode()
    yes = '{"spillbox-approval":{"action":"accept","content":{"approve":true}}}'
    return lambda given: raw_call(
        url, tool, given, capabilities=ELICITS, more=f',"inputResponses":{yes},"requestState":{state}'
    )


@pytest.mark.case("S20")
def test_a_grant_is_for_one_call_with_these_arguments(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}) as url:
        again = _rounds(f"{url}/mcp?workspace=w", "r_take", '{"id":1}')
        changed = again('{"id":2}')
        first, second = again('{"id":1}'), again('{"id":1}')
        forged = raw_call(
            f"{url}/mcp?workspace=w",
            "r_take",
            '{"id":1}',
            capabilities=ELICITS,
            more=',"requestState":"spillbox.v1.forged"',
        )
    assert b"arguments_changed" in changed["content"]
    assert b"call 1" in first["content"]
    assert b"not_approved" in second["content"]
    assert b"not_approved" in forged["content"]
    assert calls_in(tmp_path / "state") == [{"id": 1}]


@pytest.mark.case("S20")
def test_an_answer_before_the_question_counts_for_nothing(in_front_of: InFront, tmp_path: Path) -> None:
    answer = ',"inputResponses":{"spillbox-approval":{"action":"accept","content":{"approve":true}}}'
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}) as url:
        asked = raw_call(f"{url}/mcp?workspace=w", "r_take", '{"id":1}', capabilities=ELICITS, more=answer)
    assert asked["resultType"] == b'"input_required"'
    assert calls_in(tmp_path / "state") == []


@pytest.mark.case("S20")
def test_a_file_that_changes_after_the_question_is_refused(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}) as url:
        place = f"{url}/v1/workspaces/w/files/a.json"
        httpx.put(place, content=b'{"id": 1}')
        call = '{"tool":"r_take","arguments_path":"a.json"}'
        again = _rounds(f"{url}/mcp?workspace=w", "call_tool", call)
        httpx.put(place, content=b'{"id": 666}')
        refused = again(call)
    assert b"arguments_changed" in refused["content"]
    assert calls_in(tmp_path / "state") == []


def test_nobody_there_is_a_refusal_at_once(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}) as url:
        started = time.monotonic()
        refused = raw_call(f"{url}/mcp?workspace=w", "r_take")
    assert b"not_approved" in refused["content"]
    assert time.monotonic() - started < 5
    assert calls_in(tmp_path / "state") == []


@pytest.mark.parametrize("granted", [True, False])
def test_a_person_decides_over_http(in_front_of: InFront, tmp_path: Path, *, granted: bool) -> None:
    with (
        in_front_of({"r": raw_server(tmp_path / "state", **ASK)}) as url,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        assert httpx.get(f"{url}/v1/approvals").json() == []
        call = pool.submit(raw_call, f"{url}/mcp?workspace=w", "r_take", '{"price": 1.10}')
        while not (waiting := httpx.get(f"{url}/v1/approvals").json()):
            time.sleep(0.05)
        (one,) = waiting
        place = f"{url}/v1/approvals/{one['id']}"
        other = httpx.post(place, json={"granted": True, "sha256": "0" * 64})
        decided = httpx.post(place, json={"granted": granted, "sha256": one["sha256"]})
        twice = httpx.post(place, json={"granted": True, "sha256": one["sha256"]})
        answer = call.result()
        missing = httpx.post(f"{url}/v1/approvals/nothing", json={"granted": True, "sha256": ""})
    assert (one["tool"], one["workspace"], one["arguments"]) == ("r_take", "w", '{"price": 1.10}')
    assert (other.status_code, other.json()["code"]) == (409, "arguments_changed")
    assert decided.json()["state"] == ("granted" if granted else "refused")
    assert (twice.status_code, missing.status_code) == (403, 404)
    assert (b"not_approved" in answer["content"]) == (not granted)
    assert len(calls_in(tmp_path / "state")) == granted


def test_a_delegating_call_over_http_has_the_same_rules(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state", tools={"take": {"permission": "deny"}})}) as url:
        call = f"{url}/v1/workspaces/w/tools/call_tool"
        counted = httpx.post(call, json={"tool": "r_count"})
        denied = httpx.post(call, json={"tool": "r_take"})
        refused = httpx.post(call, json={"tool": "r_refusing"})
        unknown = httpx.post(call, json={"tool": "r_nothing"})
        record = httpx.get(f"{url}/v1/workspaces/w/records").json()
    assert counted.json()["text"].startswith("call ")
    assert [answer.json()["code"] for answer in (denied, refused, unknown)] == ["denied", "upstream_error", "not_found"]
    assert [answer.status_code for answer in (denied, refused, unknown)] == [403, 502, 404]
    assert [one["status"] for one in record] == ["not_found", "upstream_error", "denied", "ok"]


def test_capabilities_are_the_clients_own(in_front_of: InFront, tmp_path: Path) -> None:
    """A client that can't be asked is not asked, whatever another one of the workspace can."""
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}) as url:
        asked = raw_call(f"{url}/mcp?workspace=w", "r_take", capabilities=ELICITS)
        not_asked = raw_call(f"{url}/mcp?workspace=w", "r_take")
    assert asked["resultType"] == b'"input_required"'
    assert b"not_approved" in not_asked["content"]


def test_an_answer_that_comes_too_late_sends_nothing(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}, approval_seconds=1) as url:
        again = _rounds(f"{url}/mcp?workspace=w", "r_take", '{"id":1}')
        assert len(httpx.get(f"{url}/v1/approvals").json()) == 1
        time.sleep(1.1)
        assert httpx.get(f"{url}/v1/approvals").json() == []
        late = again('{"id":1}')
    assert b"not_approved" in late["content"]
    assert b"expired" in late["content"]
    assert calls_in(tmp_path / "state") == []


def test_no_more_wait_than_may_over_both_surfaces(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state", **ASK)}, tenant_approvals=2) as url:
        for _ in range(2):
            _rounds(f"{url}/mcp?workspace=w", "r_take", '{"id":1}')
        over = raw_call(f"{url}/mcp?workspace=w", "r_take", '{"id":1}', capabilities=ELICITS)
        call = {"tool": "r_take", "arguments": {"id": 1}}
        refused = httpx.post(f"{url}/v1/workspaces/w/tools/call_tool", json=call)
        assert len(httpx.get(f"{url}/v1/approvals").json()) == 2
    assert b"busy" in over["content"]
    assert b"wait for a person's approval already" in over["content"]
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, "busy", "30")
    assert calls_in(tmp_path / "state") == []
