"""The pure side of settling: which step, which receipts, which acknowledgement."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol import types as t
from matcher.records.jobs import MATCHED, Job, OnChain, SignedAck
from matcher.settling.next_step import (
    Patience,
    SettlingStep,
    check_ack,
    check_ack_pays,
    next_step,
)
from tests.town.fleet import machine_key, make_ack, make_job, make_order, make_receipt
from tests.town.orders import DOMAIN, NOW_S, sign_order

JOB = make_job(sign_order(make_order()), [(1, 0, 10), (2, 10, 30)])
RECEIPTS = tuple(
    make_receipt(JOB.signed.order, JOB.plan, i, (0, 1), machine_key(i + 1)) for i in (0, 1)
)
ROOT = RECEIPTS[-1].receipt.output_root
ACK = make_ack(JOB, 20, 60, ROOT)
DONE = replace(JOB, receipts=RECEIPTS, finished_at_s=NOW_S + 10)
DEADLINE = NOW_S + 600


def on_chain(state: str, **changes: object) -> OnChain:
    values = {
        "state": state,
        "deadline_s": DEADLINE,
        "final_at_s": 0,
        "tokens_in": 0,
        "tokens_out": 0,
        "open_disputes": 0,
    } | changes
    return OnChain(**values)  # type: ignore[arg-type]


DELIVERED = on_chain("Delivered", final_at_s=NOW_S + 100, tokens_in=20, tokens_out=60)
LOW = make_ack(JOB, 10, 30, ROOT)
OTHER_RESULT = make_ack(JOB, 20, 60, "0x" + "01" * 32)


@pytest.mark.parametrize(
    ("job", "chain", "at", "step"),
    [
        (JOB, on_chain("None"), 0, SettlingStep.OPEN),
        (JOB, on_chain("None"), 300, SettlingStep.OPEN),
        (JOB, on_chain("None"), 301, SettlingStep.FAIL),
        (replace(JOB, acceptances=()), on_chain("None"), 0, SettlingStep.FAIL),
        (replace(JOB, acceptances=()), on_chain("Matched"), 0, SettlingStep.COLLECT),
        (JOB, on_chain("Matched"), 0, SettlingStep.COLLECT),
        (JOB, on_chain("Matched"), 600, SettlingStep.COLLECT),
        (JOB, on_chain("Matched"), 601, SettlingStep.EXPIRE),
        (DONE, on_chain("Matched"), 29, SettlingStep.WAIT),
        (DONE, on_chain("Matched"), 30, SettlingStep.DELIVER),
        (replace(DONE, finished_at_s=NOW_S + 569), on_chain("Matched"), 570, SettlingStep.DELIVER),
        (DONE, on_chain("Matched"), 601, SettlingStep.EXPIRE),
        (replace(JOB, ack=ACK), on_chain("Matched"), 0, SettlingStep.ACK),
        (replace(DONE, ack=ACK), on_chain("Matched"), 700, SettlingStep.ACK),
        (DONE, DELIVERED, 100, SettlingStep.WAIT),
        (DONE, DELIVERED, 101, SettlingStep.FINALIZE),
        (DONE, replace(DELIVERED, open_disputes=1), 101, SettlingStep.WAIT),
        (replace(DONE, ack=ACK), DELIVERED, 0, SettlingStep.ACK),
        (replace(DONE, ack=OTHER_RESULT), DELIVERED, 0, SettlingStep.ACK),
        (replace(DONE, ack=LOW), DELIVERED, 0, SettlingStep.WAIT),
        (replace(DONE, ack=LOW), DELIVERED, 101, SettlingStep.FINALIZE),
        (DONE, replace(DELIVERED, state="Disputed"), 1000, SettlingStep.WAIT),
        (DONE, on_chain("Settled"), 0, SettlingStep.RECORD),
        (JOB, on_chain("Expired"), 0, SettlingStep.RECORD),
        (JOB, on_chain("Cancelled"), 0, SettlingStep.RECORD),
    ],
)
def test_each_state_has_one_next_step(
    job: Job, chain: OnChain, at: int, step: SettlingStep
) -> None:
    assert next_step(job, chain, NOW_S + at, Patience(20, 30)) is step


def test_after_a_batchs_deadline_comes_a_time_in_which_only_an_acknowledgement_counts() -> None:
    late, over = NOW_S + 601, NOW_S + 701
    matched, acked = on_chain("Matched"), replace(DONE, ack=ACK)
    assert next_step(DONE, matched, late, close_delay_s=100) is SettlingStep.WAIT
    assert next_step(acked, matched, late, close_delay_s=100) is SettlingStep.ACK
    assert next_step(DONE, matched, over, close_delay_s=100) is SettlingStep.EXPIRE


@given(
    st.sampled_from([JOB, DONE, replace(JOB, ack=ACK), replace(DONE, ack=ACK)]),
    st.sampled_from(["Matched", "Delivered", "Disputed"]),
    st.integers(0, 2000),
)
def test_whatever_is_open_ends_or_waits_for_a_ruling(job: Job, state: str, at: int) -> None:
    """From every open state at any time there is a way on: now, or when a clock has run."""
    chain = DELIVERED if state == "Delivered" else on_chain(state)
    now = next_step(job, chain, NOW_S + at)
    later = next_step(job, chain, NOW_S + 10**6)
    assert state == "Disputed" or SettlingStep.WAIT not in (later,)
    assert now is not SettlingStep.FAIL


def test_a_whole_set_of_receipts_is_complete_and_a_partial_one_is_not() -> None:
    assert DONE.complete
    assert not replace(JOB, receipts=RECEIPTS[:1]).complete
    partial = tuple(
        make_receipt(JOB.signed.order, JOB.plan, i, (0,), machine_key(i + 1)) for i in (0, 1)
    )
    assert not replace(JOB, receipts=partial).complete


@pytest.mark.parametrize(
    ("tokens", "before", "receipts", "ok"),
    [
        ((20, 60), None, RECEIPTS, True),
        ((20, 59), None, RECEIPTS, False),
        ((19, 60), None, RECEIPTS, False),
        ((1, 1), None, (), True),  # some stage is silent: nobody can show more
        ((10, 29), LOW, (), False),
        ((10, 30), LOW, (), True),
    ],
)
def test_an_acknowledgement_must_pay_for_what_receipts_show(
    tokens: tuple[int, int], before: object, receipts: tuple[t.SignedReceipt, ...], ok: bool
) -> None:
    signed = make_ack(JOB, *tokens, ROOT)
    assert (check_ack_pays(signed, before, receipts) is None) is ok  # type: ignore[arg-type]


def test_an_acknowledgement_of_another_plan_is_refused() -> None:
    other = make_job(sign_order(make_order()), [(2, 0, 30)])
    found = check_ack(JOB, make_ack(other, 20, 60, ROOT), DOMAIN)
    assert found is not None
    assert "another" in found.why


# --- open orders ---


def open_job(ack: tuple[int, int] | None = None, *, ended: bool = False) -> Job:
    order = msgspec.structs.replace(
        JOB.signed.order, input_root=t.ZERO_HASH, sampling_root=t.ZERO_HASH
    )
    job = replace(JOB, signed=t.SignedOrder(order, JOB.signed.signature), finished_at_s=int(ended))
    if ack is None:
        return job
    said = t.Ack(job.order_hash, job.plan_hash, t.ZERO_HASH, *ack)
    return replace(job, ack=SignedAck(said, "0x"))


@pytest.mark.parametrize(
    ("job", "counted", "now_s", "step"),
    [
        (open_job(), (0, 0), 10, SettlingStep.WAIT),
        (open_job((5, 5)), (0, 0), 10, SettlingStep.WAIT),
        (open_job((5, 5)), (5, 5), 10, SettlingStep.WAIT),
        (open_job((5, 5)), (0, 0), 970, SettlingStep.ACK),  # the deadline is near
        (open_job((5, 5)), (5, 5), 999, SettlingStep.WAIT),
        (open_job((5, 5), ended=True), (4, 5), 10, SettlingStep.ACK),
        (open_job((5, 5), ended=True), (5, 5), 10, SettlingStep.CLOSE),
        # closing: others may still bring theirs
        (open_job((5, 5), ended=True), (5, 5), 1000, SettlingStep.WAIT),
        (open_job((5, 5)), (5, 5), 1100, SettlingStep.WAIT),
        (open_job((5, 6)), (5, 5), 1101, SettlingStep.ACK),
        (open_job((5, 5)), (5, 5), 1101, SettlingStep.EXPIRE),
        (open_job(), (0, 0), 1101, SettlingStep.EXPIRE),
        # its requester has had more of one count counted, to spoil what stages hold
        (open_job((5, 5), ended=True), (6, 0), 10, SettlingStep.ACK),
        (open_job((5, 5)), (6, 6), 970, SettlingStep.WAIT),
    ],
)
def test_an_open_orders_acknowledgement_goes_on_chain_at_its_end(
    job: Job, counted: tuple[int, int], now_s: int, step: SettlingStep
) -> None:
    seen = OnChain(MATCHED, 1000, 0, *counted, 0)
    assert next_step(job, seen, now_s, close_delay_s=100) is step
