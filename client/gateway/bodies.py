"""How many bytes of requests are in memory? So many of one key, and of all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from client.gateway.errors import RateLimited

MOST_OF_A_KEY: Final = 16 * 2**20
MOST_OF_ALL: Final = 128 * 2**20


class Bodies:
    """The bodies that have begun to arrive and are not prompts yet."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._all = 0

    @contextmanager
    def of(self, key_id: str) -> Iterator[Callable[[int], None]]:
        """Counts the bytes of one body of this key until the block ends.

        What it is called with has arrived. It raises RateLimited where that is too much.
        """
        size = 0

        def count(more: int) -> None:
            nonlocal size
            size += more
            self._held[key_id] += more
            self._all += more
            for held, most in ((self._held[key_id], MOST_OF_A_KEY), (self._all, MOST_OF_ALL)):
                if held > most:
                    why = f"{held} bytes wait to be read, at most {most} may"
                    raise RateLimited("too much is sent at once", why, retry_after_s=1)

        try:
            yield count
        finally:
            self._all -= size
            self._held[key_id] -= size
            if not self._held[key_id]:
                del self._held[key_id]
