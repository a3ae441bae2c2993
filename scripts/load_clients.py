"""What the clients of a load do, and what has to come of it: conversations of many kinds of calls, each answer compared."""

import csv
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from typing import Any

import httpx
import python_calamine

_BUSY = "sum(range(400_000)); "
"""Some processor time, so that runs wait for each other and slots are what tenants share."""
RUNS = {
    "print": (f"import sys; {_BUSY}print(sys.argv[1])", "succeeded"),
    "fail": ("import sys; print(sys.argv[1]); 1/0", "failed"),
    "exit": ("import os, sys; print(sys.argv[1], flush=True); os._exit(3)", "failed"),
    "fork": (
        "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\nprint(sys.argv[1])",
        "succeeded",
    ),
    "files": ("import sys; open(f'f{int(sys.argv[1]) % 7}', 'w').write('x' * 5000); print(sys.argv[1])", "succeeded"),
    "office": ("import openpyxl, sys; openpyxl.Workbook().save('o.xlsx'); print(sys.argv[1])", "succeeded"),
    "forbidden": ("import ctypes, sys; print(sys.argv[1], flush=True); ctypes.CDLL(None).ptrace(0)", "blocked_syscall"),
    "endless": ("import sys; print(sys.argv[1], flush=True)\nwhile True: pass", "timed_out"),
}
"""Each kind of script, and how it ends."""
_CALLS_OF_A_CONVERSATION = 100
_MCP_VERSION = "2026-07-28"
_ABOUT = {
    f"io.modelcontextprotocol/{name}": value
    for name, value in (
        ("protocolVersion", _MCP_VERSION), ("clientInfo", {"name": "load", "version": "1"}), ("clientCapabilities", {}),
    )
}  # fmt: skip


class Wrong(Exception):
    """An answer that is not what it has to be."""


class Outage:
    """Tells clients that the service was killed on purpose, and when it is back."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.is_over.set()
        self.has_been = False

    def begin(self) -> None:
        """From now on a lost connection is no fault."""
        self.has_been = True
        self.is_over.clear()


@dataclass
class Tally:
    """What all clients did. Each has its own, so nothing is shared."""

    calls: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    repeated: int = 0
    """Calls whose connection the kill cut, and that were sent again with their id."""
    interrupted: int = 0
    """Of these, what the service said it had begun and not finished."""
    faults: list[str] = field(default_factory=list)


@dataclass
class Conversation:
    """A workspace, and what has to be found of it in the end."""

    workspace: str
    calls: int = 0
    done: set[str] = field(default_factory=set)
    """Ids of calls that were answered."""
    interrupted: set[str] = field(default_factory=set)
    kept: dict[str, bytes] = field(default_factory=dict)
    """URLs of files and attachments, and their bytes."""

    @property
    def place(self) -> str:
        """Where it is over HTTP."""
        return f"/v1/workspaces/{self.workspace}"


class Client:
    """One of a tenant's clients: it asks, waits for the answer, and asks again."""

    def __init__(self, name: str, url: str, key: str, outage: Outage) -> None:
        self.tally = Tally()
        self.conversations: list[Conversation] = []
        self._name = name
        self._outage = outage
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120, trust_env=False
        )
        self._random = random.Random(name)  # noqa: S311  the same work each time
        self._number = 0
        self._begin()

    def sees_ready(self) -> bool:
        """Whether the service takes calls."""
        return self._http.get("/readyz").is_success

    def work(self, is_over: Callable[[], bool]) -> None:
        """Do what comes, until it is over; whatever goes wrong is noted."""
        kinds, weights = zip(*((kind, weight) for kind, (weight, _) in _KINDS.items()), strict=True)
        while not is_over():
            if self._now.calls >= _CALLS_OF_A_CONVERSATION:
                self._begin()
            (kind,) = self._random.choices(kinds, weights)
            self.tally.calls[kind] += 1
            try:
                _KINDS[kind][1](self)
            except Exception as fault:  # noqa: BLE001  a client that ended in silence would be taken for one that had no fault
                self.tally.faults.append(f"{self._name}, {self._now.workspace}, {kind}: {fault!r}"[:600])

    def audit(self) -> None:
        """Look whether everything that the service took on is recorded, and everything that it kept is still there."""
        for conversation in self.conversations:
            records = self._http.get(f"{conversation.place}/records", params={"limit": 1000}).json()
            states = {record["id"]: record["state"] for record in records}
            for ids, state in ((conversation.done, "done"), (conversation.interrupted, "interrupted")):
                for lost in (call_id for call_id in ids if states.get(call_id) != state):
                    self.tally.faults.append(
                        f"{conversation.workspace}: call {lost} is {states.get(lost)}, not {state}"
                    )
            for open_ in (call_id for call_id, state in states.items() if state == "accepted"):
                self.tally.faults.append(f"{conversation.workspace}: call {open_} never ended")
            for url, content in conversation.kept.items():
                if (answer := self._http.get(url)).content != content:
                    self.tally.faults.append(f"{url} is not what it was: {answer.status_code}")

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    # Asking

    def _begin(self) -> None:
        self._now = Conversation(f"{self._name}-{len(self.conversations)}")
        self.conversations.append(self._now)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ask(self, method: str, url: str, **content: Any) -> httpx.Response:
        """One call, done once; after a kill it is sent again, and done anew where the service was in the middle of it."""
        call_id = f"call-{self._next()}"
        answer = self._sent(method, url, call_id, **content)
        if self._was_interrupted(call_id, answer):
            return self._ask(method, url, **content)
        if "/tools/" in url:
            self._now.done.add(call_id)
        return answer

    def _was_interrupted(self, call_id: str, answer: httpx.Response) -> bool:
        """Whether this tells that the kill came in the middle of a call; notes it."""
        return answer.status_code == 409 and self._tells_of_the_kill(call_id, answer.text)

    def _tells_of_the_kill(self, call_id: str, problem: str) -> bool:
        if not self._outage.has_been or json.loads(problem).get("code") != "interrupted":
            return False
        self.tally.interrupted += 1
        self._now.interrupted.add(call_id)
        return True

    def _sent(self, method: str, url: str, call_id: str, **content: Any) -> httpx.Response:
        self._now.calls += 1
        headers = {"Idempotency-Key": call_id, **content.pop("headers", {})}
        try:
            return self._http.request(method, url, headers=headers, **content)
        except httpx.TransportError:
            if not self._outage.has_been:
                raise
            self._outage.is_over.wait()
            self.tally.repeated += 1
            return self._http.request(method, url, headers=headers, **content)

    def _tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = _ok(self._ask("POST", f"{self._now.place}/tools/{name}", json=arguments)).json()
        self.tally.runs += name == "run_python"
        return answer

    def _file(self, path: str) -> bytes:
        return _ok(self._ask("GET", f"{self._now.place}/files/{path}")).content

    def _put(self, path: str, content: bytes) -> None:
        _ok(self._ask("PUT", f"{self._now.place}/files/{path}", content=content))

    # What there is to do

    def _run(self) -> None:
        kind = self._random.choice(list(RUNS))
        self._run_of("print" if kind == "endless" and self._random.random() < 0.9 else kind)

    def _print(self) -> None:
        self._run_of("print")

    def _run_of(self, kind: str) -> None:
        name, (code, status) = str(self._next()), RUNS[kind]
        seconds = {"timeout_seconds": 1} if kind == "endless" else {}
        answer = self._tool("run_python", code=code, arguments=[name], **seconds)
        _same(kind, (answer["status"], answer["stdout"]["text"]), (status, f"{name}\n"))

    def _run_twice(self) -> None:
        """By one id."""
        call_id, body = f"twice-{self._next()}", {"code": "import time; print(time.time_ns())"}
        url = f"{self._now.place}/tools/run_python"
        first = self._sent("POST", url, call_id, json=body)
        second = self._sent("POST", url, call_id, json=body)
        _same("the same call again", second.content, first.content)
        if self._was_interrupted(call_id, first):
            return
        _same("run twice", _ok(first).json()["stdout"]["text"].rstrip().isdigit(), True)
        self._now.done.add(call_id)
        self.tally.runs += 1

    def _run_streamed(self) -> None:
        call_id, name = f"streamed-{self._next()}", str(self._number)
        url, body = f"{self._now.place}/tools/run_python", {"code": f"{_BUSY}print({name})"}
        answer = _ok(self._sent("POST", url, call_id, json=body, headers={"Accept": "text/event-stream"}))
        *events, (kind, data) = (
            part.split("\ndata: ", 1) for part in answer.text.replace("\r", "").strip().split("\n\n")
        )
        if kind == "event: problem" and self._tells_of_the_kill(call_id, data):
            return
        _same("last event", kind, "event: result")
        _same("answer of the stream", json.loads(data)["stdout"]["text"], f"{name}\n")
        _same("output of the stream", "".join(json.loads(data)["text"] for _, data in events), f"{name}\n")
        self._now.done.add(call_id)
        self.tally.runs += 1

    def _run_over_mcp(self) -> None:
        name = str(self._next())
        request = {
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {
                "name": "run_python", "arguments": {"code": RUNS["print"][0], "arguments": [name]}, "_meta": _ABOUT,
            },
        }  # fmt: skip
        headers = {
            "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": _MCP_VERSION, "Mcp-Method": "tools/call",
            "Mcp-Name": "run_python",
        }  # fmt: skip
        answer = _ok(self._ask("POST", f"/mcp?workspace={self._now.workspace}", json=request, headers=headers))
        text = answer.text
        if answer.headers["content-type"].startswith("text/event-stream"):
            text = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")][-1]
        _same("over MCP", json.loads(text)["result"]["structuredContent"]["stdout"]["text"], f"{name}\n")
        self.tally.runs += 1

    def _tables(self) -> None:
        """A result becomes a CSV file and a workbook; each value in them is the source's."""
        first, count = self._random.randrange(10**17, 10**18), self._random.randrange(40, 400)
        rows = [
            [str(first + n), self._random.choice(("007", "=1+1", "한글", "a,b\n\"c\"")), f"{n / 7:.6f}", "true"]
            for n in range(count)
        ]  # fmt: skip
        text = ",".join(
            f'{{"id": {row[0]}, "text": {json.dumps(row[1])}, "ratio": {row[2]}, "ok": true}}' for row in rows
        )
        body = f'{{"tool": "list_rows", "content": [{text}]}}'.encode()
        headers = {"Content-Type": "application/json"}
        spill = _ok(self._ask("POST", f"{self._now.place}/spills", content=body, headers=headers)).json()
        source, name = spill["path"], f"t{self._next()}"
        _same("rows of the result", spill["rows"], count)
        built = self._tool("build_csv", source=source, output=f"{name}.csv", sort_by="id", descending=True)
        _same("rows of the CSV file", built["rows_written"], count)
        header, *cells = csv.reader(StringIO(self._file(f"{name}.csv").decode("utf-8-sig"), newline=""))
        _same("header", header, ["id", "text", "ratio", "ok"])
        _same("cells of the CSV file", cells, rows[::-1])
        self._tool("build_excel", source=source, output=f"{name}.xlsx")
        sheet = python_calamine.load_workbook(BytesIO(self._file(f"{name}.xlsx"))).get_sheet_by_index(0).to_python()
        _same("ids of the workbook", [row[0] for row in sheet[1:]], [row[0] for row in rows])
        _same("texts of the workbook", [row[1] for row in sheet[1:]], [row[1] for row in rows])
        part = self._tool("extract_json_path", path=source, expression="$[3].id")
        _same("part of the result", part["text"].strip(), rows[3][0])
        found = self._tool("search_output", path=source, pattern=rows[5][0], literal=True)
        _same("lines found", found["total_matches"], 1)

    def _document(self) -> None:
        """A script builds a workbook of a file, which is attached and downloaded."""
        name = f"d{self._next()}"
        self._put(f"{name}.json", json.dumps([[str(n), name] for n in range(50)]).encode())
        code = (
            "import json, openpyxl\nbook = openpyxl.Workbook()\n"
            f"for row in json.load(open('{name}.json')): book.active.append(row)\nbook.save('{name}.xlsx')"
        )
        answer = self._tool("run_python", code=code)
        _same("document", (answer["status"], [one["ok"] for one in answer["documents"]]), ("succeeded", [True]))
        url = self._tool("attach_file", path=f"{name}.xlsx")["url"]
        content = _ok(self._ask("GET", url)).content
        _same("what was attached", content, self._file(f"{name}.xlsx"))
        sheet = python_calamine.load_workbook(BytesIO(content)).get_sheet_by_index(0).to_python()
        _same("rows of the document", sheet, [[str(n), name] for n in range(50)])
        self._now.kept[url] = content

    def _files(self) -> None:
        path, content = f"n/{self._number % 5}.txt", self._random.randbytes(self._random.randrange(1, 40_000))
        self._put(path, content)
        _same("file", self._file(path), content)
        self._now.kept[f"{self._now.place}/files/{path}"] = content
        self._tool("write_file", path="script.py", content="print(1)")
        self._tool("edit_file", path="script.py", old_text="1", new_text="2")
        _same("edited", self._tool("read_file", path="script.py")["text"], "print(2)")
        names = {file["path"] for file in self._tool("list_files")["files"]}
        if not {path, "script.py"} <= names:
            raise Wrong(f"files are not listed: {names}")


_KINDS: dict[str, tuple[int, Callable[[Client], None]]] = {
    "print": (50, Client._print),
    "run of any kind": (20, Client._run),
    "run twice by one id": (4, Client._run_twice),
    "streamed run": (6, Client._run_streamed),
    "run over MCP": (6, Client._run_over_mcp),
    "tables": (4, Client._tables),
    "document": (4, Client._document),
    "files": (6, Client._files),
}
"""How often each is done, of a hundred times, and how."""


def _ok(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise Wrong(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:300]}")
    return answer


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Wrong(f"{what}: {str(found)[:200]} in the place of {str(expected)[:200]}")
