"""What is written is read back, once and whole; old databases become new ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlmodel import Session, select

from core.chain.chain import ChainEvent
from core.chain.follower import ChainPosition
from core.protocol.errors import ConfigError
from core.protocol.types import ZERO_HASH
from core.protocol.units import NANO
from core.runtime.database import migration_config, open_engine, sqlite_url, upgrade
from matcher.records.jobs import FAILED, MATCHED
from matcher.records.store import MIGRATIONS, SWARM_PEERS_KEPT, JobChange, MinerSeen, Store
from matcher.records.tables import METADATA, MinerRow
from matcher.settling.following import job_change
from tests.town.fleet import (
    MODEL_ID,
    SPEC,
    machine_key,
    make_ack,
    make_job,
    make_order,
    make_receipt,
)
from tests.town.orders import DOMAIN, NOW_S, sign_order

JOB = make_job(sign_order(make_order()), [(1, 0, 10), (2, 10, 30)])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store.open(sqlite_url(tmp_path / "m.sqlite"))
    found.bind(DOMAIN.chain_id, DOMAIN.verifying_contract)
    yield found
    found.close()


def test_migrations_make_exactly_the_tables_of_the_models(tmp_path: Path) -> None:
    engine = open_engine(sqlite_url(tmp_path / "m.sqlite"), "matcher.db_url")
    upgrade(engine, MIGRATIONS)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_migrating_twice_changes_nothing_and_keeps_the_rows(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "m.sqlite")
    first = Store.open(url)
    first.begin(JOB, NOW_S)
    first.close()
    second = Store.open(url)
    assert second.job(JOB.job_id) is not None
    second.close()


def test_migrations_can_be_undone(tmp_path: Path) -> None:
    from alembic import command
    from sqlalchemy import inspect

    engine = open_engine(sqlite_url(tmp_path / "m.sqlite"), "matcher.db_url")
    upgrade(engine, MIGRATIONS)
    with engine.begin() as connection:
        command.downgrade(migration_config(connection, MIGRATIONS), "base")
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()


def test_sqlite_runs_in_wal_mode(store: Store) -> None:
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_database_url_that_names_no_database_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        Store.open("nonsense")
    with pytest.raises(ConfigError):
        Store.open("sqlite:////no/such/folder/m.sqlite")


def test_a_job_is_read_back_as_it_was(store: Store) -> None:
    store.begin(JOB, NOW_S)
    found = store.job(JOB.job_id)
    assert found == replace(JOB, created_at=NOW_S, updated_at=NOW_S)


def test_acknowledgement_and_receipts_come_back_with_it(store: Store) -> None:
    store.begin(JOB, NOW_S)
    receipts = [
        make_receipt(JOB.signed.order, JOB.plan, i, (0, 1), machine_key(i + 1)) for i in (0, 1)
    ]
    ack = make_ack(JOB, 20, 60, receipts[1].receipt.output_root)
    for _ in range(2):
        store.save_receipts(JOB.job_id, receipts, NOW_S)
        store.save_ack(JOB.job_id, ack, NOW_S)
    found = store.job(JOB.job_id)
    assert found is not None
    assert (found.receipts, found.ack, found.complete) == (tuple(receipts), ack, True)


def test_a_living_job_is_not_begun_again_but_a_failed_one_is(store: Store) -> None:
    other = make_job(JOB.signed, [(3, 0, 30)])
    store.begin(JOB, NOW_S)
    store.begin(other, NOW_S + 1)
    assert store.job(JOB.job_id).plan == JOB.plan
    store.change(JobChange(JOB.job_id, {"state": FAILED}), NOW_S + 2)
    store.begin(other, NOW_S + 3)
    found = store.job(JOB.job_id)
    assert (found.plan, found.state, len(found.acceptances)) == (other.plan, "Opening", 1)


def test_a_job_adopted_from_the_chain_has_no_acceptances(store: Store) -> None:
    store.adopt(replace(JOB, acceptances=(), state=MATCHED), NOW_S)
    found = store.job(JOB.job_id)
    assert found is not None
    assert (found.plan, found.state, found.acceptances) == (JOB.plan, MATCHED, ())
    assert found.acceptances_expire_at == 0


def test_the_plan_that_the_chain_shows_takes_the_place_of_another_one(store: Store) -> None:
    other = replace(make_job(JOB.signed, [(3, 0, 30)]), acceptances=(), state=MATCHED)
    store.begin(JOB, NOW_S)
    store.adopt(replace(JOB, state=MATCHED), NOW_S)
    assert store.job(JOB.job_id).state == "Opening", "the same plan: it is known already"
    store.adopt(other, NOW_S)
    assert (store.job(JOB.job_id).plan, store.job(JOB.job_id).state) == (other.plan, MATCHED)
    late = JobChange(JOB.job_id, {"state": FAILED}, JOB.plan_hash)
    store.change(late, NOW_S)
    assert store.job(JOB.job_id).state == MATCHED, "that was about the other plan"


# --- what a session was counted and paid ---

SESSION = make_job(
    sign_order(make_order(input_root=ZERO_HASH, sampling_root=ZERO_HASH)), [(1, 0, 10), (2, 10, 30)]
)


def said(name: str, block: int = 5, **args: int) -> JobChange:
    args = {"job": SESSION.job_id, **args}  # type: ignore[dict-item]
    change = job_change(ChainEvent("TaskRegistry", name, args, block, "0x", "0x", 0))
    assert change is not None
    return change


def test_a_session_is_counted_by_its_acks_and_paid_by_its_end(store: Store) -> None:
    store.begin(SESSION, NOW_S)
    for tokens_in, tokens_out in ((5, 5), (5, 9), (8, 9)):
        change = said("JobAcknowledged", tokensIn=tokens_in, tokensOut=tokens_out)
        store.change(change, NOW_S)
        found = store.job(SESSION.job_id)
        assert (found.tokens_in, found.tokens_out) == (tokens_in, tokens_out)
        assert found.paid_units is None
    end = {"paidNano": 9 * NANO, "refundedNano": 140 * NANO, "withheldNano": 40 * NANO}
    for _ in range(2):
        store.change(said("JobSettled", **end), NOW_S)
    found = store.job(SESSION.job_id)
    assert (found.state, found.tokens_in, found.tokens_out) == ("Settled", 8, 9)
    assert (found.paid_units, found.refunded_units, found.withheld_units) == (9, 140, 40)


def test_events_and_position_are_stored_together_or_not_at_all(store: Store) -> None:
    store.begin(JOB, NOW_S)
    change = JobChange(JOB.job_id, {"state": "Settled", "state_block": 7, "no_such_column": 1})
    with pytest.raises(ValueError):
        store.apply(ChainPosition(((7, "0x07"),)), [change], {}, now=NOW_S)
    assert store.position() == ChainPosition()
    assert store.job(JOB.job_id).state == "Opening"


def test_a_rollback_puts_in_doubt_exactly_what_came_later(store: Store) -> None:
    other = make_job(sign_order(make_order(nonce=2)), [(1, 0, 30)])
    for job, block in ((JOB, 5), (other, 9)):
        store.begin(job, NOW_S)
        change = JobChange(job.job_id, {"state": "Settled", "state_block": block})
        store.apply(ChainPosition(((block, "0x"),)), [change], {MODEL_ID: (SPEC, 9)}, now=NOW_S)
    store.apply(ChainPosition(((6, "0x"),)), [], {}, rolled_back_to=6, now=NOW_S)
    assert [job.job_id for job in store.unfinished()] == [other.job_id]
    assert store.models() == {}


def test_models_are_read_back(store: Store) -> None:
    store.apply(ChainPosition(), [], {MODEL_ID: (SPEC, 3)}, now=NOW_S)
    assert store.models() == {MODEL_ID: SPEC}


def test_miners_keep_when_they_were_first_seen(store: Store) -> None:
    seen = MinerSeen(machine_key(1).address, machine_key(9).address, 5, True, "JOIN", "h:1")
    store.note_miners([seen], NOW_S)
    store.note_miners([replace(seen, state="SERVING")], NOW_S + 60)
    with Session(store.engine) as session:
        (row,) = session.exec(select(MinerRow)).all()
    assert (row.first_seen_at, row.last_seen_at, row.state) == (NOW_S, NOW_S + 60, "SERVING")


def test_jobs_are_listed_newest_first_and_by_state(store: Store) -> None:
    jobs = [make_job(sign_order(make_order(nonce=n)), [(1, 0, 30)]) for n in range(3)]
    for age, job in enumerate(jobs):
        store.begin(job, NOW_S + age)
    store.change(JobChange(jobs[0].job_id, {"state": "Matched"}), NOW_S)
    assert [job.job_id for job in store.jobs()] == [job.job_id for job in reversed(jobs)]
    assert [job.job_id for job in store.jobs(state="Matched")] == [jobs[0].job_id]
    assert len(store.jobs(limit=2)) == 2
    assert store.counts() == {"Matched": 1, "Opening": 2}


def test_the_newest_swarm_peers_are_remembered(store: Store) -> None:
    for at in range(40):
        store.remember_swarm([f"/me/{at}"], [f"/peer/{at}", "x" * 300], NOW_S + at)
    own, peers = store.remembered_swarm()
    assert own[0] == "/me/39"
    assert peers == [f"/peer/{at}" for at in range(39, 39 - SWARM_PEERS_KEPT, -1)]
