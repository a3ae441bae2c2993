"""Reading by lines: bounded, complete, and always further."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sandbox.attachments import Attachments
from sandbox.catalog import Catalog
from sandbox.errors import BadRequest
from sandbox.job import Limits
from sandbox.testing import FakeRuntime
from sandbox.tools.files import MAX_READ_CHARACTERS, ReadFileInput, ReadFileOutput, read_file
from sandbox.tools.queue import Queue
from sandbox.tools.registry import Call
from sandbox.workspace import Workspace


async def read(workspace: Workspace, **arguments: Any) -> ReadFileOutput:
    return await read_file(call_over(workspace, FakeRuntime()), ReadFileInput(path="f", **arguments))


def call_over(workspace: Workspace, runtime: FakeRuntime) -> Call:
    """A call of a tool that needs no catalog."""
    return Call("c", workspace, runtime, Queue(slots=1, length=1), Limits(), Mock(spec=Catalog), Mock(spec=Attachments))


async def read_all(workspace: Workspace, **arguments: Any) -> str:
    parts, position = [], {"start_line": 1, "start_character": 0}
    for _ in range(1000):
        part = await read(workspace, **position, **arguments)
        assert len(part.text) <= MAX_READ_CHARACTERS
        parts.append(part.text)
        if part.next is None:
            return "".join(parts)
        following = part.next.model_dump()
        assert (following["start_line"], following["start_character"]) > (
            position["start_line"],
            position["start_character"],
        )
        position = following
    raise AssertionError("it never ends")


@pytest.mark.case("S15")
@pytest.mark.parametrize("line_count", [1, 3, 10_000])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "one",
        "one\n",
        "\n\n\n",
        "a\r\nb\r\n",
        "ü😀\n" * 9,
        "x" * 70_001,
        "한" * (1 << 20),
        "short\n" + "y" * 50_000 + "\nend",
        "z" * MAX_READ_CHARACTERS + "\n" + "z" * MAX_READ_CHARACTERS,
        "".join(f"line {n}\n" for n in range(900)),
    ],
    ids=lambda text: f"{len(text)}",
)
async def test_reading_on_gives_the_whole_file(workspace: Workspace, text: str, line_count: int) -> None:
    workspace.write("f", text.encode())
    assert await read_all(workspace, line_count=line_count) == text


async def test_lines_are_counted_from_one_and_the_total_is_told(workspace: Workspace) -> None:
    workspace.write("f", b"1\n2\n3\n4\n5")
    part = await read(workspace, start_line=2, line_count=2)
    assert (part.text, part.total_lines, part.total_bytes) == ("2\n3\n", 5, 9)
    assert part.next is not None
    assert part.next.start_line == 4
    assert (await read(workspace, start_line=5)).next is None
    with pytest.raises(BadRequest, match="has 5 lines"):
        await read(workspace, start_line=6)


async def test_a_far_line_of_a_large_file_is_found(workspace: Workspace) -> None:
    workspace.write("f", b"".join(b"%09d\n" % n for n in range(1, 400_001)))
    part = await read(workspace, start_line=300_000, line_count=1)
    assert (part.text, part.total_lines) == ("000300000\n", 400_000)


async def test_bytes_that_are_not_text_are_told(workspace: Workspace) -> None:
    workspace.write("f", b"caf\xe9\n")
    part = await read(workspace)
    assert part.text == "caf�\n"
    assert "not UTF-8" in (part.note or "")
    workspace.write("f", b"PK\0\0")
    with pytest.raises(BadRequest, match="binary file of 4 bytes"):
        await read(workspace)


async def test_a_position_past_a_line_is_refused(workspace: Workspace) -> None:
    workspace.write("f", b"abc\ndef\n")
    assert (await read(workspace, start_character=2, line_count=1)).text == "c\n"
    with pytest.raises(BadRequest, match="has only 4 characters"):
        await read(workspace, start_character=5)


async def test_an_office_document_gives_its_text_through_the_runtime(workspace: Workspace, tmp_path: Path) -> None:
    workspace.write("f.docx", b"PK")
    runtime = FakeRuntime(stdout="A heading\nA\tB\n")
    part = await read_file(call_over(workspace, runtime), ReadFileInput(path="f.docx"))
    assert part.text == "A heading\nA\tB\n"
    assert "text of the .docx" in (part.note or "")
    assert [job.arguments for job in runtime.jobs] == [("f.docx",)]
