"""What only HTTP has: files, records, streams, ids, keys, problems."""

import asyncio
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from api.errors import STATUS_BY_CODE
from sandbox.guest_root import GuestRoot
from sandbox.records import Records, State
from tests.conftest import DATA_FOLDER, SURFACES_OVER, jail_pids
from tests.surfaces.conftest import Service, serving

FILES = "/v1/workspaces/w/files"


def test_files_go_in_and_come_out_byte_for_byte(http: httpx.Client) -> None:
    content = bytes(range(256)) * 5000
    put = http.put(f"{FILES}/data/b in.bin", content=iter([content[:1000], content[1000:]]))
    assert (put.status_code, put.json()["bytes"]) == (200, len(content))
    got = http.get(f"{FILES}/data/b%20in.bin")
    assert got.content == content
    assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''b%20in.bin"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert http.head(f"{FILES}/data/b in.bin").headers["content-length"] == str(len(content))
    part = http.get(f"{FILES}/data/b in.bin", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])
    assert http.delete(f"{FILES}/data/b in.bin").json()["change"] == "deleted"
    assert http.get(f"{FILES}/data/b in.bin").json()["code"] == "not_found"


@pytest.mark.case("R14")
def test_any_file_name_is_downloadable_under_its_own_name(http: httpx.Client) -> None:
    names = [b"\xff.txt", "é\"1'.txt".encode(), b"_x", b".dot", b"code", b"c:\\x", b"two\nlines"]
    code = f"for n in {names!r}: open(n, 'w').write('x')"
    ran = http.post("/v1/workspaces/w/tools/run_python", json={"code": code}).json()
    assert len(ran["files"]) == 7
    for change in ran["files"]:
        got = http.get(f"{FILES}/{quote(change['path'])}")
        assert got.text == "x", change
    raw = http.get(f"{FILES}/%FF.txt")
    assert raw.text == "x"
    assert raw.headers["content-disposition"] == "attachment; filename*=UTF-8''%FF.txt"
    accented = http.get(f"{FILES}/%C3%A9%221'.txt")
    assert accented.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A9%221%27.txt"


@pytest.mark.case("R26")
@pytest.mark.parametrize("name", ["%2e%2e/x", "..%2Fx", "%2Fabs", "a%2F%2Fb", "x/", "n%00l", "n" * 300])
def test_a_bad_upload_name_is_refused_and_nothing_is_written(http: httpx.Client, tmp_path: Path, name: str) -> None:
    http.put(f"{FILES}/kept", content=b"kept")
    before = sorted(tmp_path.rglob("*"))
    answer = http.put(f"{FILES}/{name}", content=b"x")
    assert answer.status_code in (400, 404), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    if answer.status_code == 400:
        assert answer.json()["code"] == "invalid_path"
    assert sorted(tmp_path.rglob("*")) == before


def test_an_upload_over_the_limit_is_refused_and_the_old_file_stays(root: GuestRoot, tmp_path: Path) -> None:
    limits = {"file_bytes": 1 << 20, "workspace_bytes": 3 << 20}
    with serving(root, tmp_path, limits=limits) as url, httpx.Client(base_url=url) as http:
        http.put(f"{FILES}/a", content=b"old")
        over = http.put(f"{FILES}/a", content=b"x" * ((1 << 20) + 1))
        assert (over.status_code, over.json()["code"]) == (413, "too_large")
        assert http.get(f"{FILES}/a").content == b"old"
        codes = [http.put(f"{FILES}/f{n}", content=b"x" * (1 << 20)).status_code for n in range(4)]
        assert codes == [200, 200, 413, 413]
        # The quota is also the run's.
        ran = http.post("/v1/workspaces/w/tools/run_python", json={"code": "open('g', 'wb').write(bytes(1 << 20))"})
        assert ran.json()["status"] == "disk_full"


def test_tools_are_ready_to_hand_to_a_model(http: httpx.Client) -> None:
    names = [
        "run_python", "list_files", "read_file", "write_file", "edit_file", "delete_file", "extract_json_path", "search_output",
        "build_csv", "build_excel", "attach_file", "show_table", "call_tool",
    ]  # fmt: skip
    assert [tool["name"] for tool in http.get("/v1/tools").json()] == names
    openai = http.get("/v1/tools", params={"format": "openai"}).json()
    assert [tool["function"]["name"] for tool in openai] == names
    assert all(tool["type"] == "function" and "properties" in tool["function"]["parameters"] for tool in openai)
    anthropic = http.get("/v1/tools", params={"format": "anthropic"}).json()
    assert all(set(tool) == {"name", "description", "input_schema"} for tool in anthropic)
    described = openai[0]["function"]["description"]
    assert "30 s, 512 MiB" in described
    assert "python-docx 1" in described
    page = http.get("/docs").text
    for address in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert address.startswith("/docs/assets/"), "a closed network has no CDN"
        assert http.get(address).status_code == 200
    assert all(len(tool["function"]["description"]) <= 1024 for tool in openai)  # the most that OpenAI takes
    assert "/v1/workspaces/{workspace}/tools/run_python" in http.get("/openapi.json").json()["paths"]


def test_output_is_followed_while_the_run_goes_on(http: httpx.Client) -> None:
    code = "import time\nprint('one')\ntime.sleep(1)\nprint('two')"
    events: list[tuple[str, str, float]] = []
    with http.stream(
        "POST", "/v1/workspaces/w/tools/run_python", json={"code": code}, headers={"Accept": "text/event-stream"}
    ) as answer:
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                events.append((name, line[6:], time.monotonic()))
    *output, (last, answered, _) = events
    assert {name for name, _, _ in output} == {"stdout"}
    assert "".join(json.loads(data)["text"] for _, data, _ in output) == "one\ntwo\n"
    assert output[-1][2] - output[0][2] > 0.5
    assert last == "result"
    assert json.loads(answered)["stdout"]["text"] == "one\ntwo\n"
    with http.stream(
        "POST", "/v1/workspaces/w/tools/run_python", json={"path": "none.py"}, headers={"Accept": "text/event-stream"}
    ) as answer:
        assert b'"code":"not_found"' in b"".join(answer.iter_bytes())


def test_every_call_is_recorded(http: httpx.Client) -> None:
    http.post("/v1/workspaces/w/tools/write_file", json={"path": "a", "content": "x" * 10_000})
    http.post("/v1/workspaces/w/tools/run_python", json={"code": "print(1)"})
    http.post("/v1/workspaces/w/tools/delete_file", json={"path": "nothing"})
    http.post("/v1/workspaces/other/tools/list_files", json={})
    records = http.get("/v1/workspaces/w/records").json()
    assert [(record["tool"], record["status"]) for record in records] == [
        ("delete_file", "not_found"), ("run_python", "succeeded"), ("write_file", "ok"),
    ]  # fmt: skip
    assert all(record["answer"] is None for record in records)
    assert records[2]["arguments"]["content"].endswith("… (10,000 characters)")
    assert all(record["ended_at"] >= record["accepted_at"] for record in records)
    one = http.get(f"/v1/workspaces/w/records/{records[1]['id']}").json()
    assert one["answer"]["usage"]["wall_seconds"] > 0
    assert {**one, "answer": None} == records[1]
    assert http.get(f"/v1/workspaces/other/records/{records[1]['id']}").json()["code"] == "not_found"


def test_the_same_id_is_done_once_and_answered_alike(http: httpx.Client) -> None:
    call = {"code": "open('count', 'a').write('x'); print(open('count').read())"}
    answers = [
        http.post("/v1/workspaces/w/tools/run_python", json=call, headers={"Idempotency-Key": "key-1"}).json()
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert answers[0]["id"] == "key-1"
    assert answers[0]["stdout"]["text"] == "x\n"
    assert (
        http.post("/v1/workspaces/w/tools/list_files", json={}, headers={"Idempotency-Key": "b d"}).status_code == 422
    )
    reused = http.post("/v1/workspaces/w/tools/run_python", json={"code": "2"}, headers={"Idempotency-Key": "key-1"})
    assert (reused.status_code, reused.json()["code"]) == (409, "id_reused")
    missing = [
        http.post("/v1/workspaces/w/tools/read_file", json={"path": "no"}, headers={"Idempotency-Key": "key-2"})
        for _ in range(2)
    ]
    assert [answer.json()["code"] for answer in missing] == ["not_found"] * 2


async def test_an_id_means_nothing_in_another_conversation(base_url: str) -> None:
    async with httpx.AsyncClient(base_url=base_url, timeout=60) as http:
        headers = {"Idempotency-Key": "same"}
        calls = [
            http.post(
                f"/v1/workspaces/{w}/tools/run_python",
                json={"code": f"import time; time.sleep(0.5); print('{w}')"},
                headers=headers,
            )
            for w in "ab"
        ]
        answers = await asyncio.gather(*calls)
        reused = await http.post("/v1/workspaces/a/tools/run_python", json={"code": "1"}, headers=headers)
    assert [answer.json()["stdout"]["text"] for answer in answers] == ["a\n", "b\n"]
    assert reused.json()["code"] == "id_reused"


@pytest.mark.case("R20")
async def test_over_capacity_is_a_typed_busy(root: GuestRoot, tmp_path: Path) -> None:
    with serving(root, tmp_path, slots=1, queue_length=1) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            post = [
                http.post(f"/v1/workspaces/w{n}/tools/run_python", json={"code": "import time; time.sleep(1)"})
                for n in range(4)
            ]
            answers = await asyncio.gather(*post)
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200, 200, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["code"] == "busy"
    assert int(refused.headers["retry-after"]) > 0


async def test_a_refused_call_can_be_tried_again_under_its_id(root: GuestRoot, tmp_path: Path) -> None:
    with serving(root, tmp_path, slots=1, queue_length=0) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            long = asyncio.create_task(
                http.post("/v1/workspaces/w/tools/run_python", json={"code": "import time; time.sleep(1)"})
            )
            await asyncio.sleep(0.5)
            call = {"json": {"code": "print(1)"}, "headers": {"Idempotency-Key": "again"}}
            assert (await http.post("/v1/workspaces/v/tools/run_python", **call)).status_code == 429  # type: ignore[arg-type]
            await long
            assert (await http.post("/v1/workspaces/v/tools/run_python", **call)).json()["stdout"]["text"] == "1\n"  # type: ignore[arg-type]


def test_errors_are_problem_details(http: httpx.Client) -> None:
    for answer, status, code in (
        (http.post("/v1/workspaces/w/tools/run_python", content=b"{"), 422, "invalid_arguments"),
        (http.post("/v1/workspaces/w/tools/run_python", content=b"[]"), 422, "invalid_arguments"),
        (http.post("/v1/workspaces/-w/tools/list_files", json={}), 400, "invalid_workspace"),
        (http.get("/v1/nothing"), 404, "not_found"),
        (http.get("/v1/tools", params={"format": "x"}), 422, "invalid_arguments"),
        (http.patch("/v1/tools"), 405, "method_not_allowed"),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(problem) >= {"type", "title", "status", "detail", "code"}


@pytest.mark.case("R27")
def test_a_hostile_exception_is_valid_json(http: httpx.Client) -> None:
    ran = http.post("/v1/workspaces/w/tools/run_python", json={"code": "raise ValueError('\\ud800\\x00\\x1b[31m')"})
    assert ran.json()["error"]["message"] == "\\ud800\x00\x1b[31m"
    again = http.get("/v1/workspaces/w/records")
    assert again.status_code == 200


@pytest.mark.case("R28")
def test_readiness_says_what_is_weaker(http: httpx.Client) -> None:
    ready = http.get("/readyz").json()
    assert (ready["status"], ready["runtimes"]) == (
        "ready",
        ["warm", "nsjail"] if SURFACES_OVER == "warm" else [SURFACES_OVER],
    )
    ran = http.post("/v1/workspaces/w/tools/run_python", json={"code": "1"}).json()
    assert ready["warnings"] == ran["warnings"]
    assert http.get("/healthz").json() == {"status": "ok"}


def test_a_service_whose_guest_root_is_gone_is_not_ready(root: GuestRoot, tmp_path: Path) -> None:
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    with Service(tmp_path) as (_, url):
        ready = httpx.get(f"{url}/readyz").json()
        assert ready["runtimes"] == ["warm", "nsjail"]
        assert ready["proved"] > 40
        (tmp_path / "guest-root").unlink()
        assert httpx.get(f"{url}/readyz").json()["code"] == "setup_needed"


def test_the_data_folder_is_closed_to_others(root: GuestRoot, tmp_path: Path) -> None:
    (tmp_path / "guest-root").symlink_to(root.path.resolve())
    tmp_path.chmod(0o755)
    with Service(tmp_path) as (_, url):
        ran = httpx.post(f"{url}/v1/workspaces/w/tools/run_python", json={"code": "print(1)"}).json()
    assert ran["stdout"]["text"] == "1\n"
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_key_is_asked_for_everywhere_but_for_health(root: GuestRoot, tmp_path: Path) -> None:
    with serving(root, tmp_path, api_key="secret-key-of-the-test") as url, httpx.Client(base_url=url) as http:
        for path in ("/v1/tools", "/docs", "/openapi.json", FILES, "/v1/workspaces/w/records"):
            assert http.get(path).status_code == 401, path
            assert http.get(path, headers={"Authorization": "Bearer wrong"}).json()["code"] == "unauthorized"
            assert http.get(path, headers={"Authorization": "Bearer secret-key-of-the-test"}).status_code == 200, path
        assert http.get("/healthz").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert http.get("/readyz", headers=headers).json() == {"status": "ready"}
        assert http.get("/readyz", headers={"Authorization": "Bearer secret-key-of-the-test"}).json().keys() > {
            "status",
            "proved",
        }


def test_without_a_key_a_web_page_can_not_use_theService(http: httpx.Client) -> None:
    assert http.get("/v1/tools", headers={"Host": "evil.example"}).status_code == 403
    assert http.get("/v1/tools", headers={"Origin": "https://evil.example"}).json()["code"] == "forbidden"
    assert http.get("/v1/tools", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert http.get("/v1/tools", headers={"Origin": "http://localhost:8750"}).status_code == 200


@pytest.mark.case("R22")
def test_a_killed_service_leaves_no_jail_and_its_run_is_recorded_as_interrupted(
    root: GuestRoot, tmp_path: Path
) -> None:
    (tmp_path / "guest-root").symlink_to((DATA_FOLDER / "guest-root").resolve())
    before = jail_pids()
    with Service(tmp_path) as (process, url):
        httpx.put(f"{url}{FILES}/kept.txt", content=b"kept")
        code = "import time\nprint('begun')\nopen('half.txt', 'w').write('half')\ntime.sleep(3600)"
        with httpx.stream(
            "POST", f"{url}/v1/workspaces/w/tools/run_python", json={"code": code},
            headers={"Accept": "text/event-stream", "Idempotency-Key": "cut"}, timeout=30,
        ) as answer:  # fmt: skip
            assert "begun" in next(line for line in answer.iter_lines() if line.startswith("data: "))
            jails = jail_pids() - before
            assert len(jails) >= 2
            process.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has noticed yet
    deadline = time.monotonic() + 10
    while jails & jail_pids() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not jails & jail_pids()
    with Service(tmp_path) as (second, url):
        record = httpx.get(f"{url}/v1/workspaces/w/records/cut").json()
        assert record["state"] == State.INTERRUPTED
        assert record["ended_at"].endswith("Z")
        assert httpx.get(f"{url}{FILES}/kept.txt").content == b"kept"
        ran = httpx.post(f"{url}/v1/workspaces/w/tools/run_python", json={"code": "import os; print(os.listdir('.'))"})
        assert ran.json()["status"] == "succeeded"
        assert "half.txt" not in ran.json()["stdout"]["text"]
    for pid in (process.pid, second.pid):
        assert list(Path("/sys/fs/cgroup").rglob(f"spillbox-{pid}-*")) == []


def test_records_of_a_living_process_are_not_taken_from_it(tmp_path: Path) -> None:
    records = Records.in_folder(tmp_path)
    records.accept("a", "w", "run_python", {})
    assert Records.in_folder(tmp_path).recover() == []
    assert records.get("w", "a").state is State.ACCEPTED


def test_every_reference_of_the_openapi_document_leads_somewhere(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    seen = 0

    def walk(node: Any) -> None:
        nonlocal seen
        for value in node.values() if isinstance(node, dict) else node:
            if isinstance(value, dict | list):
                walk(value)
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            place: Any = document
            for step in node["$ref"].removeprefix("#/").split("/"):
                place = place[step]
            seen += 1

    walk(document)
    assert seen > 10
    columns = document["paths"]["/v1/workspaces/{workspace}/tools/build_csv"]["post"]["requestBody"]
    assert "$ref" not in str(columns)
    assert "header" in str(columns)


def test_every_route_documents_its_problems_as_problems(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    for operations in document["paths"].values():
        for operation in operations.values():
            for status in {str(status) for status in STATUS_BY_CODE.values()}:
                (media_type,) = operation["responses"][status]["content"]
                assert media_type == "application/problem+json"
    assert set(document["components"]["schemas"]["Problem"]["required"]) == {"title", "status", "code", "detail"}


def test_only_the_probes_are_documented_to_ask_for_no_key(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    open_paths = [
        path
        for path, operations in paths.items()
        if any({} in one.get("security", [{}]) for one in operations.values())
    ]
    assert open_paths == ["/healthz", "/readyz"]


def test_a_method_that_a_path_has_not_is_told_with_those_that_it_has(http: httpx.Client) -> None:
    for path, methods in ((f"{FILES}/a", "DELETE, GET, HEAD, PUT"), (FILES, "GET"), ("/v1/tools", "GET")):
        for method in ("OPTIONS", "POST"):
            answer = http.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
            assert "Allow" in answer.json()["detail"]
            assert answer.headers["allow"] == methods


def test_a_range_that_can_not_be_served_is_a_problem(http: httpx.Client) -> None:
    http.put(f"{FILES}/a.txt", content=b"12345")
    behind = http.get(f"{FILES}/a.txt", headers={"Range": "bytes=5-"})
    assert (behind.status_code, behind.json()["code"]) == (416, "unsatisfiable_range")
    assert behind.headers["content-range"] == "bytes */5"
    unreadable = http.get(f"{FILES}/a.txt", headers={"Range": "lines=1-2"})
    assert (unreadable.status_code, unreadable.json()["code"]) == (400, "bad_request")
    for answer in (behind, unreadable):
        assert answer.headers["content-type"] == "application/problem+json"
    assert http.head(f"{FILES}/a.txt", headers={"Range": "bytes=5-"}).status_code == 416


def test_an_upload_without_a_body_is_an_empty_file(http: httpx.Client) -> None:
    assert http.put(f"{FILES}/empty").json()["bytes"] == 0
    body = http.get("/openapi.json").json()["paths"]["/v1/workspaces/{workspace}/files/{path}"]["put"]["requestBody"]
    assert not body.get("required")
