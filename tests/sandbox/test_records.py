"""The ledger: accepted once, one run in a workspace, interrupted when its service is gone."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import StatementError

from sandbox.errors import Busy, Draining, IdReused, LedgerLocked, NotFound, ServiceFull, SetupFailed
from sandbox.records import Acceptance, Records, State
from sandbox.spills.spill import Received
from sandbox.tools.outer import Caller
from sandbox.tools.registry import Call
from sandbox.tools.toolbox import Toolbox, open_toolbox


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records.in_folder(tmp_path)


def test_an_id_is_accepted_once(records: Records) -> None:
    assert records.accept("a", "w", "run_python", {"code": "1"}) is Acceptance.MINE
    assert records.accept("a", "w", "run_python", {"code": "1"}) is Acceptance.BUSY
    records.finish("w", "a", "succeeded", '{"exit_code": 0}')
    assert records.accept("a", "w", "run_python", {"code": "1"}) is Acceptance.DONE
    record = records.get("w", "a")
    assert (record.state, record.status, record.answer) == (State.DONE, "succeeded", {"exit_code": 0})
    assert record.ended_at is not None
    assert record.ended_at >= record.accepted_at


def test_an_id_of_another_workspace_is_not_found(records: Records) -> None:
    records.accept("a", "w", "t", {})
    with pytest.raises(NotFound):
        records.get("other", "a")
    assert records.accept("a", "other", "t", {}) is Acceptance.MINE


def test_an_id_is_of_one_call_only(records: Records) -> None:
    records.accept("a", "w", "t", {"x": 1})
    for tool, arguments in (("t", {"x": 2}), ("u", {"x": 1})):
        with pytest.raises(IdReused):
            records.accept("a", "w", tool, arguments)


def test_a_call_that_was_not_begun_can_be_tried_again(records: Records) -> None:
    records.accept("a", "w", "t", {})
    records.forget("w", "a")
    assert records.accept("a", "w", "t", {"other": 1}) is Acceptance.MINE


def test_one_run_goes_on_in_a_workspace(records: Records) -> None:
    for name in "ab":
        records.accept(name, "w", "t", {})
    records.claim("w", "a")
    with pytest.raises(Busy):
        records.claim("w", "b")
    records.finish("w", "a", "ok", "{}")
    records.claim("w", "b")


@pytest.mark.parametrize("reaped", [True, False])
def test_a_dead_process_does_not_hold_a_workspace(tmp_path: Path, reaped: bool) -> None:
    """Nor does one that has ended and was not waited for."""
    records = Records.in_folder(tmp_path)
    records.accept("mine", "w", "t", {})
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.read(5) == b"held\n"
    with pytest.raises(Busy):
        records.claim("w", "mine")
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
    records.claim("w", "mine")
    assert records.get("w", "a").state is State.INTERRUPTED
    holder.stdout.close()
    holder.wait()


HOLD = (
    "import sys, time; from pathlib import Path; from sandbox.records import Records\n"
    "records = Records.in_folder(Path(sys.argv[1])); records.accept('a', 'w', 't', {})\n"
    "records.claim('w', 'a'); print('held', flush=True); time.sleep(60)"
)


def test_a_lock_of_another_program_is_told_soon(tmp_path: Path) -> None:
    records = Records.in_folder(tmp_path)
    with sqlite3.connect(tmp_path / "records.sqlite3") as db:
        db.execute("begin immediate")
        with pytest.raises(LedgerLocked):
            records.accept("a", "w", "t", {})
    db.close()
    assert records.accept("a", "w", "t", {}) is Acceptance.MINE
    assert records.get("w", "a").accepted_at.tzinfo is not None


def _let_grow(records: Records, *, pages: int) -> None:
    with records.database.writing() as db:
        db.exec_driver_sql(f"PRAGMA max_page_count = {pages}")  # no fewer than there are


def test_a_full_disk_is_told_as_such(records: Records) -> None:
    _let_grow(records, pages=1)
    with pytest.raises(ServiceFull):
        records.accept("a", "w", "run_python", {str(number): "x" * 500 for number in range(1000)})


def test_how_a_call_ended_is_written_when_there_is_room_again(records: Records) -> None:
    for name in "abc":
        records.accept(name, "w", "t", {})
    records.claim("w", "a")
    _let_grow(records, pages=1)
    answer = {"text": "x" * 100_000}
    with pytest.raises(ServiceFull):
        records.finish("w", "a", "ok", json.dumps(answer))
    records.forget("w", "b")
    with pytest.raises(ServiceFull):
        records.claim("w", "c")
    with pytest.raises(ServiceFull):
        records.accept("a", "w", "t", {})
    _let_grow(records, pages=1 << 30)
    assert records.accept("a", "w", "t", {}) is Acceptance.DONE
    assert records.get("w", "a").answer == answer
    assert records.accept("b", "w", "t", {"other": 1}) is Acceptance.MINE
    records.claim("w", "c")


def test_an_answer_that_finds_no_room_refuses_no_other_call(records: Records) -> None:
    for name in "ab":
        records.accept(name, "w", "t", {})
    with records.database.reading() as db:
        pages = db.exec_driver_sql("PRAGMA page_count").scalar_one()
    _let_grow(records, pages=pages + 10)
    with pytest.raises(ServiceFull):
        records.finish("w", "a", "ok", json.dumps("x" * 100_000))
    for workspace in ("other", "w"):
        assert records.accept("c", workspace, "delete_file", {}) is Acceptance.MINE
        records.claim(workspace, "c")
    records.finish("w", "b", "ok", "{}")
    assert records.get("w", "b").state is State.DONE
    assert records.get("w", "a").state is State.ACCEPTED
    with pytest.raises(ServiceFull):
        records.accept("a", "w", "t", {})


def test_of_what_is_owed_all_is_written_that_has_room(tmp_path: Path) -> None:
    records = Records.in_folder(tmp_path)
    for name in "ab":
        records.accept(name, "w", "t", {})
    with _locked(tmp_path):
        for name, answer in (("a", "x" * 100_000), ("b", "x")):
            with pytest.raises(LedgerLocked):
                records.finish("w", name, "ok", json.dumps({"text": answer}))
    _let_grow(records, pages=1)
    with pytest.raises(ServiceFull):
        records.pay()
    assert [records.get("w", name).state for name in "ab"] == [State.ACCEPTED, State.DONE]
    assert records.owes
    _let_grow(records, pages=1 << 30)
    records.pay()
    assert records.get("w", "a").state is State.DONE
    assert not records.owes


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """As by another program that writes."""
    with closing(sqlite3.connect(folder / "records.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("COMMIT")


def test_a_workspace_is_free_when_its_run_has_ended_though_the_ledger_was_locked(tmp_path: Path) -> None:
    records = Records.in_folder(tmp_path)
    for name in "ab":
        records.accept(name, "w", "t", {})
    records.claim("w", "a")
    with _locked(tmp_path), pytest.raises(LedgerLocked):
        records.finish("w", "a", "ok", "{}")
    records.claim("w", "b")
    assert records.get("w", "a").state is State.DONE


async def test_how_a_call_ended_is_written_when_another_program_lets_the_ledger_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer does not wait for that, so that nothing can come between it and its caller."""
    async with open_toolbox(tmp_path, runtime="none") as box:
        tool = box.tools["list_files"]

        async def look(call: Call, given: Any) -> Any:
            locked.enter_context(_locked(tmp_path))
            return await tool.function(call, given)

        monkeypatch.setitem(box.tools, tool.name, replace(tool, function=look))
        with ExitStack() as locked:
            await box.call("list_files", "w", {}, call_id="a")
            assert box.records.get("w", "a").state is State.ACCEPTED
        async with asyncio.timeout(20):
            while box.records.get("w", "a").state is not State.DONE:
                await asyncio.sleep(0.01)


async def test_a_call_that_waited_for_the_ledger_while_the_service_was_stopped_is_not_begun(tmp_path: Path) -> None:
    async with open_toolbox(tmp_path, runtime="none") as box:
        with _locked(tmp_path):
            late = asyncio.create_task(box.call("write_file", "w", {"path": "a", "content": "x"}, call_id="late"))
            await asyncio.sleep(0.01)
            assert await box.drain(0) == 0
        with pytest.raises(Draining):
            await late
        with pytest.raises(NotFound):
            box.records.get("w", "late")
        assert box.workspaces.open("w").list_files() == []


async def test_an_id_that_is_sent_again_while_its_end_waits_for_the_ledger_acts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_toolbox(tmp_path, runtime="none") as box:
        tool = box.tools["list_files"]
        acting, go_on = asyncio.Event(), asyncio.Event()
        acted = 0

        async def look(call: Call, given: Any) -> Any:
            nonlocal acted
            if not locked_once:
                locked_once.append(True)
                locked.enter_context(_locked(tmp_path))
                raise Busy("All slots are taken.")
            acted += 1
            acting.set()
            await go_on.wait()
            return await tool.function(call, given)

        def send() -> asyncio.Task[Any]:
            return asyncio.create_task(box.call("list_files", "w", {}, call_id="same"))

        locked_once: list[bool] = []
        monkeypatch.setitem(box.tools, tool.name, replace(tool, function=look))
        with ExitStack() as locked:
            first = send()
            while not box.records.owes:
                await asyncio.sleep(0)
        second = send()
        await acting.wait()
        with pytest.raises(Busy):
            await first
        third = send()
        await asyncio.sleep(0.01)
        go_on.set()
        assert await second == await third
        assert acted == 1


def test_what_can_not_be_written_at_all_stops_no_later_call(records: Records) -> None:
    records.accept("a", "w", "t", {})
    with pytest.raises(StatementError):
        records.finish("w", "a", object(), "{}")  # type: ignore[arg-type]
    assert records.accept("b", "w", "t", {}) is Acceptance.MINE


async def test_an_answer_is_given_though_the_records_are_full(box: Toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(*arguments: Any) -> Acceptance:
        accepted = real(*arguments)
        _let_grow(box.records, pages=1)
        return accepted

    real = box.records.accept
    text = "\n".join("x" * 100 for _ in range(100))
    await box.call("write_file", "w", {"path": "a.txt", "content": text})
    with monkeypatch.context() as patched:
        patched.setattr(box.records, "accept", accept)
        answer = await box.call("read_file", "w", {"path": "a.txt"}, call_id="once")
    assert text in answer.text  # type: ignore[attr-defined]
    rows = [{f"c{number}" * 20: number for number in range(200)}] * 5
    spill = await box.spill("w", Received("t", content=json.dumps(rows)))
    assert spill.path is not None
    assert "could not be kept (ServiceFull)" in spill.warnings[0]
    with pytest.raises(ServiceFull):
        await box.call("read_file", "w", {"path": "a.txt"}, call_id="once")
    _let_grow(box.records, pages=1 << 30)
    assert await box.call("read_file", "w", {"path": "a.txt"}, call_id="once") == answer


def test_a_finished_run_holds_no_workspace(records: Records) -> None:
    for name in "ab":
        records.accept(name, "w", "t", {})
    records.claim("w", "a")
    records.finish("w", "a", "succeeded", "{}")
    records.claim("w", "b")


def test_an_answer_is_written_once(records: Records) -> None:
    records.accept("a", "w", "t", {})
    records.finish("w", "a", "first", "{}")
    records.finish("w", "a", "second", "{}")
    assert records.get("w", "a").status == "first"


def test_what_a_dead_process_left_is_interrupted(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sandbox.records import Records\n"
        "records = Records.in_folder(Path(sys.argv[1])); records.accept('a', 'w', 't', {})\n"
        "records.claim('w', 'a')\n"
        "import os; os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    records = Records.in_folder(tmp_path)
    records.accept("mine", "w", "t", {})
    assert [record.id for record in records.recover()] == ["a"]
    assert records.get("w", "a").state is State.INTERRUPTED
    assert records.get("w", "mine").state is State.ACCEPTED
    records.claim("w", "mine")


def test_a_late_finish_of_an_interrupted_call_changes_nothing(tmp_path: Path) -> None:
    ours = Records.in_folder(tmp_path)
    ours.accept("a", "w", "t", {})
    theirs = Records.in_folder(tmp_path)
    theirs._owner = "1:1"
    theirs.finish("w", "a", "stolen", "{}")
    assert ours.get("w", "a").state is State.ACCEPTED


def test_records_of_another_version_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "records.sqlite3") as db:
        db.execute("create table calls (id text)")
    db.close()
    with pytest.raises(SetupFailed, match="Move them away"):
        Records.in_folder(tmp_path)


async def test_an_agent_loop_may_say_who_calls(box: Toolbox) -> None:
    await box.call("list_files", "w", {}, caller=Caller(identity="nightly report"))
    await box.call("list_files", "w", {})
    assert [one.caller for one in box.records.latest("w")] == [None, "nightly report"]
