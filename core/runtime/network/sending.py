"""How fast does a peer take bytes from us?

The bytes are payloads of pings, as large as a stranger's may be, which the peer reads and forgets.
What comes back is a pong, so the other direction is for the peer to measure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from core.protocol.wire import Ping

if TYPE_CHECKING:
    from core.runtime.network.channel import Channel

#: Bytes of one ping.
PING_BYTES = 2**14
_EMPTY_PINGS = 3
#: The way there and back is at most all but this share of what a send takes: on a busy machine an
#: empty ping may happen to take longer than a send.
_LEAST_SHARE = 0.1


async def takes_mb_s(
    channel: Channel,
    size_bytes: int,
    sends: int,
    *,
    timeout_s: float,
    may_go_on: Callable[[], bool] = lambda: True,
    now_s: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Megabytes a second, the best of `sends` sends of `size_bytes`; None if it was told to stop.

    The first send also opens the stream's window, so one alone says too little. `timeout_s` is for
    each answer. Raises PeerUnreachable when the peer does not answer, and what a stream raises.
    """

    async def ask_s() -> float:
        started = now_s()
        await channel.call(Ping(), timeout_s=timeout_s)
        return now_s() - started

    empty_s = min([await ask_s() for _ in range(_EMPTY_PINGS)])
    payload, best_s = os.urandom(PING_BYTES), float("inf")
    for _ in range(sends):
        started = now_s()
        for _ in range(size_bytes // PING_BYTES):
            if not may_go_on():
                return None
            await channel.send(Ping(), payload)
        await ask_s()
        best_s = min(best_s, now_s() - started)
    return size_bytes / 1e6 / max(best_s - empty_s, _LEAST_SHARE * best_s)
