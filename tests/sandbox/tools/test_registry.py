"""A call that is stopped while a thread changes files for it: it has ended when the thread has, and says what came of it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import Interrupted, InvalidArguments
from sandbox.job import Execution
from sandbox.records import State
from sandbox.runtimes.none import NoRuntime
from sandbox.spills.spill import Received, Spiller
from sandbox.testing import FakeRuntime
from sandbox.tools.outer import Caller, OuterCall, OuterTool
from sandbox.tools.toolbox import Handed, Toolbox
from sandbox.workspace import Workspace
from tests.conftest import box_over
from tests.sandbox.tools.test_builders import write_rows


@pytest.mark.parametrize("stop", ["cancel", "drain"])
@pytest.mark.parametrize(("tool", "extension"), [("build_csv", "csv"), ("build_excel", "xlsx")])
async def test_a_build_that_is_stopped_leaves_nothing(tmp_path: Path, tool: str, extension: str, stop: str) -> None:
    async with box_over(tmp_path) as box:
        workspace = box.workspaces.open("w")
        workspace.make()
        write_rows(workspace.files_folder / "rows.json", 100_000)
        arguments = {"source": "rows.json", "output": f"out.{extension}"}
        begun, told = asyncio.Event(), []
        loop = asyncio.get_running_loop()

        def on_progress(counts: dict[str, int]) -> None:
            told.append(counts["rows_written"])
            loop.call_soon_threadsafe(begun.set)

        call = asyncio.create_task(box.call(tool, "w", arguments, call_id="c", on_progress=on_progress))
        async with asyncio.timeout(60):
            await begun.wait()
        await (box.cancel("w", "c") if stop == "cancel" else box.drain(0))
        until_then = len(told)
        with pytest.raises(Interrupted):
            await call
        await asyncio.sleep(0.2)
        assert len(told) == until_then
        assert [info.path for info in workspace.list_files()] == ["rows.json"]
        assert list(workspace.spool_folder.iterdir()) == []
        assert box.records.get("w", "c").status == "interrupted"


@pytest.mark.parametrize("stop", ["cancel", "drain"])
async def test_a_change_that_was_made_is_told_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    async with box_over(tmp_path) as box:
        called, go_on = _slow(monkeypatch, Workspace, "write")
        call = asyncio.create_task(box.call("write_file", "w", {"path": "a", "content": "x"}, call_id="c"))
        await called.wait()
        stopping = asyncio.create_task(box.cancel("w", "c") if stop == "cancel" else _drained(box))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        assert box.queue.turn("w").locked(), "nobody else changes the workspace meanwhile"  # type: ignore[attr-defined]
        go_on.set()
        await stopping
        assert (await call).model_dump()["change"] == "created"
        assert box.workspaces.open("w").read_bytes("a") == b"x"
        assert box.records.get("w", "c").status == "ok"


async def test_a_call_that_is_stopped_before_it_has_begun_is_recorded(tmp_path: Path) -> None:
    async with box_over(tmp_path) as box:
        writing = {"path": "a", "content": "x"}
        call, _ = await asyncio.gather(
            box.call("write_file", "w", writing, call_id="c"), box.cancel("w", "c"), return_exceptions=True
        )
        assert box.records.get("w", "c").state is State.DONE
        assert await box.call("write_file", "w", writing, call_id="c") == call, "and no `Busy` for as long as it lives"


async def test_a_result_that_is_being_saved_is_saved_before_its_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = _slow(monkeypatch, Spiller, "spill")
    async with box_over(tmp_path) as box:
        call = asyncio.create_task(_rows(box))
        await begun.wait()
        stopping = asyncio.create_task(_drained(box))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        go_on.set()
        await stopping
        with pytest.raises(Interrupted):
            await call
        (saved,) = box.workspaces.open("w").list_files()
        assert saved.bytes == 100_000
        assert [record.status for record in box.records.latest("w")] == ["interrupted"]


async def test_a_caller_that_is_cancelled_while_its_result_is_saved_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, go_on = _slow(monkeypatch, Spiller, "spill")
    asyncio.get_running_loop().call_later(0.3, go_on.set)
    async with box_over(tmp_path) as box:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await _rows(box)


async def test_a_document_whose_check_is_stopped_is_not_attached(tmp_path: Path) -> None:
    class Checking(NoRuntime):
        begun = asyncio.Event()

        async def run(self, *_: Any, **__: Any) -> Execution:
            self.begun.set()
            await asyncio.sleep(60)
            raise AssertionError

    async with box_over(tmp_path, runtime=Checking()) as box:
        box.workspaces.open("w").write("a.xlsx", b"x")
        call = asyncio.create_task(box.call("attach_file", "w", {"path": "a.xlsx"}, call_id="c"))
        await Checking.begun.wait()
        await box.cancel("w", "c")
        with pytest.raises(Interrupted):
            await call
        assert box.catalog.attachments("w") == []


async def test_a_name_that_can_not_be_is_told_before_anything_is_done(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    async with box_over(tmp_path, runtime=runtime) as box:
        box.workspaces.open("w").write("a.xlsx", b"x")
        with pytest.raises(InvalidArguments, match="name is a file's name"):
            await box.call("attach_file", "w", {"path": "a.xlsx", "name": "a/b"})
    assert runtime.jobs == []


async def _drained(box: Toolbox) -> None:
    await box.drain(0)


async def _rows(box: Toolbox) -> Handed:
    """A call of another program's tool with a long result."""

    async def send(_: OuterCall) -> Received:
        return Received.of("rows", "x" * 100_000)

    return await box.call_outer(OuterTool("rows", send), OuterCall("w", {}, Caller()))


def _slow(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> tuple[asyncio.Event, threading.Event]:
    """A method that tells when it is called, and goes on when it may."""
    called, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    real = getattr(kind, name)

    def slow(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(called.set)
        go_on.wait()
        return real(*arguments)

    monkeypatch.setattr(kind, name, slow)
    return called, go_on
