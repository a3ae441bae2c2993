"""Jails and containers that lack one wall: where an attack must succeed, or it would prove nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sandbox.doctor.attacks import SECRET_PLACE, Attack
from sandbox.guest_root import GuestRoot
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.containers import DockerRuntime
from sandbox.runtimes.nsjail import NsjailRuntime


@asynccontextmanager
async def without_its_wall(
    attack: Attack, runtime: Runtime, root: GuestRoot | None, secret_folder: Path
) -> AsyncIterator[Runtime]:
    """A runtime of the same family as ``runtime``, for the control of an attack. A jail needs the guest root."""
    with TemporaryDirectory(prefix="spillbox-doctor-") as folder:
        made: Runtime
        if isinstance(runtime, DockerRuntime):
            made = runtime.weakened(_with_folder(attack.container, secret_folder))
        else:
            assert root is not None  # noqa: S101  jails are made of one
            walls = dict(attack.walls)
            if attack.config is not None:
                walls["config_file"] = Path(folder) / "weakened.cfg"
                walls["config_file"].write_text(attack.config.replace(SECRET_PLACE, str(secret_folder)))
            made = NsjailRuntime(root, walls=walls)
        try:
            yield made
        finally:
            await made.close()


def _with_folder(walls: dict[str, object], secret_folder: Path) -> dict[str, object]:
    changes = walls.get("changes")
    if not isinstance(changes, dict) or "binds" not in changes:
        return walls
    binds = {str(place).replace(SECRET_PLACE, str(secret_folder)): how for place, how in changes["binds"].items()}
    return {**walls, "changes": {**changes, "binds": binds}}
