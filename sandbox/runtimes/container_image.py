"""The image of containers: a guest root, with labels that tell what is in it."""

import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sandbox import guest_root
from sandbox.errors import GuestRootMissing, JailFailed
from sandbox.guest_root import Guest, GuestRoot

if TYPE_CHECKING:
    from sandbox.runtimes.container import Engine

PROGRAMS_LABEL, PYTHON_LABEL, LIBRARIES_LABEL = "spillbox.programs", "spillbox.python", "spillbox.libraries"
IMAGE_NAME = "spillbox-runtime"


def labels_of(root: GuestRoot) -> dict[str, str]:
    """What an image of this guest root has to say."""
    return {
        PROGRAMS_LABEL: guest_root.programs_digest(),
        PYTHON_LABEL: root.python_version,
        LIBRARIES_LABEL: json.dumps(root.libraries, sort_keys=True),
        "org.opencontainers.image.title": "Spillbox runtime",
        "org.opencontainers.image.description": "Python with office libraries, for scripts of agents; it has no shell",
    }


def find(engine: "Engine", name: str) -> tuple[str, Guest]:
    """The id of the image of that name, and what it offers; raises `GuestRootMissing`, with what to do."""
    named = [one for one in engine.ask("images", name=name) if one.get("RepoTags")]
    if not named:
        raise GuestRootMissing(
            f"Docker has no image {name}. Run `SPILLBOX_RUNTIME=docker spillbox setup`, or load it from the bundle."
        )
    labels = named[0].get("Labels") or {}
    if not {PROGRAMS_LABEL, PYTHON_LABEL, LIBRARIES_LABEL} <= set(labels):
        raise GuestRootMissing(
            f"Docker's image {name} was not made by Spillbox. Name in SPILLBOX_DOCKER_IMAGE the one that `spillbox setup` made, or "
            "another name for it to make."
        )
    if labels[PROGRAMS_LABEL] != guest_root.programs_digest():
        raise GuestRootMissing(
            f"Docker's image {name} is of another version. Run `SPILLBOX_RUNTIME=docker spillbox setup` again."
        )
    guest = Guest(python_version=labels[PYTHON_LABEL], libraries=json.loads(labels[LIBRARIES_LABEL]))
    return str(named[0]["Id"]), guest


def _parts_of(name: str) -> tuple[str, str]:
    """Repository and tag; a registry before the name may have a port."""
    path, slash, last = name.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{path}{slash}{repository}", tag or "latest"


def make(engine: "Engine", name: str, root: GuestRoot) -> None:
    """Give Docker an image of a guest root, replacing an older one of that name, which goes if nothing else needs it."""
    changes = [f"LABEL {key}={json.dumps(value)}" for key, value in labels_of(root).items()]
    uid = guest_root.CONTAINER_UIDS[0]
    changes += [f"USER {uid}:{uid}"]
    replaced = engine.ask("images", name=name, quiet=True)
    with _archive(root.path) as archive:
        repository, tag = _parts_of(name)
        answer = engine.ask("import_image_from_data", archive.read(), repository=repository, tag=tag, changes=changes)
    for line in str(answer).splitlines():
        if line.startswith("{") and "error" in json.loads(line):
            raise GuestRootMissing(f"Docker did not take the image {name}: {json.loads(line)['error']}")
    for old in replaced:
        with suppress(JailFailed):  # a container is made of it still
            if not engine.ask("inspect_image", old)["RepoTags"]:
                engine.ask("remove_image", old)


def ensure(engine: "Engine", name: str, root: GuestRoot) -> None:
    """Make the image unless there is one of this version."""
    try:
        find(engine, name)
    except GuestRootMissing:
        make(engine, name, root)


@contextmanager
def _archive(root: Path) -> Iterator[IO[bytes]]:
    """A tar of the guest root that is the same for the same content."""
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(root.rglob("*")):
                tar.add(path, str(path.relative_to(root)), recursive=False, filter=_plain)
        file.seek(0)
        yield file


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's in particular, of no time in particular."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.pax_headers = {}
    return member


if __name__ == "__main__":
    for key, value in labels_of(guest_root.load(Path(sys.argv[1]))).items():
        print(f"{key}={value}")
