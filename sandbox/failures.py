"""Why a run failed, in a few lines that a model can act on: the short message, and hints for the common mistakes.

The guest's report is its own word about itself and may be anything; it is read as such, and only explains a failure that
the host has seen.
"""

import errno
import json
from collections.abc import Callable, Sequence

from pydantic import BaseModel, Field, ValidationError, field_validator

from sandbox.job import ErrorReport
from sandbox.workspace import GUEST_PATH, near_paths

MAX_SUMMARY_CHARACTERS = 1000
# Together with a message of 100 characters these stay within the bound.
_MAX_TYPE_CHARACTERS = 80
_MAX_PLACE_CHARACTERS = 120
_MAX_FUNCTION_CHARACTERS = 40
_MAX_SOURCE_CHARACTERS = 100
_MAX_HINT_CHARACTERS = 260
_MAX_NOTE_CHARACTERS = 80
_DISK_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class GuestReport(BaseModel):
    """What the script's process said of its uncaught exception (`sandbox/guest/run.py`)."""

    type: str
    message: str
    message_characters: int = Field(ge=0, le=10**9)
    path: str | None
    line: int = Field(ge=0, le=10**9)
    function: str
    source_line: str
    errno: int | None
    name: str = Field(max_length=1000)
    leaf: str | None
    cause: str | None

    @field_validator("type", "message", "path", "function", "source_line", "name", "leaf", "cause")
    @classmethod
    def _encodable(cls, text: str | None) -> str | None:
        """Lone surrogates, which no UTF-8 answer can carry, become escapes."""
        return text and text.encode("utf-8", "backslashreplace").decode()

    @property
    def is_disk_error(self) -> bool:
        """Whether a write was refused for want of space."""
        return self.errno in _DISK_ERRORS

    @property
    def is_memory_error(self) -> bool:
        """Whether an allocation was refused."""
        return "MemoryError" in (self.type, (self.leaf or "").partition(":")[0])


def parse_report(error_json: bytes | None) -> GuestReport | None:
    """The guest's report, or None if there is none or it is not one."""
    if error_json is None:
        return None
    try:
        return GuestReport.model_validate(json.loads(error_json))
    except (ValidationError, ValueError, RecursionError):
        return None


def explain(
    report: GuestReport | None,
    *,
    otherwise: tuple[str, str],
    traceback_path: str | None,
    hint: str | None,
) -> ErrorReport:
    """Compose the error of an answer. ``otherwise`` is type and message where no exception was reported."""
    if report is None:
        kind, message, whole = *otherwise, len(otherwise[1])
    else:
        kind, message, whole = report.type, report.message, report.message_characters
    path = report.path.removeprefix(GUEST_PATH + "/") if report is not None and report.path else None
    line = report.line if report is not None and path else None
    source_line = report.source_line if report is not None and path else None
    below = []
    if path:
        function = f", in {report.function}" if report is not None and report.function else ""
        below.append(f"  at {_cut(path, _MAX_PLACE_CHARACTERS)}, line {line}{_cut(function, _MAX_FUNCTION_CHARACTERS)}")
        if source_line:
            below.append(f"    {_cut(source_line, _MAX_SOURCE_CHARACTERS)}")
    if report is not None and report.leaf:
        below.append(f"first of the group: {_cut(report.leaf, _MAX_NOTE_CHARACTERS)}")
    if report is not None and report.cause:
        below.append(f"raised while handling, or from: {_cut(report.cause, _MAX_NOTE_CHARACTERS)}")
    if traceback_path:
        below.append(f"Full text: {traceback_path}")
    if hint:
        below.append(f"Hint: {_cut(hint, _MAX_HINT_CHARACTERS)}")
    foot = "\n".join(below)
    kind = _cut(kind, _MAX_TYPE_CHARACTERS)
    room = MAX_SUMMARY_CHARACTERS - len(kind) - len(foot) - 4
    shown = message if whole <= room else _cut_counted(message, whole, room)
    return ErrorReport(
        summary=f"{kind}: {shown}\n{foot}".rstrip("\n"),
        type=kind,
        message=shown,
        path=path,
        line=line,
        source_line=source_line,
        traceback_path=traceback_path,
        hint=hint,
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _cut_counted(message: str, whole: int, room: int) -> str:
    note = f" … ({whole:,} characters in all)"
    return message[: max(0, room - len(note))] + note


Hint = Callable[["GuestReport", "Surroundings"], str | None]


class Surroundings(BaseModel):
    """What a hint may need to know besides the report."""

    libraries: dict[str, str]
    files: Sequence[str]


def hint_for(report: GuestReport | None, surroundings: Surroundings) -> str | None:
    """What to do next about an exception, if it is a common one."""
    if report is None:
        return None
    for rule in _RULES:
        hint = rule(report, surroundings)
        if hint:
            return hint
    return None


def _no_stdin(report: GuestReport, _: Surroundings) -> str | None:
    if report.type == "EOFError" and "EOF when reading a line" in report.message:
        return (
            "A script has no stdin. Pass values as `arguments` (sys.argv) or write them to a file and read it by path."
        )
    return None


def _no_network(report: GuestReport, _: Surroundings) -> str | None:
    if report.type in ("socket.gaierror", "urllib.error.URLError") or report.errno in (
        errno.ENETUNREACH,
        errno.ECONNREFUSED,
    ):
        return "There is no network in the sandbox, by design. Fetch the data with another tool; its result is a file here."
    return None


def _missing_library(report: GuestReport, around: Surroundings) -> str | None:
    if report.type == "ModuleNotFoundError":
        there = ", ".join(f"{name} {version}" for name, version in around.libraries.items())
        return f"Only the standard library and these are there: {there}. Nothing can be installed; do it with these."
    return None


def _missing_file(report: GuestReport, around: Surroundings) -> str | None:
    if report.type != "FileNotFoundError":
        return None
    is_program = report.name == "/bin/sh" or ("/" not in report.name and "." not in report.name)
    if is_program and any(word in report.source_line for word in ("subprocess", "Popen", "run(", "check_", "system(")):
        return "There is no shell and there are no other programs in the sandbox. Do it in Python."
    near = near_paths(report.name, around.files)
    if near:
        return f"Did you mean {', '.join(near)}? Paths are relative to /workspace, where the script starts."
    return "list_files shows what there is. Paths are relative to /workspace, where the script starts."


def _read_only(report: GuestReport, _: Surroundings) -> str | None:
    if report.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and report.name.startswith(("/", "results", "errors")):
        return "Only /workspace (but not its results/ and errors/) and /tmp can be written. Write to another folder."
    return None


def _across_mounts(report: GuestReport, _: Surroundings) -> str | None:
    if report.errno == errno.EXDEV:
        return "/workspace, /tmp and the read-only folders are different file systems: use shutil.move or shutil.copy."
    return None


def _full_disk(report: GuestReport, _: Surroundings) -> str | None:
    if report.errno == errno.EFBIG:
        return "The file is over the limit for one file. Split it, or write less."
    if report.is_disk_error:
        return (
            "The workspace, or /tmp, is full. Delete files that are no longer needed with delete_file, or write less."
        )
    return None


def _too_deep(report: GuestReport, _: Surroundings) -> str | None:
    if report.type == "RecursionError":
        return "The recursion has no end, or is deeper than sys.getrecursionlimit(). A loop, or a base case, cures it."
    return None


def _fork_refused(report: GuestReport, _: Surroundings) -> str | None:
    if report.type == "BlockingIOError" or "can't start new thread" in report.message:
        return "The run has as many processes and threads as it may have. Use fewer, for example Pool(2)."
    return None


def _picture_by_url(report: GuestReport, _: Surroundings) -> str | None:
    if "add_picture" in report.source_line and "http" in report.name + report.source_line:
        return (
            "add_picture takes a file, not a URL, and there is no network. Have another tool put the picture into the "
            "workspace and give its path."
        )
    return None


def _picture_format(report: GuestReport, _: Surroundings) -> str | None:
    if report.type.endswith(("UnrecognizedImageError", "UnidentifiedImageError")) or (
        report.type == "ValueError" and "unsupported image format" in report.message
    ):
        return (
            "Word and PowerPoint take PNG, JPEG, GIF, BMP or TIFF. Convert WebP with "
            "PIL.Image.open(p).convert('RGB').save('p.png'); SVG can't be converted here: draw it with PIL.ImageDraw, or "
            "make a native chart."
        )
    return None


def _table_style(report: GuestReport, _: Surroundings) -> str | None:
    if report.type == "KeyError" and "no style with name" in report.message:
        return (
            "The document has no such style. In a document made by Document(), 'Table Grid' and 'Light Grid Accent 1' "
            "exist; print [s.name for s in document.styles] lists all."
        )
    return None


def _fit_text(report: GuestReport, _: Surroundings) -> str | None:
    if "fit_text" in report.source_line or ("unsupported operating system" in report.message):
        return (
            "fit_text needs a font file: there are no system fonts here. Set sizes yourself: run.font.size = Pt(14) and "
            "text_frame.auto_size = MSO_AUTO_SIZE.TEXT_TO_FIT_SHAPE."
        )
    return None


_RULES: tuple[Hint, ...] = (
    _no_stdin,
    _picture_by_url,
    _no_network,
    _missing_library,
    _fit_text,
    _missing_file,
    _across_mounts,
    _full_disk,
    _read_only,
    _too_deep,
    _fork_refused,
    _picture_format,
    _table_style,
)

SLOW_TABLE = (
    "If it is python-docx's table.cell(i, j) in a loop, that walks the whole table at each call. Take the cells of a row once: "
    "for row in table.rows: for cell in row.cells."
)
