"""One container with a worker in it: made, spoken to, removed. The engine is reached by its API only, by the `docker` SDK."""

import hmac
import json
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException
from docker.types import Ulimit
from docker.utils import kwargs_from_env
from pydantic import Field

from sandbox import guest_root
from sandbox.errors import JailFailed, JailLost
from sandbox.guest import frames
from sandbox.job import MIB, Limits, Value
from sandbox.processes import has_ended, identity_of, pid_namespace
from sandbox.runtimes import policy, seccomp
from sandbox.workspace import GUEST_PATH, READ_ONLY_FOLDERS

_log = logging.getLogger(__name__)

SERVICE_LABEL = "spillbox.service"
"""Of each container: the process that it belongs to, as `sandbox.processes` tells it, and its pid namespace."""

START_SECONDS = 60
_END_SECONDS = 5
_SMALL_MIB = 8
_WORKER_BYTES = 24 * MIB
"""What process 1 takes before it has imported a library, with what the kernel counts for it besides."""
_GVISOR_BYTES = 256 * MIB
_OWN_PROCESSES = 1
_USUAL_SOCKET = "unix:///var/run/docker.sock"
_HEAD = struct.Struct(">BxxxL")  # of the engine's stream: which output, and how many bytes
_STDERR = 2
_MAX_SAID_BYTES = 500
_SEAL_BYTES = 16
_HIDDEN = ("/dev/pts", "/dev/mqueue")
"""What the engine mounts by itself: terminals, which the host has 4,096 of for all, and queues that no memory limit counts."""
_NOT_IN_GVISOR = ("msgqueue", "rtprio")
"""Limits that its kernel does not let be set; it has neither message queues nor real-time priorities."""
_READ_BYTES = 256 * 1024
_OF_ANOTHER = "Something in the container spoke in the name of its first process."


@dataclass(frozen=True)
class ContainerWalls:
    """What containers are made with, besides limits and the workspace."""

    image: str
    runtime: str | None
    """An OCI runtime that the engine knows; its own if None."""
    is_gvisor: bool
    """Whether another kernel runs inside, gVisor's: the host's does not count there, and some things are not as with Linux."""
    cpus: float
    environment: dict[str, str] = field(default_factory=lambda: dict(policy.ENVIRONMENT))
    seccomp: bytes = field(default_factory=seccomp.program)
    profile: str = field(default_factory=lambda: json.dumps(seccomp.container_profile()))
    user: int | None = None
    """Instead of an unprivileged one of the container's own."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the host's configuration: for controls, which lack one wall."""


NO_FILTER: dict[str, Any] = {"seccomp": seccomp.NO_FILTER, "profile": "unconfined"}
"""Walls without seccomp, for controls."""


class _Facts(Value):
    """What process 1 says when it is up."""

    modules: frozenset[str]
    bytes: int = Field(ge=0)
    counts: bool


class UidTaken(Exception):
    """Another container has that uid."""


class Engine:
    """The engine of containers, as far as runs need it. Methods raise `JailFailed` with what to do."""

    def __init__(self, url: str | None = None) -> None:
        """``url``: of its API, as ``DOCKER_HOST`` has it; that of the environment if None. Nothing is asked yet."""
        self._url = url
        self._api: Any = None

    @property
    def api(self) -> Any:
        """The SDK's low-level client; connects at the first use."""
        if self._api is None:
            url = _USUAL_SOCKET
            try:
                given = {"base_url": self._url} if self._url else kwargs_from_env()
                url = given.get("base_url", url)
                _require_answer(url)
                self._api = docker.APIClient(version="auto", timeout=START_SECONDS, num_pools=64, **given)
            except (DockerException, OSError) as fault:
                raise JailFailed(
                    f"Docker can't be reached at {url} ({_said(fault)}). Start its daemon, let the service's user into its group, "
                    "or name another place in DOCKER_HOST."
                ) from None
        return self._api

    def require(self, runtime: str | None) -> None:
        """Raises `JailFailed` if the engine does not answer, or does not know the OCI runtime."""
        known = self.ask("info")["Runtimes"]
        if runtime is not None and runtime not in known:
            raise JailFailed(
                f"Docker does not know the runtime {runtime!a}; it knows {', '.join(sorted(known))}. Install it and name it under "
                "`runtimes` in /etc/docker/daemon.json, then restart Docker: there is no falling back on a weaker one."
            )

    @property
    def is_rootless(self) -> bool:
        """Whether the engine itself has no privilege on the host."""
        return any("rootless" in option for option in self.ask("info").get("SecurityOptions", ()))

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call the API."""
        try:
            return getattr(self.api, method)(*arguments, **named)
        except (DockerException, OSError) as fault:
            raise JailFailed(f"Docker refused {method}: {_said(fault)}") from None

    def create(self, name: str, *arguments: Any, **named: Any) -> str:
        """The id of a new container; raises `UidTaken` if there is one of that name."""
        try:
            made: dict[str, str] = self.api.create_container(*arguments, name=name, **named)
        except (DockerException, OSError) as fault:
            if isinstance(fault, APIError) and fault.status_code == 409:
                raise UidTaken(name) from None
            raise JailFailed(f"Docker refused a container: {_said(fault)}") from None
        return made["Id"]

    def remove(self, container_id: str) -> None:
        """Kill and remove a container, if it is still there."""
        try:
            self.api.remove_container(container_id, force=True, v=True)
        except APIError as fault:
            if fault.status_code not in (404, 409):  # 409: it is being removed already
                raise JailFailed(f"Docker could not remove a container: {_said(fault)}") from None
        except (DockerException, OSError) as fault:
            raise JailFailed(f"Docker could not remove a container: {_said(fault)}") from None

    def reap(self, lives: Any) -> int:
        """Remove containers of services that are no more; gives how many. ``lives`` says so of a label's value."""
        found = self.ask("containers", all=True, filters={"label": SERVICE_LABEL})
        removed = 0
        for one in found:
            if not lives(one["Labels"][SERVICE_LABEL]):
                try:
                    self.remove(one["Id"])
                    removed += 1
                except JailFailed as fault:
                    _log.warning("a container of a service that is no more stays: %s", fault)
        return removed

    def close(self) -> None:
        """Let go of the connections."""
        if self._api is not None:
            self._api.close()


def service_label() -> str:
    """Of this process."""
    return f"{pid_namespace()}/{identity_of(os.getpid())}"


def label_lives(label: str) -> bool:
    """Whether the service of a label still runs, as far as this process can see: of another pid namespace nothing is known."""
    namespace, _, identity = label.rpartition("/")
    return not has_ended(identity, namespace)


class Container:
    """A container that is up: process 1 waits for what to do. Used by one thread at a time."""

    def __init__(
        self, engine: Engine, walls: ContainerWalls, limits: Limits, *, uid: int, read_only: dict[str, Path]
    ) -> None:
        """Start one; raises `JailFailed`, or `UidTaken`. ``read_only``: the folders of the host by their names in the workspace."""
        self._engine = engine
        self._walls = walls
        self.limits = limits
        self.uid = uid
        self._owner = uid if walls.user is None else walls.user
        self._said = bytearray()
        self._read = bytearray()
        self._unsent = bytearray()
        self._left_of_part = 0
        self._part_is_said = False
        self._libraries_bytes = 0
        self._memory_bytes = limits.memory_bytes + _WORKER_BYTES
        if walls.is_gvisor:
            # A second wall: what a run uses is looked at inside. The other kernel has files in memory of its own, and can't be
            # given more later.
            self._memory_bytes += _GVISOR_BYTES + limits.workspace_bytes + 2 * limits.tmp_bytes
        self.modules: frozenset[str] = frozenset()
        self._seal = b""
        host = self._host_config(read_only)
        self.id: str = engine.create(
            f"spillbox-{uid}", walls.image, self._command(), user=f"{self._owner}:{self._owner}", environment=walls.environment,
            hostname=None if "uts_mode" in walls.changes else policy.HOSTNAME, working_dir="/", stdin_open=True,
            labels={SERVICE_LABEL: service_label()}, host_config=host, entrypoint=[],
        )  # fmt: skip
        self._socket: socket.socket | None = None
        try:
            self._begin()
        except BaseException:
            self.remove()
            raise

    @staticmethod
    def _command() -> list[str]:
        return [guest_root.PYTHON, "-S", f"{guest_root.PROGRAMS}/worker.pyc"]

    def _host_config(self, read_only: dict[str, Path]) -> Any:
        limits, walls = self.limits, self._walls
        binds = {str(folder): {"bind": f"{GUEST_PATH}/{name}", "mode": "ro"} for name, folder in read_only.items()}
        ours = f"uid={self._owner},gid={self._owner},nosuid,nodev"
        tmpfs = {
            mount.place: f"{mount.options},{ours},{'exec' if mount.executable else 'noexec'}"
            for mount in policy.tmpfs_mounts(limits)
        }
        tmpfs |= dict.fromkeys(_HIDDEN, "ro,size=4096,nr_inodes=1,mode=0555")
        fields: dict[str, Any] = {
            "network_mode": "none", "read_only": True, "cap_drop": ["ALL"], "ipc_mode": "private", "cgroupns": None,
            "security_opt": ["no-new-privileges", f"seccomp={walls.profile}"], "tmpfs": tmpfs, "binds": binds,
            "mem_limit": self._memory_bytes, "memswap_limit": self._memory_bytes,
            "nano_cpus": int(walls.cpus * 1e9), "log_config": {"type": "none"}, "init": False,
            "ulimits": [Ulimit(name="nofile", soft=4096, hard=4096), Ulimit(name="core", soft=0, hard=0)],
        }  # fmt: skip
        if not walls.is_gvisor:
            fields |= {"pids_limit": limits.processes + _OWN_PROCESSES, "mem_swappiness": 0}
        if walls.runtime is not None:
            fields["runtime"] = walls.runtime
        for name, value in walls.changes.items():
            fields[name] = {**fields[name], **value} if isinstance(value, dict) else value
        fields = {name: value for name, value in fields.items() if value is not None}
        return self._engine.api.create_host_config(**fields)

    def _begin(self) -> None:
        channel = self._engine.ask(
            "attach_socket", self.id, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "logs": 0}
        )
        self._socket = getattr(channel, "_sock", channel)
        assert self._socket is not None  # noqa: S101  for the type checker
        self._channel = channel  # who drops it closes the socket
        self._engine.ask("start", self.id)
        self._socket.settimeout(START_SECONDS)
        self._take_up()
        rlimits = policy.resource_limits(
            self.limits, with_cgroup=not self._walls.is_gvisor, own_processes=_OWN_PROCESSES
        )
        if self._walls.is_gvisor:
            rlimits = {name: value for name, value in rlimits.items() if name not in _NOT_IN_GVISOR}
        setup = {
            "rlimits": rlimits,
            "read_only": READ_ONLY_FOLDERS,
            "files": self.limits.workspace_files,
            "memory_bytes": self.limits.memory_bytes,
        }
        self.send(frames.SETUP, json.dumps(setup).encode())
        self.send(frames.FILTER, self._walls.seccomp)

    def preload(self, kind: str) -> None:
        """Have libraries imported, if they are not; raises `JailLost`."""
        if not self._libraries_bytes:
            self.send(frames.PRELOAD, kind.encode())
            self._libraries_bytes = self._take_up()

    def _take_up(self) -> int:
        """Gives the bytes of process 1."""
        try:
            facts = _Facts.model_validate_json(self.expect(frames.UP, within_seconds=START_SECONDS))
        except ValueError:
            raise off_protocol() from None
        except JailLost as fault:
            raise JailLost(f"{fault} {self.what_it_said()}".rstrip()) from None
        self.modules = facts.modules
        if not self._walls.is_gvisor and not facts.counts:
            raise JailFailed(
                "The container has no control groups inside, so its limits can't be told. Let Docker mount them."
            )
        return facts.bytes

    def make_room(self, filled_bytes: int) -> None:
        """Let a script have all of its memory, besides what process 1 and the files that were filled in take."""
        wanted = self.limits.memory_bytes + max(_WORKER_BYTES, self._libraries_bytes + _SMALL_MIB * MIB) + filled_bytes
        if not self._walls.is_gvisor and abs(wanted - self._memory_bytes) > _SMALL_MIB * MIB:
            self._engine.ask("update_container", self.id, mem_limit=wanted, memswap_limit=wanted)
            self._memory_bytes = wanted

    # The stream

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame, which leaves with the next `receive` if it is short; raises `JailLost`."""
        self._unsent += frames.encode(kind, payload)
        if len(self._unsent) >= frames.FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        assert self._socket is not None  # noqa: S101  for the type checker
        try:
            self._socket.sendall(self._unsent)
        except OSError as fault:
            raise JailLost(f"The container has ended ({fault.strerror}).") from None
        self._unsent.clear()

    def expect(self, *kinds: int, within_seconds: float = START_SECONDS) -> bytes:
        """The payload of the next frame, which must be of one of these kinds; raises `JailLost`."""
        kind, payload = self.receive(within_seconds)
        if kind not in kinds:
            raise off_protocol()
        return payload

    def receive(self, within_seconds: float) -> tuple[int, bytes]:
        """The next frame. Raises TimeoutError, and `JailLost` if the container has ended or says what no worker says."""
        self._flush()
        deadline = time.monotonic() + within_seconds
        try:
            while len(self._read) < frames.HEAD_BYTES:
                self._read_more(deadline)
            kind, length = frames.decode_head(bytes(self._read[: frames.HEAD_BYTES]))
            whole = frames.HEAD_BYTES + length
            while len(self._read) < whole:
                self._read_more(deadline)
        except ValueError:
            raise off_protocol() from None
        payload = bytes(self._read[frames.HEAD_BYTES : whole])
        del self._read[:whole]
        if not hmac.compare_digest(payload[: len(self._seal)], self._seal):
            raise JailLost(_OF_ANOTHER)
        return kind, payload[len(self._seal) :]

    def seal(self) -> None:
        """From now on take only frames with a secret that process 1 is told now."""
        self._seal = secrets.token_bytes(_SEAL_BYTES)
        self.send(frames.SEAL, self._seal)

    def unseal(self) -> None:
        """Nothing of the guest lives any more, nor is left."""
        self._seal = b""

    def _read_more(self, deadline: float) -> None:
        """Add what comes next, without the engine's heads of parts."""
        if not self._left_of_part:
            which, self._left_of_part = _HEAD.unpack(self._exactly(_HEAD.size, deadline))
            self._part_is_said = which == _STDERR
        data = self._some(min(self._left_of_part, _READ_BYTES), deadline)
        self._left_of_part -= len(data)
        if self._part_is_said:
            self._said += data
            del self._said[:-_MAX_SAID_BYTES]
            if self._seal and self._walls.is_gvisor:  # its kernel lets a guest write there
                raise JailLost(_OF_ANOTHER)
        else:
            self._read += data

    def _exactly(self, count: int, deadline: float) -> bytes:
        data = self._some(count, deadline)
        while len(data) < count:  # what has begun to come is waited for, or its beginning would be lost
            data += self._some(count - len(data), time.monotonic() + START_SECONDS)
        return data

    def _some(self, count: int, deadline: float) -> bytes:
        assert self._socket is not None  # noqa: S101  for the type checker
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(count)
        except TimeoutError:
            raise
        except OSError as fault:
            raise JailLost(f"The container has ended ({fault.strerror}).") from None
        if not data:
            raise JailLost("The container has ended.")
        return data

    def what_it_said(self) -> str:
        """What process 1 wrote on stderr; with gVisor a guest may have written there too, which ends its run."""
        said = bytes(self._said).decode(errors="replace").strip()
        return f"It said: {said}" if said else ""

    # The end

    def end_out_of_memory(self) -> bool:
        """Kill what is left; gives whether the kernel had ended it for its memory."""
        self._hang_up()  # with output that nobody reads, the engine would not come to the container's end
        self.kill()
        with suppress(JailFailed):
            self._engine.ask("wait", self.id, timeout=_END_SECONDS)
            return bool(self._engine.ask("inspect_container", self.id)["State"]["OOMKilled"])
        return False

    def interrupt(self) -> None:
        """Have `receive` and `send` fail, from any thread, without waiting for the engine; it still has to be killed."""
        if (channel := self._socket) is not None:
            with suppress(OSError):  # it was closed meanwhile
                channel.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill everything in it; waits for the engine."""
        with suppress(APIError, DockerException, OSError):
            self._engine.api.kill(self.id)

    def remove(self) -> None:
        """Kill and remove it; raises `JailFailed`."""
        self._hang_up()
        self._engine.remove(self.id)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._channel.close()
            self._socket.close()
            self._socket = None


def _require_answer(url: str) -> None:
    """Raises OSError if nobody listens at a socket of this machine; the SDK would leave its own socket open then."""
    scheme, _, path = url.partition("unix://")
    if path and scheme in ("", "http+"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(f"/{path.lstrip('/')}")


def _said(fault: Exception) -> str:
    text = getattr(fault, "explanation", None) or str(fault)
    return str(text)[:500].rstrip(".")


def off_protocol() -> JailLost:
    """What to raise where process 1 says what no worker says."""
    return JailLost("The container's first process did not keep to its protocol.")


def parts_of(file: int, size: int) -> Iterator[bytes]:
    """The content of an open file, in parts that fit into frames."""
    left = size
    while left and (part := os.read(file, min(left, frames.MAX_FRAME_BYTES))):
        left -= len(part)
        yield part
