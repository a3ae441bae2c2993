"""Log lines on standard error, as text or as JSON, each with the id of the request that it was made for."""

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Format = Literal["text", "json"]

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that is being answered; tasks and threads begun for it have it too."""

_FACTS = "facts"
_TALKATIVE = ("httpcore2", "httpx2", "mcp")
"""Whose news have addresses, with what stands in them, and ids of sessions; their warnings are told."""


_STANDARD_ERROR = 2
_WAITING_LINES = 10_000
_END_SECONDS = 2.0


def install(format: Format) -> None:
    """Let all of this process's loggers write so."""
    _write_by(_ToStandardError(), format)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def unhurried(format: Format) -> Iterator[None]:
    """Within it, who logs never waits for who reads: a thread writes the lines.

    A pipe that nobody reads takes 64 KiB (pipe(7)), and a write to a full one waits for ever. 10,000 lines wait for the
    thread; more are lost, and a line in their place says how many. At the end 2 s are given to what waits still.
    """
    handler = _ByThread()
    _write_by(handler, format)
    try:
        yield
    finally:
        handler.finish()


def _write_by(handler: logging.Handler, format: Format) -> None:
    handler.setFormatter(formatter(format))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class _ToStandardError(logging.StreamHandler[TextIO]):
    """To what is standard error when a line is written."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _ByThread(logging.Handler):
    """Passes each line, made where it is logged since the request is known there, to a thread that writes it."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str] = queue.Queue(_WAITING_LINES)
        self._lost = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Called under the handler's lock."""
        try:
            if self._lost:
                self._lines.put_nowait(self.format(_loss(self._lost)))
                self._lost = 0
            self._lines.put_nowait(self._line(record))
        except queue.Full:
            self._lost += 1

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception:  # noqa: BLE001  as `logging` has it: who logs is not stopped by a line that can't be made
            trouble = (record.levelno, record.pathname, record.lineno, "a line of the log could not be made", None)
            return self.format(logging.LogRecord(record.name, *trouble, sys.exc_info()))

    def finish(self) -> None:
        """Wait until all is written, or for `_END_SECONDS`."""
        end = time.monotonic() + _END_SECONDS
        if self._lost:
            with suppress(queue.Full):
                self._lines.put(self.format(_loss(self._lost)), timeout=_END_SECONDS)
        while self._lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)

    def _write(self) -> None:
        """Not through `sys.stderr`, whose lock this thread could hold when the interpreter ends."""
        while True:
            left = (self._lines.get() + "\n").encode(errors="backslashreplace")
            with suppress(OSError):  # it is closed
                while left:
                    left = left[os.write(_STANDARD_ERROR, left) :]
            self._lines.task_done()


def _loss(lines: int) -> logging.LogRecord:
    message = f"{lines:,} lines of the log were lost here, since what was written was not read."
    record = logging.LogRecord(__name__, logging.WARNING, "", 0, message, None, None)
    record.__dict__.update(with_facts(lost_lines=lines))
    return record


def formatter(format: Format) -> logging.Formatter:
    """How a line is written."""
    return _Json() if format == "json" else _Text()


def with_facts(**facts: Any) -> dict[str, Any]:
    """For the ``extra`` of a line: fields of its own in JSON; the text is to say them by itself."""
    return {_FACTS: facts}


class _Text(logging.Formatter):
    """One line; those of a traceback are indented, so that nobody's text is taken for a line of ours."""

    def format(self, record: logging.LogRecord) -> str:
        found = request_id.get()
        about = "" if found is None else f" [{found}]"
        line = f"{_time_of(record)} {record.levelname} {record.name}{about}: {_escaped(record.getMessage())}"
        trouble = [] if not record.exc_info else self.formatException(record.exc_info).split("\n")
        return "\n    ".join([line, *map(_escaped, trouble)])


class _Json(logging.Formatter):
    """One JSON object on one line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time_of(record), "level": record.levelname, "logger": record.name, "message": record.getMessage(),
            "request_id": request_id.get(), **getattr(record, _FACTS, {}),
        }  # fmt: skip
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _escaped(text: str) -> str:
    """The text without what breaks a line or moves a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
