"""What events mean to a miner, and what time it is while the chain is silent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.chain.chain import ChainEvent
from core.chain.follower import ChainPosition
from core.protocol.errors import ChainUnreachable
from core.protocol.types import JobState
from miner.chain import onchain
from miner.chain.onchain import DisputeNews, JobNews, MinerChain, News, news_of
from tests.clocks import ManualClock

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


def test_disputes_open_and_end_and_the_rest_is_no_news() -> None:
    opened = event("JuryArbitrator", "DisputeOpened", dispute=DISPUTE, job=JOB, stage=2)
    assert news_of(opened) == DisputeNews(DISPUTE, JOB, 2)
    ended = event("JuryArbitrator", "DisputeExecuted", dispute=DISPUTE)
    assert news_of(ended) == DisputeNews(DISPUTE, is_open=False)
    assert news_of(event("Escrow", "Deposited", account="0x")) is None
    assert news_of(event("TaskRegistry", "NonceRevoked", nonce=1)) is None


class Node:
    """A chain of blocks that a test writes; `branch` names which history block hashes come from."""

    rpc_url = "http://test"

    def __init__(self) -> None:
        self.head, self.branch, self.time_s = 3, "a", 1000
        self.history: list[ChainEvent] = []
        self.is_silent = False

    async def now(self) -> int:
        if self.is_silent:
            await asyncio.sleep(60)
        return self.time_s

    async def block_number(self) -> int:
        return self.head

    async def block_hash(self, number: int) -> str | None:
        return f"{self.branch}{number}" if number <= self.head else None

    async def events(self, first: int, last: int) -> list[ChainEvent]:
        return [e for e in self.history if first <= e.block_number <= last]


async def test_news_goes_on_where_it_was_stored() -> None:
    node = Node()
    node.history = [event("TaskRegistry", "JobMatched", block=b, job=f"0x{b}") for b in (2, 3, 4)]
    chain: Any = node
    news = News(chain, start_block=3, deploy_block=0, position=ChainPosition(), window=8)
    found, position, moved = await news.poll()
    assert [n.job_id for n in found if isinstance(n, JobNews)] == ["0x3"]
    assert not moved
    node.head = 5
    again = News(chain, start_block=3, deploy_block=0, position=position, window=8)
    found, _, _ = await again.poll()
    assert [n.job_id for n in found if isinstance(n, JobNews)] == ["0x4"]


async def test_another_chain_behind_the_same_address_is_read_from_its_deployment() -> None:
    node = Node()
    node.head = 9
    chain: Any = node
    news = News(chain, start_block=8, deploy_block=1, position=ChainPosition(), window=4)
    await news.poll()
    node.branch, node.head = "b", 3
    node.history = [event("TaskRegistry", "JobSettled", block=2, job=JOB)]
    assert (await news.poll())[2], "jobs must be asked for anew"
    found, _, moved = await news.poll()
    assert found == [JobNews(JOB, JobState.SETTLED)]
    assert not moved


async def test_chain_time_goes_on_between_looks_and_never_back() -> None:
    node, clock = Node(), ManualClock(now=5000.0)
    chain: Any = node
    miner = MinerChain(chain, "0xme", clock)
    assert await miner.refresh_time() == 1000, "the chain's own time, not the machine's"
    await clock.advance(7)
    assert miner.now_s() == 1007
    assert await miner.refresh_time() == 1007, "an idle chain mints no blocks"
    node.time_s = 4000
    assert await miner.refresh_time() == 4000, "somebody turned its clock forward"


async def test_a_silent_node_is_unreachable_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onchain, "CALL_TIMEOUT_S", 0.05)
    node = Node()
    chain: Any = node
    miner = MinerChain(chain, "0xme", ManualClock())
    await miner.refresh_time()
    assert miner.is_reachable
    node.is_silent = True
    with pytest.raises(ChainUnreachable):
        await miner.refresh_time()
    assert not miner.is_reachable
    node.is_silent = False
    await miner.refresh_time()
    assert miner.is_reachable
