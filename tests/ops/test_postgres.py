"""Do matcher and gateway keep their books in PostgreSQL as they do in SQLite?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import inspect, text

from client.gateway.database import Database
from client.gateway.tables import Base as GatewayBase
from core.protocol.errors import ConfigError
from core.protocol.follower import Position
from core.runtime.database import open_engine
from matcher.store import MinerSeen, Store
from matcher.tables import Base as MatcherBase
from tests.client.gateway.toy import cost
from tests.client.gateway.world import World
from tests.matcher.conftest import Net
from tests.matcher.worlds import DOMAIN

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
    monkeypatch.setattr("tests.matcher.conftest.sqlite_url", lambda path: url)
    net = Net(tmp_path)
    store = net.stores[0]
    seen = MinerSeen("0x" + "0a" * 20, "0x" + "0b" * 20, 10**30 % 2**62, True, "SERVING", "h:1")
    store.note_miners([seen], 5)
    store.apply(Position(), [], {}, now=6)
    store.remember_swarm(["/ip4/1"], ["/ip4/2"], 7)
    daemon = net.restarted()
    await daemon.prepare()
    reread = net.stores[-1]
    assert [(row.operator, row.stake_units) for row in reread.miners()] == [
        (seen.operator, seen.stake_units)
    ]
    assert reread.remembered_swarm() == (["/ip4/1"], ["/ip4/2"])
    assert reread.jobs() == [] and reread.counts() == {}
    with pytest.raises(ConfigError, match="another network"):
        reread.bind(DOMAIN.chain_id + 1, DOMAIN.verifying_contract)
    for one in net.stores:
        one.close()


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


def test_a_database_that_nobody_can_open_says_why(postgres_url: str) -> None:
    wrong = postgres_url.replace(":headrace", ":x", 1).replace("headrace:", "headrace:nope", 1)
    with pytest.raises(ConfigError) as failed:
        Database.open(wrong)
    assert "password" in failed.value.why and "nope" not in str(failed.value)
    with pytest.raises(ConfigError, match=r"gateway\.db_url"):
        open_engine("nonsense", "gateway.db_url")


def test_transactions_take_turns(new_database: NewDatabase) -> None:
    one = Database.open(new_database())
    with one.connection() as connection:
        held = connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))
        assert held.scalar() == 1
    one.close()
