"""What a miner remembers survives restarts, and nothing makes it sign two things for one
request.
"""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.errors import CheckFailed, ConfigError
from miner.records.store import BoundaryRows, FinishedLeaf, MinerStore, Rooted, keep_until
from miner.serving.receipts import MAX_SETS, ReceiptBook
from tests.miner.chain.test_admission import ME, ORDER, PLAN
from tests.town.orders import DOMAIN, NOW_S, key

ORDER_HASH, PLAN_HASH = signing.order_hash(ORDER), signing.plan_hash(PLAN)
JOB_ID = signing.job_id(DOMAIN, ORDER)
ROWS_IN, ROWS_OUT = BoundaryRows(8, bytes(range(40))), BoundaryRows(4, bytes(range(20)))
STATES = Rooted(b"\x5a" * 32, BoundaryRows(8, bytes(range(40, 64))))


def put_job(store: MinerStore, expiry: int = NOW_S + 300, keep: int = NOW_S + 1000) -> None:
    acceptance = t.Acceptance(order_hash=ORDER_HASH, plan_hash=PLAN_HASH, stage=1, expiry=expiry)
    store.put_job(
        t.SignedOrder(order=ORDER, signature="0x" + "11" * 65),
        PLAN,
        ["a:1", "b:2"],
        t.SignedAcceptance(acceptance=acceptance, signature="0x" + "22" * 65),
        job_id=JOB_ID,
        shard_root="0x" + "33" * 32,
        keep_until=keep,
    )


def leaf(index: int, salt: int = 0, tokens_in: int = 3, tokens_out: int = 3) -> t.RequestLeaf:
    return t.RequestLeaf(
        request_index=index,
        in_root=commit.to_hex(bytes([salt]) * 32),
        out_root=commit.to_hex(bytes([salt + 1]) * 32),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
    )


def test_everything_signed_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "miner.sqlite"
    store = MinerStore(path)
    put_job(store)
    store.mark_verified(ORDER_HASH, PLAN_HASH, now_s=NOW_S + 5)
    store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(0), ROWS_IN, ROWS_OUT, STATES)
    store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(1), ROWS_IN, ROWS_OUT)
    opening = wire.Opening(
        salt=t.ZERO_HASH,
        prompt_proof=[t.ZERO_HASH],
        sampling=t.SamplingParams(seed=7),
        sampling_proof=[],
    )
    store.put_opening(ORDER_HASH, 0, opening, b"prompt")
    before = store.job(ORDER_HASH)
    store.close()
    store = MinerStore(path)
    job = store.job(ORDER_HASH)
    assert job == before
    assert job is not None
    assert (job.place.operator, job.stage, job.is_verified, job.started_at) == (
        ME,
        1,
        True,
        NOW_S + 5,
    )
    assert job.is_last
    assert not job.is_first
    zero, root = t.ZERO_HASH, "0x" + "5a" * 32
    kept = {0: FinishedLeaf(leaf(0), root, zero), 1: FinishedLeaf(leaf(1), "", zero)}
    assert store.leaves(ORDER_HASH, PLAN_HASH) == kept
    assert store.leaves(ORDER_HASH, PLAN_HASH, 1) == {1: kept[1]}
    assert store.leaves(ORDER_HASH, PLAN_HASH, 2) == {}
    assert store.rows(ORDER_HASH, PLAN_HASH, 0, "states", 1, 9) == (STATES.rows.data[8:], 8, 3)
    assert store.rows(ORDER_HASH, PLAN_HASH, 1, "states", 0, 9) is None
    assert store.rows(ORDER_HASH, PLAN_HASH, 0, "in", 1, 2) == (ROWS_IN.data[8:24], 8, 5)
    assert store.rows(ORDER_HASH, PLAN_HASH, 0, "out", 4, 99) == (ROWS_OUT.data[16:], 4, 5)
    assert store.rows(ORDER_HASH, PLAN_HASH, 0, "in", 9, 1) == (b"", 8, 5)
    assert store.rows(ORDER_HASH, PLAN_HASH, 2, "in", 0, 1) is None
    assert store.opening(ORDER_HASH, 0) == (opening, b"prompt")
    store.close()


def test_words_are_handed_out_by_request_and_survive_a_restart(tmp_path: Path) -> None:
    path, place = tmp_path / "miner.sqlite", (ORDER_HASH, PLAN_HASH)
    store = MinerStore(path)
    words = [
        t.SignedWord(
            t.RequestWord(*place, 0, index, t.ZERO_HASH, t.ZERO_HASH, 5, 4), "0x" + "22" * 65
        )
        for index in range(4)
    ]
    for word in reversed(words):
        store.put_word(word)
    store.close()
    store = MinerStore(path)
    assert store.words(*place, 9) == words
    assert store.words(*place, 1) == words[:1]
    assert store.words(PLAN_HASH, ORDER_HASH, 9) == []
    store.close()


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    MinerStore(tmp_path / "private" / "miner.sqlite").close()
    assert stat.S_IMODE((tmp_path / "private" / "miner.sqlite").stat().st_mode) == 0o600


def test_a_file_of_a_newer_program_or_of_none_is_refused(tmp_path: Path) -> None:
    newer, broken = tmp_path / "newer.sqlite", tmp_path / "broken.sqlite"
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    broken.write_bytes(b"this is no database, however long it may be" * 50)
    for path in (newer, broken):
        with pytest.raises(ConfigError):
            MinerStore(path)


def test_a_file_of_an_older_program_learns_of_state_rows(tmp_path: Path) -> None:
    path = tmp_path / "miner.sqlite"
    store = MinerStore(path)
    store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(0), ROWS_IN, ROWS_OUT)
    store.close()
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE leaves DROP COLUMN states_root")
    db.execute("ALTER TABLE leaves DROP COLUMN answer_root")
    db.execute("ALTER TABLE leaves DROP COLUMN inner_roots")
    db.execute("DROP TABLE words")
    db.execute("DROP TABLE restored_orders")
    db.execute("CREATE TABLE checkpoints (request INTEGER)")
    db.execute("PRAGMA user_version = 2")
    db.commit()
    db.close()
    store = MinerStore(path)
    store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(1), ROWS_IN, ROWS_OUT, STATES)
    roots = {i: kept.states_root for i, kept in store.leaves(ORDER_HASH, PLAN_HASH).items()}
    assert roots == {0: "", 1: "0x" + "5a" * 32}
    inner = [Rooted(bytes([n]) * 32, ROWS_OUT) for n in (1, 2)]
    store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(2), ROWS_IN, ROWS_OUT, inner=inner)
    kept = store.leaves(ORDER_HASH, PLAN_HASH)
    assert [kept[i].inner for i in range(3)] == [[], [], ["0x" + "01" * 32, "0x" + "02" * 32]]
    assert store.rows(ORDER_HASH, PLAN_HASH, 2, "inner-1", 0, 9) == (ROWS_OUT.data, 4, 5)
    assert store.rows(ORDER_HASH, PLAN_HASH, 2, "inner-2", 0, 9) is None
    store.close()


def test_another_leaf_for_the_same_request_is_never_written(tmp_path: Path) -> None:
    store = MinerStore(tmp_path / "miner.sqlite")
    store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(0), ROWS_IN, ROWS_OUT)
    store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(0), ROWS_IN, ROWS_OUT)
    with pytest.raises(CheckFailed, match="not signed again"):
        store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(0, salt=9), ROWS_OUT, ROWS_IN)
    assert store.leaves(ORDER_HASH, PLAN_HASH) == {0: FinishedLeaf(leaf(0), "", t.ZERO_HASH)}
    assert store.rows(ORDER_HASH, PLAN_HASH, 0, "in", 0, 9) == (ROWS_IN.data, 8, 5)
    store.close()


OTHER_PLAN = "0x" + "77" * 32


def put_other_plan(store: MinerStore) -> None:
    """Of the same order."""
    other = OTHER_PLAN
    acceptance = t.Acceptance(order_hash=ORDER_HASH, plan_hash=other, stage=0, expiry=NOW_S)
    store.put_job(
        t.SignedOrder(order=ORDER, signature="0x" + "11" * 65),
        PLAN[:1],
        ["c:3"],
        t.SignedAcceptance(acceptance=acceptance, signature="0x" + "22" * 65),
        job_id=JOB_ID,
        shard_root=t.ZERO_HASH,
        keep_until=NOW_S,
    )


def test_a_verified_job_is_found_before_a_newer_proposal(tmp_path: Path) -> None:
    store = MinerStore(tmp_path / "miner.sqlite")
    put_job(store)
    store.mark_verified(ORDER_HASH, PLAN_HASH, now_s=NOW_S)
    put_other_plan(store)
    found, named = store.job(ORDER_HASH), store.job(ORDER_HASH, OTHER_PLAN)
    assert found is not None
    assert named is not None
    assert (found.plan_hash, named.plan_hash) == (PLAN_HASH, OTHER_PLAN)
    assert [job.plan_hash for job in store.plans(ORDER_HASH, 9)] == [PLAN_HASH, OTHER_PLAN]
    assert [job.plan_hash for job in store.plans(ORDER_HASH, 1)] == [PLAN_HASH]
    assert store.job("0x" + "99" * 32) is None
    store.close()


def test_a_job_that_the_chain_has_with_one_plan_is_unmatched_with_all_others(
    tmp_path: Path,
) -> None:
    store = MinerStore(tmp_path / "miner.sqlite")
    put_job(store)
    put_other_plan(store)
    for plan_hash in (PLAN_HASH, OTHER_PLAN):
        store.mark_verified(ORDER_HASH, plan_hash, now_s=NOW_S)
    store.set_chain_state(JOB_ID, "MATCHED")
    store.unmatch(JOB_ID, OTHER_PLAN)
    assert [job.plan_hash for job in store.live_jobs()] == [OTHER_PLAN]
    states = {job.plan_hash: job.chain_state for job in store.plans(ORDER_HASH, 9)}
    assert states == {PLAN_HASH: "", OTHER_PLAN: "MATCHED"}
    store.unmatch(JOB_ID)
    assert store.live_jobs() == []
    store.close()


def test_rows_are_purged_only_when_nobody_can_dispute_and_leaves_never(tmp_path: Path) -> None:
    store = MinerStore(tmp_path / "miner.sqlite")
    put_job(store, keep=NOW_S + 1000)
    store.mark_verified(ORDER_HASH, PLAN_HASH, now_s=NOW_S)
    store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(0), ROWS_IN, ROWS_OUT, STATES)
    late = NOW_S + 10_000
    assert store.purge(late) == 0, "an open job is never cleared"
    store.put_dispute("0x" + "d1" * 32, JOB_ID, 1)
    store.set_chain_state(JOB_ID, "SETTLED", now_s=NOW_S + 2000, keep_s=500)
    assert store.purge(late) == 0, "nor one in dispute"
    assert store.open_disputes(JOB_ID) == ["0x" + "d1" * 32]
    store.close_dispute("0x" + "d1" * 32)
    assert store.purge(NOW_S + 2000 + ORDER.window + 499) == 0, "nor before window and margin"
    assert store.purge(NOW_S + 2000 + ORDER.window + 501) == 1
    assert store.purge(late) == 0
    for side in ("in", "out", "states"):
        assert store.rows(ORDER_HASH, PLAN_HASH, 0, side, 0, 9) is None
    known = FinishedLeaf(leaf(0), "0x" + "5a" * 32, t.ZERO_HASH)
    assert store.leaves(ORDER_HASH, PLAN_HASH) == {0: known}
    store.close()


def test_rows_are_kept_past_deadline_window_and_margin() -> None:
    assert keep_until(ORDER, 50) == ORDER.deadline + ORDER.window + 50


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("finish"), st.integers(0, 3), st.integers(0, 2)),
            st.tuples(st.just("close"), st.sets(st.integers(0, 3), min_size=1), st.none()),
            st.tuples(st.just("restart"), st.none(), st.none()),
        ),
        max_size=12,
    )
)
def test_two_signatures_never_disagree_about_a_request(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object, object]]
) -> None:
    path = tmp_path_factory.mktemp("book") / "miner.sqlite"
    signer, signed = key(1), []
    clock = iter(range(NOW_S, NOW_S + 1000))

    async def run() -> None:
        store = MinerStore(path)
        put_job(store)
        book = ReceiptBook(store, signer, DOMAIN, lambda: next(clock))
        for what, first, second in steps:
            job = store.job(ORDER_HASH)
            assert job is not None
            try:
                if what == "finish":
                    index = int(first)  # type: ignore[call-overload]
                    made = leaf(index, int(second))  # type: ignore[call-overload]
                    await book.finish(job, made, ROWS_IN, ROWS_OUT, STATES)
                    signed.append(await book.sign_over(job, [index]))
                elif what == "close":
                    requests = sorted(first)  # type: ignore[call-overload]
                    signed.append(await book.sign_over(job, requests))
                else:
                    book.close()
                    store.close()
                    store = MinerStore(path)
                    book = ReceiptBook(store, signer, DOMAIN, lambda: next(clock))
            except CheckFailed:
                continue
        book.close()
        store.close()

    asyncio.run(run())
    said: dict[int, t.RequestLeaf] = {}
    receipts: dict[str, t.SignedReceipt] = {}
    for one in signed:
        assert signing.is_signed_by(DOMAIN, one.receipt, one.signature, signer.address)
        assert receipts.setdefault(one.receipt.requests_root, one) == one
        for found in one.leaves:
            assert said.setdefault(found.request_index, found) == found


async def test_a_receipt_sums_its_requests_and_names_the_shard(tmp_path: Path) -> None:
    store = MinerStore(tmp_path / "miner.sqlite")
    put_job(store)
    store.mark_verified(ORDER_HASH, PLAN_HASH, now_s=NOW_S)
    book = ReceiptBook(store, key(1), DOMAIN, lambda: NOW_S + 9)
    job = store.job(ORDER_HASH)
    assert job is not None
    await book.finish(job, leaf(2, tokens_in=5, tokens_out=7), ROWS_IN, ROWS_OUT, STATES)
    await book.finish(job, leaf(0), ROWS_IN, ROWS_OUT, STATES)
    receipt = (await book.sign_over(job, [2, 0, 2])).receipt
    assert (receipt.requests, receipt.tokens_in, receipt.tokens_out) == (2, 8, 10)
    assert (receipt.shard_root, receipt.stage) == ("0x" + "33" * 32, 1)
    assert (receipt.layer_from, receipt.layer_to) == (3, 8)
    assert (receipt.started_at, receipt.signed_at) == (NOW_S, NOW_S + 9)
    with pytest.raises(CheckFailed, match="1 of 2 requests are not finished"):
        await book.sign_over(job, [0, 1])
    book.close()
    store.close()


async def test_endless_different_sets_are_not_signed(tmp_path: Path) -> None:
    store = MinerStore(tmp_path / "miner.sqlite")
    put_job(store)
    store.mark_verified(ORDER_HASH, PLAN_HASH, now_s=NOW_S)
    book = ReceiptBook(store, key(1), DOMAIN, lambda: NOW_S)
    job = store.job(ORDER_HASH)
    assert job is not None
    for index in range(MAX_SETS + 2):
        store.put_leaf(ORDER_HASH, PLAN_HASH, leaf(index), ROWS_IN, ROWS_OUT, STATES)
    for index in range(1, MAX_SETS + 1):
        await book.sign_over(job, [0, index])
    with pytest.raises(CheckFailed, match="different sets"):
        await book.sign_over(job, [0, MAX_SETS + 1])
    await book.sign_over(job, [MAX_SETS + 1])
    await book.sign_over(job, [0, 1])
    book.close()
    store.close()


def test_records_that_were_put_back_name_the_orders_of_before_once(tmp_path: Path) -> None:
    store = MinerStore(tmp_path / "miner.sqlite")
    put_job(store)
    assert store.heed_restoring("") == 0, "they were never put back"
    assert not store.is_restored(ORDER_HASH)
    assert store.heed_restoring("first") == 1
    assert store.is_restored(ORDER_HASH)
    assert store.heed_restoring("first") == 0, "the next start of the same miner"
    assert store.is_restored(ORDER_HASH)
    store._put("DELETE FROM restored_orders")
    assert store.heed_restoring("second") == 1
    store.close()
