"""Files of the workspace, attachments, and the views of tables and downloads, as resources."""

import base64
import mimetypes
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sandbox.errors import NotFound, TooLarge
from sandbox.tools.toolbox import Toolbox

SCHEME, VIEW_SCHEME = "spillbox://", "ui://spillbox/"
_FILES, _ATTACHMENTS = f"{SCHEME}workspace/", f"{SCHEME}attachments/"
VIEW_TYPE = "text/html;profile=mcp-app"
_VIEWS = Path(__file__).parent / "views"
VIEW_OF_TOOL = {"show_table": f"{VIEW_SCHEME}table.html", "attach_file": f"{VIEW_SCHEME}download.html"}
_MAX_BYTES = 4 << 20
_MAX_LISTED = 100

TEMPLATES: list[dict[str, Any]] = [
    {
        "name": "workspace file",
        "uriTemplate": f"{_FILES}{{+path}}",
        "description": "A file of the conversation's workspace, such as results/0001-search.json.",
    },
    {
        "name": "attachment",
        "uriTemplate": f"{_ATTACHMENTS}{{id}}",
        "description": "A file that was attached: it never changes.",
    },
]


def listed(box: Toolbox, workspace_id: str | None) -> list[dict[str, Any]]:
    """The views; and of a conversation its attachments and newest saved results."""
    views = [
        {"uri": uri, "name": uri.removeprefix(VIEW_SCHEME), "mimeType": VIEW_TYPE} for uri in VIEW_OF_TOOL.values()
    ]
    if workspace_id is None:
        return views
    attached = [
        {"uri": f"{_ATTACHMENTS}{one.id}", "name": one.name, "mimeType": one.media_type, "size": one.bytes}
        for one in box.catalog.attachments(workspace_id)[:_MAX_LISTED]
    ]
    saved = sorted(box.catalog.saved(workspace_id), reverse=True)[:_MAX_LISTED]
    files = [{"uri": _FILES + quote(path), "name": path, "mimeType": _type_of(path)} for path in saved]
    return [*attached, *files, *views]


def is_own(uri: str) -> bool:
    """Whether a URI is of this service, not of another server."""
    return uri.startswith((SCHEME, VIEW_SCHEME))


def read(box: Toolbox, workspace_id: str | None, uri: str) -> dict[str, Any]:
    """What a URI has; raises `NotFound`, `TooLarge`, and what the workspace raises for a path."""
    if uri in VIEW_OF_TOOL.values():
        page = (_VIEWS / uri.removeprefix(VIEW_SCHEME)).read_text()
        text = page.replace("/* bridge.js */", (_VIEWS / "bridge.js").read_text())
        return {"contents": [{"uri": uri, "mimeType": VIEW_TYPE, "text": text}]}
    if workspace_id is None:
        raise NotFound(f"{uri} is in a workspace, and none was named.")
    workspace = box.workspaces.open(workspace_id)
    if uri.startswith(_FILES):
        path = unquote(uri.removeprefix(_FILES))
        size, media_type = workspace.size(path), _type_of(path)
        _require_small(uri, size)
        data = workspace.read_bytes(path, max_bytes=_MAX_BYTES)
    elif uri.startswith(_ATTACHMENTS):
        attachment = box.catalog.attachment(workspace.id, uri.removeprefix(_ATTACHMENTS))
        media_type = attachment.media_type
        _require_small(uri, attachment.bytes)
        with box.attachments.open(attachment) as file:
            data = file.read()
    else:
        raise NotFound(f"There is no resource {uri[:200]!a}.")
    about = {"uri": uri, "mimeType": media_type}
    try:
        return {"contents": [about | {"text": data.decode()}]}
    except UnicodeDecodeError:
        return {"contents": [about | {"blob": base64.b64encode(data).decode()}]}


def _require_small(uri: str, size: int) -> None:
    if size > _MAX_BYTES:
        raise TooLarge(
            f"{uri} has {size:,} bytes, and a resource is read up to {_MAX_BYTES:,}. Read it in parts with read_file, or "
            "download it."
        )


def _type_of(path: str) -> str:
    return mimetypes.guess_type(path)[0] or "text/plain"
