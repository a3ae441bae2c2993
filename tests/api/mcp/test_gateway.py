"""Other servers through the gateway: as they are, but that their long results are files."""

import asyncio
import gzip
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from mcp import MCPError
from mcp.client.session import ClientRequestContext
from mcp_types import CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, TextContent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.api.mcp.conftest import (
    ERAS,
    MODERN,
    PROJECT,
    InFront,
    client_of,
    everything_over_stdio,
    raw_call,
    raw_server,
    text_of,
)
from tests.api.mcp.everything import ROWS
from tests.api.mcp.raw_server_texts import LITERALS
from tests.surfaces.conftest import serving_app


async def _names(client: mcp.Client) -> list[str]:
    names, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return names


# Handed on as it came


@pytest.mark.case("S18")
@pytest.mark.parametrize(
    "tool",
    [
        "blocks",
        "test_multiple_content_types",
        "test_audio_content",
        "small",
        "test_error_handling",
        "test_embedded_resource",
    ],
)
def test_short_results_are_equal_to_the_byte(in_front_of: InFront, everything_url: str, tool: str) -> None:
    with in_front_of({"e": {"url": everything_url}}) as url:
        through = raw_call(f"{url}/mcp?workspace=w", f"e_{tool}")
    direct = raw_call(everything_url, tool)
    for result in (through, direct):
        if tool != "blocks":
            result.pop("_meta", None)  # the test server's own name, which its library adds
    assert json.loads(through["content"]) == json.loads(direct["content"])
    assert through == direct


@pytest.mark.case("S18", "S10")
def test_what_no_library_knows_is_equal_to_the_byte(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        literals = raw_call(f"{url}/mcp?workspace=w", "r_literals")
        unknown = raw_call(f"{url}/mcp?workspace=w", "r_unknown_kind")
        empty = raw_call(f"{url}/mcp?workspace=w", "r_no_blocks")
        error = raw_call(f"{url}/mcp?workspace=w", "r_refusing")
    assert literals["structuredContent"] == LITERALS.encode()
    assert unknown["content"] == b'[{"type":"hologram","depth":3.10},{"type":"text","text":"beside"}]'
    assert empty["content"] == b"[]"
    assert error == {"code": b"-32050", "message": b'"no"', "data": b'{"why":"because"}'}


@pytest.mark.case("S10")
def test_numbers_of_arguments_reach_the_server_as_they_are_written(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        raw_call(
            f"{url}/mcp?workspace=w",
            "r_take",
            '{"id": 12345678901234567890, "price": 1.10, "huge": 1e400, "minus": -0}',
        )
    sent = [line for line in (tmp_path / "state").read_text().splitlines() if '"tools/call"' in line]
    assert '{"id": 12345678901234567890, "price": 1.10, "huge": 1e400, "minus": -0}' in sent[0]


async def test_schemas_are_as_they_came_but_for_a_promised_shape(in_front_of: InFront) -> None:
    servers = {"e": everything_over_stdio(tools={"small": {"spill": False}, "die": {"permission": "deny"}})}
    with in_front_of(servers) as url:
        async with client_of(url, MODERN) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            small = await client.call_tool("e_small", {})
            refused = await client.call_tool("e_die", {})
    schema = tools["e_json_schema_2020_12_tool"].input_schema
    assert {"$schema", "$defs", "allOf", "if", "then", "else", "additionalProperties"} <= set(schema)
    assert tools["e_rows"].output_schema is None
    assert tools["e_small"].output_schema is not None
    assert small.structured_content == {"id": 7}
    assert "e_die" not in tools
    assert text_of(refused).startswith("denied: ")


@pytest.mark.parametrize("era", ERAS)
async def test_lists_of_many_pages_are_read_to_their_end(in_front_of: InFront, tmp_path: Path, era: str) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state"), "e": everything_over_stdio()}) as url:
        async with client_of(url, era) as client:
            names = await _names(client)
            with pytest.raises(MCPError, match="cursor"):
                await client.list_tools(cursor="nonsense")
    assert len(names) == len(set(names))
    assert {"run_python", "call_tool", "r_literals", "r_die", "e_small", "e_test_simple_text"} <= set(names)


@pytest.mark.parametrize("era", ERAS)
async def test_resources_prompts_and_completion_go_to_the_server_whose_they_are(in_front_of: InFront, era: str) -> None:
    with in_front_of({"e": everything_over_stdio()}) as url:
        async with client_of(url, era) as client:
            listed = [resource.uri for resource in (await client.list_resources()).resources]
            read = (await client.read_resource("test://static-text")).contents[0]
            by_template = (await client.read_resource("test://template/7/data")).contents[0]
            with pytest.raises(MCPError, match="not found"):
                await client.read_resource("test://nothing")
            prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
            prompt = await client.get_prompt("e_test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
            words = await client.complete(
                mcp.types.PromptReference(type="ref/prompt", name="e_test_prompt_with_arguments"),
                {"name": "arg1", "value": "par"},
            )
    assert "test://static-text" in listed
    assert getattr(read, "text", "") == "This is the content of the static text resource."
    assert '"7"' in getattr(by_template, "text", "")
    assert "e_test_simple_prompt" in prompts
    assert "arg1='a', arg2='b'" in prompt.messages[0].content.text  # type: ignore[union-attr]
    assert words.completion.values == ["paris", "park", "party"]


@pytest.mark.parametrize("era", ERAS)
async def test_progress_is_told_to_the_one_who_asked(in_front_of: InFront, era: str) -> None:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    with in_front_of({"e": everything_over_stdio()}) as url:
        async with client_of(url, era) as client:
            await client.call_tool("e_test_tool_with_progress", {}, progress_callback=note)
    assert seen == [0, 50, 100]


async def _elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(
        action="accept", content={"name": f"Ada, asked {params.message!r}", "username": "a", "email": "b"}
    )


async def _sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Paris"), model="m")


async def test_a_server_asks_the_user_while_it_works(in_front_of: InFront) -> None:
    with in_front_of({"e": everything_over_stdio()}) as url:
        async with client_of(url, "legacy", elicitation_callback=_elicit, sampling_callback=_sample) as client:
            asked = await client.call_tool("e_test_elicitation", {"message": "Who?"})
            sampled = await client.call_tool("e_test_sampling", {"prompt": "capital?"})
        async with client_of(url, "legacy") as client:
            with pytest.raises(MCPError, match="not supported"):
                await client.call_tool("e_test_elicitation", {"message": "Who?"})
    assert "Ada, asked 'Who?'" in text_of(asked)
    assert text_of(sampled) == "LLM response: Paris"


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_asks_in_rounds_which_the_gateway_goes_through_for_older_clients(
    in_front_of: InFront, modern_url: str, era: str
) -> None:
    with in_front_of({"e": {"url": modern_url}}) as url:
        async with client_of(url, era, elicitation_callback=_elicit, sampling_callback=_sample) as client:
            greeted = await client.call_tool("e_test_input_required_result_elicitation", {})
            sealed = await client.call_tool("e_test_input_required_result_multi_round", {})
    assert text_of(greeted) == "Hello, Ada, asked 'What is your name?'!"
    assert text_of(sealed) == "Done: round+1"


async def test_a_server_of_the_handshake_era_serves_clients_of_both(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        for era in ERAS:
            async with client_of(url, era) as client:
                assert text_of(await client.call_tool("r_count", {})).startswith("call ")


# Spilled


@pytest.mark.case("S17")
@pytest.mark.parametrize("era", ERAS)
async def test_a_long_result_is_a_file_and_no_schema_is_broken(in_front_of: InFront, era: str) -> None:
    with in_front_of({"e": everything_over_stdio(tools={"rows": {"hint": "Rows of libraries."}})}) as url:
        async with client_of(url, era) as client:
            await client.list_tools()
            result = await client.call_tool("e_rows", {})
            text = text_of(result)
            path = text.partition("results/")[2].split()[0].rstrip(":;,")
            link = next(block for block in result.content if block.type == "resource_link")
            read = await client.read_resource(str(link.uri))
            found = await client.call_tool(
                "extract_json_path", {"path": f"results/{path}", "expression": "$.rows[320].id"}
            )
        saved = httpx.get(f"{url}/v1/workspaces/w/files/results/{path}").text
    assert "321 rows" in text
    assert "Rows of libraries." in text
    assert result.meta is not None
    assert result.meta["example.org/trace"] == "t-1"
    assert not result.is_error
    assert json.loads(saved)["rows"] == ROWS
    assert getattr(read.contents[0], "text", "") == saved
    assert "947871269024436808" in text_of(found)


@pytest.mark.case("S3")
def test_one_block_for_each_record_is_one_table(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        answer = raw_call(f"{url}/mcp?workspace=w", "r_many_blocks")
    text = json.loads(answer["content"])[0]["text"]
    assert "50 rows" in text
    assert "947871269024436537" in text


@pytest.mark.case("S9")
def test_a_long_error_keeps_its_reason_and_is_still_an_error(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        answer = raw_call(f"{url}/mcp?workspace=w", "r_failing")
        text = json.loads(answer["content"])[0]["text"]
        whole = httpx.get(f"{url}/v1/workspaces/w/files/errors/0001-r_failing.txt").text
    assert answer["isError"] == b"true"
    assert "ValueError: the reason" in text
    assert len(text) < 1200
    assert whole.count("  File x") == 900


@pytest.mark.parametrize(("rule", "surface"), [({"spill": False}, "agent"), ({}, "client")])
def test_a_result_is_raw_where_spilling_is_off(
    in_front_of: InFront, everything_url: str, rule: dict[str, Any], surface: str
) -> None:
    with in_front_of({"e": {"url": everything_url, **rule}}) as url:
        through = raw_call(f"{url}/mcp?workspace=w&surface={surface}", "e_rows")
    direct = raw_call(everything_url, "rows")
    assert through["content"] == direct["content"]
    assert through["structuredContent"] == direct["structuredContent"]


# Faults


@pytest.mark.case("S19")
async def test_a_server_that_dies_fails_clearly_and_comes_back(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        async with client_of(url, MODERN) as client:
            before = await _names(client)
            died = await client.call_tool("r_die", {})
            again = await client.call_tool("r_count", {})
            retried = await client.call_tool("r_die_once", {})
            after = await _names(client)
    assert died.is_error
    assert "the reason of death" in text_of(died)
    assert "may or may not have been done" in text_of(died)
    assert text_of(died).startswith("upstream_failed: ")
    assert text_of(again) == "call 1"
    assert not retried.is_error, "a call that changes nothing is made again"
    assert before == after


@pytest.mark.case("S19")
async def test_a_server_that_is_down_is_listed_as_it_was_and_said_to_be_down(
    in_front_of: InFront, tmp_path: Path
) -> None:
    switch = tmp_path / "switch.py"
    server = (Path(__file__).parent / "raw_server.py").read_text()
    switch.write_text(server)
    settings = raw_server(tmp_path / "state", idle_seconds=600)
    settings["args"] = [str(switch), str(tmp_path / "state")]
    settings["env"] = {"PYTHONPATH": str(PROJECT)}
    with in_front_of({"r": settings}) as url:
        async with client_of(url, MODERN) as client:
            names = await _names(client)
            switch.write_text("raise SystemExit('out of order')")
            await client.call_tool("r_die", {})
            assert await _names(client) == names
            down = await client.call_tool("r_count", {})
            switch.write_text(server)
            up = await client.call_tool("r_count", {})
    assert "out of order" in text_of(down)
    assert "Nothing was sent" in text_of(down)
    assert text_of(up) == "call 1"


async def test_a_server_that_never_starts_does_not_keep_the_service_from_serving(in_front_of: InFront) -> None:
    with in_front_of({"n": {"command": "/nothing/there"}, "e": everything_over_stdio()}) as url:
        async with client_of(url, MODERN) as client:
            names = await _names(client)
            answer = await client.call_tool("n_anything", {})
            works = await client.call_tool("e_small", {})
    assert "e_small" in names
    assert "can't be reached" in text_of(answer)
    assert text_of(works) == '{"id": 7}'


@pytest.mark.case("S19")
@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("huge", "max_message_bytes"),
        ("endless", "max_message_bytes"),
        ("bad_utf8", "�"),
        ("no_result", "no valid message"),
        ("nonsense", "after nonsense"),
        ("slow", "timeout_seconds"),
        ("flood", "flooded"),
        ("asks", "it asked more than 64 things at once"),
        ("blank_lines", "after blank lines"),
        ("takes_nothing", "timeout_seconds"),
        ("tab", "no valid message"),
        ("odd_blocks", "results/0001-r_odd_blocks"),
    ],
)
async def test_a_hostile_server_leaves_the_gateway_serving(
    in_front_of: InFront, tmp_path: Path, tool: str, said: str
) -> None:
    slow = {name: {"timeout_seconds": 1} for name in ("slow", "take*")}
    hostile = raw_server(tmp_path / "state", max_message_bytes=1 << 26, tools=slow, connect_seconds=3)
    with in_front_of({"r": hostile, "e": everything_over_stdio()}) as url:
        async with client_of(url, "legacy") as client:
            started = time.monotonic()
            try:
                told = text_of(await client.call_tool(f"r_{tool}", {}))
            except MCPError as fault:
                told = str(fault)
            beside = await client.call_tool("e_small", {})
            if tool == "takes_nothing":  # whatever waits in the pipe keeps no later call waiting for ever
                with suppress(MCPError):
                    await client.call_tool("r_take", {"text": "x" * 300_000})
                with suppress(MCPError):
                    await client.call_tool("r_take", {"text": "x" * 300_000})
            again = await client.call_tool("r_count", {}, read_timeout_seconds=30)
    assert said in told
    assert text_of(beside) == '{"id": 7}'
    assert text_of(again).startswith("call ")
    assert tool not in ("slow", "takes_nothing") or time.monotonic() - started < 40


@pytest.mark.case("S10")
def test_every_literal_of_an_odd_answer_is_as_it_came(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        at = f"{url}/mcp?workspace=w"
        structured = raw_call(at, "r_structured_only")["structuredContent"]
        half = raw_call(at, "r_half_pair")
        no_number = raw_call(at, "r_not_a_number")["content"]
        sent = raw_call(at, "r_take", '{"text": "half \\ud83d", "price": 1.10}')
        refused = raw_call(at, "r_take", '{"price": NaN}')["content"]
    assert structured.decode() == LITERALS
    assert half["content"] == b'[{"type":"text","text":"half \\ud83d"}]'
    assert half["structuredContent"] == b'{"a":1.10}'
    assert rb"\"a\":NaN,\"b\":1.10" in no_number
    assert b"call 4" in sent["content"]
    assert rb'"arguments":{"text": "half \ud83d", "price": 1.10}' in (tmp_path / "state").read_bytes()
    assert b"invalid_arguments" in refused


def test_a_method_that_is_written_with_escapes_is_the_same(in_front_of: InFront, tmp_path: Path) -> None:
    body = (
        r'{"jsonrpc":"2.0","id":1,"method":"tools\/call","params":{"name":"r_take","arguments":{"a":1.10,"b":1e400}}}'
    )
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        at = f"{url}/mcp?workspace=w"
        begun = httpx.post(
            at, headers=headers, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin}
        )
        headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        httpx.post(at, headers=headers, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        httpx.post(at, headers=headers, content=body)
    assert b'"arguments":{"a": 1.10, "b": 1e400}' in (tmp_path / "state").read_bytes()


async def test_a_server_that_lists_nothing_keeps_nobody_waiting(in_front_of: InFront, tmp_path: Path) -> None:
    silent = raw_server(tmp_path / "state", connect_seconds=2)
    silent["args"].append("silent")
    started = time.monotonic()
    with in_front_of({"r": silent, "e": everything_over_stdio()}) as url:
        async with client_of(url, "legacy") as client:
            names = await _names(client)
            again = await _names(client)
    assert "e_small" in names == again
    assert time.monotonic() - started < 15


async def test_what_is_listed_in_a_conversation_is_seen_in_no_other(in_front_of: InFront, tmp_path: Path) -> None:
    async def uris(client: mcp.Client) -> set[str]:
        return {str(one.uri) for one in (await client.list_resources()).resources if "mem" in str(one.uri)}

    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        async with client_of(url, "legacy", "a") as a, client_of(url, "legacy", "b") as b:
            of_a, of_b = await uris(a), await uris(b)
        async with mcp.Client(f"{url}/mcp", mode="legacy") as nobody:
            of_none = await uris(nobody)
            with pytest.raises(MCPError, match=r"\?workspace=NAME"):
                await nobody.read_resource(of_a.copy().pop())
        async with mcp.Client(f"{url}/mcp?workspace=../x", mode="legacy") as bad:
            with pytest.raises(MCPError, match="workspace id"):
                await bad.list_resources()
    assert (len(of_a), len(of_b), len(of_none)) == (1, 1, 1)
    assert len(of_a | of_b | of_none) == 3


async def test_a_server_can_not_pass_for_the_service(in_front_of: InFront, tmp_path: Path) -> None:
    evil = everything_over_stdio(prefix="")
    with in_front_of({"r": raw_server(tmp_path / "state"), "e": evil}) as url:
        async with client_of(url, "legacy") as client:
            resources = [str(one.uri) for one in (await client.list_resources()).resources]
            names = await _names(client)
    assert "spillbox://workspace/secret.txt" not in resources
    assert len(names) == len(set(names))


def test_a_pattern_has_two_special_characters_and_no_more(in_front_of: InFront, tmp_path: Path) -> None:
    server = raw_server(tmp_path / "state", tools={"a[b]": {"permission": "deny"}})
    with in_front_of({"r": server}) as url:
        assert b"denied" in raw_call(f"{url}/mcp?workspace=w", "r_a[b]")["content"]


@pytest.fixture
def odd_url() -> Iterator[str]:
    """A server over HTTP whose answers are allowed, or not, and that no library sends."""

    async def answer(request: Request) -> Response:
        asked = await request.json()
        number, method = asked.get("id"), asked["method"]
        if method == "initialize":
            result = (
                '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"odd","version":"1"}}'
            )
        elif method == "tools/list":
            result = '{"tools":[{"name":"lines","inputSchema":{}},{"name":"packed","inputSchema":{}}]}'
        elif method == "tools/call" and asked["params"]["name"] == "packed":
            return Response(
                gzip.compress(b"x" * (64 << 20)), headers={"content-encoding": "gzip"}, media_type="application/json"
            )
        elif method == "tools/call":
            head = f'data: {{"jsonrpc":"2.0","id":{number},"result":\r'
            rest = 'data: {"content":[],\r\ndata: "structuredContent":{"a":1.10,"b":1e400}}}\n\n'
            return Response(f": note\nevent: message\n{head}{rest}", media_type="text/event-stream")
        else:
            return Response(status_code=202)
        return Response(f'{{"jsonrpc":"2.0","id":{number},"result":{result}}}', media_type="application/json")

    with serving_app(lambda: Starlette(routes=[Route("/mcp", answer, methods=["POST"])])) as url:
        yield f"{url}/mcp"


def test_events_of_any_form_are_read_and_packed_answers_are_not(in_front_of: InFront, odd_url: str) -> None:
    with in_front_of({"o": {"url": odd_url, "timeout_seconds": 10}}) as url:
        at = f"{url}/mcp?workspace=w"
        assert raw_call(at, "o_lines")["structuredContent"] == b'{"a":1.10,"b":1e400}'
        packed = raw_call(at, "o_packed")
        assert raw_call(at, "o_lines")["structuredContent"] == b'{"a":1.10,"b":1e400}'
    assert b"upstream" in b"".join(packed.values())


async def test_a_server_behind_walls_serves_dies_and_comes_back(in_front_of: InFront, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 12_345, 12_345)
    walls = {"read": [str(PROJECT / "tests")], "write": [str(tmp_path)]}
    server = raw_server(tmp_path / "state", walls=walls) | {"command": "python3"}
    with in_front_of({"r": server, "n": {**server, "command": "no-such-command"}}) as url:
        async with client_of(url, "legacy") as client:
            counts = [text_of(await client.call_tool("r_count", {})) for _ in range(2)]
            died = await client.call_tool("r_die", {})
            counts.append(text_of(await client.call_tool("r_count", {})))
            missing = await client.call_tool("n_count", {})
    assert counts == ["call 1", "call 2", "call 1"]
    assert died.is_error
    assert "its process ended with status 127" in text_of(missing)
    assert "no-such-command: No such file or directory. Behind its walls there are only /usr" in text_of(missing)


async def test_what_a_conversation_leaves_at_a_server_no_other_meets(in_front_of: InFront, tmp_path: Path) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        counts = []
        for workspace in ("a", "a", "b"):
            async with client_of(url, MODERN, workspace) as client:
                counts.append(text_of(await client.call_tool("r_count", {})))
    assert counts == ["call 1", "call 2", "call 1"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(
    in_front_of: InFront, tmp_path: Path, era: str
) -> None:
    with in_front_of({"r": raw_server(tmp_path / "state")}) as url:
        async with client_of(url, era) as client:
            call = asyncio.create_task(client.call_tool("r_slow", {}))
            await asyncio.sleep(0.5)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await client.call_tool("r_count", {})
    assert "notifications/cancelled" in (tmp_path / "state").read_text()


def test_the_callers_key_is_never_passed_on(in_front_of: InFront, tmp_path: Path) -> None:
    key = "the key of this service"
    headers = {"Authorization": f"Bearer {key}"}
    with in_front_of({"r": raw_server(tmp_path / "state")}, api_key=key) as url:
        answer = httpx.post(
            f"{url}/mcp?workspace=w", headers={**headers, "accept": "application/json, text/event-stream"},
            json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
        )  # fmt: skip
        assert answer.status_code == 200
        assert httpx.post(f"{url}/mcp?workspace=w", json={}).status_code == 401
    assert key not in (tmp_path / "state").read_text()


async def test_a_connection_without_a_workspace_lists_but_does_not_call(in_front_of: InFront) -> None:
    with in_front_of({"e": everything_over_stdio()}) as url:
        async with mcp.Client(f"{url}/mcp", mode=MODERN) as client:
            names = await _names(client)
            answers = [await client.call_tool(name, {}) for name in ("list_files", "e_small")]
        async with mcp.Client(f"{url}/mcp?workspace=../x", mode=MODERN) as client:
            bad = await client.call_tool("e_small", {})
    assert "e_small" in names
    assert all("?workspace=NAME" in text_of(answer) for answer in answers)
    assert bad.is_error
    assert "invalid_workspace" in text_of(bad)
