"""Nodes of strangers: each answers for a real chain, and changes what its test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession, web

#: Given a request's method and parameters: another answer, or None for the chain's own.
Change = Callable[[str, list[Any]], Any]


@dataclass
class Stranger:
    """Passes requests on to a chain, but for those that it answers by itself.

    A change that returns a `web.Response` answers with that, a dict is the result or error of the
    answer, an exception hangs up. `lag` blocks of the chain are not there yet.
    """

    chain_url: str
    change: Change = lambda method, params: None
    lag: int = 0
    url: str = ""
    #: One request at a time: a chain for development may hang on one transaction sent thrice.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    seen: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        method, params = asked["method"], asked.get("params", [])
        self.seen.append(method)
        changed = self.change(method, params)
        if isinstance(changed, web.Response):
            return changed
        if isinstance(changed, BaseException):
            request.transport.close()  # type: ignore[union-attr]
            return web.Response()
        if changed is None:
            changed = await (self._late(method, params) if self.lag else self.ask(method, params))
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], **changed})

    async def ask(self, method: str, params: list[Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with (
            self.turn,
            ClientSession() as session,
            session.post(self.chain_url, json=body) as answer,
        ):
            found = await answer.json()
        return {name: found[name] for name in ("result", "error") if name in found}

    async def _late(self, method: str, params: list[Any]) -> dict[str, Any]:
        """As a node says it that has not seen the last blocks."""
        head = int((await self.ask("eth_blockNumber", []))["result"], 16) - self.lag
        if method == "eth_blockNumber":
            return {"result": hex(head)}
        for parameter in params:
            is_number = isinstance(parameter, str) and parameter.startswith("0x")
            if is_number and len(parameter) < 18 and int(parameter, 16) > head:
                return {"error": {"code": -32000, "message": "unknown block"}}
        found = await self.ask(method, [hex(head) if p == "latest" else p for p in params])
        receipt = found.get("result") if method == "eth_getTransactionReceipt" else None
        if receipt and int(receipt["blockNumber"], 16) > head:
            return {"result": None}
        if method == "eth_getLogs":
            logs = [log for log in found["result"] if int(log["blockNumber"], 16) <= head]
            return {"result": logs}
        return found


@asynccontextmanager
async def standing(*strangers: Stranger) -> AsyncIterator[str]:
    """They listen; their addresses with commas between them."""
    runners, turn = [], asyncio.Lock()
    try:
        for stranger in strangers:
            stranger.turn = turn
            app = web.Application()
            app.router.add_post("/", stranger.answer)
            runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
            await runner.setup()
            runners.append(runner)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            stranger.url = f"http://127.0.0.1:{port}/"
        yield ",".join(stranger.url for stranger in strangers)
    finally:
        await asyncio.gather(*(runner.cleanup() for runner in runners))
