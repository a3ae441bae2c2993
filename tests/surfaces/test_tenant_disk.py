"""What a tenant's workspaces and attachments hold together is bounded, over every way in, and for that tenant only."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

from api.app import create_app, toolbox_of
from api.settings import Settings
from sandbox.database import Database
from sandbox.errors import TenantFull
from sandbox.guest_root import GuestRoot
from sandbox.keys import Keys
from sandbox.spills.spill import Received
from sandbox.tools.toolbox import open_toolbox
from sandbox.workspace import disk
from tests.surfaces.conftest import serving_app

MOST = 2 << 20
HALF = b"x" * (MOST // 2)


@dataclass
class Served:
    url: str
    a: httpx.Client
    b: httpx.Client


@pytest.fixture
def served(root: GuestRoot, tmp_path: Path) -> Iterator[Served]:
    database = Database.in_folder(tmp_path)
    texts = [Keys(database).create(tenant)[1] for tenant in ("a", "b")]
    database.close()
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    settings = Settings(data_dir=tmp_path, runtime="nsjail", tenant_disk_bytes=MOST)
    with serving_app(lambda: create_app(settings, toolbox_of(settings), [])) as url:
        a, b = (httpx.Client(base_url=url, headers={"Authorization": f"Bearer {text}"}, timeout=60) for text in texts)
        with a, b:
            yield Served(url, a, b)


def _fill(client: httpx.Client, *, leave: int = 2000) -> None:
    for workspace in ("one", "other"):
        assert client.put(f"/v1/workspaces/{workspace}/files/half", content=HALF[: -(leave // 2)]).status_code == 200


async def test_over_the_quota_every_way_in_is_refused_and_the_other_tenant_goes_on(served: Served) -> None:
    _fill(served.a)
    place = "/v1/workspaces/one"
    text = "y" * 5000
    rows = json.dumps([{"id": n, "text": "z" * 100} for n in range(100)])
    assert served.b.put(f"{place}/files/half", content=HALF).status_code == 200
    for refused in (
        served.a.put(f"{place}/files/more", content=text.encode()),
        served.a.post(f"{place}/tools/write_file", json={"path": "more", "content": text}),
        served.a.post(f"{place}/tools/attach_file", json={"path": "half"}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (413, "tenant_full"), refused.text
        assert "delete_file" in refused.json()["detail"]
        assert "SPILLBOX_TENANT_DISK_BYTES" in refused.json()["detail"]
    spill = served.a.post(f"{place}/spills", json={"tool": "t", "content": text}).json()
    assert (spill["spilled"], spill["text"]) == (False, text), "the model gets the result itself"
    assert "delete_file" in spill["warnings"][0]
    async with (
        httpx2.AsyncClient(headers={"Authorization": served.a.headers["Authorization"]}, timeout=30) as http,
        mcp.Client(
            streamable_http_client(f"{served.url}/mcp?workspace=one", http_client=http), mode="legacy"
        ) as client,
    ):
        told = await client.call_tool("write_file", {"path": "more", "content": text})
    assert told.is_error
    assert "tenant_full" in str(told)
    # Room is there as soon as a file is deleted, in whichever workspace.
    assert served.a.delete("/v1/workspaces/other/files/half").status_code == 200
    assert served.a.put(f"{place}/files/rows.json", content=rows.encode()).status_code == 200
    built = served.a.post(f"{place}/tools/build_csv", json={"source": "rows.json", "output": "more.csv"})
    assert built.status_code == 200
    filled = served.a.put(f"{place}/files/fill", content=HALF[: -(len(rows) + built.json()["bytes"] + 1000)])
    assert filled.status_code == 200, filled.text
    over = served.a.post(f"{place}/tools/build_csv", json={"source": "rows.json", "output": "again.csv"})
    assert (over.status_code, over.json()["code"]) == (413, "tenant_full")


def test_what_a_run_makes_is_taken_as_far_as_there_is_room(served: Served) -> None:
    _fill(served.a, leave=40_000)
    code = "open('small', 'w').write('s' * 500); open('zzz', 'wb').write(bytes(1 << 20))"
    for _ in range(2):
        ran = served.a.post("/v1/workspaces/third/tools/run_python", json={"code": code}).json()
        assert ran["status"] == "succeeded", ran
        assert {one["path"]: one["reason"] for one in ran["skipped"]} == {
            "zzz": "over the bytes that this tenant may hold"
        }
    assert served.b.post("/v1/workspaces/third/tools/run_python", json={"code": code}).json()["skipped"] == []


def test_a_run_for_which_there_is_no_room_costs_no_file_that_was_there(served: Served) -> None:
    _fill(served.a, leave=40_000)
    place = "/v1/workspaces/one"
    for name in ("first", "stays"):
        assert served.a.put(f"{place}/files/{name}", content=b"old").status_code == 200
    code = "open('half', 'ab').write(bytes(1 << 20)); open('new', 'w').write('n')"
    ran = served.a.post(f"{place}/tools/run_python", json={"code": code}).json()
    assert [one["path"] for one in ran["skipped"]] == ["half"]
    assert [(one["path"], one["change"]) for one in ran["files"]] == [("new", "created")], "it has room"
    for name in ("first", "stays"):
        assert served.a.get(f"{place}/files/{name}").content == b"old"
    assert len(served.a.get(f"{place}/files/half").content) == len(HALF) - 20_000


async def test_equal_content_counts_once_for_a_tenant_and_for_each_that_has_it(tmp_path: Path) -> None:
    async with open_toolbox(tmp_path, runtime="none", tenant_disk_bytes=MOST) as box:
        quarter = b"q" * (MOST // 4)
        for name in ("a~w", "b~w"):
            box.workspaces.open(name).write("q", quarter)
            for _ in range(3):
                await box.call("attach_file", name, {"path": "q"})
            assert box.catalog.attached_bytes(name[0]) == len(quarter)
            box.workspaces.open(name).write("second", quarter)
            box.workspaces.open(name).write("third", quarter[:-1000])
            with pytest.raises(TenantFull):
                box.workspaces.open(name).write("fourth", quarter)


async def test_what_is_used_is_counted_and_not_walked_for_each_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_toolbox(tmp_path, runtime="none", tenant_disk_bytes=MOST) as box:
        walked: list[Path] = []
        used_bytes = disk.used_bytes

        def counted(folder: Path) -> int:
            walked.append(folder)
            return used_bytes(folder)

        monkeypatch.setattr(disk, "used_bytes", counted)
        workspace = box.workspaces.open("a~w")
        for number in range(50):
            workspace.write(f"{number % 5}", b"x" * 30_000)  # the same files again: what is replaced counts no more
        for _ in range(20):
            with pytest.raises(TenantFull):
                workspace.write("large", (b"x" * (MOST // 2), b"x" * MOST))
            workspace.write("a", b"x" * 1_000_000)  # what was refused half-way has left nothing in the count
            workspace.delete("a")
            await box.spill("a~w", Received("t", content="y" * 2000))
        assert len(walked) <= 2, walked


async def test_a_tenants_files_of_before_count_when_a_service_starts(tmp_path: Path) -> None:
    async with open_toolbox(tmp_path, runtime="none") as box:
        box.workspaces.open("a~w").write("half", HALF)
        await box.call("attach_file", "a~w", {"path": "half"})
    async with open_toolbox(tmp_path, runtime="none", tenant_disk_bytes=MOST) as box:
        with pytest.raises(TenantFull):
            box.workspaces.open("a~v").write("more", b"x")
        box.workspaces.open("w").write("more", HALF)
        box.workspaces.open("aa~w").write("more", HALF)
