"""Control groups, over folders of plain files; the contract tests run version 1 over the kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.processes import identity_of, pid_namespace
from sandbox.runtimes import cgroups
from sandbox.runtimes.cgroups import NoCgroups


def _version2(tmp_path: Path, controllers: str = "cpu memory pids") -> tuple[Path, Path, Path]:
    base = tmp_path / "group/me"
    base.mkdir(parents=True)
    (base / "cgroup.controllers").write_text(controllers)
    mounts, own = tmp_path / "mountinfo", tmp_path / "cgroup"
    mounts.write_text(f"30 25 0:26 / {tmp_path}/group rw,nosuid - cgroup2 cgroup2 rw\n")
    own.write_text("0::/me\n")
    return base, mounts, own


def test_version_2_sets_limits_and_reads_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, mounts, own = _version2(tmp_path)
    removed: list[Path] = []
    monkeypatch.setattr(cgroups, "_remove", removed.append)
    host = cgroups.find(mounts, own)
    assert host.version == 2
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids"
    run = host.create("r", memory_bytes=1000, processes=7)
    folder = next(base.glob("spillbox-*/r"))
    assert folder.parent.name.split("-")[1] == str(os.getpid())
    assert (folder / "memory.max").read_text() == "1000"
    assert (folder / "pids.max").read_text() == "7"
    run.join(42)
    assert (folder / "cgroup.procs").read_text() == "42"
    (folder / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (folder / "memory.peak").write_text("900\n")
    (folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (folder / "pids.events").write_text("max 3\n")
    assert run.counters() == cgroups.Counters(1.5, 900, 1, 3)
    run.remove()
    assert folder in removed


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    _, mounts, own = _version2(tmp_path, controllers="cpu")
    with pytest.raises(NoCgroups, match="no controller memory, pids in"):
        cgroups.find(mounts, own)
    mounts.write_text("")
    with pytest.raises(NoCgroups, match="version 2: not mounted; version 1: no controller memory"):
        cgroups.find(mounts, own)


def test_a_process_that_is_not_alone_uses_a_group_above_that_hands_controllers_down(tmp_path: Path) -> None:
    base, mounts, own = _version2(tmp_path)
    (base / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    with pytest.raises(NoCgroups, match="in which other processes are too, nor a group above lets this user"):
        cgroups.find(mounts, own)
    (base.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (base.parent / "cgroup.procs").touch()
    cgroups.find(mounts, own)
    assert list(base.parent.glob("spillbox-*"))
    assert not (base / "cgroup.subtree_control").exists()


def test_a_process_goes_a_level_lower_once_only(tmp_path: Path) -> None:
    base, mounts, own = _version2(tmp_path)
    (base / "cgroup.procs").write_text(f"{os.getpid()}\n")
    cgroups.find(mounts, own)
    lower = base / "spillbox-service"
    assert (lower / "cgroup.procs").read_text() == str(os.getpid())
    own.write_text("0::/me/spillbox-service\n")
    cgroups.find(mounts, own)
    assert list(lower.iterdir()) == [lower / "cgroup.procs"]
    assert len(list(base.glob("spillbox-[0-9]*"))) == 2


def test_groups_of_a_dead_service_are_removed_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    dead = tmp_path / f"spillbox-999999999-1-{pid_namespace()}-0"
    (dead / "run").mkdir(parents=True)
    stay = [f"spillbox-{identity_of(os.getpid())}-{pid_namespace()}-0", "spillbox-999999999-1-1-0", "spillbox-service",
            "spillbox-2.service", "spillbox-999999999-1-x"]  # fmt: skip
    for name in stay:
        (tmp_path / name).mkdir()
    cgroups._reap(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stay)


def test_a_process_of_another_namespace_in_a_group_ends_nobody(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n")
    assert cgroups._try_to_remove(tmp_path) is False


def test_groups_that_can_not_be_made_are_not_waited_for(tmp_path: Path) -> None:
    """As in a container, whose control groups are mounted read-only."""
    mounts, own = tmp_path / "mountinfo", tmp_path / "cgroup"
    mounts.write_text(f"30 25 0:26 / {tmp_path}/groups rw - cgroup none rw,memory,pids,cpuacct\n")
    own.write_text("1:memory,pids,cpuacct:/\n")
    (tmp_path / "groups").mkdir()
    (tmp_path / "find.py").write_text(
        "import sys, time\nfrom pathlib import Path\nfrom sandbox.runtimes import cgroups\n"
        "time.sleep = lambda seconds: sys.exit('waited')\n"
        "try: cgroups.find(*map(Path, sys.argv[1:]))\nexcept cgroups.NoCgroups as why: print(why)\n"
    )
    find = f"mount -t tmpfs -o ro none {tmp_path}/groups && {sys.executable} {tmp_path}/find.py {mounts} {own}"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", find],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "version 1: Read-only file system" in done.stdout, done.stderr


def test_what_was_made_for_trying_is_gone_where_no_process_can_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def join(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "cgroup.procs")

    closed: list[Path] = []
    base, mounts, own = _version2(tmp_path)
    monkeypatch.setattr(cgroups._Run2, "join", join)
    monkeypatch.setattr(cgroups, "_remove_all", closed.append)
    with pytest.raises(NoCgroups, match=r"version 2: Permission denied \(cgroup.procs\)"):
        cgroups.find(mounts, own)
    assert closed == list(base.glob("spillbox-[0-9]*"))
