"""The jail's configuration and its policy, as data."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.errors import JailFailed
from sandbox.guest_root import GuestRoot
from sandbox.job import Job, Limits
from sandbox.runtimes.identities import Identities, IdRange
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.nsjail_config import (
    CONFIG_FILE,
    LAUNCHER_CONFIG_FILE,
    Walls,
    build_config,
    build_launcher_config,
)
from sandbox.workspace import Identity, Workspace

WALLS = Walls(
    root=Path("/r"), with_cgroup=True, root_is_known=False, config_file=Path("/dev/null"),
    environment={"A": "b"}, seccomp=b"",
)  # fmt: skip


def _lines(walls: Walls, *preload: str) -> list[str]:
    text = build_config(
        walls, Limits(), Identity(7, 8), control_fd=5, read_only={"results": Path("/w/results")}, preload=preload
    )
    return [line for line in text.splitlines() if line]


def test_the_configuration_of_a_jail_is_this() -> None:
    assert _lines(WALLS, "docx") == [
        "mount { src: \"/r\" dst: '/' is_bind: true }",
        'envar: "A=b"',
        "pass_fd: 5",
        "uidmap { inside_id: '1000' outside_id: '7' count: 1 }",
        "gidmap { inside_id: '1000' outside_id: '8' count: 1 }",
        "time_limit: 90",
        "mount { dst: '/workspace' fstype: 'tmpfs' options: 'size=268435456,nr_inodes=10003,mode=0755' rw: true nosuid: true nodev: true }",
        "mount { dst: '/tmp' fstype: 'tmpfs' options: 'size=67108864,nr_inodes=10000,mode=1777' rw: true nosuid: true nodev: true }",
        "mount { dst: '/dev/shm' fstype: 'tmpfs' options: 'size=67108864,nr_inodes=10000,mode=1777' rw: true nosuid: true nodev: true }",
        "mount { dst: '/run/report' fstype: 'tmpfs' options: 'size=2097152,nr_inodes=8,mode=0755' rw: true nosuid: true nodev: true noexec: true }",
        'mount { src: "/w/results" dst: "/workspace/results" is_bind: true nosuid: true nodev: true }',
        "rlimit_as_type: HARD",
        "rlimit_nproc_type: HARD",
        "rlimit_cpu_type: HARD",
        "rlimit_core: 0",
        "rlimit_core_type: VALUE",
        "rlimit_stack: 8",
        "rlimit_stack_type: VALUE",
        "rlimit_nofile: 1024",
        "rlimit_nofile_type: VALUE",
        "rlimit_memlock: 0",
        "rlimit_memlock_type: VALUE",
        "rlimit_msgqueue: 0",
        "rlimit_msgqueue_type: VALUE",
        "rlimit_rtprio: 0",
        "rlimit_rtprio_type: VALUE",
        "rlimit_fsize: 64",
        "rlimit_fsize_type: VALUE",
        'exec_bin { path: \'/opt/venv/bin/python\' arg: "-S" arg: "/opt/spillbox/init.pyc" arg: "5" arg: "docx" }',
    ]


def test_the_configuration_around_a_launcher_is_this() -> None:
    text = build_launcher_config(
        WALLS, Path("/w"), "plain", link_fd=5, ids=[IdRange(0, 0, 0, 1), IdRange(1, 2_000_000_000, 2_000_000_000, 256)]
    )
    assert [line for line in text.splitlines() if line] == [
        "mount { src: \"/r\" dst: '/' is_bind: true }",
        'envar: "A=b"',
        "pass_fd: 5",
        "uidmap { inside_id: '0' outside_id: '0' count: 1 }",
        "gidmap { inside_id: '0' outside_id: '0' count: 1 }",
        "uidmap { inside_id: '1' outside_id: '2000000000' count: 256 }",
        "gidmap { inside_id: '1' outside_id: '2000000000' count: 256 }",
        'mount { src: "/w" dst: "/run/launcher/workspaces" is_bind: true nosuid: true nodev: true }',
        'exec_bin { path: \'/opt/venv/bin/python\' arg: "-S" arg: "/opt/spillbox/launcher.pyc" arg: "5" arg: "plain" }',
    ]


def test_without_control_groups_each_process_is_bounded() -> None:
    lines = _lines(replace(WALLS, with_cgroup=False))
    assert "rlimit_as: 512" in lines
    assert "rlimit_nproc: 65" in lines


def test_root_is_known_in_the_jail_only_where_the_root_is_known() -> None:
    known = "uidmap { inside_id: '0' outside_id: '0' count: 1 }"
    assert known not in _lines(WALLS)
    assert known in _lines(replace(WALLS, root_is_known=True))


@pytest.mark.parametrize("path", ['/a "b"', "/a\\b", "/a\nmount { dst: '/x' }", "/\u00e9", "/\udcff"])
def test_no_path_can_add_to_the_configuration(path: str) -> None:
    line = _lines(replace(WALLS, root=Path(path)))[0]
    assert line.startswith('mount { src: "/')
    assert line.endswith("\" dst: '/' is_bind: true }")
    assert line.isascii()
    assert len(_lines(replace(WALLS, root=Path(path)))) == len(_lines(WALLS))


@pytest.mark.parametrize("file", [CONFIG_FILE, LAUNCHER_CONFIG_FILE], ids=["cold", "launcher"])
def test_the_configuration_starts_from_nothing(file: Path) -> None:
    text = file.read_text()
    for wall in ("newnet", "newuser", "newns", "newpid", "newipc", "newuts", "newcgroup"):
        assert f"clone_{wall}: true" in text
    assert "keep_env: false" in text
    assert "keep_caps: false" in text
    assert "disable_no_new_privs: false" in text


@pytest.mark.parametrize(
    ("id_map", "first"),
    [
        ("0 0 4294967295", 2_000_000_000 + os.getpid() * 256),
        ("0 1000 1\n1 100000 65536", 65534 - 256),
        ("0 1000 1", None),
    ],
)
def test_each_jail_has_an_id_that_no_other_has(tmp_path: Path, id_map: str, first: int | None) -> None:
    (tmp_path / "uid_map").write_text(id_map)
    identities = Identities(is_root=True, id_map=tmp_path / "uid_map")
    with identities.one() as one, identities.one() as other:
        if first is None:
            assert one.uid == other.uid == os.geteuid()
        else:
            assert (one.uid, other.uid) == (first, first + 1)
    with identities.one() as again:
        assert again.uid == (os.geteuid() if first is None else first)


def test_an_ordinary_users_jails_have_his_id_which_is_not_0_in_a_launcher() -> None:
    identities = Identities(is_root=False)
    with identities.one() as one:
        assert one == Identity(os.geteuid(), os.getegid())
        assert identities.launcher_ids == [IdRange(1, os.geteuid(), os.getegid(), 1)]
        assert identities.inside(one) == 1


async def test_a_jail_that_does_not_start_is_a_fault_of_ours_with_its_reason(
    root: GuestRoot, workspace: Workspace, tmp_path: Path
) -> None:
    broken = NsjailRuntime(root, walls={"root": tmp_path / "nothing"})
    job = Job(script_path="/workspace/scripts/x.py")
    with pytest.raises(JailFailed, match="nsjail said"):
        await broken.run(job, workspace, run_id="r")
    missing = NsjailRuntime(root, nsjail=tmp_path / "no-nsjail")
    with pytest.raises(JailFailed, match="make setup"):
        await missing.run(job, workspace, run_id="r")


async def test_an_nsjail_that_died_while_it_waited_is_replaced(root: GuestRoot, workspace: Workspace) -> None:
    runtime = NsjailRuntime(root)
    workspace.write("s.py", b"print(1)")
    for _ in range(3):
        done = await runtime.run(Job(script_path="/workspace/s.py"), workspace, run_id="r")
        assert done.stdout.text == "1\n"
        runtime._ahead._starter.submit(lambda: None).result()  # the next one has been started
        waiting = runtime._ahead._waiting
        assert waiting is not None
        os.kill(waiting.process.pid, 9)
        waiting.process._process.wait()
    await runtime.close()
