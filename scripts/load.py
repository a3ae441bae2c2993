"""A mixed load of several tenants on one service, which is killed in the middle; looks for what is lost, unfair, or left over.

    python scripts/load.py [--data-dir DIR] [--seconds S] [--clients N,N,…]

Tenants have different numbers of clients, and yet equal shares of the runs. In the half of the time the service is killed as
by a loss of power, and started again: each call whose answer was lost is sent again with its id. What the service and its
launchers hold (memory, descriptors, threads, processes, mounts, control groups) is compared after the first tenth of each of its
two lives and at the end of it. Finally every call is looked for in the records, and every kept file is compared.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from held import control_groups, grown, held, parents_of_all, processes_below
from load_clients import Client, Outage

from sandbox.database import Database
from sandbox.keys import Keys
from sandbox.processes import identity_of, lives

_START_SECONDS = 60
_ENDED_SECONDS = 10
_UNFAIR = 0.2


def main() -> int:
    """Load a service; the exit status says whether all went as it has to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(".spillbox"), help="where the guest root is")
    parser.add_argument("--seconds", type=float, default=3600, help="how long all of it takes, the looks aside")
    parser.add_argument("--clients", default="7,3,3,3", help="clients of each tenant")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.clients.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        (folder / "guest-root").symlink_to((arguments.data_dir / "guest-root").resolve())
        faults = Load(folder, counts).run(arguments.seconds)
    for fault in faults[:20]:
        print(f"wrong: {fault}")
    return 1 if faults else 0


class Load:
    """Clients of several tenants, and the service that they ask, through both of its lives."""

    def __init__(self, folder: Path, counts: Sequence[int]) -> None:
        """``counts``: how many clients each tenant has."""
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        url = f"http://127.0.0.1:{self._port}"
        self._outage = Outage()
        self._tenants: dict[str, list[Client]] = {}
        database = Database.in_folder(folder)
        for number, count in enumerate(counts):
            tenant = f"tenant-{number}"
            key = Keys(database).create(tenant)[1]
            self._tenants[tenant] = [Client(f"{tenant}-{n}", url, key, self._outage) for n in range(count)]
        database.close()
        self._clients = [client for clients in self._tenants.values() for client in clients]
        self.faults: list[str] = []

    def run(self, seconds: float) -> list[str]:
        """All of it; gives what went wrong."""
        try:
            self._start()
            self._live(seconds / 2)
            with self._working():
                time.sleep(seconds / 40)
                self._kill()
                self._start()
                self._outage.is_over.set()
                time.sleep(seconds / 40)
            self._outage.has_been = False  # what it cut was sent again by now
            self._live(seconds / 2)
            self._audit()
        finally:
            for client in self._clients:
                client.close()
            self._service.terminate()
            self._service.wait()
        self._tell()
        return self.faults

    def _live(self, seconds: float) -> None:
        """A time without a fault, in which nothing may grow."""
        with self._working():
            time.sleep(seconds / 10)
        before = held(self._service.pid)
        with self._working():
            time.sleep(seconds * 9 / 10)
        after = held(self._service.pid)
        print(f"held after a tenth: {json.dumps(before)}\nheld at the end:    {json.dumps(after)}", flush=True)
        self.faults += [f"grown: {what}" for what in grown(before, after)]

    @contextmanager
    def _working(self) -> Iterator[None]:
        """All clients ask, for as long as the ``with``."""
        is_over = threading.Event()
        threads = [threading.Thread(target=client.work, args=(is_over.is_set,)) for client in self._clients]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._outage.is_over.set()
            is_over.set()
            for thread in threads:
                thread.join()

    def _start(self) -> None:
        """The service, once it is ready."""
        started = time.monotonic()
        log = self._folder / "log.txt"
        with log.open("ab") as out:
            self._service = subprocess.Popen(
                [sys.executable, "-m", "api", "serve", "--data-dir", str(self._folder), "--port", str(self._port)],
                env={"PATH": os.environ["PATH"]}, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL, stderr=out,
            )  # fmt: skip
        while time.monotonic() - started < _START_SECONDS and self._service.poll() is None:
            with suppress(httpx.TransportError):
                if self._clients[0].sees_ready():
                    print(f"ready after {time.monotonic() - started:.1f} s", flush=True)
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the service did not start: {log.read_text()[-2000:]}")

    def _kill(self) -> None:
        """As a loss of power does, but that of its processes none may be left."""
        killed = self._service.pid
        below = {identity_of(pid) for pid in processes_below(killed, parents_of_all())} - {""}
        self._outage.begin()
        self._service.send_signal(signal.SIGKILL)
        self._service.wait()
        ends_at = time.monotonic() + _ENDED_SECONDS
        while (left := [one for one in below if lives(one)]) and time.monotonic() < ends_at:
            time.sleep(0.05)
        print(f"killed with {len(below)} processes; {len(left)} of them are left", flush=True)
        self.faults += [f"process {one} outlived the service" for one in left]
        self._killed_pid = killed

    def _audit(self) -> None:
        for client in self._clients:
            client.audit()
        self.faults += [f"control group {group} is left" for group in control_groups(self._killed_pid)]

    def _tell(self) -> None:
        self.faults += [fault for client in self._clients for fault in client.tally.faults]
        runs = {tenant: sum(client.tally.runs for client in clients) for tenant, clients in self._tenants.items()}
        kinds = sum((client.tally.calls for client in self._clients), Counter())
        repeated = sum(client.tally.repeated for client in self._clients)
        interrupted = sum(client.tally.interrupted for client in self._clients)
        conversations = sum(len(client.conversations) for client in self._clients)
        kept = sum(len(one.kept) for client in self._clients for one in client.conversations)
        print(f"{sum(runs.values()):,} runs in {conversations:,} conversations; work done: {json.dumps(kinds)}")
        print(f"{repeated} calls were cut by the kill and sent again, {interrupted} of them told as interrupted")
        print(f"{kept:,} kept files and attachments compared; {len(self.faults)} faults")
        shares = ", ".join(f"{count:,} of {len(self._tenants[tenant])} clients" for tenant, count in runs.items())
        print(f"runs of each tenant: {shares}")
        self.faults += unfair(runs)


def unfair(runs: Mapping[str, int]) -> list[str]:
    """Tenants whose share is not what it would be if all had the same."""
    fair = sum(runs.values()) / len(runs)
    return [
        f"{tenant} had {count / fair:.2f} of its share" for tenant, count in runs.items() if abs(count / fair - 1) > _UNFAIR
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
