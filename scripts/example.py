"""The case that Spillbox is for: a query gave 321 rows; the user wants them as an Excel file and in a Word report.

    python scripts/example.py [--data-dir DIR] [--readme FILE]

Done for real, once with Spillbox: the rows spill to a file, and what a model writes is counted in bytes, call by call. Beside
it stands what a model would have to write without: the same rows, as the arguments of a tool that writes files, once for
each document. Every value in the two documents is read back by other code and compared with its source.
"""

import json
import sys
import zipfile
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any

import defusedxml.ElementTree  # type: ignore[import-untyped]
import python_calamine
import readme_parts
from pydantic import BaseModel

from sandbox.spills.spill import Received, estimate_tokens
from sandbox.tools.toolbox import Toolbox, open_toolbox

ROWS = 321
REPORT = """\
import json, docx
rows = json.load(open({path!r}))
d = docx.Document()
d.add_heading("Subdivisions")
t = d.add_table(0, len(rows[0]))
for r in [list(rows[0])] + [list(r.values()) for r in rows]:
    for c, v in zip(t.add_row().cells, r): c.text = v or ""
d.save("report.docx")
"""


def query() -> list[dict[str, str | None]]:
    """What the query gave: subdivisions of countries, of the ISO lists."""
    folder = resources.files("pycountry") / "databases"
    lists = {number: json.loads((folder / f"iso{number}.json").read_bytes())[number] for number in ("3166-1", "3166-2")}
    countries = {country["alpha_2"]: country for country in lists["3166-1"]}
    rows: list[dict[str, str | None]] = []
    for part in lists["3166-2"][:ROWS]:
        country = countries[part["code"].partition("-")[0]]
        rows.append({
            "code": part["code"], "name": part["name"], "type": part["type"], "country": country["name"],
            "numeric": country["numeric"], "official_name": country.get("official_name"),
        })  # fmt: skip
    return rows


class Conversation:
    """Calls tools as a model does, and keeps the arguments that it wrote."""

    def __init__(self, box: Toolbox, workspace: str) -> None:
        self._box = box
        self._workspace = workspace
        self.written: list[tuple[str, str]] = []

    async def call(self, tool: str, **arguments: Any) -> Any:
        """The tool's answer."""
        self.written.append((tool, json.dumps(arguments, ensure_ascii=False)))
        answer: BaseModel = await self._box.call(tool, self._workspace, arguments)
        return answer


async def run(data_dir: Path) -> str:
    """Do it; gives the table of the README."""
    rows = query()
    result = json.dumps({"content": [{"type": "text", "text": json.dumps(rows, ensure_ascii=False)}]}).encode()
    async with open_toolbox(data_dir, runtime="nsjail") as box:
        workspace = box.workspaces.open("example")
        spill = await box.spill(workspace.id, Received("query", result=result))
        if spill.rows != ROWS or spill.path is None:
            raise SystemExit(f"The result did not spill: {spill}")
        model = Conversation(box, workspace.id)
        await model.call("build_excel", source=spill.path, output="report.xlsx")
        ran = await model.call("run_python", code=REPORT.format(path=spill.path))
        if ran.status != "succeeded" or not all(check.ok for check in ran.documents):
            raise SystemExit(f"The report failed: {ran.error or ran.documents}")
        for path in ("report.xlsx", "report.docx"):
            await model.call("attach_file", path=path)
        different = compare(rows, workspace.read_bytes("report.xlsx"), workspace.read_bytes("report.docx"))
    typed = [
        ("write_excel", json.dumps({"path": "report.xlsx", "rows": rows}, ensure_ascii=False)),
        (
            "write_word",
            json.dumps({"path": "report.docx", "heading": "Subdivisions", "table": rows}, ensure_ascii=False),
        ),
    ]
    return markdown(typed, model.written, different)


def compare(rows: list[dict[str, str | None]], workbook: bytes, document: bytes) -> int:
    """How many of the values differ from their source in the two documents."""
    expected = [list(rows[0]), *([value or "" for value in row.values()] for row in rows)]
    sheet = python_calamine.CalamineWorkbook.from_filelike(BytesIO(workbook)).get_sheet_by_index(0).to_python()
    with zipfile.ZipFile(BytesIO(document)) as archive:
        root = defusedxml.ElementTree.fromstring(archive.read("word/document.xml"))
    table = [
        ["".join(text.text or "" for text in cell.findall(".//{*}t")) for cell in row.findall("{*}tc")]
        for row in root.findall(".//{*}tr")
    ]
    documents: list[list[list[Any]]] = [sheet, table]
    return sum(
        found != value
        for read in documents
        for row, found_row in zip(expected, read, strict=True)
        for value, found in zip(row, found_row, strict=True)
    )


def markdown(typed: list[tuple[str, str]], written: list[tuple[str, str]], different: int) -> str:
    """The table: what a model writes, without and with."""

    def summed(calls: list[tuple[str, str]]) -> tuple[int, int]:
        return sum(len(text.encode()) for _, text in calls), sum(estimate_tokens(text) for _, text in calls)

    (without_bytes, without_tokens), (with_bytes, with_tokens) = summed(typed), summed(written)
    values = 2 * (ROWS + 1) * len(query()[0])
    lines = [
        f"| {ROWS} rows as an Excel file and in a Word report | without | with Spillbox |",
        "|---|---|---|",
        f"| bytes that the model writes | {without_bytes:,} | {with_bytes:,} |",
        f"| tokens of these, estimated | {without_tokens:,} | {with_tokens:,} |",
        f"| values of the documents that the model types | {values:,} | 0 |",
        f"| values that differ from their source, read back by other code | | {different} of {values:,} |",
        "",
        "What the model writes: " + ", ".join(f"`{tool}` {len(text.encode())} bytes" for tool, text in written) + ".",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(readme_parts.main("example", __doc__, run))
