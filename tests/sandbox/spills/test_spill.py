"""A result on its way into a file: what is saved, what the model is told, and what happens when saving fails."""

import base64
import json
import logging
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import ServiceFull
from sandbox.spills.shorten import MAX_SHORT_CHARACTERS
from sandbox.spills.spill import Reader, Received, Spill, Spiller, SpillSettings, estimate_tokens
from sandbox.workspace import Disk, Workspace, Workspaces

PROJECT = Path(__file__).parents[3]
ISSUES = [{"number": n, "title": f"Issue {n}", "body": "text " * 40, "labels": ["bug"]} for n in range(321)]


def spill(
    workspace: Workspace,
    content: Any,
    *,
    tool: str = "list_issues",
    settings: SpillSettings | None = None,
    **more: Any,
) -> Spill:
    given = content if isinstance(content, str | bytes) else json.dumps(content).encode()
    reader = Reader(**{key: more.pop(key) for key in ("surface", "client", "is_mcp") if key in more})
    return Spiller(settings or SpillSettings()).spill(workspace, Received(tool, content=given, **more), reader)


def saved(workspace: Workspace, one: Spill) -> bytes:
    assert one.path is not None
    return workspace.read_bytes(one.path)


def test_a_short_result_stays_where_it_is(workspace: Workspace) -> None:
    one = spill(workspace, {"ok": True})
    assert (one.spilled, one.text, one.path, one.inline) == (False, '{"ok": true}', None, True)
    assert spill(workspace, "x" * 1000).spilled is False
    assert workspace.list_files() == []


@pytest.mark.case("S1")
def test_a_long_text_is_saved_whole_before_anything_is_cut(workspace: Workspace) -> None:
    text = "".join(f"line {n}: {'é' * (n % 40)}\n" for n in range(7500))
    one = spill(workspace, text, tool="read_log")
    assert (one.path, one.format, one.bytes, one.characters) == (
        "results/0001-read_log.txt",
        "text",
        len(text.encode()),
        len(text),
    )
    assert one.bytes > 294_000
    assert saved(workspace, one) == text.encode()
    assert not one.inline
    assert one.missing_characters == len(text)
    assert text[:500] in one.text
    assert text[-150:] in one.text
    assert len(one.text) < 3000


def test_a_table_is_told_with_rows_columns_place_shape_preview_and_the_next_call(workspace: Workspace) -> None:
    one = spill(workspace, {"total": 321, "issues": ISSUES}, hint="Filter by state.")
    assert (one.rows, one.columns, one.rows_at) == (321, ("number", "title", "body", "labels"), "$.issues")
    assert one.complete
    assert (
        one.shape
        == "{total: number, issues: array[321] of {number: number, title: string, body: string, labels: array[1] of string}}"
    )
    assert one.preview is not None
    assert [json.loads(line.rstrip(",")) for line in one.preview.splitlines()] == ISSUES[:3]
    assert one.next_call is not None
    assert one.next_call.model_dump() == {
        "tool": "extract_json_path",
        "arguments": {"path": one.path, "expression": "$.issues[0:20]"},
    }
    for part in (
        one.path,
        "321 rows at $.issues",
        "number, title, body, labels",
        one.shape,
        "Filter by state.",
        "extract_json_path",
    ):
        assert str(part) in one.text
    assert json.loads(saved(workspace, one))["issues"] == ISSUES


def test_up_to_the_inline_size_the_answer_has_the_result_itself(workspace: Workspace) -> None:
    small = ISSUES[:20]
    one = spill(workspace, small)
    assert (one.spilled, one.inline, one.shape) == (True, True, None)
    about, _, rest = one.text.partition("\n")
    assert about.startswith("Saved as results/0001-list_issues.json: json, ")
    assert json.loads(rest) == small
    assert (spill(workspace, small[:8]).inline, spill(workspace, ISSUES[:30], is_mcp=True).inline) == (True, False)
    assert not spill(workspace, small, settings=SpillSettings(inline_bytes=100)).inline
    settings = SpillSettings(inline_bytes_by_client={"small-model": 100})
    assert not spill(workspace, small, settings=settings, client="small-model").inline
    assert spill(workspace, small, settings=settings, client="other").inline


def test_one_result_costs_a_model_no_more_than_the_cap_and_a_cut_one_says_so(workspace: Workspace) -> None:
    settings = SpillSettings(max_tokens=500, inline_bytes=10**6)
    one = spill(workspace, "word " * 1000, settings=settings)
    assert (one.spilled, one.inline) == (True, False)
    assert estimate_tokens(one.text) < 600
    assert f"{one.missing_characters:,} of" in one.text
    assert f"the whole is in {one.path}" in one.text
    one = Spiller(settings, count_tokens=len).spill(workspace, Received("t", content="x" * 2000))
    assert len(one.text) < 700  # by the caller's own count
    assert estimate_tokens("한국어") >= 3
    assert estimate_tokens("a" * 400) >= 100


def test_surfaces_are_switched_one_by_one(workspace: Workspace) -> None:
    raw = json.dumps({"issues": ISSUES})
    for surface in ("client", "workflow", "sandbox"):
        one = spill(workspace, raw.encode(), surface=surface)
        assert (one.spilled, one.text) == (False, raw)
    assert spill(
        workspace, raw.encode(), surface="client", settings=SpillSettings(surfaces=frozenset({"client"}))
    ).spilled
    assert spill(workspace, "x" * 2000, settings=SpillSettings(over_characters=5000)).spilled is False


@pytest.mark.case("S2")
@pytest.mark.parametrize("tool", ["x" * 1500, "", "../../etc/passwd", "a/b c", "한국어", "."])
def test_names_are_our_own_readable_and_never_taken_twice(workspace: Workspace, tool: str) -> None:
    first, second = (spill(workspace, f"{n}" * 2000, tool=tool) for n in (1, 2))
    assert first.path != second.path
    assert [saved(workspace, one)[:1] for one in (first, second)] == [b"1", b"2"]
    for one in (first, second):
        assert one.path is not None
        assert one.path.startswith("results/000")
        assert len(one.path) < 100
        assert one.path.isascii()


@pytest.mark.case("S3", "S5")
def test_what_was_unwrapped_is_told_and_both_parts_are_kept(workspace: Workspace) -> None:
    result = {"content": [{"type": "text", "text": "Found 321 issues"}], "structuredContent": {"issues": ISSUES}}
    one = Spiller().spill(workspace, Received("list_issues", result=json.dumps(result).encode()))
    assert (one.rows, one.rows_at) == (321, "$.issues")
    assert [workspace.read_bytes(file.path) for file in one.also] == [b"Found 321 issues"]
    assert one.also[0].path in one.text
    blocks = {"content": [{"type": "text", "text": json.dumps(row)} for row in ISSUES]}
    one = Spiller().spill(workspace, Received("list_issues", result=json.dumps(blocks).encode()))
    assert (one.rows, one.unwrapped) == (321, ("one block for each record",))


def test_where_a_heuristic_fired_the_result_as_received_is_kept_too(workspace: Workspace) -> None:
    text = f"Here they are:\n```json\n{json.dumps(ISSUES)}\n```\nDone."
    one = spill(workspace, text)
    assert (one.format, one.rows) == ("json", 321)
    kept = {file.what: workspace.read_bytes(file.path) for file in one.also}
    assert kept["the result as it was received"] == text.encode()


@pytest.mark.case("S7")
def test_files_in_a_result_are_saved_as_files_and_never_shown_as_base64(workspace: Workspace) -> None:
    image = b"\x89PNG\r\n\x1a\n" + os.urandom(3000)
    encoded = base64.b64encode(image).decode()
    result = {
        "content": [{"type": "image", "data": encoded, "mimeType": "image/png"}, {"type": "text", "text": "a chart"}]
    }
    one = Spiller().spill(workspace, Received("draw", result=json.dumps(result).encode()))
    assert [file.path for file in one.also] == ["results/0002-draw.png"]
    assert workspace.read_bytes(one.also[0].path) == image
    assert encoded[:50] not in one.text
    alone = Spiller().spill(workspace, Received("draw", result=json.dumps({"content": result["content"][:1]}).encode()))
    assert alone.path is not None
    assert alone.path.endswith("-draw.png")
    assert saved(workspace, alone) == image


@pytest.mark.case("S8")
def test_a_result_that_was_cut_upstream_is_kept_and_told(workspace: Workspace) -> None:
    cut = json.dumps(ISSUES)[:-500]
    one = spill(workspace, cut)
    assert (one.complete, saved(workspace, one)) == (False, cut.encode())
    assert "NOT COMPLETE" in one.text


@pytest.mark.case("S10")
def test_every_literal_of_a_spill_is_as_it_came(workspace: Workspace) -> None:
    record = '{"id":947871269024436488,"p":1.10,"e":1e400,"z":-0,"t":"\\u00e9"}'
    body = f"[{','.join([record] * 100)}]"
    for given in (body.encode(), body):
        assert saved(workspace, spill(workspace, given)).decode() == "[\n" + ",\n".join([record] * 100) + "\n]\n"


# Errors


@pytest.mark.case("S9")
def test_an_error_is_in_a_file_and_its_exception_line_in_the_message(workspace: Workspace) -> None:
    lines = [f'  File "app.py", line {n}, in call\n    do_something({n})' for n in range(300)]
    trace = (
        "Traceback (most recent call last):\n"
        + "\n".join(lines)
        + '\npsycopg.errors.UndefinedColumn: column "naem" does not exist\n'
        + "detail\n" * 900
    )
    one = spill(workspace, trace, tool="run_sql", is_error=True)
    assert one.is_error
    assert one.path == "errors/0001-run_sql.txt"
    assert saved(workspace, one) == trace.encode()
    assert 'UndefinedColumn: column "naem" does not exist' in one.text
    assert len(one.text) < MAX_SHORT_CHARACTERS + 100
    assert trace[:200] in one.text
    assert one.text.endswith("Full text: errors/0001-run_sql.txt")


@pytest.mark.case("S9")
def test_detail_of_the_second_block_and_of_the_structured_part_is_in_the_file(workspace: Workspace) -> None:
    result = b'{"isError":true,"content":[{"type":"text","text":"Failed"},{"type":"text","text":"ValueError: the detail"}],"structuredContent":{"code":4.10}}'
    one = Spiller().spill(workspace, Received("t", result=result))
    assert one.is_error
    assert saved(workspace, one) == b'Failed\nValueError: the detail\n{"code":4.10}'
    assert "ValueError: the detail" in one.text


def test_a_long_line_costs_linear_time(workspace: Workspace) -> None:
    one = spill(workspace, "a" * 3_000_000, is_error=True)
    assert one.bytes == 3_000_000


# Faults


def test_two_spills_at_once_have_two_names(workspace: Workspace) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: spill(workspace, f"{n:04d}" * 500), range(64)))
    assert len({one.path for one in found}) == 64
    assert sorted(saved(workspace, one)[:4] for one in found) == [b"%04d" % n for n in range(64)]


def test_two_services_on_one_folder_take_no_name_twice(workspaces: Workspaces) -> None:
    code = """
        import sys
        from pathlib import Path
        from sandbox.spills.spill import Received, Spiller
        from sandbox.workspace import Workspaces
        workspace = Workspaces(Path(sys.argv[1])).open("w")
        for n in range(100):
            print(Spiller().spill(workspace, Received("t", content=sys.argv[2] * 2000)).path)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(workspaces.root)]
    running = [subprocess.Popen([*command, letter], cwd=PROJECT, stdout=subprocess.PIPE, text=True) for letter in "ab"]
    paths = [process.communicate()[0].split() for process in running]
    assert [len(found) for found in paths] == [100, 100]
    assert len({*paths[0], *paths[1]}) == 200
    workspace = workspaces.open("w")
    for letter, found in zip(b"ab", paths, strict=True):
        assert all(set(workspace.read_bytes(path)) == {letter} for path in found)


def test_a_counter_that_lost_its_content_is_counted_anew(workspace: Workspace, workspaces: Workspaces) -> None:
    assert spill(workspace, "x" * 2000).path == "results/0001-list_issues.txt"
    (workspaces.root / "w" / "counter").write_text("")
    assert spill(workspace, "x" * 2000).path == "results/0002-list_issues.txt"


FAULT = """
import os, resource, signal, sys
from pathlib import Path
from sandbox.spills.spill import Received, Spiller
from sandbox.workspace import Workspaces
workspaces = Workspaces(Path(sys.argv[1]))
workspace = workspaces.open("w")
workspace.make()
{fault}
one = Spiller().spill(workspace, Received("t", content="the result " * 20000))
print(one.model_dump_json())
"""
READ_ONLY = """
for folder in ("files/results", "incoming"):
    (workspaces.root / "w" / folder).chmod(0o555)
if os.geteuid() == 0:
    os.setuid(65534)
"""
FULL = "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"


@pytest.mark.case("S11")
@pytest.mark.parametrize("fault", [READ_ONLY, FULL], ids=["read-only", "full"])
def test_a_spill_that_fails_never_fails_the_call(tmp_path: Path, fault: str) -> None:
    tmp_path.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.stat().st_mode & 0o005 == 0:
            folder.chmod(0o755)
    root = tmp_path / "workspaces"
    command = [sys.executable, "-c", FAULT.format(fault=fault), str(root)]
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(PROJECT)}
    )
    one = Spill.model_validate_json(done.stdout)
    assert (one.spilled, one.is_error, one.inline) == (False, False, True)
    assert one.text.startswith("the result the result")
    assert one.missing_characters > 0  # within the cap, and said
    assert f"{one.missing_characters:,} of 220,000 characters are missing" in one.text
    assert "could not be saved" in one.warnings[0]
    assert "could not be saved" in done.stderr
    assert [path for path in root.rglob("*") if path.is_file() and path.name != "counter"] == []


@pytest.mark.case("S11")
def test_a_full_quota_of_the_service_is_a_warning_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(tmp_path, quota_bytes=100_000)
    workspace = Workspaces(tmp_path / "workspaces", disk=disk).open("w")
    assert spill(workspace, "x" * 60_000).spilled
    with caplog.at_level(logging.WARNING):
        one = spill(workspace, "y" * 60_000)
    assert (one.spilled, one.text[:3], one.missing_characters) == (False, "yyy", 0)
    assert "SPILLBOX_DISK_BYTES" in caplog.text
    with pytest.raises(ServiceFull, match="SPILLBOX_DISK_BYTES"):
        workspace.write("f", b"z" * 60_000)
    workspace.remove_own("results/0001-list_issues.txt")
    assert spill(workspace, "y" * 60_000).spilled
