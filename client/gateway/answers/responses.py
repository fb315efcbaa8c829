"""How does one connection follow an exchange, until its end or until the client leaves?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from client.gateway.errors import openai_error, retry_headers
from client.gateway.openai.shapes import PING
from core.runtime.http_server import while_asked

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from client.gateway.exchange import Exchange, Exchanges
    from core.protocol.errors import HeadraceError

PING_S = 10.0  # proxies cut what is silent for longer than some ten seconds


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        msgspec.json.encode(value), status, headers=headers, media_type="application/json"
    )


def failed(
    error: HeadraceError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as OpenAI clients read it.

    It lets go of the frames that it went through, which hold the request's body: with what awaited
    it, it is a cycle, and would keep them until such are looked for.
    """
    seen: BaseException | None = error
    while seen is not None:
        seen = seen.with_traceback(None).__context__
    return json_response(
        openai_error(error),
        status or error.http_status,
        {**retry_headers(error), **(headers or {})},
    )


class FollowingResponse(Response):
    """A response that reads an exchange from its beginning; it counts as a reader once made."""

    def __init__(self, exchanges: Exchanges, exchange: Exchange, ping_s: float = PING_S) -> None:
        self._exchanges, self._exchange, self._ping_s = exchanges, exchange, ping_s
        self.background = None
        self._exchanges.join(exchange)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_asked(receive, self._send(send))
        except (OSError, ClientDisconnect):  # the connection went, also while it was written to
            pass
        finally:
            self._exchanges.leave(self._exchange)

    async def _send(self, send: Send) -> None:
        exchange = self._exchange
        head = await exchange.wait_head(self._ping_s)
        while head is None:
            if exchange.early_headers is not None:
                exchange.open(200, exchange.early_headers())
            head = await exchange.wait_head(self._ping_s)
        names = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in head.headers.items()]
        await send({"type": "http.response.start", "status": head.status, "headers": names})
        is_stream = head.headers.get("content-type", "").startswith("text/event-stream")
        async for data, more in exchange.follow(self._ping_s):
            if is_stream and more:
                data = data or PING
            if data or not more:  # the last piece and the end of it are one write
                await send({"type": "http.response.body", "body": data, "more_body": more})
