"""What is removed when its time is over: spills and error texts. Attachments, and what scripts and tools wrote, stay."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sandbox.attachments import Attachments
from sandbox.catalog import Catalog
from sandbox.errors import ServiceFull
from sandbox.workspace import FileInfo, Workspace, Workspaces

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cleaned:
    """What a clean-up removed."""

    files: int
    bytes: int


Gone = Sequence[tuple[str, FileInfo]]
"""Files that were removed, with the ids of their workspaces."""


def clean(
    workspaces: Workspaces, catalog: Catalog, attachments: Attachments, *, keep: timedelta, gone: Gone = ()
) -> Cleaned:
    """Remove files under ``results/`` and ``errors/`` that are older than ``keep``, and what crashes left.

    Who asks for one of the files afterwards is told that it expired, and when; for one that is ``gone`` already too.
    """
    removed = [*gone]
    unnoted = [one for one in gone if not _could_note(catalog, *one)]
    workspaces.sweep()
    attachments.sweep()
    for workspace, info in _expired(workspaces, keep):
        is_noted = _could_note(catalog, workspace.id, info)
        if _could_remove(workspace, info):
            removed.append((workspace.id, info))
            if not is_noted:
                unnoted.append((workspace.id, info))
    # The files' own room is free now.
    if lost := [one for one in unnoted if not _could_note(catalog, *one)]:
        _log.warning(
            "%d removed files are told of as not found, not as expired: the disk has no room for it", len(lost)
        )
    return Cleaned(len(removed), sum(info.bytes for _, info in removed))


def make_room(workspaces: Workspaces, *, keep: timedelta) -> Gone:
    """Remove the files that `clean` would, by their times alone, for it to note: where a disk is so full that records can't
    be opened.
    """
    return [(workspace.id, info) for workspace, info in _expired(workspaces, keep) if _could_remove(workspace, info)]


def _expired(workspaces: Workspaces, keep: timedelta) -> Iterator[tuple[Workspace, FileInfo]]:
    before = datetime.now(UTC) - keep
    return ((workspace, info) for workspace in workspaces.all() for info in workspace.list_own(before=before))


def _could_remove(workspace: Workspace, info: FileInfo) -> bool:
    try:
        workspace.remove_own(info.path)
    except OSError:
        _log.exception("%s of the workspace %s could not be removed", info.path, workspace.id)
        return False
    return True


def _could_note(catalog: Catalog, workspace_id: str, info: FileInfo) -> bool:
    """Whether it could be written down: a full disk must not keep anyone from making room."""
    try:
        catalog.expire(workspace_id, info.path, datetime.now(UTC))
    except ServiceFull:
        return False
    return True
