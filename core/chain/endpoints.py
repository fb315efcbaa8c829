"""How are several nodes asked as if they were one?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from web3.providers.async_base import AsyncBaseProvider, AsyncJSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from core.chain.agreement import at_block, essence, head_of, is_middle, is_of_newest, middle, most

#: How long it is known which block most nodes have.
HEAD_S = 0.5
#: A node that has not answered by then is not waited for.
PATIENCE_S = 10.0
_SEND = "eth_sendRawTransaction"


class Endpoints(AsyncJSONBaseProvider):
    """Nodes of one chain. Raises ValueError where no answer is that of most of them."""

    def __init__(
        self,
        nodes: Sequence[AsyncBaseProvider],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._nodes, self._monotonic = list(nodes), monotonic
        self._head, self._head_at_s = 0, float("-inf")

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        if method == _SEND:
            return await self._send(params)
        if method == "eth_blockNumber":
            return {"jsonrpc": "2.0", "id": 0, "result": hex(await self._newest(is_fresh=True))}
        if is_of_newest(method, params):
            params = at_block(method, params, await self._newest())
        if is_middle(method, params):
            return await self._middle(method, params)
        answer = await self._agreed(method, params)
        if method == "eth_getTransactionReceipt" and answer.get("result"):
            mined = int(answer["result"]["blockNumber"], 16)
            if mined > self._head:  # what is read next must see it
                self._head_at_s = float("-inf")
        return answer

    async def disconnect(self) -> None:
        await asyncio.gather(*(node.disconnect() for node in self._nodes))

    async def _newest(self, *, is_fresh: bool = False) -> int:
        """The newest block that most nodes have, known for a moment unless it `is_fresh`."""
        if is_fresh or self._monotonic() - self._head_at_s > HEAD_S:
            answers = await self._all(RPCEndpoint("eth_blockNumber"), [])
            heads = [int(one["result"], 16) for one in answers if "result" in one]
            head = head_of(heads, len(self._nodes))
            if head is None:
                raise self._too_few("eth_blockNumber", len(heads))
            self._head, self._head_at_s = head, self._monotonic()
        return self._head

    async def _agreed(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """The first answer that most nodes give."""
        tasks = [asyncio.ensure_future(self._ask(node, method, params)) for node in self._nodes]
        said = Counter[str]()
        try:
            for done in asyncio.as_completed(tasks):
                answer = await done
                if answer is None:
                    continue
                what = essence(method, answer)
                said[what] += 1
                if said[what] == most(len(self._nodes)):
                    return answer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise self._too_few(method, max(said.values(), default=0))

    async def _middle(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        answers = await self._all(method, params)
        numbers = [one for one in answers if "result" in one]
        if len(numbers) >= most(len(self._nodes)):
            return middle(numbers)  # type: ignore[return-value]
        errors = [one for one in answers if "error" in one]
        if len(errors) >= most(len(self._nodes)):
            return errors[0]
        raise self._too_few(method, len(numbers))

    async def _send(self, params: Any) -> RPCResponse:
        """Hand a transaction to every node: one that says it took it may have dropped it."""
        answers = await self._all(RPCEndpoint(_SEND), params)
        taken = [one for one in answers if "result" in one]
        refused = [one for one in answers if "error" in one and not _has_it(one)]
        if taken and len(refused) < most(len(self._nodes)):
            return taken[0]
        if answers:
            return next(iter(refused or answers))
        raise self._too_few(_SEND, 0)

    async def _all(self, method: RPCEndpoint, params: Any) -> list[RPCResponse]:
        """What nodes answer within the time that is waited for."""
        answers = await asyncio.gather(*(self._ask(node, method, params) for node in self._nodes))
        return [answer for answer in answers if answer is not None]

    async def _ask(
        self, node: AsyncBaseProvider, method: RPCEndpoint, params: Any
    ) -> RPCResponse | None:
        """None where a node does not answer like one."""
        import aiohttp

        try:
            async with asyncio.timeout(PATIENCE_S):
                return await node.make_request(method, params)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    def _too_few(self, method: str, found: int) -> ValueError:
        nodes = len(self._nodes)
        return ValueError(
            f"{found} of {nodes} endpoints say the same of {method}; {most(nodes)} must"
        )


def _has_it(answer: RPCResponse) -> bool:
    """Whether a node may have this very transaction from others already, even in a block."""
    said = str(answer["error"]).lower()
    return any(word in said for word in ("known", "already", "nonce too low"))
