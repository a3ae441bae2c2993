"""Settings by a file: the environment comes before it, unknown names are refused, and each says where it comes from."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from api.__main__ import _may_have_keys, main
from api.config import BadConfiguration, config_file, load
from api.settings import Settings
from sandbox.workspace.tree import Identity, acting_as

KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPILLBOX_DATA_DIR", "SPILLBOX_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "spillbox.toml"
    made.write_text(
        f'port = 1111\napi_key = "{KEY}"\ntenant_disk_bytes = 10_000_000\npublic_url = "https://é.example"\n'
        '[limits]\nwall_seconds = 7\nprocesses = 9\n[spill]\nsurfaces = ["agent", "client"]\ninline_bytes_by_client = { x = 5 }\n'
    )
    return made


def test_the_environment_comes_before_the_file_and_the_command_line_before_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLBOX_LIMITS__WALL_SECONDS", "8")
    monkeypatch.setenv("SPILLBOX_PORT", "2222")
    settings = load(file, {})
    assert (settings.port, settings.limits.wall_seconds, settings.limits.processes) == (2222, 8, 9)
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == KEY
    assert settings.spill.inline_bytes_by_client == {"x": 5}
    assert load(file, {"port": 3333}).port == 3333
    assert Settings().tenant_disk_bytes is None, "without the file"


def test_the_command_line_names_the_file_or_else_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_file(None) is None
    monkeypatch.setenv("SPILLBOX_CONFIG", str(file))
    assert config_file(None) == file
    assert config_file(Path("other")) == Path("other")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prot = 1", "There is no setting prot. Did you mean port?"),
        ("[limits]\nwal_seconds = 1", "There is no setting limits.wal_seconds. Did you mean limits.wall_seconds"),
        ("[spill]\ninline_byte = 1", "Did you mean spill.inline_bytes"),
        ("[nothing]\nx = 1", "There is no setting nothing."),
        ("port = ", "is not TOML"),
    ],
)
def test_what_is_no_setting_is_refused_with_those_that_are_near(
    file: Path, content: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(content)
    with pytest.raises(BadConfiguration) as fault:
        load(file, {})
    assert words in str(fault.value)
    assert main(["tools", "--config", str(file)]) == 64, "at every command"
    assert words in capsys.readouterr().err


def test_a_file_that_is_not_there_or_has_a_wrong_value_is_told(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", "--config", str(tmp_path / "none")]) == 64
    assert "can't be read" in capsys.readouterr().err
    file.write_text("port = 99999")
    assert main(["config", "check", "--config", str(file)]) == 64
    assert f"The setting port in {file} is not right: " in capsys.readouterr().err
    file.write_text("[limits]\nwall_seconds = -1")
    assert main(["config", "check", "--config", str(file)]) == 64
    assert f"The setting limits.wall_seconds in {file} is not right: " in capsys.readouterr().err
    file.write_text("limits = 5")
    assert main(["config", "check", "--config", str(file)]) == 64
    assert "Traceback" not in capsys.readouterr().err


def test_it_says_of_each_setting_where_it_comes_from_and_shows_no_secret(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPILLBOX_LIMITS__WALL_SECONDS", "8")
    assert main(["config", "check", "--config", str(file), "--data-dir", "here"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert 'data_dir = "here"  # command line' in lines
    assert "limits.wall_seconds = 8.0  # environment" in lines or "limits.wall_seconds = 8  # environment" in lines
    assert f"limits.processes = 9  # file {file}" in lines
    assert "limits.tmp_bytes = 67108864  # default" in lines
    assert "# tenant_slots is not set" in lines
    assert KEY not in out
    assert f'api_key = "**********"  # file {file}' in lines


def test_what_it_prints_is_a_file_with_the_same_settings(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["config", "check", "--config", str(file)])
    printed = capsys.readouterr().out.replace("*" * 10, KEY)
    again = tmp_path / "again.toml"
    again.write_text(printed)
    assert load(again, {}).model_dump() == load(file, {}).model_dump()


def test_a_variable_that_is_no_setting_is_told_by_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPILLBOX_TENANT_DISK_BYTE", "5")
    assert main(["config", "check"]) == 64
    assert "SPILLBOX_TENANT_DISK_BYTE. Did you mean SPILLBOX_TENANT_DISK_BYTES" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"HOST": "0.0.0.0"}, "Refusing to listen on 0.0.0.0 without an API key"),
        ({"MCP_SERVERS": "/none.json"}, "/none.json can't be read"),
        ({"DOCKER_RUNTIME": "runsc"}, "DOCKER_RUNTIME (runsc) needs RUNTIME=docker"),
        ({"DOCKER_IMAGE": ""}, "SPILLBOX_DOCKER_IMAGE is not right"),
        ({"OIDC_ISSUER": "https://x"}, "OIDC_ISSUER and OIDC_AUDIENCE belong together"),
        ({"LIMITS__WALL_SECOND": "1"}, "Did you mean SPILLBOX_LIMITS__WALL_SECONDS"),
    ],
)
def test_what_the_service_would_not_start_with_is_told_by_the_check(
    variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    arguments = ["config", "check", "--data-dir", str(tmp_path)]
    assert main(arguments) == 0
    for name, value in variables.items():
        monkeypatch.setenv(f"SPILLBOX_{name}", value)
    assert main(arguments) == 64
    assert told in capsys.readouterr().err


def test_a_folder_that_no_program_can_be_shown_is_told_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = tmp_path / "mcp.json"
    monkeypatch.setenv("SPILLBOX_MCP_SERVERS", str(servers))
    for folder, status in ((tmp_path, 0), (tmp_path / "none", 64), (Path("relative"), 64)):
        one = {"command": "x", "walls": {"read": [str(folder)]}}
        servers.write_text(json.dumps({"mcpServers": {"x": one}}))
        assert main(["config", "check", "--data-dir", str(tmp_path)]) == status
        assert (f"{folder} can't be shown to a program behind walls" in capsys.readouterr().err) == (status != 0)


def test_the_schema_has_every_setting_with_what_it_means(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    schema: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == set(Settings.model_fields)
    assert all("$ref" in one or one["description"] for one in schema["properties"].values())
    assert schema["additionalProperties"] is False
    assert set(tomllib.loads(file.read_text())) <= set(schema["properties"])


def test_the_file_in_the_readme_is_one(file: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    file.write_text(readme.partition("<!-- config -->\n```toml\n")[2].partition("```")[0])
    assert load(file, {}).limits.wall_seconds == 60


def test_who_may_not_look_into_the_data_folder_can_check_the_settings_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    settings = Settings(data_dir=folder)
    assert not _may_have_keys(settings)
    folder.chmod(0)
    with acting_as(Identity(65534, 65534)):  # what this changes nothing for, the mode keeps out already
        assert _may_have_keys(settings)
    folder.chmod(0o700)
