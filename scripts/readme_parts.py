"""Tables of the README that programs make, between marks that only a reader of its source sees."""

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parent.parent / "README.md"


def part(name: str, readme: Path = README) -> str:
    """What stands between the marks of a name."""
    return readme.read_text().partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def replace_part(name: str, text: str, readme: Path = README) -> None:
    """Put a text between the marks of a name."""
    before, start, rest = readme.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    readme.write_text(f"{before}{start}{text}{end}{after}")


def main(name: str, about: str | None, run: Callable[[Path], Coroutine[Any, Any, str]]) -> int:
    """The command of a program whose ``run``, given the data folder, makes a table."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(".spillbox"), help="where the guest root is")
    parser.add_argument("--readme", type=Path, help="write the table between the marks in this file")
    arguments = parser.parse_args()
    text = asyncio.run(run(arguments.data_dir))
    print(text, end="")
    if arguments.readme:
        replace_part(name, text, arguments.readme)
    return 0
