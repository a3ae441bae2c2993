"""Documents are re-opened and checked in a jail; a broken one is refused with the part that is wrong."""

import io
import re
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.documents.check import checking, describe_problem
from sandbox.guest_root import GuestRoot
from sandbox.job import DocumentCheck, Execution, FileChange, Job
from sandbox.runtimes.base import Runtime, Wrapper
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.warm import WarmRuntime
from sandbox.workspace import Workspace
from tests.conftest import Run, runner

Check = Callable[..., Awaitable[dict[str, DocumentCheck]]]

MAKE = """
import docx, openpyxl, pptx, csv
wb = openpyxl.Workbook(); wb.active.title = 'One & two'; wb.active.append(['a', 1]); wb.create_sheet('Empty'); wb.save('a.xlsx')
d = docx.Document(); d.add_paragraph('p'); d.add_table(2, 2); d.save('a.docx')
p = pptx.Presentation()
for _ in range(3): p.slides.add_slide(p.slide_layouts[6])
p.save('a.pptx')
with open('a.csv', 'w', newline='', encoding='utf-8-sig') as f: csv.writer(f).writerows([['h', 'i'], ['1', 'x\\ny']])
"""


@pytest.fixture
def jail(root: GuestRoot) -> NsjailRuntime:
    return NsjailRuntime(root)


@pytest.fixture
def run_once(jail: NsjailRuntime, workspace: Workspace) -> Run:
    return runner(jail, workspace)


@pytest.fixture
def check(jail: NsjailRuntime, workspace: Workspace) -> Check:
    async def check_paths(*paths: str) -> dict[str, DocumentCheck]:
        changes = [FileChange(path=path, bytes=1, change="created") for path in paths]
        async with checking(jail, workspace, ("docx",), run_id="r") as check_changes:
            results = await check_changes.of(changes)
        return {result.path: result for result in results}

    return check_paths


async def test_whole_documents_are_counted(run_once: Run, check: Check) -> None:
    await run_once(MAKE)
    found = await check("a.xlsx", "a.docx", "a.pptx", "a.csv", "notes.txt")
    assert all(result.ok for result in found.values()), found
    assert set(found) == {"a.xlsx", "a.docx", "a.pptx", "a.csv"}
    assert found["a.xlsx"].sheets == {"One & two": "A1:B1", "Empty": "A1:A1"}
    assert (found["a.docx"].paragraphs, found["a.docx"].tables) == (1, 1)
    assert found["a.pptx"].slides == 3
    assert (found["a.csv"].rows, found["a.csv"].columns) == (2, 2)


def _rewritten(content: bytes, *, drop: str = "", add: dict[str, bytes] | None = None, replace: str = "") -> bytes:
    """The same archive without a part, with parts more, or with one part's bytes spoiled."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            if entry.filename != drop:
                data = old.read(entry)
                new.writestr(entry.filename, b"<broken" if entry.filename == replace else data)
        for name, data in (add or {}).items():
            new.writestr(name, data)
    return target.getvalue()


@pytest.mark.case("D7")
@pytest.mark.filterwarnings("ignore:Duplicate name")
async def test_broken_documents_are_refused_with_the_part(run_once: Run, check: Check, workspace: Workspace) -> None:
    await run_once(MAKE)
    deck, book = workspace.read_bytes("a.pptx"), workspace.read_bytes("a.xlsx")
    broken = {
        "twice.pptx": (
            _rewritten(deck, add={"ppt/slides/slide2.xml": b"<x/>"}),
            "ppt/slides/slide2.xml is in it twice",
        ),
        "case.pptx": (_rewritten(deck, add={"ppt/slides/SLIDE2.xml": b"<x/>"}), "ppt/slides/SLIDE2.xml is in it twice"),
        "truncated.pptx": (deck[:-300], "not a whole zip archive"),
        "empty.xlsx": (b"", "the file is empty"),
        "text.docx": (b"I am a document", "not a whole zip archive"),
        "hand.pptx": (_rewritten(_zip({"ppt/presentation.xml": b"<x/>"})), "[Content_Types].xml is missing"),
        "lost.pptx": (_rewritten(deck, drop="ppt/slides/slide2.xml"), "ppt/slides/slide2.xml, which is missing"),
        "spoiled.pptx": (_rewritten(deck, replace="ppt/slides/slide2.xml"), "ppt/slides/slide2.xml is not well-formed"),
        "untyped.xlsx": (_rewritten(book, add={"xl/new.weird": b"x"}), "xl/new.weird has no content type"),
        "unwired.xlsx": (_rewritten(book, drop="_rels/.rels"), "names no main document part"),
        "disguised.docx": (book, "is not what a .docx file has"),
        "bomb.xlsx": (_zip({"[Content_Types].xml": b"<!DOCTYPE a [<!ENTITY b 'c'>]><a/>"}), "entity"),
        "quote.csv": (b'a\n"b"c\n', "record 2 is not valid CSV"),
    }
    flipped = bytearray(book)
    flipped[book.index(b"xl/workbook.xml") + 60] ^= 0xFF
    broken["flipped.xlsx"] = (bytes(flipped), "xl/workbook.xml")
    for name, (content, _) in broken.items():
        workspace.write(name, content)
    found = await check(*broken)
    for name, (_, problem) in broken.items():
        assert not found[name].ok, name
        assert problem in (found[name].problem or ""), (name, found[name].problem)
        assert f"BROKEN DOCUMENT: {name}" in describe_problem(found[name])


def _zip(parts: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return target.getvalue()


async def test_what_is_not_known_to_be_broken_is_not_called_so(check: Check, workspace: Workspace) -> None:
    workspace.write("latin.csv", b"caf\xe9\n")
    found = await check("latin.csv")
    assert found["latin.csv"].ok is None
    assert "not UTF-8" in (found["latin.csv"].problem or "")
    assert describe_problem(found["latin.csv"]).startswith("NOT CHECKED: latin.csv")


async def test_only_so_many_documents_are_checked_and_the_rest_is_not_called_broken(
    run_once: Run, check: Check, workspace: Workspace
) -> None:
    await run_once("for n in range(60): open(f'{n:02}.csv', 'w').write('a')")
    found = await check(*(f"{n:02}.csv" for n in range(60)))
    assert [result.ok for result in found.values()] == [True] * 50 + [None] * 10


async def test_a_check_that_can_not_be_made_does_not_lose_the_run(
    workspace: Workspace, root: GuestRoot, tmp_path: Path
) -> None:
    broken = NsjailRuntime(root, nsjail=tmp_path / "none")
    workspace.write("a.csv", b"a")
    async with checking(broken, workspace, (), run_id="r") as check_changes:
        results = await check_changes.of([FileChange(path="a.csv", bytes=1, change="created")])
    assert [(result.ok, "could not be checked" in (result.problem or "")) for result in results] == [(None, True)]


async def test_a_document_too_large_to_open_is_told_and_does_not_stop_the_others(
    check: Check, workspace: Workspace
) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", b"<Types/>" + b" " * (1 << 20))
        for number in range(3):
            archive.writestr(f"big{number}", bytes(400 << 20))
    workspace.write("huge.xlsx", target.getvalue())
    workspace.write("fine.csv", b"a,b\r\n")
    found = await check("huge.xlsx", "fine.csv")
    assert "unpacked it is over" in (found["huge.xlsx"].problem or "")
    assert found["fine.csv"].ok


async def test_the_check_leaves_the_workspace_alone(run_once: Run, check: Check, workspace: Workspace) -> None:
    await run_once(MAKE)
    before = [(info.path, info.bytes, info.modified_at) for info in workspace.list_files()]
    await check("a.xlsx", "a.docx")
    assert [(info.path, info.bytes, info.modified_at) for info in workspace.list_files()] == before


@pytest.mark.case("D7")
@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ('<c r="A1" t="s"><v>7</v></c>', "the shared string 7, which is missing"),
        ('<c r="A1" s="99"><v>1</v></c>', "the format 99, which is missing"),
        ('<c r="ROWS1"><v>1</v></c>', "a cell at 'ROWS1', which is no place"),
        ('<c r="A1&#10;B2"><v>1</v></c>', r"a cell at 'A1\nB2', which is no place"),
        ('<c r="A1&#10;B2"><v>1</v></c><c r="!"><v>1</v></c>', r"a cell at 'A1\nB2', which is no place"),
        ('<c r="A1"><v>one</v></c>', "a cell that can't be read"),
        ('<c r="A1" t="s"><v>x</v></c>', "a cell that can't be read"),
        ('<c r="A1" t="str"><v>one</v></c><c r="B1"><v>1E5</v></c><c r="C1" t="b"><v>1</v></c><c r="D1"/>', None),
    ],
)
async def test_a_cell_that_a_reader_would_throw_away_is_found(
    run_once: Run, check: Check, workspace: Workspace, cell: str, problem: str | None
) -> None:
    await run_once("import openpyxl\nbook = openpyxl.Workbook()\nbook.active['A1'] = 1\nbook.save('a.xlsx')")
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(workspace.read_bytes("a.xlsx"))) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename == "xl/worksheets/sheet1.xml":
                data, count = re.subn(rb"<c .*</c>", cell.encode(), data)
                assert count == 1
            new.writestr(entry.filename, data)
    workspace.write("b.xlsx", target.getvalue())
    found = (await check("b.xlsx"))["b.xlsx"]
    if problem is None:
        assert (found.ok, found.sheets) == (True, {"Sheet": "A1:D1"})
    else:
        assert found.ok is False
        assert problem in (found.problem or "")


class _Counting(Wrapper):
    """Counts the jobs that get a jail."""

    def __init__(self, inner: Runtime) -> None:
        super().__init__(inner)
        self.jobs: list[Job] = []

    async def run(self, job: Job, workspace: Workspace, **others: Any) -> Execution:
        self.jobs.append(job)
        return await super().run(job, workspace, **others)


@pytest.mark.parametrize(("libraries", "jails"), [(("openpyxl",), 1), ((), 2)])
async def test_a_warm_jail_that_has_the_libraries_checks_what_was_made_in_it(
    root: GuestRoot, workspace: Workspace, tmp_path: Path, libraries: tuple[str, ...], jails: int
) -> None:
    runtime = _Counting(WarmRuntime(root, tmp_path))
    await runtime.ready()
    workspace.write("make.py", MAKE.encode() + b"open('b.xlsx', 'w').write('no workbook')")
    job = Job(script_path="/workspace/make.py", libraries=libraries)
    async with checking(runtime, workspace, libraries, run_id="r") as check:
        done = await runtime.run(job, workspace, run_id="r", inspection=check.inspection)
        found = {result.path: result.ok for result in await check.of(done.files)}
    assert done.runtime == "warm"
    assert found == {"a.csv": True, "a.docx": True, "a.pptx": True, "a.xlsx": True, "b.xlsx": False}
    assert len(runtime.jobs) == jails
    assert check.seconds > 0
    await runtime.close()
