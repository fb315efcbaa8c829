"""Where is long work on text done, so that the event loop goes on meanwhile?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")
THREADS = 2
#: Of a body. A thread costs more than reading and tokenising less than this.
SHORT_BYTES = 4096


class Workers:
    """A few threads. Work on one key's bodies waits for its turn, so no key has all of them."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="gateway-work")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(
        self, key_id: str, size_bytes: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What the call returns or raises: at once for a short text, else from a thread."""
        if size_bytes <= SHORT_BYTES:
            return call(*args, **kwargs)
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(key_id, asyncio.Lock())
        async with turn:
            return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))

    def close(self) -> None:
        """Wait for what runs, and begin nothing more."""
        self._threads.shutdown(cancel_futures=True)
