"""Whose a workspace is. A tenant's workspaces have ids that begin with its name, so that who speaks for one can name no other's.

Every surface makes the id here, from the tenant that the caller proved to be and the name that the caller gave; everything
below knows ids only: folders, records, approvals, attachments, turns, connections to other servers.
"""

import re

from sqlalchemy import ColumnElement

from sandbox.errors import InvalidWorkspace

SEPARATOR = "~"
"""Between a tenant and a name; no name has it."""

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_OWN = ""
"""The tenant of a service without tenants: its workspaces have names only."""


def workspace_id(tenant: str, name: str) -> str:
    """The id of a tenant's workspace, by its name or by the id itself; raises `InvalidWorkspace` for another tenant's."""
    if SEPARATOR not in name:
        return name if tenant == _OWN else f"{tenant}{SEPARATOR}{name}"
    if tenant == _OWN or tenant_of(name) != tenant or name.count(SEPARATOR) > 1:
        raise InvalidWorkspace(
            f"The workspace {name[:140]!a} is refused: the name of a workspace has no '{SEPARATOR}'."
        )
    return name


def tenant_of(workspace: str) -> str:
    """The tenant that a workspace's id belongs to."""
    tenant, found, _ = workspace.partition(SEPARATOR)
    return tenant if found else _OWN


def is_of(column: ColumnElement[str], tenant: str) -> ColumnElement[bool]:
    """Whether the workspace's id in a column is the tenant's."""
    return column.startswith(f"{tenant}{SEPARATOR}", autoescape=True) if tenant else ~column.contains(SEPARATOR)
