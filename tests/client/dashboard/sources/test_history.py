"""Do the days of the network add up to what its events say?"""

from __future__ import annotations

from pathlib import Path

from core.chain.chain import ChainCall
from core.protocol.units import NANO
from tests.client.dashboard.sources.test_chain_log import MATCHER, NOW_S, open_log
from tests.client.dashboard.world import MINERS, OLD_JOB, PAYER, USD, WrittenChain

NEW_JOB = "0x" + "77" * 32


async def test_days_add_up_to_what_was_paid_staked_and_slashed(tmp_path: Path) -> None:
    chain = WrittenChain(NOW_S)
    settled = ChainCall(
        "TaskRegistry", "settleAck", {"ack": {"tokensIn": 120, "tokensOut": 80}}, MATCHER
    )
    chain.emit(
        "Escrow",
        "Paid",
        call=settled,
        job=NEW_JOB,
        requester=PAYER,
        matcher=MATCHER,
        operators=[MINERS[2], MINERS[3]],
        payNano=[USD * NANO, 2 * USD * NANO],
        matcherNano=USD // 2 * NANO,
        protocolNano=USD // 4 * NANO,
        refundNano=0,
    )
    chain.note("TaskRegistry", "JobSettled", {"job": NEW_JOB, "paidNano": 1, "refundedNano": 0})
    log = open_log(chain, tmp_path)
    while await log.step():
        pass
    found = await log.history(7)
    await log.close()
    assert len(found.days) == 7
    assert [day.day for day in found.days] == sorted({day.day for day in found.days})
    assert sum(day.jobs for day in found.days) == 2
    assert sum(day.tokens_in for day in found.days) == 120
    assert sum(day.tokens_out for day in found.days) == 80
    assert sum(day.paid_units for day in found.days) == 1_100_000 + 3 * USD
    assert sum(day.fee_units for day in found.days) == 100_000 + 750_000
    assert found.days[-1].staked_units == 400 * USD
    assert sum(day.slashed_units for day in found.days) == 100 * USD
    assert [(one.operator, one.jobs, one.paid_units) for one in found.earners] == [
        (MINERS[3], 2, 2_300_000),
        (MINERS[2], 2, 1_400_000),
        (MINERS[1], 1, 400_000),
    ]


async def test_what_a_session_counted_is_the_most_that_any_event_says(tmp_path: Path) -> None:
    chain = WrittenChain(NOW_S)
    for counted in (10, 40):
        chain.emit(
            "TaskRegistry", "JobAcknowledged", job=OLD_JOB, tokensIn=counted, tokensOut=2 * counted
        )
    log = open_log(chain, tmp_path)
    while await log.step():
        pass
    found = await log.history(7)
    await log.close()
    assert sum(day.tokens_in for day in found.days) == 40
    assert sum(day.tokens_out for day in found.days) == 80


async def test_a_stake_from_before_the_first_day_is_still_staked(tmp_path: Path) -> None:
    chain = WrittenChain(NOW_S)
    log = open_log(chain, tmp_path)
    while await log.step():
        pass
    await log._clock.advance(100 * 86_400)  # type: ignore[attr-defined]
    found = await log.history(7)
    await log.close()
    assert [day.staked_units for day in found.days] == [400 * USD] * 7
    assert not any(day.jobs or day.slashed_units for day in found.days)
    assert not found.earners
