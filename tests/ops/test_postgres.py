"""Do matcher and gateway keep their books in PostgreSQL as they do in SQLite?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import bindparam, func, insert, inspect, literal_column, select, table
from sqlmodel import Session

from client.gateway.money.ledger import GONE_AFTER_S, Reservation
from client.gateway.records.database import Clash, Database
from client.gateway.records.tables import GatewayTable as GatewayBase
from client.gateway.start import tidy
from client.records.statements import Statement, Transaction
from core.chain.chain import Fate, PreparedTransaction, TransactionFate
from core.chain.follower import ChainPosition
from core.money.paid_audits import AuditEnd, AuditFinding, SignedFinding
from core.protocol.errors import ConfigError, UsageError
from core.runtime.database import open_engine
from matcher.audits.audit_book import AuditBook, Fell
from matcher.records.store import MinerSeen, Store
from matcher.records.tables import MatcherTable as MatcherBase
from matcher.records.tables import MinerRow
from tests.client.gateway.toy import cost
from tests.client.gateway.world import World
from tests.town.matcher import Net
from tests.town.orders import DOMAIN

HELLO: list[Any] = [{"role": "user", "content": "say:hello there"}]
NewDatabase = Callable[[], str]


@pytest.mark.parametrize(
    ("opened", "base"), [(Store, MatcherBase), (Database, GatewayBase)], ids=["matcher", "gateway"]
)
def test_migrations_make_the_tables_and_a_second_start_changes_nothing(
    new_database: NewDatabase, opened: Any, base: Any
) -> None:
    url = new_database()
    for _ in range(2):
        found = opened.open(url)
        assert found.engine.dialect.driver == "psycopg"
        tables = set(inspect(found.engine).get_table_names())
        found.close()
    assert tables == {*base.metadata.tables, "alembic_version"}


def test_daemons_that_start_at_once_migrate_once(new_database: NewDatabase) -> None:
    url, failures = new_database(), list[BaseException]()

    def start() -> None:
        try:
            Database.open(url).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


async def test_a_matcher_that_is_killed_goes_on_from_postgres(
    new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database()
    monkeypatch.setattr("tests.town.matcher.sqlite_url", lambda path: url)
    net = Net(tmp_path)
    store = net.stores[0]
    seen = MinerSeen("0x" + "0a" * 20, "0x" + "0b" * 20, 10**30 % 2**62, True, "SERVING", "h:1")
    store.note_miners([seen], 5)
    store.apply(ChainPosition(), [], {}, now=6)
    store.remember_swarm(["/ip4/1"], ["/ip4/2"], 7)
    daemon = net.restarted()
    await daemon.prepare()
    reread = net.stores[-1]
    with Session(reread.engine) as session:
        row = session.get(MinerRow, seen.operator)
    assert row is not None
    assert (row.operator, row.stake_units) == (seen.operator, seen.stake_units)
    assert reread.remembered_swarm() == (["/ip4/1"], ["/ip4/2"])
    assert reread.jobs() == [] and reread.counts() == {}
    with pytest.raises(ConfigError, match="another network"):
        reread.bind(DOMAIN.chain_id + 1, DOMAIN.verifying_contract)
    for one in net.stores:
        one.close()


def test_audits_are_drawn_within_the_cap_and_paid_once_whoever_comes_at_once(
    new_database: NewDatabase,
) -> None:
    url, auditor = new_database(), "0x" + "0a" * 20
    stores = [Store.open(url) for _ in range(4)]
    books = [AuditBook(store.engine) for store in stores]
    with ThreadPoolExecutor(4) as pool:

        def draw(number: int) -> Fell:
            job = f"0x{number // 2:064x}"  # two ask for each job
            return books[number].draw(
                job, auditor, range(10), lambda r: True, fee_units=3, cap_units=50, now=1, due_at=9
            )

        secrets = set(pool.map(lambda book: book.secret(), books))
        fell = list(pool.map(draw, range(4)))
    assert len(secrets) == 1
    assert sum(one.newly_drawn for one in fell) == 50 // 3
    assert sum(one.over_cap for one in fell) == 20 - 50 // 3
    lots = books[0].lots()
    for lot in lots:
        finding = AuditFinding(auditor, lot.job_id, lot.request, AuditEnd.CLEAN, 0)
        assert books[1].keep(SignedFinding(finding, "0x" + "00" * 65), 2)
    assert books[2].owed_units() == 3 * len(lots)
    (owed,) = books[2].owed()

    def pay(number: int) -> int:
        try:
            books[number].begin_payment(
                owed, PreparedTransaction("", auditor, 1, f"0x{number:064x}", "0x"), 3
            )
        except UsageError:
            return 0
        return owed.amount_units

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(pay, range(4))) == owed.amount_units
    (payment,) = books[3].unsettled()
    books[0].note(payment.number, TransactionFate(Fate.VOID, is_final=True))
    assert books[1].owed() == [owed]
    assert {job for _, job in books[1].cleared(9)} == {lot.job_id for lot in lots}
    for store in stores:
        store.close()


@pytest.fixture
def world(new_database: NewDatabase, tmp_path: Path) -> Any:
    found = World(tmp_path / "world", db_url=new_database()).start()
    yield found
    found.stop()


def ask(world: World, secret: str, **more: Any) -> Any:
    with openai.OpenAI(base_url=world.base_url, api_key=secret, max_retries=0) as client:
        answer = client.chat.completions.create(
            **{"model": "toy", "messages": HELLO, "max_tokens": 20, **more}
        )
        return list(answer) if more.get("stream") else answer


def test_a_gateway_charges_in_postgres_to_the_unit_and_across_a_restart(world: World) -> None:
    secret = world.new_key("dry", budget_units=10**6)
    ask(world, secret, extra_headers={"idempotency-key": "one"})
    assert ask(world, secret, stream=True, n=2)
    world.until(lambda: world.gateway.exchanges.running == 0)
    world.stop()
    world.start()
    again = ask(world, secret, extra_headers={"idempotency-key": "one"})
    assert again.choices[0].message.content == "hello there"
    key = world.key(secret)
    assert key.spent_units == world.bank.total_units > 0
    assert key.reserved_units == 0
    usage = world.run(world.gateway.keys.usage(key.key_id))
    assert sum(day["cost_units"] for day in usage) == key.spent_units
    totals = world.run(world.gateway.ledger.totals())
    assert totals["spent_units"] == key.spent_units and totals["reserved_units"] == 0


def test_two_gateways_over_one_database_cannot_overdraw_a_budget(
    world: World, tmp_path: Path
) -> None:
    other = World(tmp_path / "other", db_url=world.db_url).start()
    try:
        once = ask(world, world.new_key())
        most = cost(once.usage.prompt_tokens, 20) + 1
        secret = world.new_key("dry", budget_units=2 * most, budget_period="day")
        for one in (world, other):
            one.answerer.first_s = 0.5  # so that all of them hold their reservation at once
        answered, refused = list[int](), list[int]()

        def try_one(at: World) -> None:
            try:
                ask(at, secret)
                answered.append(1)
            except openai.APIStatusError as error:
                refused.append(error.status_code)

        threads = [threading.Thread(target=try_one, args=(w,)) for w in (world, other) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(answered) == 2 and refused == [402] * 6
        assert world.key(secret).spent_units <= 2 * most
    finally:
        other.stop()


def test_a_gateway_that_starts_leaves_what_another_is_answering(
    world: World, tmp_path: Path
) -> None:
    key_id = world.key(world.new_key()).key_id
    opening = Reservation("req_1", "rcpt_1", key_id, "/v1", "toy", "hash", "one", 1000)
    world.run(world.gateway.ledger.reserve(opening))
    other = World(tmp_path / "other", db_url=world.db_url).start()
    try:
        (row,) = other.run(other.gateway.ledger.requests())
        assert (row.state, row.gateway_id) == ("running", world.gateway.gateway_id)
        other.clock.ahead_s += GONE_AFTER_S + 1
        other.run(tidy(other.gateway))
        (row,) = other.run(other.gateway.ledger.requests())
        assert (row.state, row.error_code) == ("failed", "gateway_gone")
        assert other.run(other.gateway.ledger.totals())["reserved_units"] == 0
    finally:
        other.stop()


def test_a_database_that_nobody_can_open_says_why(postgres_url: str) -> None:
    wrong = postgres_url.replace(":headrace", ":x", 1).replace("headrace:", "headrace:nope", 1)
    with pytest.raises(ConfigError) as failed:
        Database.open(wrong)
    assert "password" in failed.value.why and "nope" not in str(failed.value)
    with pytest.raises(ConfigError, match=r"gateway\.db_url"):
        open_engine("nonsense", "gateway.db_url")


def test_transactions_take_turns_and_those_who_look_do_not(new_database: NewDatabase) -> None:
    one = Database.open(new_database())
    locks = select(func.count().label("held")).select_from(table("pg_locks"))
    held = Statement(locks.where(literal_column("locktype") == bindparam("kind")))
    with one.transaction() as writing:
        assert writing.first(held, {"kind": "advisory"}).held == 1
    with one.session() as session:
        assert Transaction.of(session).first(held, {"kind": "advisory"}).held == 1
    with one.looking() as look:
        assert look.first(held, {"kind": "advisory"}).held == 0
    one.close()


def test_a_transaction_that_clashes_or_breaks_writes_nothing(new_database: NewDatabase) -> None:
    one = Database.open(new_database())
    files = GatewayBase.metadata.tables["files"]
    new, count = (
        Statement(insert(files)),
        Statement(select(func.count().label("all")).select_from(files)),
    )
    row = {
        "file_id": "file_1",
        "key_id": "key_1",
        "filename": "100%.txt",
        "purpose": "batch",
        "size_bytes": 2**40,
        "created_at": 5,
        "expires_at": None,
    }
    with pytest.raises(Clash), one.transaction() as writing:
        writing.execute(new, row)
        writing.execute(new, row)
    with pytest.raises(ValueError, match="midway"), one.transaction() as writing:
        writing.execute(new, row)
        raise ValueError("midway")
    with one.looking() as look:
        assert look.first(count, {}).all == 0
    with one.transaction() as writing:
        writing.execute(new, row)
    with one.looking() as look:
        assert look.first(count, {}).all == 1
    one.close()


def test_answers_are_forgotten_in_postgres_too(world: World) -> None:
    ask(world, world.new_key(), extra_headers={"idempotency-key": "one"})
    world.clock.ahead_s += 25 * 3600
    assert world.run(world.gateway.ledger.forget_answers()) == 1
    (row,) = world.run(world.gateway.ledger.requests())
    assert (row.answer, row.idempotency_key, row.state) == (None, None, "done")
