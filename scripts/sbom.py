"""What is in an image or in the bundle, as CycloneDX JSON: wheels, each with its sha256, and packages of Debian.

`scripts/images.sh` and `scripts/bundle.sh` run it. The wheels were downloaded by the locked requirements, so these are what is
listed. The same input gives the same list, of the time SOURCE_DATE_EPOCH if that is set.
"""

import argparse
import hashlib
import os
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import parse_wheel_filename


def python_packages(folders: list[Path]) -> Iterator[Component]:
    """One for each wheel."""
    for wheel in sorted({file.name: file for folder in folders for file in folder.glob("*.whl")}.values()):
        name, version, *_ = parse_wheel_filename(wheel.name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        yield _component(
            PackageURL("pypi", None, name, str(version)), HashType(alg=HashAlgorithm.SHA_256, content=digest)
        )


def debian_packages(listed: str) -> Iterator[Component]:
    """One for each line of `dpkg-query --show`: name, with an architecture or not, and version."""
    for line in listed.splitlines():
        name, version = line.split("\t")
        yield _component(PackageURL("deb", "debian", name.partition(":")[0], version))


def make(name: str, version: str, components: list[Component], *, at: datetime) -> str:
    """The list as JSON, the same for the same components."""
    bom = Bom(components=components)
    bom.metadata.component = Component(name=name, version=version, type=ComponentType.APPLICATION, bom_ref=name)
    bom.metadata.timestamp = at
    listed = "\n".join([name, version, *sorted(component.bom_ref.value or "" for component in components)])
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, listed)
    bom.register_dependency(bom.metadata.component, components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def _component(url: PackageURL, *hashes: HashType) -> Component:
    return Component(
        name=url.name, version=url.version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url), hashes=hashes
    )


def main() -> int:
    """Write a list; gives the exit status."""
    parser = argparse.ArgumentParser(description="Write what is in an image or in the bundle, as CycloneDX JSON.")
    parser.add_argument("name")
    parser.add_argument("version")
    parser.add_argument("--wheels", type=Path, nargs="*", default=[], help="folders")
    parser.add_argument("--debian", type=Path, help="what dpkg-query --show has printed")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    components = list(python_packages(arguments.wheels))
    if arguments.debian is not None:
        components += debian_packages(arguments.debian.read_text())
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    at = datetime.now(UTC) if epoch is None else datetime.fromtimestamp(int(epoch), UTC)
    arguments.output.write_text(make(arguments.name, arguments.version, components, at=at) + "\n")
    print(f"{arguments.output}: {len(components)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
