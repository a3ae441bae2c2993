"""Settings are written once, and the README lists each."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from api.auth import UnsafeBinding, require_safe_binding
from api.settings import Settings

README = (Path(__file__).parents[2] / "README.md").read_text()


def variables(model: type[BaseModel] = Settings, prefix: str = "SPILLBOX_") -> dict[str, str]:
    """Every variable with its default as text."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= variables(inner, f"{prefix}{name.upper()}__")
        else:
            default = sorted(field.default) if isinstance(field.default, frozenset) else field.default
            is_plain = isinstance(default, str | int | float | Path) or default is None
            found[f"{prefix}{name.upper()}"] = str(default) if is_plain else json.dumps(default)
    return found


def test_the_readme_lists_every_setting_with_its_default() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `SPILLBOX_")]
    listed = {row.split("|")[1].strip(" `"): row.split("|")[2].strip(" `") for row in rows}
    assert listed == {name: "" if default == "None" else default for name, default in variables().items()}


def test_they_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLBOX_PORT", "1234")
    monkeypatch.setenv("SPILLBOX_LIMITS__WALL_SECONDS", "5")
    settings = Settings()
    assert (settings.port, settings.limits.wall_seconds, settings.limits.processes) == (1234, 5, 64)
    assert Settings(port=4321).port == 4321
    monkeypatch.setenv("SPILLBOX_LIMITS__WALL_SECONDS", "0")
    with pytest.raises(ValidationError):
        Settings()


def test_a_key_from_a_file_loses_its_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLBOX_API_KEY", "0123456789abcdef\n")
    key = Settings().api_key
    assert key is not None
    assert key.get_secret_value() == "0123456789abcdef"


@pytest.mark.parametrize("key", ["", "short", " " * 20, "é" * 20])
def test_an_empty_or_short_key_is_refused(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("SPILLBOX_API_KEY", key)
    with pytest.raises(ValidationError, match="at least 16 printable ASCII characters"):
        Settings()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_loopback_needs_no_key(host: str) -> None:
    require_safe_binding(host, has_keys=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_elsewhere_a_key_is_needed(host: str) -> None:
    with pytest.raises(UnsafeBinding, match="SPILLBOX_API_KEY"):
        require_safe_binding(host, has_keys=False)
    require_safe_binding(host, has_keys=True)
