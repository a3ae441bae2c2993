"""The HTTP routes: tools, files, records, health."""

import asyncio
import codecs
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote_to_bytes

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer
from fastapi.sse import format_sse_event
from pydantic import BaseModel, Field
from starlette.convertors import Convertor, register_url_convertor

from api import approvals, metrics, results
from api.bodies import FILE_RESPONSES, Bodies, Body, OpenFileResponse
from api.callers import NOBODY, Bearer
from api.describe import Format, describe
from api.errors import PROBLEMS, problem_of, unexpected
from api.metrics import Metrics
from api.parameters import CallId, WorkspaceName
from api.settings import Settings
from sandbox.doctor.doctor import Finding
from sandbox.errors import GuestRootMissing, InvalidArguments, SpillboxError, TooLarge
from sandbox.job import FileChange
from sandbox.records import Record
from sandbox.tables.literal_json import parse
from sandbox.tools.files import ListFilesInput, ListFilesOutput, list_files
from sandbox.tools.outer import Caller
from sandbox.tools.toolbox import Toolbox
from sandbox.workspace import name_of, segments_of


class _AnyPath(Convertor[str]):
    """A path of any characters; Starlette's own ends at a line break, which a file's name may have."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anypath", _AnyPath())

_CHUNK_BYTES = 1 << 20
_MAX_WAITING_BYTES = 1 << 20
_PROGRESS_SECONDS = 0.5
_LARGE_BODY_BYTES = 256 << 10
_EVENT_STREAM = "text/event-stream"


class Readiness(BaseModel):
    """Whether the service does what it promises here; to who has no key, where there are keys, only that it is ready."""

    status: Literal["ready"]
    runtimes: list[str] | None = Field(None, description="Where runs go now: the first, or what it falls back on.")
    warnings: list[str] | None = Field(
        None, description="What is weaker on this host than promised, each with how to mend it."
    )
    proved: int | None = Field(
        None, description="Walls and limits that were tried at the start and held, in each of the runtimes."
    )
    weaker: list[str] | None = Field(
        None, description="Those among them that this host holds less strictly than promised."
    )


def routes(box: Toolbox, settings: Settings, findings: list[Finding], bodies: Bodies, figures: Metrics) -> APIRouter:
    """All routes over one toolbox."""
    # The guard in front of the application asks for the key; this tells of it.
    router = APIRouter(dependencies=[Depends(HTTPBearer(auto_error=False))])
    _add_tools(router, box, settings, bodies)
    _add_files(router, box)
    results.add_routes(router, box, settings, bodies)
    approvals.add_routes(router, box)
    metrics.add_routes(router, figures)

    @router.get("/v1/workspaces/{workspace}/records", tags=["records"])
    def records(workspace: WorkspaceName, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[Record]:
        """The workspace's calls, newest first, without their answers."""
        return box.records.latest(box.workspaces.open(workspace).id, limit=limit)

    @router.get("/v1/workspaces/{workspace}/records/{call_id}", tags=["records"])
    def record(workspace: WorkspaceName, call_id: str) -> Record:
        """One call, with its answer."""
        return box.records.get(box.workspaces.open(workspace).id, call_id)

    everything = APIRouter(responses=PROBLEMS)
    everything.include_router(router)

    @everything.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """Whether the process answers; asks for no key."""
        return {"status": "ok"}

    @everything.get(
        "/readyz",
        tags=["health"],
        response_model_exclude_none=True,
        openapi_extra={"security": [{}, {HTTPBearer.__name__: []}]},
    )
    async def readyz(request: Request) -> Readiness:
        """Whether it takes calls, also without a key; with one, what was proved at the start and what is weaker than promised."""
        is_known = Bearer.of(request) is not NOBODY
        box.require_taking()
        try:
            box.require_guest_root()
        except GuestRootMissing:
            if is_known:
                raise
            raise GuestRootMissing("The service can't run scripts now. Asked with a key, /readyz says why.") from None
        if not is_known:
            return Readiness(status="ready")
        return Readiness(
            status="ready",
            runtimes=[part.name for part in box.runtime.parts],
            warnings=list(box.runtime.warnings),
            proved=sum(finding.is_real for finding in findings),
            weaker=list(dict.fromkeys(finding.what for finding in findings if finding.weaker)),
        )

    return everything


# Tools


def _add_tools(router: APIRouter, box: Toolbox, settings: Settings, bodies: Bodies) -> None:
    @router.get("/v1/tools", tags=["tools"])
    async def tools(format: Format = "mcp") -> list[dict[str, Any]]:
        """Names, descriptions and schemas, ready to hand to a model."""
        return [describe(tool, format) for tool in box.tools.values()]

    for tool in box.tools.values():
        router.add_api_route(
            f"/v1/workspaces/{{workspace}}/tools/{tool.name}",
            _tool_route(box, settings, bodies, tool.name),
            methods=["POST"],
            tags=["tools"],
            name=tool.name,
            summary=tool.description.splitlines()[0],
            description=f"{tool.description}\n\nWith `Accept: {_EVENT_STREAM}`: events `stdout` and `stderr` while a run goes "
            "on, and `progress` while a file is built, then `result` with the answer, or `problem` in the place of "
            "an error response.",
            responses={200: {"model": tool.output, "content": {_EVENT_STREAM: {}}}},
            openapi_extra={
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _by_itself(tool.input_schema())}},
                }
            },
        )

    @router.post("/v1/workspaces/{workspace}/tools/{tool}", include_in_schema=False)
    async def unknown(workspace: str, tool: str) -> None:
        await box.call(tool, workspace, {})


def _by_itself(schema: dict[str, Any]) -> dict[str, Any]:
    """A tool's schema with what its references name in their place: in a document of OpenAPI, ``#`` would be the document."""
    named = schema.get("$defs", {})

    def resolved(node: Any) -> Any:
        if isinstance(node, list):
            return [resolved(one) for one in node]
        if not isinstance(node, dict):
            return node
        rest = {key: resolved(value) for key, value in node.items() if key not in ("$ref", "$defs")}
        return {**resolved(named[node["$ref"].rpartition("/")[2]]), **rest} if "$ref" in node else rest

    found: dict[str, Any] = resolved(schema)
    return found


def _tool_route(
    box: Toolbox, settings: Settings, bodies: Bodies, name: str
) -> Callable[..., Coroutine[Any, Any, Response]]:
    async def call(workspace: WorkspaceName, request: Request, idempotency_key: CallId = None) -> Response:
        caller = Caller(identity=Bearer.of(request).identity)
        with await bodies.read(request, settings.max_request_bytes, "SPILLBOX_MAX_REQUEST_BYTES") as body:
            arguments = await _json_object(body.content)
            if _EVENT_STREAM in request.headers.get("accept", ""):
                box.check_call(name, workspace, arguments)
                events = _events(box, name, workspace, arguments, idempotency_key, caller, body)
                return StreamingResponse(events, media_type=_EVENT_STREAM)
            output = await box.call(name, workspace, arguments, call_id=idempotency_key, caller=caller)
        return Response(output.model_dump_json(), media_type="application/json")

    return call


async def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = parse(body or b"{}") if len(body) < _LARGE_BODY_BYTES else await asyncio.to_thread(parse, body)
    except (ValueError, RecursionError) as fault:
        raise InvalidArguments(f"The body is not JSON: {fault}") from None
    if not isinstance(value, dict):
        raise InvalidArguments("The body must be a JSON object: the tool's arguments.")
    return value


def _events(
    box: Toolbox, name: str, workspace: str, arguments: dict[str, Any], call_id: str | None, caller: Caller, body: Body
) -> AsyncIterator[bytes]:
    """Begin a call; gives output as it comes, then the answer. If the client leaves, the run goes on and is recorded."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    missed_bytes = waiting_bytes = 0

    loop = asyncio.get_running_loop()

    def on_progress(counts: dict[str, int]) -> None:  # from another thread
        loop.call_soon_threadsafe(tell, format_sse_event(data_str=json.dumps(counts), event="progress"))

    last_told = 0.0

    def tell(event: bytes) -> None:
        nonlocal last_told
        if loop.time() - last_told >= _PROGRESS_SECONDS:
            last_told = loop.time()
            queue.put_nowait(event)

    def on_output(stream: str, data: bytes) -> None:
        nonlocal missed_bytes, waiting_bytes
        if waiting_bytes > _MAX_WAITING_BYTES:  # a slow reader misses some; the answer has the head and the tail
            missed_bytes += len(data)
            return
        waiting_bytes += len(data)
        event: dict[str, Any] = {"text": decoders[stream].decode(data)}
        if missed_bytes:
            event["missed_bytes"], missed_bytes = missed_bytes, 0
        queue.put_nowait(format_sse_event(data_str=json.dumps(event), event=stream))

    async def work() -> bytes:
        try:
            output = await box.call(
                name, workspace, arguments, call_id=call_id, on_output=on_output, on_progress=on_progress, caller=caller
            )
            return format_sse_event(data_str=output.model_dump_json(), event="result")
        except SpillboxError as fault:
            problem = problem_of(fault)
        except Exception as fault:  # noqa: BLE001  a surface: the stream has begun, so no handler can answer any more
            problem = unexpected(fault, f"the call of {name}")
        return format_sse_event(data_str=problem.model_dump_json(), event="problem")

    async def told() -> AsyncIterator[bytes]:
        nonlocal waiting_bytes
        while (event := await queue.get()) is not None:
            waiting_bytes = max(0, waiting_bytes - len(event))
            yield event
        yield await working

    def end(_: asyncio.Task[bytes]) -> None:
        held.close()
        queue.put_nowait(None)

    held = ExitStack()
    held.enter_context(body)
    working = asyncio.create_task(work())
    working.add_done_callback(end)
    return told()


# Files


def _add_files(router: APIRouter, box: Toolbox) -> None:
    place = "/v1/workspaces/{workspace}/files"

    @router.get(place, tags=["files"])
    async def files(workspace: WorkspaceName, query: Annotated[ListFilesInput, Query()]) -> ListFilesOutput:
        """The workspace's files."""
        return await list_files(box.call_of("", box.workspaces.open(workspace)), query)

    @router.head(place + "/{path:anypath}", include_in_schema=False)
    @router.get(place + "/{path:anypath}", tags=["files"], response_class=Response, responses=FILE_RESPONSES)
    def download(workspace: WorkspaceName, path: str, request: Request) -> Response:
        """A file's bytes; ranges are served."""
        name = _path_of(request, workspace)
        return OpenFileResponse(box.workspaces.open(workspace).open_file(name), name=segments_of(name)[-1])

    @router.put(
        place + "/{path:anypath}", tags=["files"],
        openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}},
    )  # fmt: skip
    async def upload(workspace: WorkspaceName, path: str, request: Request) -> FileChange:
        """Write a file: the body, as it is; without one, an empty file."""
        name = _path_of(request, workspace)
        target = box.workspaces.open(workspace)
        segments_of(name)  # refuse the path before reading the body
        with tempfile.TemporaryFile(dir=target.spool_folder) as body:
            size = 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > box.limits.file_bytes:
                    raise TooLarge(
                        f"{name} is over {box.limits.file_bytes:,} bytes, the limit for one file. Send it in parts; the operator "
                        "can raise SPILLBOX_LIMITS__FILE_BYTES."
                    )
                await asyncio.to_thread(body.write, chunk)
            body.seek(0)
            async with box.queue.turn(target.id):
                return await asyncio.to_thread(target.write, name, iter(lambda: body.read(_CHUNK_BYTES), b""))

    @router.delete(place + "/{path:anypath}", tags=["files"])
    async def delete(workspace: WorkspaceName, path: str, request: Request) -> FileChange:
        """Delete a file."""
        name = _path_of(request, workspace)
        target = box.workspaces.open(workspace)
        async with box.queue.turn(target.id):
            return await asyncio.to_thread(target.delete, name)


def _path_of(request: Request, workspace: str) -> str:
    """The path in the tools' path language: what stands in the URL, or an escape of its bytes if they are not UTF-8."""
    raw: bytes = request.scope.get("raw_path") or quote(request.url.path).encode()
    prefix = f"/v1/workspaces/{workspace}/files/"
    name = unquote_to_bytes(raw.partition(b"?")[0])[len(prefix.encode()) :]
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name_of((name,))
