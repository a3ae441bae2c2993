"""The delegating call: arguments from a file, judged as they would be sent."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.approvals import Approval
from sandbox.errors import SpillboxError
from sandbox.spills.spill import Received
from sandbox.tables.literal_json import dump
from sandbox.tools.delegate import CallToolOutput
from sandbox.tools.outer import Caller, OuterCall, OuterTool
from sandbox.tools.permit import question
from sandbox.tools.toolbox import Toolbox
from tests.conftest import box_over

SCHEMA = {
    "type": "object", "required": ["title", "body"], "additionalProperties": False,
    "properties": {
        "title": {"type": "string"}, "body": {"type": "string"}, "views": {"type": "number"},
        "meta": {"type": "object"}, "tags": {"type": "array", "items": {"type": "string"}},
    },
}  # fmt: skip
PAGE = {"title": "T", "body": "B"}


class Pages:
    """Tools of another program, that note what they are sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.result = '{"content": [{"type": "text", "text": "made"}]}'

    async def find(self, name: str, workspace_id: str, caller: Caller) -> OuterTool | None:
        async def send(call: OuterCall) -> Received:
            self.sent.append(dump(call.arguments))
            return Received(name, result=self.result.encode())

        permissions: dict[str, Any] = {"create_page": "allow", "ask_page": "ask", "deny_page": "deny"}
        if name not in permissions:
            return None
        return OuterTool(name=name, send=send, input_schema=SCHEMA, permission=permissions[name])

    def names(self, workspace_id: str) -> list[str]:
        return ["create_page", "ask_page"]


@pytest.fixture
def pages(box: Toolbox) -> Pages:
    box.outer = Pages()
    return box.outer


def write(box: Toolbox, text: str | bytes, path: str = "arguments.json") -> None:
    box.workspaces.open("w").write(path, text.encode() if isinstance(text, str) else text)


async def delegate(box: Toolbox, tool: str, *, caller: Caller | None = None, **arguments: Any) -> CallToolOutput:
    output = await box.call("call_tool", "w", {"tool": tool, **arguments}, caller=caller or Caller())
    assert isinstance(output, CallToolOutput)
    return output


async def code_of(work: Awaitable[object]) -> str:
    with pytest.raises(SpillboxError) as caught:
        await work
    return caught.value.code


async def test_arguments_on_top_merge_objects_and_replace_the_rest(box: Toolbox, pages: Pages) -> None:
    write(box, '{"title": "old", "body": "B", "meta": {"a": {"x": 1, "y": [1, 2]}, "b": 1}, "tags": ["a", "b"]}')
    await delegate(
        box, "create_page", arguments_path="arguments.json",
        arguments={"title": "new", "meta": {"a": {"y": [3]}, "b": None, "c": {}}, "tags": []},
    )  # fmt: skip
    assert json.loads(pages.sent[0]) == {
        "title": "new", "body": "B", "meta": {"a": {"x": 1, "y": [3]}, "b": None, "c": {}}, "tags": [],
    }  # fmt: skip


@pytest.mark.case("S10")
async def test_every_literal_of_the_file_is_sent_as_it_is_written(box: Toolbox, pages: Pages) -> None:
    text = '{"title": "T", "body": "B", "views": 1.10, "meta": {"id": 947871269024436488, "h": 1e400, "m": -0, "e": "\\u00e9"}}'
    write(box, text)
    await delegate(box, "create_page", arguments_path="arguments.json")
    assert pages.sent == [text.replace("\\u00e9", "é")]


async def test_the_caller_keeps_the_short_call_and_the_record_what_was_sent(box: Toolbox, pages: Pages) -> None:
    body = "x" * 50_000
    write(box, json.dumps({**PAGE, "body": body}))
    output = await delegate(box, "create_page", arguments_path="arguments.json", arguments={"title": "short"})
    record = box.records.get("w", box.records.latest("w")[0].id)
    assert record.arguments == {
        "tool": "create_page",
        "arguments_path": "arguments.json",
        "arguments": {"title": "short"},
    }
    assert record.expansion is not None
    assert json.loads(record.expansion.arguments) == {"title": "short", "body": body}
    assert (
        record.expansion.sha256
        == hashlib.sha256(record.expansion.arguments.encode()).hexdigest()
        == output.arguments_sha256
    )
    assert (output.text, output.arguments_bytes) == ("made", len(pages.sent[0]))


async def test_a_long_result_spills_as_of_a_direct_call(box: Toolbox, pages: Pages) -> None:
    rows = json.dumps([{"id": 947871269024436488 + row, "name": "n" * 30} for row in range(100)])
    pages.result = json.dumps({"content": [{"type": "text", "text": rows}]})
    output = await delegate(box, "create_page", arguments=PAGE)
    assert output.path is not None
    assert "100 rows" in (output.text or "")


async def test_a_tool_of_our_own_can_be_the_target(box: Toolbox) -> None:
    write(box, json.dumps([{"a": 1}, {"a": 2}]), "rows.json")
    write(box, json.dumps({"source": "rows.json", "output": "out.csv", "columns": [{"name": "a", "header": "A"}]}))
    output = await delegate(box, "build_csv", arguments_path="arguments.json")
    assert output.output is not None
    assert output.output["path"] == "out.csv"
    assert b"A\r\n1\r\n2" in box.workspaces.open("w").read_bytes("out.csv")


async def test_a_failing_target_is_an_error(box: Toolbox, pages: Pages) -> None:
    pages.result = '{"isError": true, "content": [{"type": "text", "text": "no"}]}'
    assert (await delegate(box, "create_page", arguments=PAGE)).is_error


@pytest.mark.case("S21")
@pytest.mark.parametrize(
    ("content", "given", "code", "said"),
    [
        ("[1]", {}, "invalid_arguments", "a list"),
        ("null", {}, "invalid_arguments", "a null"),
        ('{"title": ', {}, "invalid_arguments", "not JSON"),
        (b"\xff\xfe{}", {}, "invalid_arguments", "UTF-8"),
        ("[" * 200_000, {}, "invalid_arguments", "too deeply"),
        (json.dumps({**PAGE, "body": "x" * (1 << 20)}), {}, "too_large", "1,048,576"),
        (json.dumps({"title": "T"}), {}, "invalid_arguments", "'body' is a required property"),
        (json.dumps({**PAGE, "tags": ["a", 2]}), {}, "invalid_arguments", '"tags[1]"'),
        (json.dumps({**PAGE, "unknown": 1}), {}, "invalid_arguments", "unknown"),
        (json.dumps(PAGE), {"title": 5}, "invalid_arguments", '"title"'),
    ],
)
async def test_what_does_not_fit_is_refused_before_sending(
    box: Toolbox, pages: Pages, content: str | bytes, given: dict[str, Any], code: str, said: str
) -> None:
    write(box, content)
    with pytest.raises(SpillboxError) as caught:
        await delegate(box, "create_page", arguments_path="arguments.json", arguments=given)
    assert caught.value.code == code
    assert said in str(caught.value)
    assert pages.sent == []


@pytest.mark.case("S21")
@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("deny_page", "denied"),
        ("nothing", "not_found"),
        ("call_tool", "invalid_arguments"),
        ("ask_page", "not_approved"),
    ],
)
async def test_the_targets_own_rules_hold(box: Toolbox, pages: Pages, tool: str, code: str) -> None:
    assert await code_of(delegate(box, tool, arguments=PAGE)) == code
    assert pages.sent == []


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
async def test_what_json_has_not_is_refused(box: Toolbox, pages: Pages, number: float) -> None:
    assert await code_of(delegate(box, "create_page", arguments={**PAGE, "n": number})) == "invalid_arguments"
    write(box, json.dumps({**PAGE, "n": number}))
    assert await code_of(delegate(box, "create_page", arguments_path="arguments.json")) == "invalid_arguments"
    assert pages.sent == []
    await delegate(box, "create_page", arguments={**PAGE, "body": "NaN, -Infinity"})
    assert len(pages.sent) == 1


async def test_a_missing_file_or_one_outside_is_refused(box: Toolbox, pages: Pages) -> None:
    for path, code in (("nothing.json", "not_found"), ("../x", "invalid_path"), ("/etc/passwd", "invalid_path")):
        assert await code_of(delegate(box, "create_page", arguments_path=path)) == code


def approving(answer: bool | None, seen: list[Approval], then: Callable[[], None] = lambda: None) -> Caller:
    async def approve(approval: Approval) -> bool | None:
        seen.append(approval)
        then()
        return answer

    return Caller(approve=approve)


async def test_a_person_sees_the_expanded_arguments_and_their_hash(box: Toolbox, pages: Pages) -> None:
    write(box, json.dumps({**PAGE, "views": 1}))
    seen: list[Approval] = []
    output = await delegate(
        box, "ask_page", arguments_path="arguments.json", arguments={"title": "X"}, caller=approving(True, seen)
    )
    assert [json.loads(approval.arguments) for approval in seen] == [{"title": "X", "body": "B", "views": 1}]
    assert seen[0].sha256 == output.arguments_sha256
    assert len(pages.sent) == 1
    assert box.approvals.get(seen[0].id).state == "used"


async def test_a_person_sees_characters_that_change_how_a_text_is_shown(box: Toolbox, pages: Pages) -> None:
    seen: list[Approval] = []
    await delegate(box, "ask_page", arguments={**PAGE, "body": "to \u202eelif"}, caller=approving(True, seen))
    assert r"to \u202eelif" in question(seen[0])


async def test_a_refusal_sends_nothing(box: Toolbox, pages: Pages) -> None:
    assert await code_of(delegate(box, "ask_page", arguments=PAGE, caller=approving(False, []))) == "not_approved"
    assert pages.sent == []


@pytest.mark.case("S20")
async def test_arguments_that_change_after_the_approval_are_not_sent(box: Toolbox, pages: Pages) -> None:
    write(box, json.dumps(PAGE))
    seen: list[Approval] = []
    change = approving(True, seen, lambda: write(box, json.dumps({**PAGE, "body": "other"})))
    assert (
        await code_of(delegate(box, "ask_page", arguments_path="arguments.json", caller=change)) == "arguments_changed"
    )
    assert pages.sent == []
    # The grant is gone with it, also for what was approved.
    write(box, json.dumps(PAGE))
    again = Caller(approval_id=seen[0].id)
    assert await code_of(delegate(box, "ask_page", arguments_path="arguments.json", caller=again)) == "not_approved"
    assert pages.sent == []


@pytest.mark.case("S20")
async def test_a_grant_is_for_one_call(box: Toolbox, pages: Pages) -> None:
    seen: list[Approval] = []
    await delegate(box, "ask_page", arguments=PAGE, caller=approving(True, seen))
    for other in (PAGE, {**PAGE, "title": "other"}):
        again = delegate(box, "ask_page", arguments=other, caller=Caller(approval_id=seen[0].id))
        assert await code_of(again) in ("not_approved", "arguments_changed")
    assert len(pages.sent) == 1


async def test_who_looks_at_the_desk_is_waited_for(box: Toolbox, pages: Pages) -> None:
    box.approvals.waiting("")  # a person is there

    async def decide(*, granted: bool) -> None:
        while not (found := box.approvals.waiting("")):
            await asyncio.sleep(0.02)
        box.approvals.decide(found[0].id, granted=granted, sha256=found[0].sha256, tenant="")

    output, _ = await asyncio.gather(delegate(box, "ask_page", arguments=PAGE), decide(granted=True))
    assert output.text == "made"
    refused, _ = await asyncio.gather(code_of(delegate(box, "ask_page", arguments=PAGE)), decide(granted=False))
    assert refused == "not_approved"
    assert len(pages.sent) == 1


async def test_a_decision_is_for_what_was_seen_and_made_once(box: Toolbox) -> None:
    approval = box.approvals.ask("w", "c", "t", "{}", "0" * 64)
    with pytest.raises(SpillboxError, match="another sha256"):
        box.approvals.decide(approval.id, granted=True, sha256="1" * 64, tenant="")
    box.approvals.decide(approval.id, granted=True, sha256="0" * 64, tenant="")
    with pytest.raises(SpillboxError, match="decided before"):
        box.approvals.decide(approval.id, granted=False, sha256="0" * 64, tenant="")
    box.approvals.use(approval, "0" * 64)
    with pytest.raises(SpillboxError, match="used before"):
        box.approvals.use(approval, "0" * 64)


async def test_the_librarys_own_callback_is_asked(tmp_path: Path) -> None:
    seen: list[Approval] = []
    approve = approving(True, seen).approve
    async with box_over(tmp_path, approve=approve) as box:
        box.outer = pages = Pages()
        await delegate(box, "ask_page", arguments=PAGE)
    assert (len(seen), len(pages.sent)) == (1, 1)


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
        {"properties": {"rows": {"uniqueItems": True}}, "required": ["nothing"]},
        {"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False, "required": ["nothing"]},
    ],
)
async def test_no_keyword_takes_long(
    box: Toolbox, pages: Pages, monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any]
) -> None:
    monkeypatch.setitem(globals(), "SCHEMA", schema)
    arguments = {"a" * 5000 + "!": 1, "rows": [{"n": n} for n in range(20_000)]}
    assert await code_of(delegate(box, "create_page", arguments=arguments)) == "invalid_arguments"
    monkeypatch.setitem(
        globals(), "SCHEMA", {"properties": {"a": {"uniqueItems": True}}, "additionalProperties": {"type": "null"}}
    )
    await delegate(box, "create_page", arguments={"a": [1, {}, "1"]})
    assert len(pages.sent) == 1
    for wrong in ({"a": [1, {}, {}]}, {"b": 1}):
        assert await code_of(delegate(box, "create_page", arguments=wrong)) == "invalid_arguments"


async def test_a_schema_can_not_hang_or_fool_the_service(
    box: Toolbox, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"body": {"pattern": "^(a+)+$"}}}
    monkeypatch.setitem(globals(), "SCHEMA", schema)
    assert await code_of(delegate(box, "create_page", arguments={"body": "a" * 50_000 + "!"})) == "invalid_arguments"
    doubling = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)} | {"a40": {}}
    for broken in (
        {"type": "nothing"},
        {"$ref": "#/$defs/a0", "$defs": doubling},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
    ):
        monkeypatch.setitem(globals(), "SCHEMA", broken)
        assert await code_of(delegate(box, "create_page", arguments={"a": 1})) == "upstream_failed"
    assert pages.sent == []
