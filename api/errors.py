"""One table from the codes of `sandbox.errors` to HTTP, as problem details (RFC 9457)."""

import http
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from sandbox.errors import Busy, SpillboxError

_log = logging.getLogger(__name__)

STATUS_BY_CODE = {
    "bad_request": 400,
    "invalid_path": 400,
    "invalid_workspace": 400,
    "invalid_arguments": 422,
    "invalid_source": 422,
    "no_such_element": 404,
    "expired": 410,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "read_only": 403,
    "edit_mismatch": 409,
    "id_reused": 409,
    "interrupted": 409,
    "denied": 403,
    "not_approved": 403,
    "arguments_changed": 409,
    "input_needed": 409,
    "upstream_failed": 502,
    "upstream_error": 502,
    "upstream_timeout": 504,
    "too_large": 413,
    "quota_exceeded": 413,
    "tenant_full": 413,
    "unsatisfiable_range": 416,
    "busy": 429,
    "draining": 503,
    "rate_limited": 429,
    "internal_error": 500,
    "service_full": 507,
    "no_sandbox": 503,
    "jail_failed": 503,
    "setup_needed": 503,
    "setup_failed": 503,
}
_REFUSED = -32000  # of JSON-RPC: the first of the numbers that a server may give a meaning of its own
_CODE_BY_STATUS = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}
_DETAIL_BY_STATUS = {
    404: "There is no such route. GET /docs lists those that there are.",
    405: "The route has no such method. The header Allow names those that it has.",
}
"""Of requests that no route of ours has answered."""
_MEDIA_TYPE = "application/problem+json"
_NAME = "Problem"
_CONTENT = {_MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{_NAME}"}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"content": _CONTENT} for status in sorted(set(STATUS_BY_CODE.values()))
}
"""What the OpenAPI document says of every route: a problem, for each status of the table."""


class Problem(BaseModel):
    """A problem details object; ``code`` is stable."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str


def problem_of(fault: SpillboxError) -> Problem:
    """The problem that a caller is told of."""
    status = STATUS_BY_CODE[fault.code]
    return Problem(title=http.HTTPStatus(status).phrase, status=status, code=fault.code, detail=str(fault))


def unexpected(fault: Exception, what: str) -> Problem:
    """The problem that stands for a mistake of ours; the fault goes to the log."""
    _log.error("%s failed", what, exc_info=fault)
    detail = "The service made a mistake. Its log has the details, at the X-Request-Id of this answer."
    return Problem(title="Internal Server Error", status=500, code="internal_error", detail=detail)


def response_of(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    """The problem as a response."""
    return JSONResponse(problem.model_dump(), status_code=problem.status, media_type=_MEDIA_TYPE, headers=headers)


def refusal_of(fault: SpillboxError, *, over_mcp: bool = False) -> JSONResponse:
    """The response to a request that is refused: a problem, or, for a client of the protocol, an error of JSON-RPC with it."""
    problem = problem_of(fault)
    headers = {"Retry-After": str(fault.retry_after_seconds)} if isinstance(fault, Busy) else None
    if not over_mcp:
        return response_of(problem, headers)
    error = {"code": _REFUSED, "message": problem.detail, "data": problem.model_dump()}
    # Whose request it is an answer to was not read; a client takes it for the one that it has sent.
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=problem.status, headers=headers)


def install(app: FastAPI) -> None:
    """Answer every error that is known with a problem, and document it; `api.access` answers the rest."""
    document = app.openapi

    def with_problem() -> dict[str, Any]:
        found = document()
        # FastAPI would give a model of `responses` the media type of the route's answer, which is not a problem's.
        found["components"]["schemas"][_NAME] = Problem.model_json_schema()
        return found

    app.openapi = with_problem  # type: ignore[method-assign]  # FastAPI's own way to change the document

    @app.exception_handler(SpillboxError)
    async def _known(_: Request, fault: SpillboxError) -> JSONResponse:
        return refusal_of(fault)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, fault: HTTPException) -> JSONResponse:
        code = _CODE_BY_STATUS.get(fault.status_code, "bad_request")
        problem = Problem(
            title=http.HTTPStatus(fault.status_code).phrase,
            status=fault.status_code,
            code=code,
            detail=_DETAIL_BY_STATUS.get(fault.status_code, str(fault.detail)),
        )
        headers = dict(fault.headers or {})
        if "Allow" in headers:  # those of one route; a path may have several
            headers["Allow"] = ", ".join(_methods_of(request))
        return response_of(problem, headers)

    @app.exception_handler(RequestValidationError)
    async def _parameters(_: Request, fault: RequestValidationError) -> JSONResponse:
        wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in fault.errors())
        return response_of(
            Problem(
                title=http.HTTPStatus(422).phrase, status=422, code="invalid_arguments", detail=f"{wrong}. See /docs."
            )
        )

    @app.exception_handler(ClientDisconnect)
    async def _left(_: Request, fault: ClientDisconnect) -> JSONResponse:
        return response_of(Problem(title="Bad Request", status=400, code="bad_request", detail="The client left."))


def _methods_of(request: Request) -> list[str]:
    """What the path of a request may be asked for with."""
    routes = request.app.routes
    asked = ({**request.scope, "method": method.value} for method in http.HTTPMethod)
    return [one["method"] for one in asked if any(route.matches(one)[0] is Match.FULL for route in routes)]
