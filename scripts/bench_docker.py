"""Scripts in containers that are kept, beside `docker run` of the same image; with gVisor too, where the engine knows it.

python scripts/bench_docker.py [--data-dir DIR]
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_contenders import IMAGE, Docker, Http, Service, service
from bench_timing import in_a_row, in_turn

from sandbox.errors import JailFailed
from sandbox.runtimes.container import Engine
from sandbox.runtimes.containers import GVISOR

SCRIPTS = ("print.py", "workbook.py", "documents.py")
_MOST_FIRST_ROUNDS = 8
"""All scripts together stay below the containers that stand at a time: to remove one is no part of a first run."""
OURS, THEIRS = "runtime docker", "docker run"


class NewWorkspaces(Http):
    """Each run is the first in its workspace, so its container is made for it; the workspaces are laid out before."""

    def __init__(self, served: Service, count: int) -> None:
        super().__init__(OURS, served.port, workspace="none")
        self._clients: Iterator[Http] = iter([served.client(f"new-{number}") for number in range(count)])

    def run(self, script: str) -> bytes:
        return next(self._clients).run(script)


def measure(guest_root: Path, rounds: int) -> dict[str, Any]:
    """By the name of the kernel below the containers, then by what was run: both contenders' times; without Docker nothing."""
    if not Docker.is_there():
        print("no daemon of Docker answers: the runtime `docker` is not measured", file=sys.stderr)
        return {}
    Docker.make_image(guest_root)
    figures = {"Linux": _measure(guest_root, None, rounds)}
    try:
        Engine().require(GVISOR)
    except JailFailed as why:
        print(f"gVisor is not measured: {why}", file=sys.stderr)
    else:
        figures["gVisor"] = _measure(guest_root, GVISOR, rounds)
    return figures


def _measure(guest_root: Path, oci_runtime: str | None, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        settings = {"DOCKER_IMAGE": IMAGE, **({"DOCKER_RUNTIME": oci_runtime} if oci_runtime else {})}
        theirs = Docker(folder, oci_runtime)
        first_rounds = min(rounds, _MOST_FIRST_ROUNDS)
        with service(folder / "service", guest_root, "docker", **settings) as served:
            ours = served.client("bench", OURS)
            idle = {script: in_turn([theirs, ours], script, rounds) for script in SCRIPTS}
            in_new = NewWorkspaces(served, len(SCRIPTS) * (first_rounds + 2))
            first = {
                f"{script}, the first in a new workspace": in_turn([theirs, in_new], script, first_rounds)
                for script in SCRIPTS
            }
            return {**idle, "print.py, one after another": in_a_row([theirs, ours], "print.py", rounds), **first}


def markdown(figures: dict[str, Any]) -> list[str]:
    """What the README says of them."""
    if not figures:
        return []
    lines = [
        "",
        "The runtime `docker` beside `docker run` of the same image, through HTTP:",
        "",
        "| script |" + "".join(f" {THEIRS}, {kernel} | {OURS}, {kernel} | ratio |" for kernel in figures),
        "|---" * (1 + 3 * len(figures)) + "|",
    ]
    for what in next(iter(figures.values())):
        script, comma, rest = what.partition(",")
        cells = ""
        for measured in figures.values():
            theirs, ours = measured[what][THEIRS]["p50"], measured[what][OURS]["p50"]
            cells += f" {theirs:.1f} ms | {ours:.1f} ms | {ours / theirs:.2f} |"
        lines.append(f"| `{script}`{comma}{rest} |{cells}")
    return lines


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(".spillbox"), help="where the guest root is")
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    print("\n".join(markdown(measure(arguments.data_dir / "guest-root", arguments.rounds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
