"""The service's container does the main job without privilege, by the README's own line, and proves its walls; so does the runtime's."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from api.settings import Settings
from sandbox import guest_root
from sandbox.runtimes import container_image
from sandbox.runtimes.container import Engine
from tests.deploy.conftest import PROJECT, TAG, docker

KEY = secrets.token_urlsafe()
_WORKS = ("/opt/spillbox/lib", "/opt/spillbox/guest-root")


def options() -> list[str]:
    """Those of the README's `docker run`, and the image at the end."""
    found = re.search(r"^docker run (.*?[^\\])\n", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].replace("\\\n", " ").split()


@pytest.fixture(scope="module")
def container(images: Path) -> Iterator[str]:
    """A service that runs by that line, under a name, a port, a volume and a tag of its own."""
    name = f"spillbox-test-{secrets.token_hex(4)}"
    own = {"spillbox": name, "127.0.0.1:8750:8750": "127.0.0.1::8750", "spillbox:/data": f"{name}:/data"}
    *given, image = options()
    try:
        docker("run", *(own.get(option, option) for option in given), f"{image}:{TAG}", SPILLBOX_API_KEY=KEY)
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)
        docker("volume", "rm", "--force", name)


def test_the_main_job_is_done_inside(container: str) -> None:
    port = docker("port", container, "8750/tcp").rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "scripts/demo.py", "--url", f"http://127.0.0.1:{port}"], cwd=PROJECT,
        env={**os.environ, "SPILLBOX_API_KEY": KEY}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr + docker("logs", container)
    assert re.findall(r"[1-9][\d,]* values compared with the source, (\d+) differ", done.stdout) == ["0"] * 5


def test_every_wall_and_limit_is_proved_inside(container: str) -> None:
    findings = json.loads(docker("exec", container, "spillbox", "doctor", "--json"))  # fails if one is not real
    assert {"warm", "nsjail"} == {finding["runtime"] for finding in findings}
    assert all(finding["held"] and finding["control"] for finding in findings)
    assert {finding["what"] for finding in findings if finding["weaker"]} <= {
        "limit: memory of all processes together", "limit: processes and threads", "limit: processor time",
    }  # fmt: skip


def test_the_container_has_no_privilege_and_can_write_to_its_data_only(container: str) -> None:
    status = dict(line.split(":\t", 1) for line in docker("exec", container, "cat", "/proc/1/status").splitlines())
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert set(status["Uid"].split()) == {"10001"}
    places = docker(
        "exec",
        container,
        "python",
        "-c",
        f"import os; print([os.access(p, os.W_OK) for p in {('/', *_WORKS, '/data', '/tmp')}])",
    )
    assert places == "[False, False, False, True, True]"


@pytest.mark.parametrize(
    ("given", "missing"),
    [(["--env=SPILLBOX_API_KEY=" + KEY], "docs/install.md"), (["--env=SPILLBOX_RUNTIME=none"], "SPILLBOX_API_KEY")],
)
def test_without_a_key_or_the_profile_it_does_not_start_and_says_what_is_missing(
    images: Path, given: list[str], missing: str
) -> None:
    done = subprocess.run(
        ["docker", "run", "--rm", *given, f"spillbox:{TAG}"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert missing in done.stderr


def test_compose_says_what_the_line_of_the_readme_says() -> None:
    compose = yaml.safe_load((PROJECT / "compose.yaml").read_text())
    assert compose.keys() == {"services", "volumes"}, "which the schema of Debian's docker-compose knows too"
    (service,) = compose["services"].values()
    assert compose["volumes"]["spillbox"]["name"] == "spillbox", "not one of the folder's own"
    said = [
        "--name",
        service["container_name"],
        "--publish",
        *service["ports"],
        "--volume",
        *service["volumes"],
        "--tmpfs",
        *service["tmpfs"],
        "--cap-drop",
    ]
    said += [*service["cap_drop"], *(word for one in service["security_opt"] for word in ("--security-opt", one))]
    said += ["--stop-timeout", service["stop_grace_period"].removesuffix("s")]
    said += ["--read-only"] * service["read_only"] + [f"--env={name}" for name in service["environment"]]
    line = " ".join(options()).replace("--env ", "--env=").replace("--detach ", "").split()
    assert sorted([*said, service["image"]]) == sorted(line)


def test_the_unit_of_systemd_leaves_calls_their_time_and_jails_their_rights() -> None:
    lines = (PROJECT / "deploy/systemd/spillbox.service").read_text().splitlines()
    said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert said["KillMode"] == "mixed", "or systemd tells each script to end, at once"
    assert int(said["TimeoutStopSec"]) > Settings.model_fields["drain_seconds"].default
    assert said["Delegate"] == "yes"
    assert "NoNewPrivileges" not in said


def test_the_runtimes_image_is_the_guest_root_with_the_labels_that_a_service_looks_for(images: Path) -> None:
    name = f"spillbox-runtime:{TAG}"
    _, guest = container_image.find(Engine(), name)
    assert guest.libraries.keys() >= {"openpyxl", "python-docx", "python-pptx", "xlsxwriter"}
    uid = guest_root.CONTAINER_UIDS[0]
    assert docker("image", "inspect", "--format", "{{.Config.User}}", name) == f"{uid}:{uid}"
    done = subprocess.run(
        [sys.executable, "-m", "api", "doctor"], cwd=PROJECT, capture_output=True, text=True, check=False,
        env={**os.environ, "SPILLBOX_RUNTIME": "docker", "SPILLBOX_DOCKER_IMAGE": name, "SPILLBOX_DATA_DIR": str(images / "data")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["spillbox", "spillbox-runtime"])
def test_the_list_of_contents_is_valid_and_names_what_is_in_the_image(images: Path, name: str) -> None:
    text = (images / f"{name}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {
        (one["name"], one["version"]) for one in json.loads(text)["components"] if one["purl"].startswith("pkg:pypi/")
    }
    code = "import importlib.metadata as m; print('\\n'.join(f'{d.name} {d.version}' for d in m.distributions()))"
    inside = docker(
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "python" if name == "spillbox" else "/opt/venv/bin/python",
        f"{name}:{TAG}",
        "-c",
        code,
    )
    there = {
        (line.split()[0].lower().replace("_", "-").replace(".", "-"), line.split()[1]) for line in inside.splitlines()
    }
    assert there - {("spillbox", "0.1.0")} <= listed
    assert ("lxml", dict(listed)["lxml"]) in listed
