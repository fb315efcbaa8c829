"""How is a node asked, when it may be a stranger's?

The library would take an answer of any size, compressed or nested as it comes.
"""

from __future__ import annotations

from typing import Any, Final

from web3 import AsyncHTTPProvider
from web3.types import RPCEndpoint

from core.protocol.foreign import refuse_deep

MAX_ANSWER_BYTES: Final = 32 * 2**20


class BoundedProvider(AsyncHTTPProvider):
    """Takes answers up to a size, as they are. Raises ValueError for others."""

    def __init__(self, rpc_url: str) -> None:
        super().__init__(rpc_url, exception_retry_configuration=None)

    async def _make_request(self, method: RPCEndpoint, request_data: bytes) -> bytes:
        options: dict[str, Any] = self.get_request_kwargs()
        options["headers"] = {**options["headers"], "Accept-Encoding": "identity"}
        assert self.endpoint_uri is not None
        manager = self._request_session_manager
        async with await manager.async_get_response_from_post_request(
            self.endpoint_uri, data=request_data, auto_decompress=False, **options
        ) as answer:
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
        data = bytes(received)
        refuse_deep(data)
        return data
