"""Whether a warm interpreter would import its own module where a fresh one would find a file of the user's."""

import os

from sandbox.workspace import GUEST_PATH, Manifest


def shadows(script_path: str, modules: frozenset[str], manifest: Manifest) -> bool:
    """Whether an import in the script could mean a file of the workspace, where a fresh interpreter would find it first."""
    if not script_path.startswith(f"{GUEST_PATH}/"):
        return False
    *folder, _ = os.fsencode(script_path.removeprefix(f"{GUEST_PATH}/")).split(b"/")
    depth = len(folder)
    for segments in manifest.files:
        if list(segments[:depth]) != folder or len(segments) > depth + 2:
            continue
        name, _, kind = segments[-1].partition(b".")
        if len(segments) == depth + 2:
            name = segments[-2] if name == b"__init__" else b""
        if kind.rpartition(b".")[2] in (b"py", b"pyc", b"so") and os.fsdecode(name) in modules:
            return True
    return False
