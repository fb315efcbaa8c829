"""A matcher that is dead, silent, slow, full or lies is passed over; its orders go to it alone."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from client.orders import matchers as asking
from client.orders.matcher_api import Goes, Quote
from client.orders.matchers import FIRST_REST_S, LONGEST_REST_S, Matchers
from client.orders.orders import PromptBatch, make_order
from client.pipeline.pipeline import Match
from core.protocol import types as t
from core.protocol.errors import (
    CheckFailed,
    DepositShort,
    HeadraceError,
    MatcherUnreachable,
    NoCapacity,
)
from tests.clocks import InstantClock
from tests.town.orders import DOMAIN, MODEL_ID, REQUESTER, SPEC, key, prompts, sign_order, terms
from tests.town.stages import Stages

A, B, C = (key(number).address for number in (40, 41, 42))
FULL, GONE = NoCapacity("no pipeline", "all taken"), MatcherUnreachable("no answer", "refused")


class FakeApi:
    """A matcher with an address, which answers, raises its problem or never ends."""

    def __init__(self, address: str, problem: HeadraceError | None = None) -> None:
        self.address, self.problem = address, problem
        self.is_frozen = self.is_slow = False
        self.asked: list[str] = []

    async def _answer(self, what: str) -> None:
        self.asked.append(what)
        if self.is_frozen or (self.is_slow and what != "status"):
            await asyncio.Event().wait()
        if self.problem is not None:
            raise self.problem

    async def status(self) -> dict[str, Any]:
        await self._answer("status")
        return {"matcher": self.address}

    async def quote(self, model: str, tokens_in: int, tokens_out: int, terms: Any) -> Quote:
        await self._answer("quote")
        return Quote(1, 2, [], self.address, 0, 0)

    async def models(self) -> list[dict[str, Any]]:
        await self._answer("models")
        return [{"of": self.address}]

    async def open_job(self, signed: t.SignedOrder, domain: Any, goes_on: Goes | None) -> Match:
        await self._answer("open")
        return Stages().match(None, signed)  # type: ignore[arg-type]

    async def acknowledge(self, job_id: str, *said: Any, **more: Any) -> dict[str, Any]:
        await self._answer("ack")
        return {"by": self.address}

    async def close(self) -> None: ...


def known(
    *apis: FakeApi, clock: InstantClock | None = None, pinned: tuple[str | None, ...] = ()
) -> Matchers:
    addresses = pinned or (None,) * len(apis)
    return Matchers(list(zip(apis, addresses, strict=True)), clock)  # type: ignore[arg-type]


async def offered(matchers: Matchers, *but_not: str) -> str:
    return (await matchers.quote(MODEL_ID, 1, 1, but_not=but_not)).matcher


def order_for(matcher: str) -> t.SignedOrder:
    batch = PromptBatch.of(prompts(1))
    return sign_order(
        make_order(batch, MODEL_ID, SPEC, terms(matcher=matcher), REQUESTER.address, 1)
    )


async def test_the_first_that_answers_is_asked_and_a_dead_one_rests_longer_each_time() -> None:
    one, two, clock = FakeApi(A, GONE), FakeApi(B), InstantClock()
    matchers = known(one, two, clock=clock)
    for failures in range(9):
        assert await offered(matchers) == B
        assert len(one.asked) == failures + 1
        assert await offered(matchers) == B
        assert len(one.asked) == failures + 1, "it rests"
        await clock.sleep(min(FIRST_REST_S * 2**failures, LONGEST_REST_S) + 0.001)
    one.problem = None
    assert await offered(matchers) == A, "the preferred one is back"


async def test_one_without_room_is_passed_over_and_does_not_rest() -> None:
    one, two = FakeApi(A, FULL), FakeApi(B)
    matchers = known(one, two, clock=InstantClock())
    assert [await offered(matchers) for _ in range(2)] == [B, B]
    assert len(one.asked) == 2, "it may have room by now"


@pytest.mark.parametrize(
    ("problems", "told"), [((FULL, GONE), FULL), ((GONE, FULL), FULL), ((GONE, GONE), GONE)]
)
async def test_where_none_answers_a_refusal_is_told_before_a_silence(
    problems: tuple[HeadraceError, ...], told: HeadraceError
) -> None:
    matchers = known(*(FakeApi(a, p) for a, p in zip((A, B), problems, strict=True)))
    with pytest.raises(type(told)):
        await offered(matchers)


async def test_a_frozen_one_is_left_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = FakeApi(A), FakeApi(B)
    one.is_frozen, matchers = True, known(one, two)
    began = time.monotonic()
    assert await offered(matchers) == B
    assert time.monotonic() - began >= asking.SILENT_S
    one.is_frozen, matchers = False, known(one, two)
    assert await offered(matchers) == A
    monkeypatch.setattr(asking, "SILENT_S", 0.01)
    one.is_frozen = True
    with pytest.raises(MatcherUnreachable, match="silent"):
        await matchers.open_job(order_for(A), DOMAIN)


async def test_one_that_is_alive_has_its_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.1)
    monkeypatch.setattr(asking, "LOOK_EVERY_S", 0.02)
    one, two = FakeApi(A), FakeApi(B)
    one.is_slow = True
    assert await offered(known(one, two)) == B
    assert "status" in one.asked, "it was seen to be alive"


async def test_a_single_one_is_waited_for() -> None:
    one = FakeApi(A, GONE)
    matchers = known(one)
    assert not matchers.has_several
    for _ in range(3):
        with pytest.raises(MatcherUnreachable):
            await offered(matchers)
    assert one.asked == ["quote"] * 3, "no rest, as there is no other"


async def test_orders_and_acks_go_to_the_matcher_that_the_order_names() -> None:
    one, two, three = FakeApi(A), FakeApi(B), FakeApi(C)
    matchers = known(one, two, three)
    assert await offered(matchers, A) == B
    match = await matchers.open_job(order_for(B), DOMAIN)
    ack = t.Ack(match.order_hash, match.plan_hash, t.ZERO_HASH, 1, 1)
    assert await matchers.acknowledge(match, ack, "0x") == {"by": B}
    later = known(one, two, three, pinned=(None, None, C))  # another program, which asked no price
    assert await later.acknowledge(match, ack, "0x", closing=True) == {"by": B}
    assert "ack" not in one.asked + three.asked


async def test_an_order_of_no_known_matcher_is_unreachable() -> None:
    one, two = FakeApi(A), FakeApi(B)
    with pytest.raises(MatcherUnreachable, match="no matcher here has the address"):
        await known(one, two).open_job(order_for(C), DOMAIN)
    assert await known(one, two).of(C) is None
    two.problem = GONE
    with pytest.raises(MatcherUnreachable, match="not known to answer"):
        await known(one, two).of(C)  # it may be the one that is away


async def test_who_it_is_is_learned_from_those_that_answer_past_a_frozen_one() -> None:
    one, two = FakeApi(A), FakeApi(B)
    one.is_frozen = True
    began = time.monotonic()
    found: Any = await known(one, two).of(B)
    assert found is two and time.monotonic() - began < asking.SILENT_S


async def test_who_offers_in_anothers_name_is_passed_over_and_blames_nobody() -> None:
    one, liar, three = FakeApi(A), FakeApi(A), FakeApi(C)
    assert await offered(known(one, liar, three), A) == C
    pinned = known(liar, three, pinned=(B, C))
    assert await offered(pinned) == C, "it is not who the network file says"
    with pytest.raises(CheckFailed, match="in the name of another"):
        await offered(known(liar, pinned=(B,)))


async def test_an_order_goes_to_who_made_its_offer_whoever_else_claims_the_address() -> None:
    liar, honest = FakeApi(A), FakeApi(A)
    liar.problem = FULL
    matchers = known(liar, honest)
    assert await offered(matchers) == A
    liar.problem = None
    assert await matchers.of(C) is None, "asked, the liar says that it is A"
    await matchers.open_job(order_for(A), DOMAIN)
    assert "open" in honest.asked and "open" not in liar.asked
    pinned = known(liar, honest, pinned=(None, A))
    assert await offered(pinned) == A
    assert liar.asked.count("quote") == 2 and honest.asked.count("quote") == 2, "passed over"


async def test_no_other_is_said_to_be_none() -> None:
    one, two = FakeApi(A), FakeApi(B)
    matchers = known(one, two)
    assert await offered(matchers) == A
    assert await offered(matchers, A) == B
    with pytest.raises(NoCapacity, match="no other matcher"):
        await offered(matchers, A, B)


async def test_a_failed_order_makes_its_matcher_rest_and_a_full_one_or_our_lack_does_not() -> None:
    one, two = FakeApi(A), FakeApi(B)
    matchers = known(one, two, clock=InstantClock())
    short = DepositShort("short", have=1, need=2, address=A, fix="deposit")
    for harmless in (FULL, short):
        assert await offered(matchers) == A
        matchers.failed(A, harmless)
    assert await offered(matchers) == A
    matchers.failed(A, CheckFailed("another job", ""))
    assert await offered(matchers) == B
    matchers.served(A)
    assert await offered(matchers) == A


async def test_readers_are_answered_by_the_first_that_is_there_and_reports_go_to_all() -> None:
    one, two, three = FakeApi(A, GONE), FakeApi(B), FakeApi(C)
    assert await known(one, two).models() == [{"of": B}]
    assert await known(one, two, three).each(lambda api: api.status()) == 2
    with pytest.raises(MatcherUnreachable):
        await known(one).each(lambda api: api.status())
