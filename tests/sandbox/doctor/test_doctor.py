"""`spillbox doctor` proves every wall and limit, and goes red when one is missing."""

from typing import Any

import pytest

from sandbox.doctor.attacks import ATTACKS, NO_FILTER, config
from sandbox.doctor.doctor import Finding, examine
from sandbox.guest_root import GuestRoot
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.workspace import Workspaces


async def test_every_wall_and_limit_is_proved(
    root: GuestRoot, workspaces: Workspaces, runtime: Runtime, has_cgroups: bool
) -> None:
    findings = [finding async for finding in examine(root, workspaces, runtime)]
    assert [finding for finding in findings if not finding.is_real] == []
    weaker = {finding.what for finding in findings if finding.weaker}
    expected = {"limit: memory of all processes together", "limit: processes and threads", "limit: processor time"}
    assert weaker == (set() if has_cgroups else expected)
    assert all("To mend it" in (finding.cure or "") for finding in findings if finding.weaker)


@pytest.mark.parametrize(
    ("walls", "wall"),
    [
        (NO_FILTER, "seccomp"),
        ({"config": config(without="clone_newnet"), **NO_FILTER}, "network namespace"),
        ({"config": config(without="clone_newipc")}, "ipc namespace"),
        ({"environment": {"LEAK": "the-secret-of-another-conversation", "PATH": "/opt/venv/bin"}}, "an environment"),
    ],
    ids=["seccomp", "network", "ipc", "environment"],
)
async def test_a_missing_wall_is_seen(
    root: GuestRoot, workspaces: Workspaces, walls: dict[str, Any], wall: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if "config" in walls:
        file = tmp_path_factory.mktemp("walls") / "weakened.cfg"
        file.write_text(walls["config"])
        walls = {**{name: value for name, value in walls.items() if name != "config"}, "config_file": file}
    open_jail = NsjailRuntime(root, walls=walls)
    walled = [attack for attack in ATTACKS if attack.enforced_by.startswith(wall)][:8]
    findings = [finding async for finding in examine(root, workspaces, open_jail, attacks=walled, limits=())]
    assert [finding.what for finding in findings if finding.is_real] == ["a process of the host after all attacks"]
    await open_jail.close()


def test_a_case_that_can_not_fail_is_not_real() -> None:
    finding = Finding(what="x", runtime="r", held=True, control=False, enforced_by="y", proof="z")
    assert not finding.is_real
