"""The official conformance scenarios, each in the version that its revision of the protocol requires."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.api.mcp.conftest import InFront, everything_over_stdio

REVISIONS = ("2025-11-25", "2026-07-28")
EXPECTED_FAILURES: set[str] = set()
# What a server without test tools, prompts and resources of the scenarios' own can show.
OF_OUR_TOOLS = {
    "2025-11-25": ["server-initialize", "ping", "tools-list", "server-sse-multiple-streams", "resources-list", "dns-rebinding-protection"],
    "2026-07-28": [
        "tools-list", "server-sse-multiple-streams", "resources-list", "sep-2164-resource-not-found", "dns-rebinding-protection",
        "input-required-result-unsupported-methods",
    ],
}  # fmt: skip
_RESULT = re.compile(r"^(✓|✗) ([a-z0-9-]+): (\d+) passed, (\d+) failed$", re.MULTILINE)


def required(node: Path, revision: str) -> list[str]:
    """Names of the scenarios that a server must pass, of the list that was frozen with the revision."""
    text = (node.parent / "@modelcontextprotocol/conformance/requirements" / f"{revision}.yaml").read_text()
    _, _, rest = text.partition("\nserver:\n")
    return re.findall(r"^  - (\S+)$", rest.partition("\nclient:\n")[0], re.MULTILINE)


def results(node: Path, url: str, revision: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Checks passed and failed, by scenario."""
    command = ["conformance", "server", "--url", url, "--requirements", revision, "--output-dir", str(folder)]
    path = f"{node}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300, check=False
    )
    found = {name: (int(passed), int(failed)) for _, name, passed, failed in _RESULT.findall(done.stdout)}
    assert found, done.stdout + done.stderr
    return found


def require_passed(found: dict[str, tuple[int, int]], names: list[str]) -> None:
    bad = {name: found.get(name) for name in names if found.get(name, (0, 1))[1] or not found[name][0]}
    assert set(bad) == EXPECTED_FAILURES, bad


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_test_server_passes_by_itself(node: Path, everything_url: str, tmp_path: Path, revision: str) -> None:
    """So that a failure behind the gateway is the gateway's."""
    require_passed(results(node, everything_url, revision, tmp_path / "out"), required(node, revision))


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("upstream", ["http", "stdio"])
def test_the_gateway_passes_all_that_is_required(
    node: Path, in_front_of: InFront, everything_url: str, tmp_path: Path, revision: str, upstream: str
) -> None:
    server = {"url": everything_url, "prefix": ""} if upstream == "http" else everything_over_stdio(prefix="")
    with in_front_of({"e": server}) as url:
        found = results(node, f"{url}/mcp?workspace=w", revision, tmp_path / "out")
    names = required(node, revision)
    assert len(names) >= 30
    require_passed(found, names)


@pytest.mark.parametrize("revision", REVISIONS)
def test_our_own_tools_pass_what_applies(node: Path, base_url: str, tmp_path: Path, revision: str) -> None:
    found = results(node, f"{base_url}/mcp?workspace=w", revision, tmp_path / "out")
    require_passed(found, OF_OUR_TOOLS[revision])
