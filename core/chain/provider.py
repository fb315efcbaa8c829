"""How is a node asked, when it may be a stranger's?

The library would take an answer of any size, compressed or nested as it comes, and take a node that
is asked too often for one that is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from web3 import AsyncHTTPProvider
from web3.providers.async_base import AsyncBaseProvider
from web3.types import RPCEndpoint

from core.chain.endpoints import Endpoints
from core.protocol.foreign import refuse_deep

MAX_ANSWER_BYTES: Final = 32 * 2**20
#: Too many requests, and no service just now.
_LATER: Final = (429, 503)
#: Waits for a node that says so, each twice the one before, or as long as it asks for.
TRIES, FIRST_WAIT_S, LONGEST_WAIT_S = 5, 0.25, 5.0


def provider_of(rpc_url: str) -> AsyncBaseProvider:
    """One node, or several at addresses with commas between them: what most of them say counts."""
    urls = [url.strip() for url in rpc_url.split(",") if url.strip()]
    nodes = [BoundedProvider(url) for url in urls or [rpc_url]]
    return nodes[0] if len(nodes) == 1 else Endpoints(nodes)


class BoundedProvider(AsyncHTTPProvider):
    """Takes answers up to a size, as they are. Raises ValueError for others."""

    def __init__(
        self, rpc_url: str, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        super().__init__(rpc_url, exception_retry_configuration=None)
        self._sleep = sleep

    async def _make_request(self, method: RPCEndpoint, request_data: bytes) -> bytes:
        for attempt in range(TRIES):
            found = await self._post(request_data, is_last=attempt == TRIES - 1)
            if isinstance(found, bytes):
                refuse_deep(found)
                return found
            await self._sleep(_wait_s(found, attempt))
        raise AssertionError("the last answer is read or raised")

    async def _post(self, data: bytes, *, is_last: bool) -> bytes | Mapping[str, str]:
        """What the node answers; the headers of an answer that says to ask later."""
        options: dict[str, Any] = self.get_request_kwargs()
        options["headers"] = {**options["headers"], "Accept-Encoding": "identity"}
        assert self.endpoint_uri is not None
        manager = self._request_session_manager
        async with await manager.async_get_response_from_post_request(
            self.endpoint_uri, data=data, auto_decompress=False, raise_for_status=False, **options
        ) as answer:
            if answer.status in _LATER and not is_last:
                answer.close()
                return answer.headers
            answer.raise_for_status()
            encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding != "identity":
                answer.close()
                raise ValueError(f"the node's answer is encoded as {encoding[:20]}")
            received = bytearray()
            async for chunk in answer.content.iter_any():
                received += chunk
                if len(received) > MAX_ANSWER_BYTES:
                    answer.close()
                    raise ValueError(f"the node's answer has more than {MAX_ANSWER_BYTES} bytes")
        return bytes(received)


def _wait_s(headers: Mapping[str, str], attempt: int) -> float:
    """How long to wait before the next attempt, the first one being number 0."""
    asked = headers.get("Retry-After", "")
    wait_s = float(asked) if asked.isdecimal() and len(asked) < 6 else FIRST_WAIT_S * 2**attempt
    return min(wait_s, LONGEST_WAIT_S)
