"""What a launcher imports for scripts that name no office library.

Only what nearly every script uses: each module is memory that every run has to let go of at its end, 0.4 ms for the rest of
what short scripts import now and then.
"""

_NAMES = (
    "collections", "csv", "datetime", "functools", "io", "itertools", "json", "math", "pathlib", "re", "select", "string", "time",
)  # fmt: skip


def preload():
    """Import them."""
    for name in _NAMES:
        __import__(name)
