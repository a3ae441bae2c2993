"""What a launcher imports for scripts that name no office library: each module more is memory that each run has to let go of."""

# fmt: off
_NAMES = (
    "base64", "bisect", "calendar", "collections", "copy", "csv", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "glob", "hashlib", "io", "itertools", "json", "math", "pathlib", "random", "re", "select", "shutil", "statistics",
    "string", "textwrap", "time", "traceback", "typing", "unicodedata", "warnings", "zipfile", "zoneinfo",
)
# fmt: on


def preload():
    """Import the modules of the standard library that short scripts use."""
    for name in _NAMES:
        __import__(name)
