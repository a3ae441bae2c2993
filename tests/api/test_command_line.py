"""The command line: the script's own output and exit status, and clear refusals."""

import json
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.guest_root import GuestRoot


@pytest.fixture
def folder(root: GuestRoot, tmp_path: Path) -> Path:
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    return tmp_path


def spillbox(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, *others = arguments
    return subprocess.run(
        [sys.executable, "-m", "api", *command.split(), "--data-dir", str(folder), *others], capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip


def test_a_script_runs_with_its_files_and_arguments(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "import sys\nprint(open('in.txt').read(), sys.argv[1:])\nopen('out.csv', 'w').write('a')"
    )
    (tmp_path / "in.txt").write_text("data")
    done = spillbox(folder, "run", "--file", str(tmp_path / "in.txt"), str(tmp_path / "s.py"), "-x", "y")
    assert (done.returncode, done.stdout) == (0, "data ['-x', 'y']\n")
    assert f"created: {folder}/workspaces/cli/files/out.csv (1 bytes)" in done.stderr
    assert "checked: out.csv: ok" in done.stderr
    again = spillbox(folder, "run", "--json", "scripts/s.py")
    assert json.loads(again.stdout)["status"] == "succeeded"


def test_a_failure_has_the_scripts_exit_status_and_the_short_message(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import sys\nsys.exit(7)")
    assert spillbox(folder, "run", str(tmp_path / "s.py")).returncode == 7
    (tmp_path / "s.py").write_text("1/0")
    done = spillbox(folder, "run", str(tmp_path / "s.py"))
    assert done.returncode == 1
    assert "ZeroDivisionError: division by zero\n  at scripts/s.py, line 1" in done.stderr


def test_mistakes_are_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (("run", "none.py"), "There is no script none.py"),
        (("run", "--workspace", "../x", "none.py"), "invalid_workspace"),
        (("run", "--file", "/none", "none.py"), "/none"),
        (("serve", "--host", "0.0.0.0"), "SPILLBOX_API_KEY"),
    ):
        done = spillbox(folder, *arguments)
        assert done.returncode in (64, 70)
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    unready = spillbox(tmp_path / "empty", "run", "none.py")
    assert "spillbox setup" in unready.stderr


def test_a_data_folder_that_can_not_be_used_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/records.sqlite3").write_text("no database")
    spillbox(tmp_path / "within", "clean")
    with closing(sqlite3.connect(tmp_path / "within/records.sqlite3")) as records:
        pages = [page for (page,) in records.execute("select rootpage from sqlite_master where tbl_name = 'calls'")]
    with (tmp_path / "within/records.sqlite3").open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * 4096)
            file.write(b"x" * 4096)
    opening = [("keys list",), ("clean",)]
    every = [*opening, ("setup",), ("backup", str(tmp_path / "saved"))]
    for place, commands in (
        (Path("/proc/none/data"), every),
        (tmp_path / "file", every),
        (tmp_path / "damaged", opening),
        (tmp_path / "within", [("clean",)]),
    ):
        for command in commands:
            done = spillbox(place, *command)
            assert (done.returncode, done.stderr.partition(": ")[0]) == (70, "setup_failed"), (place, command)
    for command in (("keys list",), ("doctor",), ("serve",)):
        assert "Name another with --data-dir" in spillbox(tmp_path / "file", *command).stderr, command
    assert "Restore a backup" in spillbox(tmp_path / "damaged", "keys list").stderr


def test_a_port_that_is_taken_is_told_before_the_start(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = spillbox(folder, "serve", "--port", str(other.getsockname()[1]))
    assert done.returncode == 70
    assert done.stderr.startswith("setup_failed: The service can't listen on port ")
    assert done.stderr.count("\n") == 1
    done = spillbox(folder, "serve", "--host", "a..b")
    assert done.stderr.startswith("setup_failed: The service can't listen on port 8750 of a..b: ")


def test_a_service_without_scripts_has_no_walls_to_prove(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLBOX_RUNTIME", "none")
    done = spillbox(folder, "doctor")
    assert (done.returncode, done.stderr.partition(":")[0]) == (70, "no_sandbox")


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    made = spillbox(tmp_path, "keys create", "acme", "--note", "the agent")
    person = spillbox(tmp_path, "keys create", "acme", "--approves")
    assert (made.returncode, made.stdout.count("\n"), made.stdout[:4]) == (0, 1, "sbx_")
    assert "it is not shown again" in made.stderr
    key_id = made.stdout.split("_")[1]
    spillbox(tmp_path, "keys revoke", key_id)
    listed = spillbox(tmp_path, "keys list").stdout
    first, second = listed.splitlines()
    assert first.startswith(f"{key_id}  acme")
    assert ", revoked" in first
    assert first.endswith("the agent")
    assert "approves" in second
    assert made.stdout.strip() not in listed + person.stderr
    assert "Traceback" not in spillbox(tmp_path, "keys revoke", "none").stderr
    assert spillbox(tmp_path, "keys create", "No Name").stderr.startswith("invalid_arguments")
    assert (tmp_path / "link-secret").stat().st_mode & 0o777 == 0o600


def test_a_data_folder_is_saved_and_restored(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("open('out.csv', 'w').write('1.10')")
    spillbox(folder, "run", str(tmp_path / "s.py"))
    file, new = str(tmp_path / "saved.tar.gz"), tmp_path / "new"
    assert "files" in spillbox(folder, "backup", file).stdout
    assert "spillbox setup" in spillbox(new, "restore", file).stdout
    assert (new / "workspaces/cli/files/out.csv").read_text() == "1.10"
    assert new.stat().st_mode & 0o777 == 0o700
    assert "Restore into another data folder" in spillbox(new, "restore", file).stderr


def test_tools_are_printed_as_json(folder: Path) -> None:
    assert {tool["name"] for tool in json.loads(spillbox(folder, "tools", "--format", "anthropic").stdout)} >= {
        "run_python"
    }


def test_the_doctor_proves_this_host(folder: Path) -> None:
    done = spillbox(folder, "doctor", "--json")
    findings = json.loads(done.stdout)
    assert done.returncode == 0, [finding for finding in findings if not (finding["held"] and finding["control"])]
    assert len(findings) > 50


def test_a_host_that_forbids_user_namespaces_is_told_with_the_cure(folder: Path, tmp_path: Path) -> None:
    """In a user namespace of the test's own, in which the kernel is told to allow no further ones."""
    (tmp_path / "s.py").write_text("print(1)")
    command = f"exec {sys.executable} -m api run --data-dir {folder} {tmp_path}/s.py"
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
    unshare = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    control = subprocess.run([*unshare, command], capture_output=True, text=True, check=False)
    assert (control.returncode, control.stdout) == (0, "1\n"), control.stderr
    done = subprocess.run([*unshare, f"{forbid} && {command}"], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "jail_failed" in done.stderr
    assert "sysctl -w user.max_user_namespaces=10000" in done.stderr
