"""Log lines on standard error, as text or as JSON, each with the id of the request that it was made for."""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Format = Literal["text", "json"]

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that is being answered; tasks and threads begun for it have it too."""

_FACTS = "facts"
_TALKATIVE = ("httpcore2", "httpx2", "mcp")
"""Whose news have addresses, with what stands in them, and ids of sessions; their warnings are told."""


def install(format: Format) -> None:
    """Let all of this process's loggers write so."""
    handler = _ToStandardError()
    handler.setFormatter(formatter(format))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


class _ToStandardError(logging.StreamHandler[TextIO]):
    """To what is standard error when a line is written."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


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
