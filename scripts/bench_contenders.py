"""Who runs a script in the benchmark: a bare interpreter, the two runtimes by library and by HTTP, and Docker."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sandbox.guest_root import load
from sandbox.job import Execution, Status
from sandbox.runtimes import container_image
from sandbox.runtimes.container import Engine
from sandbox.tools.toolbox import RuntimeName, Toolbox

SCRIPTS = Path(__file__).parent / "bench"
WORKSPACE = "bench"
IMAGE = f"{container_image.IMAGE_NAME}:bench"
_START_SECONDS = 60
_KEPT_SECONDS = 3
"""A connection that was idle for longer may be closed by the service."""
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Contender(Protocol):
    """Runs a script by its name."""

    name: str

    def run(self, script: str) -> object:
        """All of it; this is what is measured."""

    def check(self, answer: object) -> None:
        """Raises RuntimeError if the run did not succeed."""


class Command:
    """A contender that is a command: its exit status says whether it succeeded."""

    def check(self, answer: object) -> None:
        assert isinstance(answer, subprocess.CompletedProcess)
        if answer.returncode:
            raise RuntimeError(f"{answer.args} failed: {answer.stderr[-500:]!r}")


def rows() -> list[dict[str, Any]]:
    """321 rows of six columns, the same at each call."""
    names = ("libpthread.so.0", "libcrypto.so.3", "00012", "MAR1", "한글")
    return [
        {
            "id": f"{n:05}", "name": names[n % 5], "count": n * 37 % 1000, "ratio": n / 7, "ok": n % 2 == 0, "note": "x" * (n % 40),
        }
        for n in range(321)
    ]  # fmt: skip


def lay_out(folder: Path) -> None:
    """Put the scripts and the tool result into a folder, as a workspace has them."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    (folder / "results" / "0001-rows.json").write_text(json.dumps(rows()))
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, folder / script.name)


class Bare(Command):
    """`python -I script.py`: no jail, no limits, the same interpreter and libraries."""

    name = "bare python"

    def __init__(self, folder: Path, guest_root: Path) -> None:
        self._folder = folder / "bare"
        lay_out(self._folder)
        venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        libraries = next((guest_root / "opt/venv/lib").glob("python*/site-packages"))
        own = next((venv / "lib").glob("python*/site-packages"))
        (own / "libraries.pth").write_text(f"{libraries.resolve()}\n")
        self._python = venv / "bin" / "python"

    def run(self, script: str) -> object:
        environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [self._python, "-I", script], cwd=self._folder, env=environment, check=False, capture_output=True
        )


class Docker(Command):
    """`docker run` of the image that our own containers have, with limits like ours."""

    name = "docker run"

    def __init__(self, folder: Path, oci_runtime: str | None = None) -> None:
        """``oci_runtime``: one that the daemon knows, its own if None."""
        self._folder = folder / "docker"
        self._runtime = [] if oci_runtime is None else ["--runtime", oci_runtime]
        lay_out(self._folder)
        self._folder.chmod(0o777)  # the image's user is nobody that this machine knows

    @staticmethod
    def is_there() -> bool:
        """Whether there is a daemon that answers."""
        return (
            shutil.which("docker") is not None
            and subprocess.run(["docker", "info"], capture_output=True).returncode == 0
        )

    @staticmethod
    def make_image(guest_root: Path) -> None:
        """Import the guest root as an image, unless it is there."""
        container_image.ensure(Engine(), IMAGE, load(guest_root.resolve()))

    def run(self, script: str) -> object:
        limits = ["--memory", "512m", "--memory-swap", "512m", "--pids-limit", "64", "--cap-drop", "ALL"]
        place = ["--volume", f"{self._folder}:/workspace", "--workdir", "/workspace", "--tmpfs", "/tmp"]  # noqa: S108
        walls = [*self._runtime, "--network", "none", "--read-only"]
        return subprocess.run(
            ["docker", "run", "--rm", *walls, *limits, *place, IMAGE, "/opt/venv/bin/python", script],
            check=False, capture_output=True,
        )  # fmt: skip


class Library:
    """The tool run_python, called in this process."""

    def __init__(self, name: str, box: Toolbox, loop: asyncio.Runner) -> None:
        self.name = f"{name}, library"
        self._box = box
        self._loop = loop
        lay_out(box.workspaces.open(WORKSPACE).files_folder)

    def run(self, script: str) -> object:
        return self._loop.run(self._box.call("run_python", WORKSPACE, {"path": script}))

    def check(self, answer: object) -> None:
        assert isinstance(answer, Execution)
        require_success(answer)


class Http:
    """The tool run_python of a running service, over one connection that is kept; a request is one write, as of any good client."""

    def __init__(self, name: str, port: int, *, workspace: str) -> None:
        self.name = name
        self._head = (
            f"POST /v1/workspaces/{workspace}/tools/run_python HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )
        self._port = port
        self._connect()

    def _connect(self) -> None:
        self._connection = socket.create_connection(("127.0.0.1", self._port), timeout=120)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used_at = time.monotonic()

    def run(self, script: str) -> bytes:
        return self.call({"path": script})

    def call(self, arguments: dict[str, Any]) -> bytes:
        """The whole answer to a call, head and body."""
        body = json.dumps(arguments)
        if time.monotonic() - self._used_at > _KEPT_SECONDS:
            self._connection.close()
            self._connect()
        self._connection.sendall(f"{self._head}{len(body)}\r\n\r\n{body}".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._received()
        top, _, rest = answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(top)
        while length and len(rest) < int(length[1]):
            rest += self._received()
        self._used_at = time.monotonic()
        return top + b"\r\n\r\n" + rest

    def _received(self) -> bytes:
        data = self._connection.recv(1 << 20)
        if not data:
            raise ConnectionError("the service closed the connection")
        return data

    def check(self, answer: object) -> None:
        assert isinstance(answer, bytes)
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the service said: {answer[:500]!r}")
        require_success(Execution.model_validate_json(body))


def require_success(execution: Execution) -> None:
    """Raises RuntimeError for a run that failed, or that made a broken document."""
    if execution.status is not Status.SUCCEEDED or not all(result.ok for result in execution.documents):
        raise RuntimeError(f"a run did not succeed: {execution}")


class Service(NamedTuple):
    """A running `spillbox serve`."""

    folder: Path
    port: int
    pid: int
    start_seconds: float
    """From the start of its process to the answer of a first run."""

    def client(self, workspace: str, name: str = "client") -> Http:
        """A client with a workspace of its own, in which the scripts and the tool result are."""
        lay_out(self.folder / "workspaces" / workspace / "files")
        return Http(name, self.port, workspace=workspace)


@contextmanager
def service(folder: Path, guest_root: Path, runtime: RuntimeName, **variables: str) -> Iterator[Service]:
    """A real service for as long as the ``with``; further settings by their variables."""
    folder.mkdir()
    (folder / "guest-root").symlink_to(guest_root.resolve())
    lay_out(folder / "workspaces" / WORKSPACE / "files")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"RUNTIME": runtime, "QUEUE_LENGTH": "256", **variables}
    docker = {name: value for name, value in os.environ.items() if name.startswith("DOCKER_")}
    environment = {
        "PATH": os.environ["PATH"],
        **docker,
        **{f"SPILLBOX_{name}": value for name, value in settings.items()},
    }
    started = time.perf_counter()
    log = folder / "log.txt"  # not a pipe: one that nobody reads would hold the service up when it is full
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "api", "serve", "--data-dir", str(folder), "--port", str(port)],
            env=environment, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL, stderr=out,
        )  # fmt: skip
    try:
        while True:
            with suppress(ConnectionError):
                first = Http("first", port, workspace=WORKSPACE)
                first.check(first.run("print.py"))
                break
            if process.poll() is not None or time.perf_counter() - started > _START_SECONDS:
                raise RuntimeError(f"the service did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)
        yield Service(folder, port, process.pid, time.perf_counter() - started)
    finally:
        process.terminate()
        process.wait()
