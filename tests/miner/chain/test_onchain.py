"""What events mean to a miner, and what time it is while the chain is silent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.chain.chain import ChainEvent
from core.chain.follower import ChainPosition
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import ChainUnreachable
from core.protocol.types import JobState
from core.protocol.units import NANO
from miner.chain import onchain
from miner.chain.onchain import DisputeNews, JobNews, MinerChain, News, news_of
from tests.clocks import ManualClock
from tests.miner.chain.test_admission import ORDER, PLAN
from tests.town.chain import FakeChain

JOB, DISPUTE = "0x" + "0a" * 32, "0x" + "0d" * 32


def event(contract: str, name: str, block: int = 1, **args: Any) -> ChainEvent:
    return ChainEvent(contract, name, args, block, "0xb", "0xt", 0)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("JobMatched", JobState.MATCHED),
        ("JobDelivered", JobState.DELIVERED),
        ("JobDisputed", JobState.DISPUTED),
        ("JobSettled", JobState.SETTLED),
        ("JobCancelled", JobState.CANCELLED),
        ("JobExpired", JobState.EXPIRED),
    ],
)
def test_events_of_jobs_say_their_state(name: str, state: JobState) -> None:
    assert news_of(event("TaskRegistry", name, job=JOB)) == JobNews(JOB, state)


def test_a_match_says_with_which_plan() -> None:
    matched = event("TaskRegistry", "JobMatched", job=JOB, planHash="0x" + "EE" * 32)
    assert news_of(matched) == JobNews(JOB, JobState.MATCHED, "0x" + "ee" * 32)


def test_disputes_open_and_end_and_the_rest_is_no_news() -> None:
    opened = event("JuryArbitrator", "DisputeOpened", dispute=DISPUTE, job=JOB, stage=2)
    assert news_of(opened) == DisputeNews(DISPUTE, JOB, 2)
    ended = event("JuryArbitrator", "DisputeExecuted", dispute=DISPUTE)
    assert news_of(ended) == DisputeNews(DISPUTE, is_open=False)
    assert news_of(event("Escrow", "Deposited", account="0x")) is None
    assert news_of(event("TaskRegistry", "NonceRevoked", nonce=1)) is None


async def test_news_goes_on_where_it_was_stored() -> None:
    chain = FakeChain(blocks=2)
    for number in (2, 3):
        chain.emit("TaskRegistry", "JobMatched", job=f"0x{number}")
    news = News(chain, start_block=3, deploy_block=0, position=ChainPosition(), window=8)
    found, position, moved = await news.poll()
    assert [n.job_id for n in found if isinstance(n, JobNews)] == ["0x3"]
    assert not moved
    chain.emit("TaskRegistry", "JobMatched", job="0x4")
    chain.grow()
    again = News(chain, start_block=3, deploy_block=0, position=position, window=8)
    found, _, _ = await again.poll()
    assert [n.job_id for n in found if isinstance(n, JobNews)] == ["0x4"]


async def test_another_chain_behind_the_same_address_is_read_from_its_deployment() -> None:
    chain = FakeChain(blocks=10)
    news = News(chain, start_block=8, deploy_block=1, position=ChainPosition(), window=4)
    await news.poll()
    chain.hashes.clear()
    chain.grow(2)
    chain.emit("TaskRegistry", "JobSettled", job=JOB)
    chain.grow()
    assert (await news.poll())[2], "jobs must be asked for anew"
    found, _, moved = await news.poll()
    assert found == [JobNews(JOB, JobState.SETTLED)]
    assert not moved


async def test_chain_time_goes_on_between_looks_and_never_back() -> None:
    chain, clock = FakeChain(ManualClock(1000)), ManualClock(now=5000.0)
    miner = MinerChain(chain, "0xme", clock)
    assert await miner.refresh_time() == 1000, "the chain's own time, not the machine's"
    await clock.advance(7)
    assert miner.now_s() == 1007
    assert await miner.refresh_time() == 1007, "an idle chain mints no blocks"
    chain.clock = ManualClock(4000)
    assert await miner.refresh_time() == 4000, "somebody turned its clock forward"


async def test_what_an_owner_has_to_collect_is_of_all_keys_that_it_ever_named() -> None:
    chain, owner = FakeChain(), "0x" + "Aa" * 20
    chain.owners = {"0xold": owner, "0xforeign": "0xother", "0xme": owner}
    chain.earned.update({"0xold": 3 * NANO + 5, "0xme": 4 * NANO, "0xforeign": 100 * NANO})
    miner = MinerChain(chain, "0xme", ManualClock())
    assert await miner.credit(owner) == 7
    chain.earned["0xold"] += NANO
    assert await miner.credit(owner) == 8
    assert chain.spans == [], "no history is read for it"


async def test_a_job_is_none_with_any_other_plan_than_its_own() -> None:
    chain = FakeChain()
    miner = MinerChain(chain, "0xme", ManualClock())
    order, plan = ORDER, PLAN
    assert not await miner.is_nonce_used(order)
    chain.match(order, plan, JOB)
    assert await miner.is_nonce_used(order)
    assert (await miner.job(JOB, signing.plan_hash(plan))).state is JobState.MATCHED
    for other in (signing.plan_hash(plan[:1]), t.ZERO_HASH):
        assert (await miner.job(JOB, other)).state is JobState.NONE


async def test_a_silent_node_is_unreachable_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onchain, "CALL_TIMEOUT_S", 0.05)
    chain = FakeChain()
    miner = MinerChain(chain, "0xme", ManualClock())
    await miner.refresh_time()
    assert miner.is_reachable
    chain.now = lambda: asyncio.sleep(60)  # type: ignore[method-assign, assignment]
    with pytest.raises(ChainUnreachable):
        await miner.refresh_time()
    assert not miner.is_reachable
    del chain.now
    await miner.refresh_time()
    assert miner.is_reachable
