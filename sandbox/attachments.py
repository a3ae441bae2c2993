"""Files that are kept: outside of workspaces, by their content, never changed, out of a script's reach and of the clean-up.

<attachments>/ab/<sha256>      the content, read-only, once however often it is attached
<attachments>/incoming/        content being copied
"""

import hashlib
import mimetypes
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from sandbox.catalog import Attachment, Catalog
from sandbox.errors import InvalidArguments, NotFound
from sandbox.tenants import tenant_of
from sandbox.workspace import Workspace
from sandbox.workspace.disk import Disk

_CHUNK_BYTES = 1 << 20
_MAX_NAME_CHARACTERS = 200
_LEFT_OVER_SECONDS = 24 * 3600


def attachment_name(path: str, name: str | None) -> str:
    """The name under which a file is to be downloaded: its own, or the one that is wanted; raises `InvalidArguments`."""
    name = (path.rpartition("/")[2] if name is None else name).strip()
    if not name or len(name) > _MAX_NAME_CHARACTERS or any(c in name for c in "/\\") or not name.isprintable():
        raise InvalidArguments(
            f"name is a file's name: 1 to {_MAX_NAME_CHARACTERS} printable characters, without '/' or '\\'."
        )
    return name


class Attachments:
    """The attachments of a service, in one folder and one catalog. Its methods block on disk."""

    def __init__(self, folder: Path, catalog: Catalog, disk: Disk) -> None:
        self._folder = folder
        self._catalog = catalog
        self._disk = disk

    def attach(self, workspace: Workspace, path: str, name: str) -> Attachment:
        """Copy a file of the workspace as it is, under a name that `attachment_name` gave."""
        tenant = tenant_of(workspace.id)
        disk = self._disk.of(tenant)
        with disk.taking() as take, workspace.open_file(path) as source:
            sha256, size, was_there = self._keep(source, take)
        attachment = Attachment(
            id=secrets.token_hex(12), workspace=workspace.id, path=path, name=name, bytes=size, sha256=sha256,
            media_type=mimetypes.guess_type(name)[0] or "application/octet-stream", attached_at=datetime.now(UTC),
        )  # fmt: skip
        counts_already = self._catalog.is_attached(sha256, tenant)
        self._catalog.add_attachment(attachment)
        disk.note_equal(size, of_tenant=counts_already, of_service=was_there)
        return attachment

    def open(self, attachment: Attachment) -> BinaryIO:
        """Its content, for reading."""
        try:
            return self._place(attachment.sha256).open("rb")
        except FileNotFoundError:
            raise NotFound(f"The content of the attachment {attachment.id} is not in the store any more.") from None

    def sweep(self) -> None:
        """Remove what a crash left: content that is half copied, or that no attachment has, more than a day old."""
        oldest = time.time() - _LEFT_OVER_SECONDS
        for file in self._folder.glob("*/*"):
            with suppress(OSError):
                is_old = file.stat().st_mtime < oldest
                if is_old and (file.parent.name == "incoming" or not self._catalog.is_attached(file.name)):
                    file.unlink()

    def _keep(self, source: BinaryIO, take: Callable[[int], None]) -> tuple[str, int, bool]:
        """Its sha256, its size, and whether it was there."""
        incoming = self._folder / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        temporary = incoming / secrets.token_hex(12)
        digest = hashlib.sha256()
        size = 0
        try:
            with temporary.open("xb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    take(len(chunk))
                    digest.update(chunk)
                    target.write(chunk)
                    size += len(chunk)
                target.flush()
                os.fsync(target.fileno())
                os.fchmod(target.fileno(), 0o400)
            place = self._place(digest.hexdigest())
            place.parent.mkdir(exist_ok=True)
            was_there = place.exists()
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)
        return digest.hexdigest(), size, was_there

    def _place(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256
