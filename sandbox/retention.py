"""What is removed when its time is over: spills and error texts. Attachments, and what scripts and tools wrote, stay."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sandbox.attachments import Attachments
from sandbox.catalog import Catalog
from sandbox.workspace import Workspaces

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cleaned:
    """What a clean-up removed."""

    files: int
    bytes: int


def clean(workspaces: Workspaces, catalog: Catalog, attachments: Attachments, *, keep: timedelta) -> Cleaned:
    """Remove files under ``results/`` and ``errors/`` that are older than ``keep``, and what crashes left.

    Who asks for one of the files afterwards is told that it expired, and when.
    """
    now = datetime.now(UTC)
    files = size = 0
    for workspace in workspaces.all():
        for info in workspace.list_own(before=now - keep):
            catalog.expire(workspace.id, info.path, now)
            try:
                workspace.remove_own(info.path)
            except OSError:
                _log.exception("%s of the workspace %s could not be removed", info.path, workspace.id)
                continue
            files += 1
            size += info.bytes
    workspaces.sweep()
    attachments.sweep()
    return Cleaned(files, size)
