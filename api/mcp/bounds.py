"""How many requests of its own another server may have under way: each holds what it sent until it is answered."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from api.mcp.transports import Streams, Trouble

_MAX_REQUESTS = 64


def bounded(streams: Streams, trouble: Trouble) -> Streams:
    """The same streams; they end, and ``trouble`` says why, where a server asks more than is answered."""
    waiting: set[str | int] = set()
    incoming, outgoing = streams
    return _Incoming(incoming, waiting, trouble), _Outgoing(outgoing, waiting)


class _Stream:
    def __init__(self, inner: Any, waiting: set[str | int]) -> None:
        self._inner, self._waiting = inner, waiting

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, fault, trace)


class _Incoming(_Stream):
    def __init__(self, inner: Any, waiting: set[str | int], trouble: Trouble) -> None:
        super().__init__(inner, waiting)
        self._trouble = trouble

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._inner:
            if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest):
                self._waiting.add(item.message.id)
                if len(self._waiting) > _MAX_REQUESTS:
                    self._trouble.reason = f"it asked more than {_MAX_REQUESTS} things at once"
                    return
            yield item


class _Outgoing(_Stream):
    async def send(self, item: SessionMessage) -> None:
        await self._inner.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id is not None:
            self._waiting.discard(item.message.id)
