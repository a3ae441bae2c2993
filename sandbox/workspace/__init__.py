"""A conversation's workspace on disk: the only package that opens paths which a guest may have written.

paths       the path language of the tools
tree        folders by descriptor: walking, copying, acting with a guest's rights
store       the files on disk, whole or not at all
transfer    what goes into a run's tmpfs, and what is taken out of it
disk        how much of the host's disk the service may fill
workspace   the workspace itself: quota, read-only folders, errors that say what to do
"""

from sandbox.workspace.disk import Disk
from sandbox.workspace.paths import (
    GUEST_PATH,
    MAX_DEPTH,
    Segments,
    guest_name,
    name_of,
    near_paths,
    segments_of,
    tool_path,
)
from sandbox.workspace.transfer import NEVER_KEPT, FolderTree, GuestTree, Manifest, too_deep
from sandbox.workspace.tree import Entry, Identity, pages, write_all
from sandbox.workspace.workspace import READ_ONLY_FOLDERS, WORKSPACE_NAME, FileInfo, Workspace, Workspaces

__all__ = [
    "GUEST_PATH",
    "MAX_DEPTH",
    "NEVER_KEPT",
    "READ_ONLY_FOLDERS",
    "WORKSPACE_NAME",
    "Disk",
    "Entry",
    "FileInfo",
    "FolderTree",
    "GuestTree",
    "Identity",
    "Manifest",
    "Segments",
    "Workspace",
    "Workspaces",
    "guest_name",
    "name_of",
    "near_paths",
    "pages",
    "segments_of",
    "too_deep",
    "tool_path",
    "write_all",
]
