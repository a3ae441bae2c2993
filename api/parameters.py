"""Parameters that several routes have, as the OpenAPI document tells of them.

What they say of themselves is not checked a second time: the toolbox refuses what does not fit, with a code of its own.
"""

from typing import Annotated

from fastapi import Header, Path
from pydantic.json_schema import SkipJsonSchema

from sandbox.tools.toolbox import CALL_ID
from sandbox.workspace import WORKSPACE_NAME

WorkspaceName = Annotated[
    str,
    Path(
        description="A conversation's folder, made on first use. Of 128 characters a tenant's name takes its own and one more.",
        json_schema_extra={"pattern": f"^{WORKSPACE_NAME.pattern}$"},
    ),
]
CallId = Annotated[
    str | SkipJsonSchema[None],
    Header(
        alias="Idempotency-Key",
        description="An id for the call: the same one again gives the same answer, done once.",
        json_schema_extra={"pattern": f"^{CALL_ID.pattern}$"},
    ),
]
