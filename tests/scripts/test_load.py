"""The mixed load in short, and that its looks find what they are for."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sandbox.guest_root import GuestRoot

PROJECT = Path(__file__).parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

import held  # noqa: E402  beside the scripts
import load  # noqa: E402
import load_clients  # noqa: E402


def test_a_service_that_is_killed_under_load_loses_nothing_is_fair_and_holds_no_more(root: GuestRoot) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/load.py", "--data-dir", str(root.path.parent), "--seconds", "30"],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"^([\d,]+) runs in", done.stdout, re.MULTILINE)[0].replace(",", "")) > 100
    assert int(re.findall(r"(\d+) of them told as interrupted", done.stdout)[0]) > 0
    assert "0 faults" in done.stdout


def test_a_share_that_is_too_large_is_told() -> None:
    assert load.unfair({"a": 100, "b": 110, "c": 90}) == []
    assert load.unfair({"a": 100, "b": 140, "c": 60}) == ["b had 1.40 of its share", "c had 0.60 of its share"]


def test_what_is_more_than_it_was_is_told() -> None:
    before = {"descriptors": 100, "threads": 20, "memory of all, MiB": 200}
    assert held.grown(before, {"descriptors": 103, "threads": 25, "memory of all, MiB": 230}) == []
    after = {"descriptors": 104, "threads": 31, "memory of all, MiB": 241}
    assert held.grown(before, after) == [
        "descriptors from 100 to 104", "threads from 20 to 31", "memory of all, MiB from 200 to 241"
    ]  # fmt: skip


@pytest.fixture
def liar() -> load_clients.Client:
    """A client of a service that has done nothing, and says that all is well."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=[] if request.url.path.endswith("/records") else {"status": "succeeded"})

    client = load_clients.Client("t", "http://service", "key", load_clients.Outage())
    client._http = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://service")
    return client


def test_a_wrong_answer_a_lost_call_and_a_lost_file_are_faults(liar: load_clients.Client) -> None:
    rounds = iter(range(60))
    liar.work(lambda: next(rounds, None) is None)
    assert len(liar.tally.faults) == 60
    (conversation,) = liar.conversations
    conversation.done, conversation.interrupted, conversation.kept = {"a"}, {"b"}, {"/kept": b"content"}
    liar.tally.faults.clear()
    liar.audit()
    assert liar.tally.faults == [
        "t-0: call a is None, not done", "t-0: call b is None, not interrupted", "/kept is not what it was: 200"
    ]  # fmt: skip
