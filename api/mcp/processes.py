"""The process of a server that is spoken to over its standard streams: outside of walls or behind them, as it is configured."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import Process
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree

from api.mcp.settings import ServerSettings
from sandbox.errors import SpillboxError
from sandbox.job import MIB
from sandbox.runtimes.nsjail_config import Program
from sandbox.runtimes.programs import ENVIRONMENT, Programs

_GRACE_SECONDS = 2.0


@asynccontextmanager
async def running(server: ServerSettings, programs: Programs | None) -> AsyncIterator[Process]:
    """The server's process; whoever uses it calls `stop`. Raises OSError if it can't be started."""
    program = program_of(server)
    if program is None:
        yield await anyio.open_process(
            [server.command or "", *server.args], env=get_default_environment() | server.env, cwd=server.cwd,
            start_new_session=True,
        )  # fmt: skip
        return
    if programs is None:
        raise OSError("there is nothing here to make walls with")
    with ExitStack() as walls:
        try:
            start = walls.enter_context(programs.behind_walls(program))
        except SpillboxError as fault:
            raise OSError(str(fault)) from None
        process = await anyio.open_process(start.command, env={}, cwd="/", start_new_session=True, pass_fds=start.fds)
        start.begin(process.pid)
        yield process


def program_of(server: ServerSettings) -> Program | None:
    """What runs behind walls, if the settings say so."""
    walls = server.walls
    if walls is None or server.command is None:
        return None
    return Program(
        command=(server.command, *server.args), environment=ENVIRONMENT | server.env, folder=server.cwd or Path("/tmp"),  # noqa: S108  the jail's own
        read=walls.read, write=walls.write, memory_bytes=walls.memory_mb * MIB, processes=walls.processes,
    )  # fmt: skip


async def stop(process: Process) -> None:
    """Close its input, then end it and all that it started."""
    if process.stdin is not None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            await process.stdin.aclose()
    with anyio.move_on_after(_GRACE_SECONDS):
        await process.wait()
    if process.returncode is None:
        await terminate_posix_process_tree(process, _GRACE_SECONDS)
    else:
        with suppress(ProcessLookupError, PermissionError):  # what it left behind
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        await process.aclose()
