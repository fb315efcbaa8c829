"""How fast do other machines take bytes from this one, measured while there is nothing else to do?

One machine at a time, and rarely: a mebibyte every `EVERY_S` at most, none while either of the two
has work. The middle one of the last few measurements counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low

from core.protocol.errors import HeadraceError
from core.protocol.records import MAX_LINKS, MAX_NEIGHBOURS, MinerRecord
from core.runtime.network.channel import Peers
from core.runtime.network.sending import takes_mb_s

#: A measurement sends `SENDS` times `SENT_BYTES`; the first opens the stream's window.
SENT_BYTES, SENDS = 2**19, 2
EVERY_S = 15.0
#: A machine is measured again after this long, whatever came of it.
AGAIN_S = 1800.0
KEPT = 3
#: For a stream and each answer, and for everything: a machine that does not read holds up no more.
ANSWER_S, MEASURE_S = 5.0, 20.0


def sampled(others: Sequence[MinerRecord]) -> list[MinerRecord]:
    """Of `announce.neighbours`, those whose links are measured: half of them next in a pipeline."""
    half = MAX_LINKS // 2
    return [*others[:half], *others[MAX_NEIGHBOURS // 2 :][: MAX_LINKS - half]]


def next_due(
    others: Sequence[MinerRecord], tried_s: Mapping[str, float], now_s: float
) -> MinerRecord | None:
    """The idle machine whose last try is longest ago and old enough; None: it is nobody's turn."""
    never = float("-inf")
    due = [
        record
        for record in others
        if not record.active_requests and now_s - tried_s.get(record.operator, never) >= AGAIN_S
    ]
    return min(due, key=lambda record: tried_s.get(record.operator, never), default=None)


class LinkSpeeds:
    """What was measured, by operator. `is_idle` tells whether this machine has nothing to do.

    `peers` is ours alone: rows of a request never wait behind a measurement.
    """

    def __init__(
        self,
        peers: Peers,
        is_idle: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peers, self._is_idle, self._monotonic = peers, is_idle, monotonic
        self._found: dict[str, deque[float]] = {}
        self._tried_s: dict[str, float] = {}

    @property
    def mb_s(self) -> Mapping[str, float]:
        """Megabytes a second that each machine takes."""
        return {who: median_low(found) for who, found in self._found.items()}

    async def measure_next(self, others: Sequence[MinerRecord]) -> None:
        """Measure the machine whose turn it is, if any; forget those that are not among `others`.

        A measurement that work interrupts counts as not made.
        """
        sample = sampled(others)
        there = {record.operator for record in sample}
        self._found = {who: found for who, found in self._found.items() if who in there}
        self._tried_s = {who: at_s for who, at_s in self._tried_s.items() if who in there}
        record = next_due(sample, self._tried_s, self._monotonic())
        if record is None or not self._is_idle():
            return
        try:
            mb_s = await self._measure(record)
        except (HeadraceError, TimeoutError):
            self._found.pop(record.operator, None)
        else:
            if mb_s is None:
                return
            self._found.setdefault(record.operator, deque(maxlen=KEPT)).append(mb_s)
        self._tried_s[record.operator] = self._monotonic()

    async def close(self) -> None:
        """End the stream of a measurement that is running."""
        await self._peers.close()

    async def _measure(self, record: MinerRecord) -> float | None:
        async with asyncio.timeout(MEASURE_S):
            channel = await self._peers.get(record.operator, record.endpoint, timeout_s=ANSWER_S)
            try:
                return await takes_mb_s(
                    channel, SENT_BYTES, SENDS, timeout_s=ANSWER_S, may_go_on=self._is_idle
                )
            finally:
                await channel.close()
