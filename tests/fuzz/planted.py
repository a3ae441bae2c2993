"""The service with two mistakes in it, which `scripts/fuzz.py --control` has to find. Takes what `spillbox` takes."""

import sys
from typing import Any

from fastapi import APIRouter, Response

from api import http
from api.__main__ import main
from api.http import Readiness

_real = http.routes


def _with_mistakes(*parts: Any) -> APIRouter:
    router = _real(*parts)

    @router.get("/planted/fault")
    async def fault() -> None:
        raise RuntimeError("a planted fault")

    @router.get("/planted/breach", responses={200: {"model": Readiness}})
    async def breach() -> Response:
        return Response('{"status": 5}', media_type="application/json")

    return router


http.routes = _with_mistakes  # type: ignore[assignment]  # the one place where a route can be added from outside

if __name__ == "__main__":
    sys.exit(main())
