"""`spillbox doctor` proves every wall and limit, and goes red when one is missing."""

import os
from pathlib import Path
from typing import Any

import pytest

from sandbox.doctor.attacks import ATTACKS, NO_FILTER, config
from sandbox.doctor.doctor import LIMITS, Finding, examine, examine_quickly
from sandbox.guest_root import GuestRoot
from sandbox.runtimes import cgroups
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.nsjail_config import LAUNCHER_CONFIG_FILE
from sandbox.runtimes.warm import WarmRuntime
from sandbox.workspace import Workspaces
from tests.conftest import MAKERS


async def test_every_wall_and_limit_is_proved(
    root: GuestRoot, workspaces: Workspaces, runtime: Runtime, has_cgroups: bool, is_gvisor: bool
) -> None:
    findings = [finding async for finding in examine(root, workspaces, runtime)]
    assert [finding for finding in findings if not finding.is_real] == []
    weaker = {finding.what for finding in findings if finding.weaker}
    expected = {"limit: memory of all processes together", "limit: processes and threads", "limit: processor time"}
    if is_gvisor:
        expected |= {"limit: files of the workspace", "descriptors and environment of process 1"}
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


@pytest.mark.parametrize(
    ("walls", "config_without", "wall"),
    [
        (NO_FILTER, "nothing", "seccomp"),
        ({"namespaces": ("mnt", "cgroup", "uts", "ipc"), **NO_FILTER}, "clone_newnet", "network namespace"),
        ({"namespaces": ("mnt", "cgroup", "uts", "net")}, "clone_newipc", "ipc namespace"),
    ],
    ids=["seccomp", "network", "ipc"],
)
async def test_a_missing_wall_of_the_warm_runtime_is_seen(
    root: GuestRoot, workspaces: Workspaces, tmp_path: Path, walls: dict[str, Any], config_without: str, wall: str
) -> None:
    """There are two of each but the filter: a launcher's, and each jail's own."""
    text = LAUNCHER_CONFIG_FILE.read_text()
    (tmp_path / "weakened.cfg").write_text(text.replace(f"{config_without}: true", f"{config_without}: false"))
    open_jails = WarmRuntime(
        root, workspaces.root, launchers=1, walls={**walls, "config_file": tmp_path / "weakened.cfg"}
    )
    walled = [attack for attack in ATTACKS if attack.enforced_by.startswith(wall)][:6]
    findings = [finding async for finding in examine(root, workspaces, open_jails, attacks=walled, limits=())]
    assert len([finding for finding in findings if finding.runtime == "warm"]) > len(walled)
    for finding in findings:
        assert finding.is_real == (finding.runtime == "nsjail" or finding.what.startswith("a process of the host"))
    quick = await examine_quickly(workspaces, open_jails)
    assert {finding.runtime for finding in quick if not finding.is_real} == {"warm"}
    await open_jails.close()


@pytest.mark.skipif(
    os.geteuid() != 0, reason="an ordinary user has no control groups here, which is told and not pretended"
)
@pytest.mark.parametrize("name", ["nsjail", "warm"])
async def test_a_control_group_that_holds_nothing_is_seen(
    root: GuestRoot, workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for version in (cgroups._Run1, cgroups._Run2):
        monkeypatch.setattr(version, "join", lambda _, pid: None)
    runtime = MAKERS[name](root, workspaces.root)
    grouped = [limit for limit in LIMITS if limit.weaker_without and "time" not in limit.what]
    findings = [finding async for finding in examine(root, workspaces, runtime, attacks=(), limits=grouped)]
    assert len(findings) > len(grouped)
    assert [finding.what for finding in findings if finding.is_real] == ["a process of the host after all attacks"]
    assert not any(finding.weaker for finding in findings)
    await runtime.close()


def test_a_case_that_can_not_fail_is_not_real() -> None:
    finding = Finding(what="x", runtime="r", held=True, control=False, enforced_by="y", proof="z")
    assert not finding.is_real
