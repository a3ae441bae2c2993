"""The HTTP routes of what tools gave and users get: spills, attachments, tables."""

import asyncio
import html
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict

from api.bodies import FILE_RESPONSES, Bodies, OpenFileResponse
from api.parameters import WorkspaceName
from api.settings import Settings
from sandbox.catalog import Attachment, ShownTable
from sandbox.errors import InvalidArguments
from sandbox.spills.spill import Reader, Received, Spill, Surface
from sandbox.tables.cells import plain_text, quoted, without_lone_surrogates
from sandbox.tables.slices import Member, NotJson, Slice, elements, members, require_json
from sandbox.tools.arguments import readable
from sandbox.tools.toolbox import Toolbox

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>body {{ font: 14px/1.4 sans-serif; margin: 1.5rem }} table {{ border-collapse: collapse }}
th, td {{ border: 1px solid #ccc; padding: .25rem .5rem; text-align: left; vertical-align: top; white-space: pre-wrap }}
th {{ background: #f2f2f2; position: sticky; top: 0 }}</style></head>
<body><h1>{title}</h1><p>{count} rows</p><table><thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody></table></body></html>
"""


_RAW_RESULT: JsonDict = {
    "type": "object",
    "anyOf": [{"required": ["content"]}, {"required": ["structuredContent"]}],
}


class SpillRequest(BaseModel):
    """A tool's result: `content` or `result`."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "oneOf": [
                {"required": ["content"], "properties": {"result": {"type": "null"}}},
                {"required": ["result"], "properties": {"result": _RAW_RESULT, "content": False}},
            ]
        },
    )

    tool: str = Field(description="Name of the tool that gave it.")
    content: Any = Field(None, description="Any JSON, or a text. Every number stays as it is written.")
    result: dict[str, Any] | None = Field(None, description="Instead of content: a raw MCP tool result.")
    hint: str | None = Field(None, description="What the tool says about its own large results.")
    is_error: bool = False
    surface: Surface = Field("agent", description="For whom it is; results become files where the settings say so.")
    client: str | None = Field(None, description="Name of the client, for which the settings may have other sizes.")
    is_mcp: bool = Field(False, description="Whether it goes to an MCP client, which gets less of it in the answer.")


_SPILL_SCHEMA = SpillRequest.model_json_schema()


class ListedAttachment(BaseModel):
    """An attachment, and where it is downloaded."""

    attachment: Attachment
    url: str


def add_routes(router: APIRouter, box: Toolbox, settings: Settings, bodies: Bodies) -> None:
    """Spills, attachments and tables of a workspace."""
    place = "/v1/workspaces/{workspace}"

    @router.post(
        f"{place}/spills", tags=["spills"],
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _SPILL_SCHEMA}}}},
    )  # fmt: skip
    async def spill(workspace: WorkspaceName, request: Request) -> Spill:
        """Save a tool's result if it is long; gives what to hand to the model."""
        with await bodies.read(request, settings.max_spill_bytes, "SPILLBOX_MAX_SPILL_BYTES") as body:
            async with box.queue.memory(workspace, len(body.content)):
                given = await asyncio.to_thread(spill_request, body.content)
            return await box.spill(workspace, *given)

    @router.get(f"{place}/attachments", tags=["attachments"])
    def attachments(workspace: WorkspaceName) -> list[ListedAttachment]:
        """The workspace's attachments, newest first."""
        found = box.catalog.attachments(box.workspaces.open(workspace).id)
        return [
            ListedAttachment(attachment=one, url=box.sign(f"/v1/workspaces/{workspace}/attachments/{one.id}"))
            for one in found
        ]

    @router.head(f"{place}/attachments/{{attachment}}", include_in_schema=False)
    @router.get(
        f"{place}/attachments/{{attachment}}",
        tags=["attachments"],
        response_class=Response,
        responses=FILE_RESPONSES,
    )
    def attachment(workspace: WorkspaceName, attachment: str) -> Response:
        """An attachment's bytes; ranges are served. A signed link needs no key."""
        found = box.catalog.attachment(box.workspaces.open(workspace).id, attachment)
        return OpenFileResponse(box.attachments.open(found), name=found.name.encode(), media_type=found.media_type)

    @router.get(
        f"{place}/tables/{{table}}",
        tags=["tables"],
        responses={200: {"content": {"application/json": {}, "text/html": {}}}},
    )
    def table(
        workspace: WorkspaceName, table: Annotated[str, Path(description="Its id; with .html at the end, a page.")]
    ) -> Response:
        """A table that was shown, as JSON or as a plain page."""
        found = box.catalog.table(box.workspaces.open(workspace).id, table.removesuffix(".html"))
        if table.endswith(".html"):
            return HTMLResponse(
                _page(found), headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
            )
        about = found.model_dump_json(exclude={"rows"}).removesuffix("}")
        return Response(f'{about},"rows":{found.rows}}}', media_type="application/json")


def spill_request(body: bytes) -> tuple[Received, Reader]:
    """The arguments of `Toolbox.spill`. The body is cut, not parsed, so that no literal of a result is changed."""
    try:
        body.decode()
        require_json(body)
        inner = {member.key: member for member in members(body)} if body.lstrip()[:1] == b"{" else None
    except NotJson as fault:
        raise InvalidArguments(f"The body is not JSON: {fault}.") from None
    except UnicodeDecodeError as fault:
        raise InvalidArguments(f"The body is not valid UTF-8 at byte {fault.start:,}.") from None
    if inner is None:
        raise InvalidArguments("The body must be a JSON object with tool, and content or result.")
    unknown = set(inner) - set(SpillRequest.model_fields)
    if unknown:
        raise InvalidArguments(
            f"There is no field {quoted(min(unknown))}. There are: {', '.join(SpillRequest.model_fields)}."
        )
    large = {name: inner.pop(name) for name in ("content", "result") if name in inner and _is_given(name, inner[name])}
    if len(large) != 1:
        raise InvalidArguments("Give either content (any JSON, or a text) or result (a raw MCP tool result).")
    inner.pop("result", None)
    text = b"{" + b",".join(member.raw_key + b":" + bytes(member.value) for member in inner.values()) + b"}"
    try:
        given = SpillRequest.model_validate_json(text)
    except ValidationError as fault:
        raise InvalidArguments(readable("a spill", SpillRequest, fault)) from None
    received = Received(
        tool=given.tool,
        hint=given.hint,
        is_error=given.is_error,
        **{name: member.value for name, member in large.items()},
    )
    return received, Reader(given.surface, given.client, given.is_mcp)


def _is_given(name: str, member: Member) -> bool:
    return name == "content" or bytes(member.value) != b"null"


def _page(table: ShownTable) -> str:
    def shown(cell: Slice) -> str:
        return html.escape(without_lone_surrogates(plain_text(cell) or ""))

    all_of_them = elements(table.rows.encode())
    rows = ["<tr>" + "".join(f"<td>{shown(cell)}</td>" for cell in elements(row)) + "</tr>" for row in all_of_them]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    return _PAGE.format(
        title=html.escape(table.title or "Table"), count=f"{table.row_count:,}", head=head, rows="\n".join(rows)
    )
