"""The file of other servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.mcp.settings import ServerSettings, load, prefix_of
from sandbox.errors import SetupFailed


def _load(folder: Path, servers: dict[str, Any]) -> dict[str, ServerSettings]:
    file = folder / "servers.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return load(file)


def test_the_common_file_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    servers = _load(
        tmp_path,
        {
            "files": {"command": "npx", "args": ["-y", "x"], "env": {"KEY": "${A_TOKEN}"}, "autoApprove": ["a"]},
            "remote": {
                "type": "http",
                "url": "https://x.example/mcp",
                "headers": {"Authorization": "Bearer ${A_TOKEN}"},
            },
            "other": {"command": "${NOT_SET:-python3}", "prefix": ""},
            "off": {"command": "x", "disabled": True},
        },
    )
    assert servers["files"].env == {"KEY": "secret"}
    assert servers["remote"].headers == {"Authorization": "Bearer secret"}
    assert servers["other"].command == "python3"
    assert [prefix_of(name, server) for name, server in servers.items()] == ["files_", "remote_", ""]


def test_the_last_rule_that_fits_a_tool_counts(tmp_path: Path) -> None:
    rules = {"*": {"timeout_seconds": 5}, "delete_*": {"permission": "ask"}, "delete_all": {"permission": "deny"}}
    server = _load(tmp_path, {"s": {"command": "x", "spill": False, "tools": rules}})["s"]
    assert server.rules_of("delete_one").permission == "ask"
    assert server.rules_of("delete_all").permission == "deny"
    assert server.rules_of("get") == server.rules_of("list")
    assert (server.rules_of("get").permission, server.rules_of("get").timeout_seconds) == ("allow", 5)
    assert not server.rules_of("delete_one").spill


def test_tools_that_the_file_disables_are_refused_whatever_else_it_says(tmp_path: Path) -> None:
    server = _load(
        tmp_path, {"s": {"command": "x", "disabledTools": ["delete*"], "tools": {"*": {"permission": "ask"}}}}
    )["s"]
    assert [server.rules_of(tool).permission for tool in ("delete*", "delete_all")] == ["deny", "ask"]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"command": "x", "permision": "ask"}, "There are: permission"),
        ({"command": "x", "url": "http://x"}, "either `command`"),
        ({}, "either `command`"),
        ({"url": "ftp://x"}, "http://"),
        ({"url": "http://x", "walls": {}}, "give `command`"),
        ({"command": "x", "walls": {"network": True}}, "walls.network"),
        ({"url": "http://x", "type": "sse"}, "type"),
        ({"command": "x", "permission": "maybe"}, "permission"),
        ({"command": "x", "tools": {"a": {"permission": "x"}}}, "tools.a.permission"),
        ({"command": "x", "prefix": "a b"}, "prefix"),
        ({"command": "x", "env": {"A": "${SURELY_NOT_SET}"}}, "SURELY_NOT_SET"),
        ({"command": "x", "timeout_seconds": 0}, "timeout_seconds"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, server: dict[str, Any], why: str) -> None:
    with pytest.raises(SetupFailed, match=r"servers\.json") as caught:
        _load(tmp_path, {"s": server})
    assert why in str(caught.value)


def test_two_servers_need_two_prefixes(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="prefix"):
        _load(tmp_path, {"a": {"command": "x", "prefix": ""}, "b": {"command": "y", "prefix": ""}})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match=r"nothing\.json"):
        load(tmp_path / "nothing.json")
