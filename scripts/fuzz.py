"""Sends the service what its OpenAPI document allows and what it forbids, and looks for answers that it does not allow.

    python scripts/fuzz.py [--data-dir DIR] [--seconds N | --cases N | --control]

By schemathesis, out of a venv of its own (`scripts/others.sh`), with all of its checks (`tests/fuzz/schemathesis.toml`). Two
services are tried one after the other, one with a tenant's key and one without any, each with a data folder that is thrown away.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
HERE = PROJECT / "tests/fuzz"
SCHEMATHESIS = HERE / ".venv/bin/schemathesis"
WORKSPACE = "w"  # the names here are those of schemathesis.toml
PLANTED = {"ST101", "ST108"}  # a server error, and a response that violates its schema
_START_SECONDS = 60
_WITHOUT_KEYS = ["--exclude-checks=ignored_auth,missing_required_header", "--generation-with-security-parameters=false"]
"""A service without any key takes every header Authorization, and none, though its document has to name it."""


def main() -> int:
    """Fuzz; the exit status says whether everything was tried and nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(".spillbox"), help="where the guest root is")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--seconds", type=int, default=600, help="how long, for both services together")
    form.add_argument("--cases", type=int, help="instead: how many for an operation and phase, the same ones each time")
    form.add_argument("--control", action="store_true", help="instead: show that two planted mistakes are found")
    arguments = parser.parse_args()
    if not SCHEMATHESIS.exists():
        print("schemathesis is not here: `sh scripts/others.sh` installs it", file=sys.stderr)
        return 1
    root = arguments.data_dir / "guest-root"
    if arguments.control:
        found = _try(
            root, ["--max-examples=1", "--include-path-regex=^/planted/"], has_key=True, main=HERE / "planted.py"
        )
        missed = PLANTED - codes_in(found)
        print(f"planted mistakes that were not found: {', '.join(sorted(missed)) or 'none'}")
        return 1 if missed else 0
    if arguments.cases is None:
        bound = [f"--max-time={max(1, arguments.seconds // 2)}", "--generation-database=none"]
    else:
        bound = [f"--max-examples={arguments.cases}", "--generation-deterministic"]
    faults = []
    for has_key in (True, False):
        name = "with a key" if has_key else "without keys"
        report = _try(root, bound if has_key else [*bound, *_WITHOUT_KEYS], has_key=has_key)
        print(f"{name}: {report.get('test_cases', {}).get('generated', 0):,} requests")
        faults += [f"{name}: {fault}" for fault in faults_of(report)]
    for fault in faults:
        print(f"wrong: {fault}")
    return 1 if faults else 0


def faults_of(report: dict[str, Any]) -> list[str]:
    """What is wrong by a report of schemathesis, in words; a report of nothing is."""
    operations, cases = report.get("operations", {}), report.get("test_cases", {})
    tested, selected = operations.get("tested", 0), operations.get("selected", 0)
    faults = [f"{one['title']} ({', '.join(one['operations'])})" for one in report.get("failures", [])]
    faults += [f"schemathesis could not go on: {str(one)[:500]}" for one in report.get("errors", [])]
    if not tested or tested != selected:
        faults.append(f"{tested} of {selected} operations were tried")
    if cases.get("generated", 0) - cases.get("without_checks", 0) < selected:
        faults.append("there were fewer requests than operations")
    if not faults and report.get("exit_code") != 0:
        faults.append("schemathesis failed, and its report does not say why")
    return faults


def codes_in(report: dict[str, Any]) -> set[str]:
    """Of what was found, as `schemathesis explain` takes them."""
    return {str(one["code"]) for one in report.get("failures", [])}


def _try(root: Path, options: list[str], *, has_key: bool, main: Path | None = None) -> dict[str, Any]:
    """One service, and the report of what was sent to it; an empty one where schemathesis wrote none."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)  # guests have users of their own
        (folder / "guest-root").symlink_to(root.resolve())
        headers = {"Authorization": f"Bearer {_new_key(folder)}"} if has_key else {}
        with _serving(folder, main) as url:
            ids = _seed(f"{url}/v1/workspaces/{WORKSPACE}", headers)
            for name, values in ids.items():
                (folder / f"{name}.txt").write_text("".join(f"{json.dumps(value)}\n" for value in values))
            shutil.copy(HERE / "schemathesis.toml", folder)
            report = folder / "report.json"
            subprocess.run(
                [
                    SCHEMATHESIS, "--config-file", folder / "schemathesis.toml", "run", f"{url}/openapi.json", "--no-color",
                    "--continue-on-failure", "--report=json", f"--report-json-path={report}", *options,
                    *(f"--header={name}: {value}" for name, value in headers.items()),
                ],
                cwd=folder, check=False,
            )  # fmt: skip
        try:
            found: dict[str, Any] = json.loads(report.read_text())
        except FileNotFoundError:
            return {}
        return found


def _new_key(folder: Path) -> str:
    command = [sys.executable, "-m", "api", "keys", "create", "--approves", "--data-dir", str(folder), "fuzz"]
    made = subprocess.run(command, cwd=PROJECT, env=_environment(), stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.split()[-1]


@contextmanager
def _serving(folder: Path, main: Path | None) -> Iterator[str]:
    """The service, or another main program in its place, on a free port; gives its base URL."""
    program = ["-m", "api"] if main is None else [str(main)]
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *program, "serve", "--port", "0", "--data-dir", str(folder)],
            cwd=PROJECT, env={**_environment(), "PYTHONPATH": str(PROJECT)}, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_SECONDS
        while "Uvicorn running on " not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield log.read_text().partition("Uvicorn running on ")[2].split()[0]
        for line in [line for line in log.read_text().splitlines() if " ERROR " in line][:20]:
            print(f"log: {line}")
    finally:
        process.terminate()
        process.wait(timeout=_START_SECONDS)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SPILLBOX_")}


def _seed(place: str, headers: dict[str, str]) -> dict[str, list[str]]:
    """Put things into the workspace for requests to be about; gives the ids of those that choose their own."""

    def send(method: str, path: str, body: bytes, **more: str) -> Any:
        request = urllib.request.Request(f"{place}/{path}", body, {**headers, **more}, method=method)  # noqa: S310  ours
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return json.load(answer)

    def call(tool: str, arguments: dict[str, Any], **more: str) -> Any:
        return send("POST", f"tools/{tool}", json.dumps(arguments).encode(), **more)

    rows = [{"id": number, "name": f"row {number}", "price": number / 8} for number in range(300)]
    send("PUT", "files/rows.json", json.dumps(rows).encode())
    send("PUT", "files/script.py", b"import sys\nprint(sys.argv)\n")
    call("write_file", {"path": "text.txt", "content": "one\ntwo\nthree\n"}, **{"Idempotency-Key": "seeded"})
    call("build_csv", {"source": "rows.json", "output": "rows.csv"})
    call("build_excel", {"sheets": [{"source": "rows.json"}], "output": "rows.xlsx"})
    send("POST", "spills", json.dumps({"tool": "list_rows", "content": rows}).encode())
    attached = call("attach_file", {"path": "rows.csv"})
    shown = call("show_table", {"source": "rows.csv"})
    return {"attachments": [attached["id"]], "tables": [shown["id"], f"{shown['id']}.html"]}


if __name__ == "__main__":
    sys.exit(main())
