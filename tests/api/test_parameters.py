"""What the OpenAPI document says of parameters is what the service takes."""

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from api.parameters import CallId, WorkspaceName
from sandbox.errors import InvalidWorkspace
from sandbox.tools.toolbox import CALL_ID
from sandbox.workspace import Workspaces


def _patterns() -> dict[str, str]:
    app = FastAPI()

    @app.get("/{workspace}")
    def route(workspace: WorkspaceName, call_id: CallId = None) -> None: ...

    found: list[dict[str, Any]] = app.openapi()["paths"]["/{workspace}"]["get"]["parameters"]
    return {one["name"]: one["schema"]["pattern"] for one in found}


@pytest.mark.parametrize("name", ["w", "A.b_c-9", "x" * 128, "", "x" * 129, ".w", "-w", "w w", "é", "w\n", "a/b"])
def test_the_pattern_of_a_workspace_is_the_services_own(tmp_path: Path, name: str) -> None:
    fits = re.fullmatch(_patterns()["workspace"].removeprefix("^").removesuffix("$"), name) is not None
    try:
        Workspaces(tmp_path / "workspaces").open(name)
    except InvalidWorkspace:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize("call_id", ["a", "Aa0._:-", "x" * 128, "", "x" * 129, ":a", "a b", "é"])
def test_the_pattern_of_an_id_of_a_call_is_the_services_own(call_id: str) -> None:
    fits = re.fullmatch(_patterns()["Idempotency-Key"].removeprefix("^").removesuffix("$"), call_id) is not None
    assert fits == (CALL_ID.fullmatch(call_id) is not None)
