"""Several matchers of one town, which die, freeze or lie at the points that a test names."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from client.orders.matcher_api import Goes, Quote
from client.orders.matchers import Matchers
from client.orders.orders import OrderTerms
from client.pipeline.pipeline import Match
from core.money import pricing
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import CheckFailed, MatcherUnreachable, NoCapacity, UsageError
from core.runtime.clock import SystemClock
from miner.daemon.claims import Claims
from tests.town.chain import CLOSE_DELAY_S
from tests.town.orders import key
from tests.town.town import FEE_BPS, PRICE_IN, PRICE_OUT, Town, offer

#: What a matcher does from a point on, as its HTTP client tells of it.
KILLED, FROZEN, GARBAGE, FULL = "killed", "frozen", "answers garbage", "full"
STEP_S = 10
CUTS = ((0, 2), (2, 4), (4, 6))
#: At which point a matcher fails, and how.
POINTS = [("order", KILLED), ("order", FROZEN), ("order", GARBAGE), ("order", FULL)]
POINTS += [("opened", KILLED), ("opened", FROZEN), ("ack", KILLED), ("quote", KILLED)]


class Hasty(SystemClock):
    """Waits for nothing longer than a moment."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.02))


class Clerk:
    """One matcher. `fails` says what it does from a point on: quote, order, opened or ack."""

    def __init__(self, town: Town, number: int) -> None:
        self.signer = key(60 + number)
        town.clerks[self.address] = self.signer
        self.fails: tuple[str, str] | None = None
        self.is_gone = ""
        self.orders: list[t.SignedOrder] = []
        self.quotes = 0
        self._town, self._thawed = town, asyncio.Event()

    @property
    def address(self) -> str:
        return self.signer.address

    def wake(self) -> None:
        """It is as it should be from now on, and goes on where it froze."""
        self.fails, self.is_gone = None, ""
        self._thawed.set()

    async def _at(self, point: str) -> None:
        if self.fails is not None and self.fails[0] == point:
            self.is_gone = self.fails[1]
        match self.is_gone:
            case "killed":
                raise MatcherUnreachable("no answer from the matcher", "connection refused")
            case "frozen":
                await self._thawed.wait()
            case "answers garbage":
                raise CheckFailed("the matcher answered with another job", "got 0x00")
            case "full":
                raise NoCapacity("no pipeline", "all are taken")

    async def status(self) -> dict[str, Any]:
        if self.is_gone in (KILLED, FROZEN):
            await self._at("status")
        return {"matcher": self.address}

    async def quote(self, *asked: Any) -> Quote:
        self.quotes += 1
        await self._at("quote")
        return Quote(PRICE_IN, PRICE_OUT, [], self.address, FEE_BPS, 0)

    async def open_job(
        self, signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        self.orders.append(signed)
        await self._at("order")
        order = signed.order
        if (order.requester, order.nonce) in self._town.chain.used_nonces and not self._own_job(
            signing.job_id(domain, order)
        ):
            raise UsageError("the order was used already", "its nonce is used")
        if goes_on is not None and all(m.job_id != goes_on.continues for m in self._own()):
            goes_on = None  # another matcher's job, of which it knows nothing
        match = await self._town.open_job(signed, domain, goes_on)
        await self._at("opened")
        return match

    def _own_job(self, job_id: str) -> bool:
        return any(match.job_id == job_id for match in self._own())

    def _own(self) -> list[Match]:
        return [m for m in self._town.matches if m.signed.order.matcher == self.address]

    async def acknowledge(self, job_id: str, *said: Any, **more: Any) -> dict[str, Any]:
        await self._at("ack")
        return await self._town.acknowledge(job_id, *said, **more)

    async def close(self) -> None: ...


def matchers_of(*clerks: Clerk) -> Matchers:
    return Matchers([(clerk, None) for clerk in clerks])  # type: ignore[misc]


def policy_of(matchers: Matchers) -> dict[str, Any]:
    """Terms with the first matcher, and with another one where it failed."""

    def terms_with(price: Quote) -> Callable[[int], OrderTerms]:
        def terms_of(chain_now: int) -> OrderTerms:
            own = {"matcher": price.matcher}
            return OrderTerms(**vars(offer(chain_now)) | own)

        return terms_of

    async def elsewhere(but_not: frozenset[str]) -> Callable[[int], OrderTerms]:
        return terms_with(await matchers.quote(t.ZERO_HASH, 1, 1, but_not=but_not))

    first = matchers._known[0].api.address  # type: ignore[attr-defined]
    return {
        "matchers": matchers,
        "clock": Hasty(),
        "terms_of": lambda now: OrderTerms(**vars(offer(now)) | {"matcher": first}),
        "elsewhere": elsewhere,
    }


async def time_passes(town: Town) -> None:
    """Until every job and every delay of it are over: machines that live look by turns."""
    claims = [
        Claims(town.chain, m.signer, m.book, m.peers, m.table.is_running)
        for m in town.machines
        if not m.is_dead
    ]
    orders = [match.signed.order for match in town.matches]
    until = max(order.deadline + order.window + 3 * CLOSE_DELAY_S for order in orders)
    while town.chain.clock.now() < until:
        await town.chain.clock.advance(STEP_S)
        for one in claims:
            await one.look(int(town.chain.clock.now()))


def tokens_paid(town: Town) -> Mapping[str, int]:
    """Answer tokens that the chain counts, by job."""
    jobs = {match.job_id: town.chain.jobs[match.job_id] for match in town.matches}
    return {job_id: msgspec.to_builtins(job.tokens_out) for job_id, job in jobs.items()}


def dues(town: Town) -> tuple[Counter[str], int]:
    """What each stage's work is worth, by operator, and what all of it costs; nano base units."""
    pays, spent = Counter[str](), 0
    for match in town.matches:
        job = town.chain.jobs[match.job_id]
        counts = job.tokens_in, job.tokens_out
        if not any(counts):
            continue
        due = pricing.split(match.signed.order, match.plan, town.spec, *counts)
        spent += due.locked - due.refund
        for stage, pay in zip(match.plan, due.pays, strict=True):
            pays[stage.operator] += pay
    return pays, spent
