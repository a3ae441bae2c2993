"""Fixtures: the images and the bundle, built from the tree as it is. That takes minutes, and an index of packages."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import unavailable

PROJECT = Path(__file__).parents[2]
TAG = "deploy-tests"
_BUILD_SECONDS = 1800


def docker(*arguments: str, **named: str) -> str:
    """What the command says on its output; what it says besides is in the failure."""
    done = subprocess.run(
        ["docker", *arguments], cwd=PROJECT, env={**os.environ, **named}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds both images under `TAG`, unless this folder has built them of this tree; gives the folder with their lists."""
    try:
        answers = subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    except OSError:
        answers = False
    if not answers:
        unavailable("images", "Docker does not answer")
    wheel = _wheel(tmp_path_factory)
    lists = PROJECT / "build" / "tests" / wheel[:16]  # Docker's images outlive a clone, its lists do not
    names = ("spillbox", "spillbox-runtime")
    if not all(_wheel_in(f"{name}:{TAG}") == wheel and (lists / f"{name}.cdx.json").exists() for name in names):
        lists.mkdir(parents=True, exist_ok=True)
        _build("images", lists, TAG=TAG)
    return lists


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked bundle, without images."""
    if os.geteuid() != 0:
        unavailable("bundle", "only root can make a network namespace")
    if missing := [name for name in ("unshare", "ip", "git") if shutil.which(name) is None]:
        unavailable("bundle", f"there is no {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("bundle")
    _build("bundle", folder, IMAGES="no")
    (archive,) = folder.glob("spillbox-*.tar.gz")
    subprocess.run(["tar", "xzf", archive, "-C", folder], check=True)
    return folder / archive.name.removesuffix(".tar.gz")


def _build(what: str, folder: Path, **settings: str) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "DIST": str(folder), **settings}
    done = subprocess.run(
        ["sh", f"scripts/{what}.sh"], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False,
        timeout=_BUILD_SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        unavailable(what, (done.stdout + done.stderr)[-2000:])


def _wheel_in(image: str) -> str:
    """The sha256 of the project's wheel that an image was built from; empty if there is none."""
    asked = ["docker", "image", "inspect", "--format", '{{index .Config.Labels "spillbox.wheel"}}', image]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _wheel(folders: pytest.TempPathFactory) -> str:
    """That of the tree as it is: the same files give the same wheel."""
    folder = folders.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=PROJECT, capture_output=True, check=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()
