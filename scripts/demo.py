"""The demo: what an agent does with Spillbox, over HTTP, on real data. `make demo` runs it; it needs no network.

It starts a service of its own and stops it, or talks to the one at --url. The ISO code lists come as results of tools, and spill
to files of a workspace. A script that a model could have written, `scripts/demo/build_report.py`, is put beside them once, run
by path, broken on purpose, mended, and run again. The documents that it builds are then read back by other code than wrote
them, and each value is compared with the source. Then the builders make a workbook and a CSV file of the same rows, without a
script. The exit status is 0 only if everything went as said and no value differs.
"""

import argparse
import csv
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata, resources
from io import BytesIO, StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import defusedxml.ElementTree  # type: ignore[import-untyped]
import httpx
import python_calamine

from sandbox.job import DocumentCheck, Execution, Status
from sandbox.spills.spill import Spill
from sandbox.tools.files import ReadFileOutput

SCRIPT = Path(__file__).parent / "demo" / "build_report.py"
SCRIPT_PATH = "scripts/build_report.py"
RIGHT, WRONG = 'country["alpha_3"]', 'country["alpha3"]'
TRACEBACK_LINES = 7
LISTS = {"countries": "3166-1", "subdivisions": "3166-2", "languages": "639-3"}
COUNTRY_COLUMNS = ("alpha_2", "alpha_3", "numeric", "flag", "name")
LEADING = 12
"""Countries in the charts and on the table slide."""
READY_SECONDS = 60
STOP_SECONDS = 10

Row = dict[str, str | None]
Lists = dict[str, list[Row]]
Table = Sequence[Sequence[object]]


class DemoFailed(Exception):
    """Something did not go as it should; the message is for the reader."""


# The service


@contextmanager
def service(data_dir: Path) -> Iterator[httpx.Client]:
    """A client of a service that runs as long as the block; raises `DemoFailed` with what it said if it fails."""
    key = secrets.token_urlsafe()
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "api", "serve", "--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "SPILLBOX_API_KEY": key},
        )
        try:
            with client_of(url, key) as client:
                wait_until_ready(client, process.poll)
                yield client
        except httpx.HTTPError as fault:
            said = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace").strip()
            raise DemoFailed(f"The service did not answer: {fault}\nIt said:\n{said}") from fault
        finally:
            stop(process)


@contextmanager
def running_service(url: str) -> Iterator[httpx.Client]:
    """A client of a service that runs already, with the key of ``SPILLBOX_API_KEY``; raises `DemoFailed` if it does not answer."""
    try:
        with client_of(url, os.environ.get("SPILLBOX_API_KEY", "")) as client:
            wait_until_ready(client, lambda: None)
            yield client
    except httpx.HTTPError as fault:
        raise DemoFailed(f"The service at {url} did not answer: {fault}") from fault


def client_of(url: str, key: str) -> httpx.Client:
    """Asks a service, and no proxy that the environment names: these are for other machines."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)


def wait_until_ready(client: httpx.Client, ended: Callable[[], int | None]) -> None:
    """Return when the service can run scripts; raises `httpx.ConnectError` if it has ended, or takes too long."""
    give_up_at = time.monotonic() + READY_SECONDS
    while ended() is None and time.monotonic() < give_up_at:
        try:
            if client.get("/readyz").is_success:
                return
        except httpx.TransportError:  # refused, or cut by a proxy of containers behind which nobody listens yet
            pass
        time.sleep(0.05)
    status = ended()
    raise httpx.ConnectError(
        f"not ready after {READY_SECONDS} s." if status is None else f"it ended with status {status}."
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the service, by force if it takes too long."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# A conversation: one workspace, and the tool calls of a model


@dataclass
class Conversation:
    """Calls tools in a workspace as an agent does, and counts the bytes that its model has to write for it."""

    client: httpx.Client
    workspace: str
    written_bytes: list[int] = field(default_factory=list)
    """Of the arguments of each call."""

    def spill(self, tool: str, rows: list[Row]) -> Spill:
        """Hand over what a tool of an MCP server gave: rows as JSON in a text block. No model is needed for that."""
        result = {"content": [{"type": "text", "text": json.dumps(rows, ensure_ascii=False)}]}
        response = checked(self.client.post(f"{self._place}/spills", json={"tool": tool, "result": result}))
        return Spill.model_validate_json(response.content)

    def get(self, path: str) -> bytes:
        """Download a file."""
        return checked(self.client.get(f"{self._place}/files/{path}")).content

    def call(self, tool: str, **arguments: Any) -> bytes:
        """Call a tool; gives its answer as JSON."""
        return checked(self.client.post(f"{self._place}/tools/{tool}", content=self._written(arguments))).content

    def run(self, path: str, *, on_line: Callable[[str], None]) -> Execution:
        """Run a script by path; the lines that it prints are handed on as they come."""
        url, content = f"{self._place}/tools/run_python", self._written({"path": path})
        with self.client.stream("POST", url, content=content, headers={"Accept": "text/event-stream"}) as response:
            if not response.is_success:
                response.read()
            return follow(checked(response), on_line)

    def _written(self, arguments: dict[str, Any]) -> bytes:
        content = json.dumps(arguments, ensure_ascii=False).encode()
        self.written_bytes.append(len(content))
        return content

    @property
    def _place(self) -> str:
        return f"/v1/workspaces/{self.workspace}"


def checked(response: httpx.Response) -> httpx.Response:
    """The response, if it is no problem."""
    if response.is_success:
        return response
    raise DemoFailed(f"{response.request.method} {response.request.url.path}: {response.status_code} {response.text}")


def follow(response: httpx.Response, on_line: Callable[[str], None]) -> Execution:
    """Hand on the lines printed in an event stream until its result comes."""
    text = ""
    for name, data in events(response):
        if name == "stdout":
            *lines, text = (text + json.loads(data)["text"]).split("\n")
            for line in lines:
                on_line(line)
        elif name == "problem":
            raise DemoFailed(f"run_python: {json.loads(data)['detail']}")
        elif name == "result":
            return Execution.model_validate_json(data)
    raise DemoFailed("run_python: the service ended the stream without a result.")


def events(response: httpx.Response) -> Iterator[tuple[str, bytes]]:
    """Name and data of each server-sent event. An empty line ends one; the service sends one line of data in each."""
    pending = b""
    for chunk in response.iter_bytes():
        *blocks, pending = (pending + chunk).split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
            yield fields[b"event"].decode(), fields[b"data"]


# The source


def load_lists() -> Lists:
    """The ISO code lists of pycountry as a query gives rows: every column in each, null where there is nothing."""
    folder = resources.files("pycountry") / "databases"
    lists = {}
    for name, standard in LISTS.items():
        records = json.loads((folder / f"iso{standard}.json").read_bytes())[standard]
        columns = dict.fromkeys(column for record in records for column in record)
        lists[name] = [{column: record.get(column) for column in columns} for record in records]
    return lists


# What the documents should say, and what they say


def expected_tables(lists: Lists) -> dict[str, dict[str, Table]]:
    """The tables of each document, by path and name, from nothing but the source."""
    parts = Counter(str(row["code"]).partition("-")[0] for row in lists["subdivisions"])
    leading = sorted(lists["countries"], key=lambda row: (-parts[str(row["alpha_2"])], str(row["name"])))[:LEADING]
    counts = [(str(row["name"]), parts[str(row["alpha_2"])]) for row in leading]

    def codes(countries: list[Row]) -> Table:
        return [[*(row[name] for name in COUNTRY_COLUMNS), str(parts[str(row["alpha_2"])])] for row in countries]

    workbook: dict[str, Table] = {"Summary": counts}
    for name, rows in lists.items():
        # A cell that is not there reads as an empty text.
        workbook[name.title()] = [list(rows[0]), *([value or "" for value in row.values()] for row in rows)]
    return {
        "reports/iso.docx": {"table": codes(lists["countries"])},
        "reports/iso.pptx": {"table": codes(leading), "chart": [(name, str(count)) for name, count in counts]},
        "reports/iso.xlsx": workbook,
    }


def tables_of(path: str, document: bytes) -> dict[str, Table]:
    """The tables that are in a document, by name, without the headers that the script worded."""
    if path.endswith(".xlsx"):
        book = python_calamine.CalamineWorkbook.from_filelike(BytesIO(document))
        sheets: dict[str, Table] = {name: book.get_sheet_by_name(name).to_python() for name in book.sheet_names}
        return {**sheets, "Summary": sheets["Summary"][1:]} if "Summary" in sheets else sheets
    with zipfile.ZipFile(BytesIO(document)) as archive:
        if path.endswith(".docx"):
            return {"table": cell_texts(archive.read("word/document.xml"))[1:]}
        (chart,) = (name for name in archive.namelist() if name.startswith("ppt/charts/chart"))
        return {
            "table": cell_texts(archive.read("ppt/slides/slide3.xml"))[1:],
            "chart": chart_values(archive.read(chart)),
        }


def cell_texts(part: bytes) -> Table:
    """The texts of the cells of the tables in a part: Word and PowerPoint give rows, cells and texts the same names."""
    rows = defusedxml.ElementTree.fromstring(part).findall(".//{*}tr")
    return [["".join(text.text for text in cell.findall(".//{*}t")) for cell in row.findall("{*}tc")] for row in rows]


def chart_values(part: bytes) -> Table:
    """Category and number of each bar."""
    chart = defusedxml.ElementTree.fromstring(part)
    columns = ([value.text for value in chart.findall(f".//{{*}}{kind}//{{*}}v")] for kind in ("cat", "val"))
    return list(zip(*columns, strict=True))


@dataclass
class Comparison:
    """How many values of a document were compared with the source, and a line for each that differs."""

    values: int = 0
    differences: list[str] = field(default_factory=list)


def compare(path: str, expected: dict[str, Table], found: dict[str, Table]) -> Comparison:
    """Compare value by value. One that is missing or too many differs, and so does a number from its text."""
    outcome = Comparison()
    for name, table in expected.items():
        for number, (row, found_row) in enumerate(zip_longest(table, found.get(name, ()), fillvalue=()), 1):
            for value, found_value in zip_longest(row, found_row):
                outcome.values += 1
                if value != found_value:
                    outcome.differences.append(f"{path}, {name}, row {number}: {found_value!r}, not {value!r}")
    return outcome


# The story


def say(text: str = "") -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


def say_marked(mark: str, text: str) -> None:
    """Print each line after a mark."""
    for line in text.splitlines():
        say(f"   {mark} {line}".rstrip())


def spill_data(conversation: Conversation, lists: Lists) -> tuple[dict[str, str], int]:
    """Hand the lists to the service as results of tools; gives the path of each, and how many bytes they are."""
    paths, total = {}, 0
    for name, rows in lists.items():
        spill = conversation.spill(name, rows)
        if spill.path is None or spill.rows != len(rows):
            raise DemoFailed(f"{name} did not spill: {spill}")
        say(f"   {spill.path:<34}{spill.rows:>6,} rows{spill.bytes:>12,} bytes")
        paths[name] = spill.path
        total += spill.bytes
    return paths, total


def run(conversation: Conversation, *, expecting: Status) -> Execution:
    """Run the script by path, show what it prints as it comes, and how it ended."""
    started = time.perf_counter()
    execution = conversation.run(SCRIPT_PATH, on_line=lambda line: say_marked("|", line))
    seconds = time.perf_counter() - started
    if execution.status is not expecting:
        raise DemoFailed(
            execution.error.summary if execution.error else f"The run {execution.status}, not {expecting}."
        )
    usage = execution.usage
    script = f"script {usage.wall_seconds:.2f} s, at most {(usage.max_memory_bytes or 0) / 2**20:.0f} MiB"
    checks = f", {len(execution.documents)} documents re-opened and checked" if execution.documents else ""
    say(f"   {execution.status} in {seconds:.2f} s: {script}{checks}")
    return execution


def break_and_mend(conversation: Conversation) -> Execution:
    """A mistake in the script, what the model sees of it, and the cure; gives the last run."""
    say(f"\n2. A mistake: edit_file puts {WRONG} for {RIGHT}; run again by path")
    conversation.call("edit_file", path=SCRIPT_PATH, old_text=RIGHT, new_text=WRONG)
    error = run(conversation, expecting=Status.FAILED).error
    if error is None or error.traceback_path is None:
        raise DemoFailed("The failed run has no error report.")
    say("   error.summary, the short message for the model:")
    say_marked(">", error.summary)
    answer = conversation.call("read_file", path=error.traceback_path, line_count=TRACEBACK_LINES)
    part = ReadFileOutput.model_validate_json(answer)
    say(f"   All {part.total_lines} lines are kept. The first {TRACEBACK_LINES}, by read_file:")
    say_marked(":", part.text)

    say("\n3. Mended by edit_file, run again by path")
    conversation.call("edit_file", path=SCRIPT_PATH, old_text=WRONG, new_text=RIGHT)
    return run(conversation, expecting=Status.SUCCEEDED)


def check_documents(conversation: Conversation, lists: Lists, checks: Sequence[DocumentCheck], files: Path) -> None:
    """Say where each document is, what the service found in it, and how it compares; raises `DemoFailed` if it differs."""
    found = {check.path: check for check in checks}
    values, differences = 0, []
    for path, tables in expected_tables(lists).items():
        if path not in found or not found[path].ok:
            raise DemoFailed(f"{path} was not built: {found[path].problem if path in found else 'no such document'}.")
        compared = compare(path, tables, tables_of(path, conversation.get(path)))
        say(f"   {files / path}")
        say(f"      ok: {contents(found[path])}")
        say(f"      {compared.values:,} values compared with the source, {len(compared.differences):,} differ")
        values += compared.values
        differences += compared.differences
    if differences:
        raise DemoFailed("\n".join([f"{len(differences):,} of {values:,} values differ:", *differences[:10]]))
    say(f"   In all {values:,} values, {len(differences)} differ. {hard_values(lists)}")


def build_and_attach(conversation: Conversation, lists: Lists, paths: dict[str, str]) -> None:
    """Build a workbook and a CSV file, attach them, and compare what is downloaded; raises `DemoFailed` if it differs."""
    sheets = [{"source": path, "sheet": name} for name, path in paths.items()]
    conversation.call("build_excel", sheets=sheets, output="lists.xlsx")
    conversation.call("build_csv", source=paths["languages"], output="languages.csv", sort_by="name")
    expected: dict[str, Table] = {
        name: [list(rows[0]), *([value or "" for value in row.values()] for row in rows)]
        for name, rows in lists.items()
    }
    head, *rows = expected["languages"]
    by_name = sorted(rows, key=lambda row: str(row[head.index("name")]))
    documents: dict[str, dict[str, Table]] = {"lists.xlsx": expected, "languages.csv": {"table": [head, *by_name]}}
    for path, tables in documents.items():
        attached = json.loads(conversation.call("attach_file", path=path))
        content = checked(conversation.client.get(attached["url"])).content
        if path.endswith(".csv"):
            found: dict[str, Table] = {"table": list(csv.reader(StringIO(content.decode("utf-8-sig"), newline="")))}
        else:
            found = tables_of(path, content)
        compared = compare(path, tables, found)
        say(f"   {path:<14}{attached['bytes']:>9,} bytes at {attached['url'].partition('?')[0]}")
        say(f"      {compared.values:,} values compared with the source, {len(compared.differences):,} differ")
        if compared.differences:
            raise DemoFailed("\n".join(compared.differences[:10]))


def contents(check: DocumentCheck) -> str:
    """What the service found in a document."""
    if check.sheets is not None:
        return ", ".join(f"{name} {cells}" for name, cells in check.sheets.items())
    counts = {"slides": check.slides, "paragraphs": check.paragraphs, "tables": check.tables}
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count is not None)


def hard_values(lists: Lists) -> str:
    """A sentence on the values of the source that are easily spoilt on the way into a document."""
    texts = [text for rows in lists.values() for row in rows for text in row.values() if text is not None]
    guessed = [text for text in texts if text == "NA" or is_number(text)]
    samples = ", ".join(sorted(set(guessed), key=lambda text: (text.isdigit(), text))[:4])
    foreign = sum(not text.isascii() for text in texts)
    return f"Easily spoilt: {len(guessed)} such as {samples}; {foreign:,} not ASCII."


def is_number(text: str) -> bool:
    """Whether a program that guesses types would take it for a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def tell(client: httpx.Client, data_dir: Path | None) -> None:
    """The whole story, in a fresh workspace; of a service elsewhere the data folder is not known."""
    conversation = Conversation(client, f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")
    lists = load_lists()
    say(f"Results of three tools, spilled to files of the workspace {conversation.workspace}")
    say(f"   (rows of pycountry {metadata.version('pycountry')})")
    paths, data_bytes = spill_data(conversation, lists)

    script = SCRIPT.read_text(encoding="utf-8")
    say(f"\n1. write_file {SCRIPT_PATH}, {len(script.encode()):,} bytes, once; then run_python by its path")
    conversation.call("write_file", path=SCRIPT_PATH, content=script)
    run(conversation, expecting=Status.SUCCEEDED)
    write_bytes, run_bytes = conversation.written_bytes
    last = break_and_mend(conversation)
    mending = conversation.written_bytes[2:]

    say("\n4. The documents, as the service found them, and as other code than wrote them reads them back")
    files = Path() if data_dir is None else data_dir / "workspaces" / conversation.workspace / "files"
    check_documents(conversation, lists, last.documents, files)

    say("\n5. The same rows without a script: build_excel and build_csv from the paths, attach_file, download")
    before = sum(conversation.written_bytes)
    build_and_attach(conversation, lists, paths)
    building = sum(conversation.written_bytes) - before

    say("\nWhat a model writes for this")
    say(f"   {write_bytes:>9,} bytes   the script, once: arguments of write_file")
    say(f"   {run_bytes:>9,} bytes   a run of it, over these rows or tomorrow's: arguments of run_python")
    say(f"   {sum(mending):>9,} bytes   steps 2 and 3, {len(mending)} calls")
    say(f"   {building:>9,} bytes   step 5, 4 calls")
    times = data_bytes / sum(conversation.written_bytes)
    say(f"   {data_bytes:>9,} bytes   the rows, {times:.0f} times all of that: they stay in their files")


def main() -> int:
    """Run the demo; gives its exit status."""
    parser = argparse.ArgumentParser(
        description="Build three documents from real data over HTTP, and check every value."
    )
    parser.add_argument(
        "--data-dir", type=Path, default=Path(".spillbox"), help="where `make setup` put the guest root"
    )
    parser.add_argument("--url", help="of a service that runs already, to tell it to, instead of one of its own")
    arguments = parser.parse_args()
    data_dir: Path = arguments.data_dir
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unwinds, so the service is stopped too
    started = time.perf_counter()
    try:
        with running_service(arguments.url) if arguments.url else service(data_dir) as client:
            ready = time.perf_counter()
            tell(client, None if arguments.url else data_dir)
            told = time.perf_counter()
    except DemoFailed as fault:
        print(f"The demo failed. {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    say(f"\n{told - started:.1f} s in all, {ready - started:.1f} s of it until the service was ready.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
