"""The jail's configuration and its policy, as data."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.errors import JailFailed
from sandbox.guest_root import GuestRoot
from sandbox.job import Job
from sandbox.runtimes import seccomp
from sandbox.runtimes.nsjail import Identities, NsjailRuntime
from sandbox.runtimes.nsjail_config import CONFIG_FILE, Walls, build_config
from sandbox.workspace import Identity, Workspace

WALLS = Walls(
    root=Path("/r"), with_cgroup=True, root_is_known=False, config_file=Path("/dev/null"),
    environment={"A": "b"}, seccomp="POLICY",
)  # fmt: skip


def _lines(walls: Walls, job: Job = Job(script_path="/x")) -> list[str]:  # noqa: B008  frozen
    text = build_config(walls, job, Identity(7, 8), control_fd=5, read_only={"results": Path("/w/results")})
    return [line for line in text.splitlines() if line]


def test_the_configuration_of_a_jail_is_this() -> None:
    assert _lines(WALLS, Job(script_path="/never-in-it", arguments=("nor this",), preload=("docx",))) == [
        "mount { src: \"/r\" dst: '/' is_bind: true }",
        "pass_fd: 5",
        "uidmap { inside_id: '1000' outside_id: '7' count: 1 }",
        "gidmap { inside_id: '1000' outside_id: '8' count: 1 }",
        "time_limit: 90",
        "mount { dst: '/workspace' fstype: 'tmpfs' options: 'size=268435456,nr_inodes=10003,mode=0755' rw: true nosuid: true nodev: true }",
        "mount { dst: '/tmp' fstype: 'tmpfs' options: 'size=67108864,nr_inodes=10000,mode=1777' rw: true nosuid: true nodev: true }",
        "mount { dst: '/dev/shm' fstype: 'tmpfs' options: 'size=67108864,nr_inodes=10000,mode=1777' rw: true nosuid: true nodev: true }",
        "mount { src: \"/w/results\" dst: '/workspace/results' is_bind: true }",
        "rlimit_fsize: 64",
        "rlimit_fsize_type: VALUE",
        "rlimit_cpu: 30",
        "rlimit_cpu_type: VALUE",
        "rlimit_as_type: HARD",
        "rlimit_nproc_type: HARD",
        'seccomp_string: "POLICY"',
        'envar: "A=b"',
        'exec_bin { path: \'/opt/venv/bin/python\' arg: "-S" arg: "/opt/spillbox/init.pyc" arg: "5" arg: "docx" }',
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


def test_the_configuration_starts_from_nothing() -> None:
    text = CONFIG_FILE.read_text()
    for wall in ("newnet", "newuser", "newns", "newpid", "newipc", "newuts", "newcgroup"):
        assert f"clone_{wall}: true" in text
    assert "keep_env: false" in text
    assert "keep_caps: false" in text
    assert "disable_no_new_privs: false" in text


def test_the_filter_is_an_allow_list() -> None:
    text = seccomp.kafel("x86_64")
    assert text.endswith("DEFAULT ERRNO(38)")
    allowed = text.partition("ALLOW { ")[2].partition("KILL_PROCESS")[0]
    for call in (
        "ptrace",
        "bpf",
        "keyctl",
        "userfaultfd",
        "io_uring_setup",
        "mount",
        "setns",
        "unshare",
        "memfd_create",
    ):
        assert f" {call}," not in allowed
        assert f"{call}" in text.partition("KILL_PROCESS")[2]
    # arm64 has no such names; the text for it has been compiled by nobody here.
    assert "newstat" not in seccomp.kafel("aarch64")
    assert " open," not in seccomp.kafel("aarch64")


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


def test_an_ordinary_users_jails_have_his_id() -> None:
    with Identities(is_root=False).one() as one:
        assert one == Identity(os.geteuid(), os.getegid())


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
        waiting.kill()
        waiting._process.wait()
    await runtime.close()
