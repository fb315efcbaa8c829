"""What may a request cost at most, without asking the matcher for each one?

A price is asked for once in a while and remembered. Where every slot is taken, often by our own
sessions, which can still answer, the last price counts; the answerer says whether there is room.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from client.sessions.answering import AskTerms, PricedRequest
from core.protocol.errors import NoCapacity, Unreachable
from core.protocol.units import TOKENS_PER_MTOK

if TYPE_CHECKING:
    from client.context import Model
    from client.sessions.answering import Answerer
    from core.runtime.clock import Clock

FRESH_S = 2.0
USABLE_S = 600.0  # where nobody can name a newer one
MOST_KNOWN = 1024


@dataclass(frozen=True)
class _Known:
    priced: PricedRequest
    at_s: float


class ModelPrices:
    """Prices of models under the terms that they were asked for with."""

    def __init__(self, answerer: Answerer, clock: Clock) -> None:
        self._answerer, self._clock = answerer, clock
        self._known: dict[tuple[str, AskTerms], _Known] = {}
        self._asking: dict[tuple[str, AskTerms], asyncio.Task[PricedRequest]] = {}

    async def price(
        self, model: Model, tokens_in: int, tokens_out: int, terms: AskTerms
    ) -> PricedRequest:
        """The price, and what this many tokens cost at most. Raises what asking raises."""
        place = (model.model_id, replace(terms, deadline_s=None))
        known, now_s = self._known.get(place), self._clock.monotonic()
        if known is None:
            known = _Known(await self._ask(place, model, tokens_in, tokens_out, terms), now_s)
        elif now_s - known.at_s > FRESH_S:
            try:
                known = _Known(await self._ask(place, model, tokens_in, tokens_out, terms), now_s)
            except (NoCapacity, Unreachable):
                if now_s - known.at_s > USABLE_S:
                    raise
        return replace(known.priced, most_units=_most(known.priced, tokens_in, tokens_out))

    async def _ask(
        self,
        place: tuple[str, AskTerms],
        model: Model,
        tokens_in: int,
        tokens_out: int,
        terms: AskTerms,
    ) -> PricedRequest:
        """Those who ask at the same time get the same answer."""
        if place not in self._asking:
            task = asyncio.create_task(self._answerer.price(model, tokens_in, tokens_out, terms))
            self._asking[place] = task
            task.add_done_callback(lambda done: self._asked(place, done))
        return await asyncio.shield(self._asking[place])

    def _asked(self, place: tuple[str, AskTerms], done: asyncio.Task[PricedRequest]) -> None:
        del self._asking[place]
        if done.cancelled() or done.exception() is not None:
            return
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[place] = _Known(done.result(), self._clock.monotonic())


def _most(priced: PricedRequest, tokens_in: int, tokens_out: int) -> int:
    """Shown prices are the signed ones rounded down by less than one unit: one more is enough."""
    nano = tokens_in * (priced.price_in + 1) + tokens_out * (priced.price_out + 1)
    return -(-nano // TOKENS_PER_MTOK) + priced.opening_units
