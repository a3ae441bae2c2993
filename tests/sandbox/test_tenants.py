"""Ids of workspaces begin with their tenant."""

from pathlib import Path

import pytest

from sandbox.errors import InvalidWorkspace
from sandbox.tenants import tenant_of, workspace_id
from sandbox.workspace import Workspaces


def test_a_tenant_reaches_its_own_workspaces_by_name_and_by_id() -> None:
    assert workspace_id("", "chat-1") == "chat-1"
    assert workspace_id("acme", "chat-1") == "acme~chat-1"
    assert workspace_id("acme", "acme~chat-1") == "acme~chat-1"
    assert [tenant_of(one) for one in ("chat-1", "acme~chat-1")] == ["", "acme"]


@pytest.mark.parametrize(
    ("tenant", "name"),
    [
        ("", "acme~x"),
        ("acme", "other~x"),
        ("acme", "~x"),
        ("acme", "acmee~x"),
        ("acme", "other~acme~x"),
        ("acme", "acme~other~x"),
    ],
)
def test_nobody_names_anothers(tenant: str, name: str) -> None:
    with pytest.raises(InvalidWorkspace):
        workspace_id(tenant, name)


@pytest.mark.parametrize("name", ["acme~acme~x", "acme~", "acme~../x", "acme~.x", "Acme~x", "acme~" + "x" * 124])
def test_an_id_that_no_workspace_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidWorkspace):
        Workspaces(tmp_path).open(name)


def test_workspaces_of_tenants_are_apart_on_disk(tmp_path: Path) -> None:
    workspaces = Workspaces(tmp_path)
    for name in ("x", "acme~x", "other~x"):
        workspaces.open(name).write("a.txt", name.encode())
    assert [workspaces.open(name).read_bytes("a.txt").decode() for name in ("x", "acme~x", "other~x")] == [
        "x",
        "acme~x",
        "other~x",
    ]
    assert {one.id for one in workspaces.all()} == {"x", "acme~x", "other~x"}
