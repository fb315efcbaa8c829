"""Is the chain's log found by every id, paged, summed, and undone by a reorganisation?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.dashboard.sources.chain_log import ChainLog, subjects_of
from core.protocol.errors import ChainUnreachable
from tests.client.dashboard.world import (
    FIRST_BLOCK,
    FOREIGN_JOB,
    JOB,
    MINERS,
    OLD_JOB,
    OWNER,
    PAST,
    PAYER,
    WrittenChain,
    tx_of,
)
from tests.clocks import ManualClock

NOW_S = 1_700_000_000


@pytest.fixture
def chain() -> WrittenChain:
    return WrittenChain(NOW_S)


def open_log(chain: Any, folder: Path) -> ChainLog:
    return ChainLog(chain, folder / "log.sqlite", ManualClock(float(NOW_S)), start_block=0)


@pytest.fixture
async def log(chain: WrittenChain, tmp_path: Path) -> AsyncIterator[ChainLog]:
    found = open_log(chain, tmp_path)
    while await found.step():
        pass
    yield found
    await found.close()


async def test_events_are_found_by_job_address_transaction_and_block(log: ChainLog) -> None:
    assert (await log.progress()).events == len(PAST)
    about = await log.about(OLD_JOB)
    names = "JobLocked JobMatched Credited JobReleased JobSettled DisputeOpened"
    assert {event.name for event in about} == set(names.split())
    assert [event.id for event in about] == sorted((event.id for event in about), reverse=True)
    in_plan = await log.about(MINERS[1], names=("JobMatched",))
    assert [event.args["job"] for event in in_plan] == [FOREIGN_JOB, OLD_JOB]
    (deposit,) = await log.of_transaction(tx_of(FIRST_BLOCK + 2).upper().replace("0X", "0x"))
    assert (deposit.name, deposit.at_s) == ("Deposited", NOW_S - 60 * (len(PAST) - 3))
    assert [event.name for event in await log.of_block(FIRST_BLOCK)] == ["ModelRegistered"]


async def test_pages_follow_one_another_without_a_gap(log: ChainLog) -> None:
    seen, before = list[int](), None
    while page := await log.named(before=before, limit=7):
        seen += [event.id for event in page]
        before = page[-1].id
    assert len(seen) == len(PAST) and seen == sorted(seen, reverse=True)
    assert len(await log.named(limit=10**9)) <= 200


async def test_locks_credits_and_counts(log: ChainLog) -> None:
    assert [event.args["job"] for event in await log.open_locks(PAYER)] == [JOB]
    assert await log.credits_of(OWNER, [OLD_JOB, JOB]) == {OLD_JOB: 400_000, JOB: 0}
    total, days = await log.credited(OWNER)
    assert total == 400_000 and [(paid, jobs) for _, paid, jobs in days] == [(400_000, 1)]
    assert await log.credited(PAYER) == (0, [])
    assert await log.count(MINERS[2], ("JobMatched",)) == 2
    assert await log.subjects(("JobMatched",), "job", 2) == [FOREIGN_JOB, JOB]


async def test_a_reorganisation_takes_its_events_back(log: ChainLog, chain: WrittenChain) -> None:
    chain.cut(len(PAST) - 8)
    chain.emit("Escrow", "Deposited", account=OWNER, payer=OWNER, amount=5)
    while await log.step():
        pass
    assert (await log.progress()).events == 9
    assert await log.about(FOREIGN_JOB) == []
    assert [event.args["amount"] for event in await log.of_block(FIRST_BLOCK + 8)] == [5]
    assert await log.open_locks(PAYER) == []


async def test_it_goes_on_where_it_stopped(chain: WrittenChain, tmp_path: Path) -> None:
    log = open_log(chain, tmp_path)
    while await log.step():
        pass
    await log.close()
    chain.emit("Escrow", "Deposited", account=PAYER, payer=PAYER, amount=7)
    again = open_log(chain, tmp_path)
    assert (await again.progress()).events == len(PAST)
    await again.step()
    assert (await again.named(limit=1))[0].args["amount"] == 7
    await again.close()


async def test_a_chain_that_does_not_answer_is_told_and_waited_for(
    chain: WrittenChain, tmp_path: Path
) -> None:
    chain.is_down = True
    log = open_log(chain, tmp_path)
    with pytest.raises(ChainUnreachable):
        await log.step()
    assert (await log.progress()).events == 0
    await log.close()


hexes = st.integers(0, 2**160 - 1).map(lambda n: f"0x{n:040x}") | st.integers(0, 2**256 - 1).map(
    lambda n: f"0x{n:064x}"
)
values = st.recursive(
    hexes | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(values)
def test_every_address_and_hash_is_a_subject_however_deep(value: Any) -> None:
    def leaves(of: Any) -> set[str]:
        if isinstance(of, str):
            return {of.lower()} if of[:2] == "0x" and len(of) in (42, 66) else set()
        inner = of.values() if isinstance(of, dict) else of if isinstance(of, list) else ()
        return set().union(*map(leaves, inner))

    assert subjects_of(value) == leaves(value)
