"""How is a stranger's answer over HTTP read, whatever it sends and however slowly?

Nothing is decompressed: a few hundred kilobytes would become gigabytes. Answers are asked for as
they are, and one that comes encoded all the same is refused.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from core.protocol.foreign import read_json

if TYPE_CHECKING:
    import httpx2

MAX_ANSWER_BYTES: Final = 16 * 2**20


class NoAnswer(Exception):
    """There is no answer that can be read; says why."""


async def ask(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    within_s: float,
    headers: dict[str, str] | None = None,
    most_bytes: int = MAX_ANSWER_BYTES,
    **more: Any,
) -> tuple[int, bytes]:
    """Status and body of an answer that is whole within so many seconds. Raises NoAnswer.

    `more` is what `httpx2` takes: params, content.
    """
    import httpx2

    asked = {"accept-encoding": "identity", **(headers or {})}
    received = bytearray()
    try:
        async with (
            asyncio.timeout(within_s),
            client.stream(method, url, headers=asked, timeout=within_s, **more) as answer,
        ):
            encoding = answer.headers.get("content-encoding", "identity").strip().lower()
            if encoding != "identity":
                raise NoAnswer(f"the answer is encoded as {encoding[:20]}, which nobody asked for")
            async for chunk in answer.aiter_raw():
                received += chunk
                if len(received) > most_bytes:
                    raise NoAnswer(f"the answer has more than {most_bytes} bytes")
            return int(answer.status_code), bytes(received)
    except TimeoutError:
        raise NoAnswer(f"the answer was not whole within {within_s:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NoAnswer(str(error) or type(error).__name__) from None


async def ask_json(
    client: httpx2.AsyncClient, method: str, url: str, *, within_s: float, **more: Any
) -> tuple[int, Any]:
    """The same, and what the body says as JSON. Raises NoAnswer."""
    status, content = await ask(client, method, url, within_s=within_s, **more)
    try:
        return status, read_json(content)
    except ValueError as error:
        raise NoAnswer(f"HTTP {status}, and not JSON: {error}") from None
