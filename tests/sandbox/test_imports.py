"""Imports go downwards only, and the guest's programs import the standard library and each other only."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
# From the top down. A module may import from the layers below its own, and from its own package.
LAYERS = [
    ["api"],
    ["sandbox.tools", "sandbox.doctor", "sandbox.testing"],
    ["sandbox.documents", "sandbox.spills", "sandbox.retention"],
    ["sandbox.runtimes", "sandbox.tables", "sandbox.attachments"],
    ["sandbox.failures", "sandbox.catalog", "sandbox.approvals", "sandbox.keys"],
    ["sandbox.guest_root", "sandbox.records", "sandbox.workspace", "sandbox.backup"],
    ["sandbox.database", "sandbox.tenants"],
    ["sandbox.job", "sandbox.migrations", "sandbox.observers"],
    ["sandbox.errors", "sandbox.guest", "sandbox.processes", "sandbox.threads"],
]
MODULES = sorted(p for folder in ("api", "sandbox") for p in (PROJECT / folder).rglob("*.py") if "guest/" not in str(p))


def _name(path: Path) -> str:
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts)


def _layer(module: str) -> tuple[int, str] | None:
    for depth, packages in enumerate(LAYERS):
        for package in packages:
            if module == package or module.startswith(package + "."):
                return depth, package
    return None


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_go_downwards(path: Path) -> None:
    own = _layer(_name(path).removesuffix(".__init__"))
    if own is None:
        assert path.name == "__init__.py", f"{path} is in no layer"
        return
    for module in _imported(path):
        below = _layer(module)
        if below is not None and below[1] != own[1]:
            assert below[0] > own[0], f"{_name(path)} imports {module}, which is not below it"


@pytest.mark.parametrize("path", sorted((PROJECT / "sandbox" / "guest").glob("*.py")), ids=lambda p: str(p.name))
def test_the_guests_programs_need_nothing_of_the_service(path: Path) -> None:
    ours = {p.stem for p in path.parent.glob("*.py")}
    office = {"docx", "lxml", "openpyxl", "PIL", "pptx", "xlsxwriter"}
    for module in _imported(path):
        first = module.partition(".")[0]
        assert first in sys.stdlib_module_names | ours | office | {"_frozen_importlib_external"}, module


def test_the_library_reads_no_environment_and_needs_no_web_framework() -> None:
    for path in (PROJECT / "sandbox").rglob("*.py"):
        imported = {module.partition(".")[0] for module in _imported(path)}
        assert not imported & {"fastapi", "starlette", "uvicorn", "pydantic_settings"}, path
        if path.name != "attacks.py":  # scripts of a guest, which look for it
            assert not re.search(r"os\.environ|getenv", path.read_text()), path


def test_nothing_happens_on_import() -> None:
    code = (
        "import builtins, os, subprocess, sys\n"
        "def refuse(*a, **k): raise AssertionError(a)\n"
        "import sqlalchemy, pydantic, asyncio, ctypes, difflib, multiprocessing\n"
        "subprocess.Popen.__init__ = refuse; os.mkdir = refuse; os.fork = refuse\n"
        "import sandbox.tools.toolbox\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)
