"""Settings out of a file and the environment, what they came to, and where each came from."""

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsConfigDict

from api.settings import Settings

VARIABLE = "SPILLBOX_CONFIG"
_PREFIX = "SPILLBOX_"


class BadConfiguration(Exception):
    """A file of settings that can't be taken as it is; the message says what to change."""


class Setting(NamedTuple):
    """One setting, as it is."""

    name: str
    """As in a file, with dots: ``limits.wall_seconds``."""
    value: Any
    source: str


def config_file(given: Path | None) -> Path | None:
    """The file that the command line names, or else the environment."""
    named = os.environ.get(VARIABLE)
    return given or (Path(named) if named else None)


def load(file: Path | None, given: Mapping[str, Any]) -> Settings:
    """The settings: what is given comes before the environment, and that before the file.

    Raises `BadConfiguration`, and `pydantic.ValidationError` for a value that is not right.
    """
    _require_known(file)

    class WithFile(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    return WithFile(**given)


def settings_of(settings: Settings, file: Path | None, given: Mapping[str, Any]) -> Iterator[Setting]:
    """Each setting in the order in which they are written, with where its value came from."""
    places = (
        ("command line", set(given)),
        ("environment", set(_names_in(EnvSettingsSource(Settings)()))),
        (f"file {file}", set(_names_in(_read(file)))),
    )
    for name, value in _values(settings):
        above = {name, name.partition(".")[0]}  # a nested one may have come as a whole
        source = next((source for source, names in places if above & names), "default")
        yield Setting(name, value, source)


def problems_in(fault: ValidationError, file: Path | None, given: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with settings that were refused, each by the name that it has where it was written."""
    in_file = set(_names_in(_read(file))) - set(_names_in(EnvSettingsSource(Settings)()))
    for error in fault.errors():
        why = error["msg"].removeprefix("Value error, ")
        parts = [str(part) for part in error["loc"]]
        name, variable = ".".join(parts), _PREFIX + "__".join(parts).upper()
        if not parts:
            yield f"The settings do not fit together: {why}."
        elif error["type"] == "extra_forbidden":
            yield _unknown(variable, _variables())
        elif name in given:
            yield f"--{name.replace('_', '-')} is not right: {why}."
        elif any(name == one or name.startswith(f"{one}.") for one in in_file):
            yield f"The setting {name} in {file} is not right: {why}."
        else:
            yield f"The setting {variable} is not right: {why}."


def unknown_variables() -> list[str]:
    """Variables of the environment that look like settings, and are none, each with those that are near."""
    known = _variables()
    return [
        _unknown(name, known) for name in sorted(os.environ) if name.startswith(_PREFIX) and name.upper() not in known
    ]


def _variables() -> set[str]:
    return {f"{_PREFIX}{name.upper().replace('.', '__')}" for name in (*_known(), *Settings.model_fields)} | {VARIABLE}


def as_toml(value: Any) -> str:
    """A value as a file of settings has it; a secret is not shown."""
    if isinstance(value, SecretStr):
        return '"**********"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _require_known(file: Path | None) -> None:
    known = set(_known())
    if wrong := [_unknown(name, known) for name in _names_in(_read(file)) if name not in known | set(_groups())]:
        raise BadConfiguration(f"{file}: {' '.join(wrong)}")


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        with file.open("rb") as content:
            return tomllib.load(content)
    except OSError as fault:
        raise BadConfiguration(f"The file {file} can't be read: {fault.strerror}.") from None
    except ValueError as fault:
        raise BadConfiguration(f"{file} is not TOML: {fault}.") from None


def _names_in(values: Mapping[str, Any]) -> Iterator[str]:
    groups = _groups()
    for name, value in values.items():
        if name in groups and isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in value)
        else:
            yield name


def _groups() -> dict[str, type[BaseModel]]:
    """Settings that have settings in them."""
    annotations = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def _known() -> Iterator[str]:
    groups = _groups()
    for name in Settings.model_fields:
        if name in groups:
            yield from (f"{name}.{inner}" for inner in groups[name].model_fields)
        else:
            yield name


def _values(settings: Settings) -> Iterator[tuple[str, Any]]:
    for name in _known():
        value: Any = settings
        for part in name.split("."):
            value = getattr(value, part)
        yield name, value


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f"There is no setting {name}." + (f" Did you mean {', '.join(near)}?" if near else "")
