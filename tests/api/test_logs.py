"""Who logs never waits for who reads, and what is lost by that is told."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import httpx
import pytest

_SMALLEST_PIPE = 4096
_TALKS = """
import logging, sys
from api import logs

log = logging.getLogger("t")
logs.install("text")
with logs.unhurried("text"):
    for number in range(15_000):
        log.warning("line %d", number)
    print("logged", flush=True)
    sys.stdin.readline()
    log.warning("last \\ud800 %s", "of all")
    log.warning("not to be %d", "made")
    print("left", flush=True)
"""


def started(*command: str) -> subprocess.Popen[str]:
    """With a small pipe as its standard error."""
    process = subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "SPILLBOX_RUNTIME": "none"},
    )  # fmt: skip
    fcntl.fcntl(_pipe(process.stderr), fcntl.F_SETPIPE_SZ, _SMALLEST_PIPE)
    return process


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def test_lines_keep_their_order_and_where_some_were_lost_it_says_how_many() -> None:
    with started("-c", _TALKS) as process:
        assert _pipe(process.stdout).readline() == "logged\n"
        first = [_pipe(process.stderr).readline() for _ in range(200)]  # more than the pipe takes, so there is room
        _pipe(process.stdin).close()
        rest = list(_pipe(process.stderr))
    said = iter([line.partition(" WARNING ")[2] for line in first + rest])
    number = lost = 0
    while (
        number < 15_000
    ):  # the thread may get to write one more while others are lost, so there may be more than one gap
        line = next(said)
        gap = re.fullmatch(
            r"api\.logs: (\S+) lines of the log were lost here, since what was written was not read\.\n", line
        )
        if gap is None:
            assert line == f"t: line {number}\n"
            number += 1
        else:
            lost += int(gap[1].replace(",", ""))
            number += int(gap[1].replace(",", ""))
    assert number == 15_000
    assert 0 < lost <= 5_000
    assert [next(said), next(said)] == ["t: last \\ud800 of all\n", "t: a line of the log could not be made\n"]
    assert "TypeError" in rest[-1]


def test_an_end_does_not_wait_for_a_reader_either() -> None:
    with started("-c", _TALKS) as process:
        _pipe(process.stdin).close()
        began = time.monotonic()
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - began < 30
        _pipe(process.stderr).close()


def test_the_control_one_who_writes_its_lines_itself_waits() -> None:
    """Shows that the pipe is as full as the tests above want it."""
    talks = _TALKS.replace('with logs.unhurried("text"):', "if True:")
    with started("-c", talks) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.kill()
        assert _pipe(process.stdout).read() == ""


def test_a_service_whose_log_nobody_reads_goes_on_and_ends_when_told(tmp_path: Path) -> None:
    with started("-m", "api", "serve", "--port", "0", "--data-dir", str(tmp_path)) as process:
        lines = iter(_pipe(process.stderr).readline, "")
        url = next(found[1] for line in lines if (found := re.search(r"running on (\S+)", line)))
        with httpx.Client(base_url=url, timeout=30) as http:
            for _ in range(200):
                assert http.get("/v1/nothing").status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        seen = os.read(_pipe(process.stderr).fileno(), 2 * _SMALLEST_PIPE)
        assert b"GET none 404" in seen
