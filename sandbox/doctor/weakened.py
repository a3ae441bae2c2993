"""Jails and containers that lack one wall: where an attack must succeed, or it would prove nothing."""

from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from sandbox.doctor.attacks import SECRET_PLACE, Attack
from sandbox.guest_root import GuestRoot
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.containers import DockerRuntime
from sandbox.runtimes.nsjail import NsjailRuntime


class Weakened:
    """Runtimes of the same family as another, for the controls of attacks. Use it in an ``async with``.

    Attacks that the same wall stops have one together.
    """

    def __init__(self, runtime: Runtime, root: GuestRoot | None, secret_folder: Path) -> None:
        """Jails need the guest root."""
        self._runtime = runtime.parts[0]
        self._root = root
        self._secret_folder = str(secret_folder)
        self._made: dict[str, Runtime] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="spillbox-doctor-")))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def without_wall_of(self, attack: Attack) -> Runtime:
        """A runtime in which the attack must succeed."""
        is_container = isinstance(self._runtime, DockerRuntime)
        key = repr(attack.container if is_container else (attack.walls, attack.config))
        if key not in self._made:
            made = self._container_for(attack) if is_container else self._jail_for(attack)
            self._stack.push_async_callback(made.close)
            self._made[key] = made
        return self._made[key]

    def _container_for(self, attack: Attack) -> Runtime:
        assert isinstance(self._runtime, DockerRuntime)  # noqa: S101  for the type checker
        return self._runtime.weakened(self._with_folder(attack.container))

    def _jail_for(self, attack: Attack) -> Runtime:
        assert self._root is not None  # noqa: S101  jails are made of one
        walls = dict(attack.walls)
        if attack.config is not None:
            walls["config_file"] = self._folder / f"weakened-{len(self._made)}.cfg"
            walls["config_file"].write_text(attack.config.replace(SECRET_PLACE, self._secret_folder))
        return NsjailRuntime(self._root, walls=walls)

    def _with_folder(self, walls: dict[str, Any]) -> dict[str, Any]:
        binds = walls.get("changes", {}).get("binds")
        if binds is None:
            return walls
        named = {place.replace(SECRET_PLACE, self._secret_folder): how for place, how in binds.items()}
        return {**walls, "changes": {**walls["changes"], "binds": named}}
