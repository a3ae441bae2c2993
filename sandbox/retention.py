"""What is removed when its time is over: spills and error texts. Attachments, and what scripts and tools wrote, stay."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

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


def clean(workspaces: Workspaces, catalog: Catalog, attachments: Attachments, *, keep: timedelta) -> Cleaned:
    """Remove files under ``results/`` and ``errors/`` that are older than ``keep``, and what crashes left.

    Who asks for one of the files afterwards is told that it expired, and when.
    """
    workspaces.sweep()
    attachments.sweep()
    files = size = 0
    for workspace, info in _expired(workspaces, keep):
        note = partial(catalog.expire, workspace.id, info.path, datetime.now(UTC))
        is_noted = _there_was_room(note)
        if not _could_remove(workspace, info):
            continue
        files += 1
        size += info.bytes
        if not is_noted:  # the file's own room is free now
            _there_was_room(note)
    return Cleaned(files, size)


def make_room(workspaces: Workspaces, *, keep: timedelta) -> list[tuple[str, FileInfo]]:
    """Remove the files that `clean` would, by their times alone: where a disk is so full that records can't be opened.

    Gives what was removed, with the ids of the workspaces, for `Catalog.expire` to be told when there is room.
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


def _there_was_room(note: Callable[[], None]) -> bool:
    """Whether it could be written down: a full disk must not keep anyone from making room."""
    try:
        note()
    except ServiceFull:
        return False
    return True
