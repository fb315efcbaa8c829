"""Is the chain's log found by every id, paged, summed, and undone by a reorganisation?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.dashboard.sources.chain_log import ChainLog, subjects_of
from client.dashboard.views.wallet import MOVES
from core.protocol.errors import ChainUnreachable
from core.protocol.units import NANO
from tests.client.dashboard.world import (
    BLOCKS,
    FIRST_BLOCK,
    FOREIGN_JOB,
    JOB,
    MINERS,
    OLD_JOB,
    OWNER,
    PAST,
    PAYER,
    USD,
    WrittenChain,
    tx_of,
)
from tests.clocks import ManualClock
from tests.town.orders import MATCHER as MATCHER_KEY

NOW_S = 1_700_000_000
MATCHER = MATCHER_KEY.address


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
    names = "JobOpened JobMatched Paid JobSettled DisputeOpened"
    assert {event.name for event in about} == set(names.split())
    assert [event.id for event in about] == sorted((event.id for event in about), reverse=True)
    in_plan = await log.about(MINERS[1], names=("JobMatched",))
    assert [event.args["job"] for event in in_plan] == [FOREIGN_JOB, OLD_JOB]
    (deposit,) = await log.of_transaction(tx_of(FIRST_BLOCK + 2).upper().replace("0X", "0x"))
    assert (deposit.name, deposit.at_s) == ("Deposited", NOW_S - 60 * (BLOCKS - 3))
    assert [event.name for event in await log.of_block(FIRST_BLOCK)] == ["ModelRegistered"]


async def test_pages_follow_one_another_without_a_gap(log: ChainLog) -> None:
    seen, before = list[int](), None
    while page := await log.named(before=before, limit=7):
        seen += [event.id for event in page]
        before = page[-1].id
    assert len(seen) == len(PAST) and seen == sorted(seen, reverse=True)
    assert len(await log.named(limit=10**9)) <= 200


async def read_on(log: ChainLog) -> None:
    while await log.step():
        pass


def pay(chain: WrittenChain, job: str, operator: str, nano: int, **more: Any) -> None:
    """A job's end that pays one stage, and a tenth of it to the matcher."""
    fee = nano // 10
    ids = {"job": job, "requester": PAYER}
    said = {"matcher": MATCHER, "operators": [operator], "payNano": [nano], "matcherNano": fee}
    chain.emit("Escrow", "Paid", **ids, **(said | {"protocolNano": 0, "refundNano": 0} | more))
    told = ids | {"paidNano": nano + fee, "withheldNano": 0, "refundedNano": 0}
    chain.note("TaskRegistry", "JobSettled", told)


async def test_locks_and_counts(log: ChainLog) -> None:
    locks = await log.open_locks(PAYER)
    assert [(one.args["job"], one.args["maxNano"]) for one in locks] == [(JOB, 3 * USD * NANO)]
    assert await log.open_locks(OWNER) == []
    assert await log.count(MINERS[2], ("JobMatched",)) == 2
    assert await log.subjects(("JobMatched",), "job", 2) == [FOREIGN_JOB, JOB]


async def test_a_session_locks_all_until_it_ends(log: ChainLog, chain: WrittenChain) -> None:
    chain.emit("TaskRegistry", "JobAcknowledged", job=JOB, tokensIn=1, tokensOut=1)
    await read_on(log)
    (lock,) = await log.open_locks(PAYER)
    assert lock.args["maxNano"] == 3 * USD * NANO
    pay(chain, JOB, MINERS[2], 10)
    await read_on(log)
    assert await log.open_locks(PAYER) == []


@pytest.mark.parametrize("end", ["JobCancelled", "JobExpired"])
async def test_a_job_that_ended_unpaid_locks_nothing(
    log: ChainLog, chain: WrittenChain, end: str
) -> None:
    chain.emit("TaskRegistry", end, job=JOB, requester=PAYER, refundedNano=3 * USD * NANO)
    await read_on(log)
    assert await log.open_locks(PAYER) == []


async def test_income_is_the_pay_of_all_operators_and_the_fees_as_a_matcher(
    log: ChainLog, chain: WrittenChain
) -> None:
    assert await log.income_of_jobs(OWNER, [OLD_JOB, JOB]) == {OLD_JOB: 400_000, JOB: 0}
    total, days = await log.income(OWNER)
    assert total == 400_000 and [(paid, jobs) for _, paid, jobs in days] == [(400_000, 1)]
    assert await log.income(MATCHER) == (100_000, [(days[0][0], 100_000, 1)])
    assert await log.income(PAYER) == (0, [])
    assert (await log.income(MINERS[2]))[0] == 0, "an operator's pay is its owner's"

    rotated = {"oldOperator": MINERS[2], "newOperator": MINERS[4]}
    chain.emit("MinerRegistry", "OperatorRotated", owner=OWNER, **rotated)
    pay(chain, JOB, MINERS[4], NANO // 2)
    pay(chain, JOB, MINERS[2], NANO // 2, matcher=OWNER)
    await read_on(log)
    assert (await log.income(OWNER))[0] == 400_001, "parts of a unit add up"
    assert await log.income_of_jobs(OWNER, [JOB]) == {JOB: 1}


async def test_movements_are_those_of_the_accounts_own_money_each_told_once(
    log: ChainLog, chain: WrittenChain
) -> None:
    async def moved(account: str) -> list[str]:
        return [event.name for event in reversed(await log.movements(account, tuple(MOVES)))]

    assert await moved(PAYER) == ["Deposited", "JobOpened", "Paid", "JobOpened"]
    assert await moved(MATCHER) == await moved(MINERS[2]) == []
    pay(chain, JOB, MINERS[1], 10, refundNano=7)
    collected = {"account": MINERS[2], "payee": 0, "amount": 3}
    chain.emit("Escrow", "Collected", to=OWNER, **collected)
    chain.emit("Escrow", "Deposited", account=OWNER, payer=PAYER, amount=2)
    await read_on(log)
    assert (await moved(PAYER))[4:] == ["Paid"], "told once, by Escrow"
    assert await moved(OWNER) == ["Collected", "Deposited"]
    newest = await log.movements(PAYER, tuple(MOVES), limit=2)
    rest = await log.movements(PAYER, tuple(MOVES), before=newest[-1].id)
    assert [event.name for event in rest] == ["Paid", "JobOpened", "Deposited"]


async def test_a_reorganisation_takes_its_events_back(log: ChainLog, chain: WrittenChain) -> None:
    chain.cut(BLOCKS - 6)
    chain.emit("Escrow", "Deposited", account=OWNER, payer=OWNER, amount=5)
    while await log.step():
        pass
    assert (await log.progress()).events == 8
    assert await log.about(FOREIGN_JOB) == []
    assert [event.args["amount"] for event in await log.of_block(FIRST_BLOCK + 6)] == [5]
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
