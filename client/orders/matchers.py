"""Which of the network's matchers is asked, and which one rests because it failed?

A requester needs no matcher in particular. One that fails, lies or says nothing rests for a while,
longer each time, and the next one is asked. An order goes to the matcher that it names, and so does
what is acknowledged of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from client.orders.matcher_api import Goes, MatcherApi, Quote
from core.protocol import types as t
from core.protocol.errors import (
    CheckFailed,
    FundsError,
    HeadraceError,
    MatcherUnreachable,
    NoCapacity,
    Unreachable,
)
from core.runtime.clock import SystemClock
from core.runtime.logs import get_logger
from core.runtime.retry import pause_s

if TYPE_CHECKING:
    from client.pipeline.pipeline import Match
    from core.protocol.signing import Domain
    from core.runtime.clock import Clock

FIRST_REST_S, LONGEST_REST_S = 5.0, 300.0
#: Where there are others: a matcher that answers nothing for so long while it is waited for is
#: silent, and one that is alive has so long for an answer or a transaction.
LOOK_EVERY_S, SILENT_S = 0.5, 1.5
ANSWER_S, OPEN_S = 10.0, 60.0
T = TypeVar("T")
log = get_logger(__name__)


@dataclass
class _KnownMatcher:
    """A matcher, and how it did lately. `address` is the network file's, or what it said."""

    api: MatcherApi
    address: str | None
    is_pinned: bool
    failures: int = 0
    rests_until_s: float = float("-inf")


class Matchers:
    """Matchers in order of preference, asked as if they were one."""

    def __init__(
        self, places: Sequence[tuple[MatcherApi, str | None]], clock: Clock | None = None
    ) -> None:
        """`places` are matchers with their addresses, None where an address is not known."""
        self._clock = clock or SystemClock()
        self._known = [
            _KnownMatcher(api, address and address.lower(), address is not None)
            for api, address in places
        ]
        self._offered: dict[str, _KnownMatcher] = {}  # who made the newest offer, by address

    @property
    def has_several(self) -> bool:
        """Whether another one may be asked where one fails."""
        return len(self._known) > 1

    async def close(self) -> None:
        await asyncio.gather(*(one.api.close() for one in self._known))

    # --- what any of them answers ---

    async def quote(
        self,
        model_id: str,
        tokens_in: int,
        tokens_out: int,
        terms: t.Terms | None = None,
        *,
        but_not: Collection[str] = (),
    ) -> Quote:
        """The price of the first that offers one, never of a matcher with an address in `but_not`.

        Raises what the first one refused with, NoCapacity where there is no other.
        """
        failed = {address.lower() for address in but_not}

        async def ask(one: _KnownMatcher) -> Quote:
            offer = await one.api.quote(model_id, tokens_in, tokens_out, terms)
            claimed = offer.matcher.lower()
            is_anothers = any(k.is_pinned and k is not one for k in self._with(claimed))
            if (one.is_pinned and claimed != one.address) or is_anothers or claimed in failed:
                raise CheckFailed(
                    "a matcher offers in the name of another one",
                    f"it says {offer.matcher}",
                    state="nothing was ordered",
                    next_step="take it out of network.matchers",
                )
            one.address = claimed
            self._offered[claimed] = one
            return offer

        return await self._first(ask, failed)

    async def ask(self, what: Callable[[MatcherApi], Awaitable[T]]) -> T:
        """What the first that answers says. Raises what the first one refused with."""
        return await self._first(lambda one: what(one.api))

    async def models(self) -> list[dict[str, Any]]:
        """Models that are served now, with their prices."""
        return await self.ask(lambda api: api.models())

    async def miners(self) -> list[dict[str, Any]]:
        """Machines that serve now, with endpoints, layers and prices."""
        return await self.ask(lambda api: api.miners())

    # --- what one of them answers ---

    async def open_job(
        self, signed: t.SignedOrder, domain: Domain, goes_on: Goes | None = None
    ) -> Match:
        """The order's matcher opens it. Raises MatcherUnreachable where it is none of these."""
        one = await self._named(signed.order.matcher)
        return await self._heard(one, one.api.open_job(signed, domain, goes_on), OPEN_S)

    async def acknowledge(
        self, match: Match, ack: t.Ack, signature: str, *, closing: bool = False
    ) -> dict[str, Any]:
        """Hand an Ack to the matcher of the job's order: `MatcherApi.acknowledge`."""
        one, more = await self._named(match.signed.order.matcher), {"closing": True}
        asked = one.api.acknowledge(match.job_id, ack, signature, **(more if closing else {}))
        return await self._heard(one, asked, OPEN_S)

    async def of(self, address: str) -> MatcherApi | None:
        """The matcher with this address; None where it is none of these.

        Raises MatcherUnreachable where it may be one that has not said its address.
        """
        found = await self._find(address)
        return found and found.api

    async def each(self, ask: Callable[[MatcherApi], Awaitable[object]]) -> int:
        """Ask all of them; how many answered. Raises what the first one said, where none did."""
        asked = [self._heard(one, ask(one.api), ANSWER_S) for one in self._known]
        said = await asyncio.gather(*asked, return_exceptions=True)
        errors = [error for error in said if isinstance(error, BaseException)]
        if len(errors) == len(said) or not all(isinstance(e, HeadraceError) for e in errors):
            raise errors[0]
        return len(said) - len(errors)

    # --- how they did ---

    def served(self, address: str) -> None:
        """An order that names this matcher came to something: it need not rest."""
        for one in self._with(address):
            one.failures, one.rests_until_s = 0, float("-inf")

    def failed(self, address: str, error: HeadraceError) -> None:
        """An order that names this matcher came to nothing; it rests, unless it only had no room.

        Money that we lack is no fault of its either.
        """
        if not isinstance(error, NoCapacity | FundsError):
            for one in self._with(address):
                self._rest(one, error)

    def _rest(self, one: _KnownMatcher, error: HeadraceError) -> None:
        rest_s = pause_s(one.failures, FIRST_REST_S, LONGEST_REST_S)
        one.failures += 1
        one.rests_until_s = self._clock.monotonic() + rest_s
        if self.has_several:
            log.warning("a matcher rests", matcher=one.address, rest_s=rest_s, why=str(error))

    def _with(self, address: str) -> Iterator[_KnownMatcher]:
        return (one for one in self._known if one.address == address.lower())

    def _by_turn(self) -> list[_KnownMatcher]:
        """Those that are awake in their order, then the others: the first awake again first."""
        now_s = self._clock.monotonic()
        return sorted(self._known, key=lambda one: max(now_s, one.rests_until_s))

    # --- asking ---

    async def _first(
        self, ask: Callable[[_KnownMatcher], Awaitable[T]], but_not: Collection[str] = ()
    ) -> T:
        refused: list[HeadraceError] = []
        for one in self._by_turn():
            if one.address in but_not:
                continue
            try:
                return await self._heard(one, ask(one), ANSWER_S)
            except HeadraceError as error:
                if isinstance(error, Unreachable | CheckFailed):
                    self._rest(one, error)
                refused.append(error)
        # A refusal says more than a silence, and one without a refusal more than none at all.
        refused.sort(key=lambda error: isinstance(error, Unreachable | CheckFailed))
        raise (
            refused[0]
            if refused
            else NoCapacity("no other matcher is known", "network.matchers names no further one")
        )

    async def _named(self, address: str) -> _KnownMatcher:
        """The matcher with this address, or the only one. Raises MatcherUnreachable."""
        found = await self._find(address) if self.has_several else self._known[0]
        if found is None:
            raise MatcherUnreachable(
                f"no matcher here has the address {address}",
                "network.matcher_url and network.matchers name others",
                next_step="add it to network.matchers",
            )
        return found

    async def _find(self, address: str) -> _KnownMatcher | None:
        # Who made the offer gets the order, whatever others say their address is.
        found = self._offered.get(address.lower()) or next(self._with(address), None)
        if found is not None:
            return found
        unknown = [one for one in self._known if one.address is None]
        asking = [asyncio.create_task(self._learn_address(one)) for one in unknown]
        silent: HeadraceError | None = None
        try:
            for learned in asyncio.as_completed(asking):
                silent = await learned or silent
                if (found := next(self._with(address), None)) is not None:
                    return found
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if silent is not None:
            raise MatcherUnreachable(
                f"the matcher {address} is not known to answer", f"{silent.what}: {silent.why}"
            )
        return None

    async def _learn_address(self, one: _KnownMatcher) -> HeadraceError | None:
        """Why a matcher has not said who it is; None where it has."""
        try:
            status = await self._heard(one, one.api.status(), ANSWER_S)
        except HeadraceError as error:
            return error
        one.address = str(status.get("matcher", "")).lower()
        return None

    async def _heard(self, one: _KnownMatcher, work: Awaitable[T], within_s: float) -> T:
        """What a matcher answers. Where there are others, nobody waits for a silent one.

        Raises MatcherUnreachable where it is silent, or too slow.
        """
        if not self.has_several:
            return await work
        asked = asyncio.ensure_future(work)
        give_up_s = self._clock.monotonic() + within_s
        try:
            while not (await asyncio.wait({asked}, timeout=LOOK_EVERY_S))[0]:
                if self._clock.monotonic() >= give_up_s:
                    raise MatcherUnreachable("a matcher is slow", f"no answer in {within_s:g} s")
                try:
                    async with asyncio.timeout(SILENT_S):
                        await one.api.status()
                except (MatcherUnreachable, TimeoutError):
                    if not asked.done():
                        why = f"it said nothing in {SILENT_S:g} s"
                        raise MatcherUnreachable("a matcher is silent", why) from None
            return await asked
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
