"""Data goes past the SDK as it is."""

import json

import pytest

from api.mcp import wire
from sandbox.tables.literal_json import dump

CALL = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":%s,"_meta":{"p":1.50}}}'
LITERALS = (
    '{"a": 1.10, "b": [1e400, -0, 2.50, 947871269024436488, 1E2], "c": {"d": "1.10", "e": 12345678901234567890.5}}'
)


def test_numbers_of_arguments_stay_as_they_are_written() -> None:
    marked = wire.with_marked_arguments((CALL % LITERALS).encode())
    seen_by_the_sdk = json.loads(marked)["params"]
    assert dump(wire.unmarked(seen_by_the_sdk["arguments"])) == LITERALS
    assert seen_by_the_sdk["_meta"] == {"p": 1.5}


@pytest.mark.parametrize(
    "message",
    [
        CALL % '{"a": 1, "b": "1.5", "c": true}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"arguments":{"a":1.10}}}',
        '{"method":"tools/call","params":{"name":1.10}}',
        "[1.10]",
        "tools/call 1.10",
        '{"method":"tools/call","params":{"arguments":' + "[" * 100_000 + "1.10",
    ],
)
def test_other_messages_are_left_alone(message: str) -> None:
    assert wire.with_marked_arguments(message.encode()) == message.encode()


@pytest.mark.parametrize(
    "text", ['{"a": 1.10}', '"quoted \\" \\\\ \\n"', "[]", '["é", "\\ud800"]', json.dumps("\\" * 5000 + '"' * 5000)]
)
def test_a_stand_in_is_filled_with_the_json_that_it_stands_for(text: str) -> None:
    written = json.dumps({"x": wire.stand_in(text), "y": [wire.stand_in(text), 1]}).encode()
    assert wire.fill(written) == f'{{"x": {text}, "y": [{text}, 1]}}'.encode()


def test_what_has_no_stand_in_is_not_copied() -> None:
    data = b'{"a": "spillbox-0123:1"}'
    assert wire.fill(data) is data


def test_only_awaited_results_of_calls_are_taken_out() -> None:
    result = '{"content":[{"type":"text","text":"x"}],"structuredContent":{"a":1.10}}'
    message = f'{{"jsonrpc":"2.0","id":7,"result":{result}}}'.encode()
    awaited: dict[str | int, bytes | None] = {7: None}
    assert json.loads(wire.without_result(message, awaited))["result"] == {"content": []}
    assert awaited == {7: result.encode()}
    for other in (
        b'{"jsonrpc":"2.0","id":8,"result":{"content":[]}}',
        b'{"id":7,"method":"x","params":{"content":1}}',
        b'"content"',
    ):
        assert wire.without_result(other, {7: None}) == other


@pytest.mark.parametrize(
    ("message", "number"),
    [
        (b'{"id":7,"result":[1]}', 7),
        (b'{"id":"a","x":1}', "a"),
        (b'{"id":8,"result":{"id": 7,"text":"a tab\t"}}', 7),
        (b'{"id": 9,"method":"x"}', None),
        (b"x", None),
        (b'{"id":{}}', None),
    ],
)
def test_the_id_of_an_unreadable_answer_is_found(message: bytes, number: object) -> None:
    assert wire.request_id_of(message, {7: wire.WANTED, "a": wire.OF_THE_SDK}) == number
