"""The jail's command and its policy, as data."""

from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.errors import JailFailed
from sandbox.guest_root import GuestRoot
from sandbox.job import Job
from sandbox.runtimes import nsjail, seccomp
from sandbox.runtimes.nsjail import NsjailRuntime, Walls, build_argv
from sandbox.workspace import Identity, Workspace

WALLS = Walls(
    nsjail=Path("/n"), root=Path("/r"), with_cgroup=True, service_is_root=False,
    environment={"A": "b"}, seccomp="POLICY",
)  # fmt: skip


def _argv(walls: Walls) -> list[str]:
    return build_argv(
        walls, Job(script_path="/x"), Identity(7, 8), control_fd=5, log_fd=6, read_only={"results": Path("/w/results")}
    )


def _pairs(argv: list[str]) -> list[tuple[str, str]]:
    return [(argv[n], argv[n + 1]) for n in range(1, argv.index("--"), 2)]


def test_the_command_of_a_jail_is_this() -> None:
    argv = _argv(WALLS)
    assert argv[0] == "/n"
    assert _pairs(argv) == [
        ("--config", str(nsjail.CONFIG_FILE)),
        ("--chroot", "/r"),
        ("--log_fd", "6"),
        ("--pass_fd", "5"),
        ("--user", "1000:7:1"),
        ("--group", "1000:8:1"),
        ("--time_limit", "90"),
        ("--mount", "none:/workspace:tmpfs:size=268435456,nr_inodes=10003,mode=0755"),
        ("--mount", "none:/tmp:tmpfs:size=67108864,nr_inodes=10000,mode=1777"),
        ("--mount", "none:/dev/shm:tmpfs:size=67108864,nr_inodes=10000,mode=1777"),
        ("--bindmount_ro", "/w/results:/workspace/results"),
        ("--rlimit_fsize", "64"),
        ("--rlimit_cpu", "30"),
        ("--rlimit_as", "hard"),
        ("--rlimit_nproc", "hard"),
        ("--seccomp_string", "POLICY"),
        ("--env", "A=b"),
    ]
    assert argv[argv.index("--") :] == ["--", "/opt/venv/bin/python", "-S", "/opt/spillbox/init.pyc", "5"]


def test_without_control_groups_each_process_is_bounded() -> None:
    pairs = _pairs(_argv(replace(WALLS, with_cgroup=False)))
    assert ("--rlimit_as", "512") in pairs
    assert ("--rlimit_nproc", "65") in pairs


def test_the_configuration_starts_from_nothing() -> None:
    text = nsjail.CONFIG_FILE.read_text()
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


async def test_a_jail_that_does_not_start_is_a_fault_of_ours_with_its_reason(
    root: GuestRoot, workspace: Workspace, tmp_path: Path
) -> None:
    broken = NsjailRuntime(root, walls={"root": tmp_path / "nothing"})
    job = Job(script_path="/workspace/scripts/x.py")
    with pytest.raises(JailFailed, match="nsjail said"):
        await broken.run(job, workspace, run_id="r")
    missing = NsjailRuntime(root, walls={"nsjail": tmp_path / "no-nsjail"})
    with pytest.raises(JailFailed, match="make setup"):
        await missing.run(job, workspace, run_id="r")
