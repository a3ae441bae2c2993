"""Outputs of tools as results of the protocol: structured content, and a short text for models that see no more than that."""

import json
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from api.errors import Problem, problem_of
from api.mcp.wire import stand_in
from sandbox.catalog import ShownTable
from sandbox.errors import SpillboxError
from sandbox.job import DocumentCheck, Execution, FileChange, Stream
from sandbox.tables.cells import plain_text
from sandbox.tables.literal_json import parse
from sandbox.tables.slices import NotJson, Slice, by_key, elements, is_strict
from sandbox.tools.delegate import CallToolOutput
from sandbox.tools.files import ReadFileOutput
from sandbox.tools.navigation import ExtractOutput
from sandbox.tools.shown import AttachFileOutput, ShowTableOutput
from sandbox.tools.toolbox import Handed

_MAX_LINKS = 10
_MAX_PICTURE_BYTES = 8 << 20
_MAX_TABLE_CHARACTERS = 4 << 20
_SEEN = (b'"image"', b'"audio"')
_CHECKED = {True: "ok", False: "broken", None: "not checked"}

PROBLEM = "spillbox/problem"
"""In the ``_meta`` of a call that failed: its stable ``code``, and the ``detail``."""
TABLE = "spillbox/table"
"""In the ``_meta`` of a table that is shown: what its view shows. Hosts do not hand ``_meta`` to the model."""
ERA_FIELDS = ("resultType", "ttlMs", "cacheScope")
"""What only a later era's results have; each answer has those of its own client's era."""

Result = dict[str, Any]


def answer_of(output: BaseModel, table: ShownTable | None = None) -> Result:
    """The result for a tool's output; with the rows of a table for a host that shows its view."""
    meta = {} if table is None else {"_meta": {TABLE: _shown(table)}}
    return meta | {
        "content": [{"type": "text", "text": in_short(output)}, *_links(output)],
        "structuredContent": stand_in(output.model_dump_json()),
        "isError": isinstance(output, CallToolOutput) and output.is_error,
    }


def _shown(table: ShownTable) -> dict[str, Any]:
    """Rows as texts, each literal as in its source: a view's own numbers would not keep them."""
    rows = [elements(row) for row in elements(table.rows.encode())]
    if len(table.rows) > _MAX_TABLE_CHARACTERS:
        return {"title": table.title, "columns": table.columns, "row_count": table.row_count}
    kinds = [
        {bytes(cell)[:1] in b"-0123456789" for cell in column if bytes(cell) != b"null"}
        for column in zip(*rows, strict=True)
    ]
    return {
        "title": table.title,
        "columns": table.columns,
        "row_count": table.row_count,
        "numeric": [kind == {True} for kind in kinds],
        "rows": [[plain_text(cell) for cell in row] for row in rows],
    }


def failure_of(fault: SpillboxError) -> Result:
    """The result for a call that failed, which the model sees and can act on."""
    return refusal_of(problem_of(fault))


def refusal_of(problem: Problem) -> Result:
    """The result for a problem."""
    told = {"code": problem.code, "detail": problem.detail}
    text = {"type": "text", "text": f"{problem.code}: {problem.detail}"}
    # Not as structured content: there are clients that hold even an error's against the schema of the tool.
    return {"content": [text], "isError": True, "_meta": {PROBLEM: told}}


def handed(given: Handed) -> Result:
    """The result of a tool of another server: as it came, or what stands for it where it was saved, beside its pictures."""
    raw = bytes(given.received.result or b"{}")
    came = by_key(raw)
    spill = given.spill
    if spill is None or not spill.spilled or (spill.is_error and spill.inline):
        if not _is_json(raw):  # what came can't stand in a message: as a text it can, and nothing of it is lost
            return {"content": [{"type": "text", "text": raw.decode("utf-8", "replace")}], "isError": False}
        return {key: stand_in(bytes(value)) for key, value in came.items() if key not in ERA_FIELDS}
    links = [] if spill.path is None else [_link(spill.path, spill.bytes)]
    pictures = _pictures(came.get("content", b"[]"))
    meta = {"_meta": stand_in(bytes(came["_meta"]))} if "_meta" in came else {}
    return {"content": [{"type": "text", "text": spill.text}, *pictures, *links], "isError": spill.is_error, **meta}


def _is_json(raw: bytes) -> bool:
    """Whether it is JSON, halves of surrogate pairs allowed; many programs write NaN, which is none."""
    try:
        return is_strict(raw) or parse(raw) is not None
    except (ValueError, RecursionError):
        return False


def _pictures(content: Slice) -> list[str]:
    """The blocks that a model sees or hears, as they came, while they are not very many."""
    try:
        seen = [bytes(raw) for raw in elements(content) if bytes(by_key(raw).get("type", b"")) in _SEEN]
    except NotJson:  # blocks are objects; the text says what came
        return []
    return [stand_in(raw) for raw in seen] if sum(map(len, seen)) <= _MAX_PICTURE_BYTES else []


def in_short(output: BaseModel) -> str:
    """An output in as few words as a model needs."""
    if isinstance(output, Execution):
        return _run_in_short(output)
    if isinstance(output, ReadFileOutput):
        more = (
            "" if output.next is None else f"\n[more: {output.next.model_dump_json()} of {output.total_lines:,} lines]"
        )
        return f"{output.text}{more}" + (f"\n[{output.note}]" if output.note else "")
    if isinstance(output, ExtractOutput):
        rest = output.model_dump(exclude={"text", "path"}, exclude_none=True)
        return f"{output.text}\n[{json.dumps(rest)}]"
    if isinstance(output, ShowTableOutput):
        columns = ", ".join(output.columns)
        return (
            f"The user sees the table {output.title!r}: {output.row_count:,} rows of {columns}. The first rows:\n"
            f"{output.first_rows}\nLink: {output.url}"
        )
    if isinstance(output, AttachFileOutput):
        said = f"Attached {output.name} ({output.bytes:,} bytes, sha256 {output.sha256}). Link: {output.url}"
        return said if output.check is None else f"{said}\n{_checked(output.check)}"
    if isinstance(output, CallToolOutput) and output.text is not None:
        return output.text
    return json.dumps(_filled(output.model_dump(mode="json")), ensure_ascii=False)


def _run_in_short(run: Execution) -> str:
    lines = [f"{run.status} (exit code {run.exit_code}, {run.usage.wall_seconds:.3f} s), script {run.script_path}"]
    if run.error is not None:
        lines.append(run.error.summary)
        if run.error.traceback_path:
            lines.append(f"Full traceback: {run.error.traceback_path}")
    for name, stream in (("stdout", run.stdout), ("stderr", run.stderr)):
        if stream.text and not (name == "stderr" and run.error is not None):
            lines.append(f"--- {name}{_cut(stream)}\n{stream.text.rstrip()}")
    if run.files:
        lines.append("--- files\n" + "\n".join(f"{file.path}: {file.change}, {file.bytes} bytes" for file in run.files))
    checks = [_checked(check) for check in run.documents]
    if checks:
        lines.append("--- documents checked\n" + "\n".join(checks))
    if run.skipped:
        lines.append("--- not taken\n" + "\n".join(f"{one.path}: {one.reason}" for one in run.skipped))
    return "\n".join([*lines, *run.warnings])


def _checked(check: DocumentCheck) -> str:
    return f"{check.path}: {_CHECKED[check.ok]} {check.problem or ''}".rstrip()


def _cut(stream: Stream) -> str:
    return f" (cut; {stream.bytes:,} bytes, whole in {stream.path})" if stream.truncated else ""


def _filled(value: Any) -> Any:
    """Without what says nothing."""
    if isinstance(value, dict):
        return {key: _filled(inner) for key, inner in value.items() if inner not in (None, [], {}, "")}
    return [_filled(inner) for inner in value] if isinstance(value, list) else value


def _links(output: BaseModel) -> list[dict[str, Any]]:
    if isinstance(output, AttachFileOutput):
        return [
            {"type": "resource_link", "uri": f"spillbox://attachments/{output.id}", "name": output.name, "size": output.bytes,
             "mimeType": output.media_type}
        ]  # fmt: skip
    if isinstance(output, Execution):
        changed = [file for file in output.files if file.change != "deleted"]
        return [_link(file.path, file.bytes) for file in changed[:_MAX_LINKS]]
    path, size = getattr(output, "path", None), getattr(output, "bytes", None)
    if isinstance(output, FileChange | CallToolOutput) or size is None or path is None:
        return []
    return [_link(path, size)]


def _link(path: str, size: int) -> dict[str, Any]:
    name = path.rpartition("/")[2]
    return {"type": "resource_link", "uri": f"spillbox://workspace/{quote(path)}", "name": name, "size": size}
