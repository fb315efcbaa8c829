"""Which orders were registered on chain for this matcher and wait for machines?

A requester may open its order on chain first, without a word to its matcher. The chain shows it;
it is matched as long as it waits there, tried again where no machine had room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from core.chain.chain import ChainEvent, history
from core.protocol.errors import CheckFailed, HeadraceError, UsageError
from core.protocol.ids import Kind, short
from core.protocol.types import REGISTERED, Order, SignedOrder
from core.runtime.logs import get_logger
from core.runtime.retry import pause_s
from matcher.matching.orders import waits_on_chain

if TYPE_CHECKING:
    from core.chain.chain import Chain
    from core.runtime.clock import Clock
    from matcher.matching.matching import Matchmaker

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
#: What waits at most, of all and of one requester, and what is tried at once: orders that are
#: handed in keep most of the room.
MOST_WAITING, MOST_OF_ONE, AT_ONCE = 1024, 32, 16
log = get_logger(__name__)


@dataclass
class _RegisteredOrder:
    order: Order
    failures: int = 0
    not_before_s: float = 0.0


class RegisteredOrders:
    """The orders that wait on chain for this matcher."""

    def __init__(
        self, chain: Chain, matchmaker: Matchmaker, address: str, clock: Clock, first_block: int
    ) -> None:
        self._chain, self._matchmaker, self._clock = chain, matchmaker, clock
        self._address, self._first_block = address.lower(), first_block
        self._waiting: dict[str, _RegisteredOrder] = {}
        self._trying: set[str] = set()
        self._has_looked = False

    async def look_back(self) -> None:
        """Take in what was registered before this start: once. Raises ChainUnreachable."""
        if self._has_looked:
            return
        self._has_looked = True
        try:
            async for _, events in history(self._chain, self._first_block):
                await self.take_in(events)
        except HeadraceError:
            self._has_looked = False
            raise

    async def take_in(self, events: Sequence[ChainEvent]) -> None:
        """Remember the orders that these events registered. Raises ChainUnreachable.

        A job that is matched as it is opened was handed in: the chain is not asked for it.
        """
        handed_in = {event.tx_hash for event in events if event.name == "JobMatched"}
        for event in events:
            if event.name != "JobOpened" or event.tx_hash in handed_in:
                continue
            job_id, requester = str(event.args["job"]), str(event.args["requester"]).lower()
            of_one = sum(w.order.requester.lower() == requester for w in self._waiting.values())
            is_full = of_one >= MOST_OF_ONE or len(self._waiting) >= MOST_WAITING
            if is_full or job_id in self._waiting:
                continue
            call = await self._chain.call_of(event.tx_hash)
            if call is None or call.function != "open":
                continue  # through another contract: its calldata is not ours to read
            try:
                order = msgspec.convert(call.args["order"], Order)
            except msgspec.ValidationError:
                continue
            is_ours = order.matcher.lower() == self._address
            if is_ours and await waits_on_chain(self._chain, order):
                log.info("order registered", job=short(Kind.JOB, job_id), requests=order.requests)
                self._waiting[job_id] = _RegisteredOrder(order)

    def due(self) -> list[str]:
        """Jobs to try now; the caller calls `match` with each."""
        now_s, room = self._clock.monotonic(), AT_ONCE - len(self._trying)
        ready = [job_id for job_id, one in self._waiting.items() if one.not_before_s <= now_s]
        found = [job_id for job_id in ready if job_id not in self._trying][: max(0, room)]
        self._trying |= set(found)
        return found

    async def match(self, job_id: str) -> None:
        """Try one; it waits on where that fails for now, and is forgotten once it does not wait."""
        one = self._waiting[job_id]
        try:
            is_late = await self._chain.now() > one.order.deadline
            if not is_late and await waits_on_chain(self._chain, one.order):
                await self._matchmaker.open(SignedOrder(one.order, REGISTERED))
            del self._waiting[job_id]
        except HeadraceError as error:
            pause = pause_s(one.failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            one.failures, one.not_before_s = one.failures + 1, self._clock.monotonic() + pause
            if isinstance(error, UsageError | CheckFailed):
                del self._waiting[job_id]  # it will be no better
            log.info("not matched", job=short(Kind.JOB, job_id), why=str(error))
        finally:
            self._trying.discard(job_id)
