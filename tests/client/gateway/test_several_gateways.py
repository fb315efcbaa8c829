"""Do gateways over one database leave each other's work alone, and end what a lost one left?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from client.gateway.batches.batches import GONE_AFTER_S as BATCH_GONE_AFTER_S
from client.gateway.identity import NAME_FILE, identity_in, sole_gateway
from client.gateway.money.ledger import GONE_AFTER_S, Reservation
from client.gateway.records.database import private_sqlite_url
from client.gateway.start import tidy
from core.protocol.errors import ConfigError
from tests.client.gateway.batches.test_batches import begin, line, lines_of, wait
from tests.client.gateway.test_retries import post
from tests.client.gateway.world import World

MakeWorld = Callable[..., World]


@pytest.fixture
def start(make_world: MakeWorld, tmp_path: Path) -> MakeWorld:
    """One gateway more over the same database, in a folder of its own."""
    url = private_sqlite_url(tmp_path / "shared.sqlite")
    return lambda: make_world(db_url=url)


def client_of(world: World, secret: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=world.base_url, api_key=secret, timeout=30)


def lines(count: int) -> list[Any]:
    return [line(number) for number in range(count)]


def rows(world: World) -> dict[str, Any]:
    return {row.request_id: row for row in world.run(world.gateway.ledger.requests())}


def reserve(world: World, secret: str, name: str) -> None:
    """A request that runs for as long as nobody ends it."""
    key_id = world.key(secret).key_id
    opening = Reservation(f"req_{name}", f"rcpt_{name}", key_id, "/v1", "toy", "hash", name, 1000)
    world.run(world.gateway.ledger.reserve(opening))


def test_a_request_that_one_answers_outlives_the_start_of_another(
    start: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start()
    secret, held, answers = first.new_key(), threading.Event(), list[httpx2.Response]()
    note = first.gateway.ledger.begun

    async def begun(request_id: str) -> None:
        await note(request_id)
        await asyncio.to_thread(held.wait, 30)  # the second token waits for it

    monkeypatch.setattr(first.gateway.ledger, "begun", begun)
    asking = threading.Thread(
        target=lambda: answers.append(post(first, secret, idempotency_key="one"))
    )
    asking.start()
    first.until(lambda: any(row.begun_at for row in rows(first).values()))
    second = start()
    (row,) = rows(second).values()
    assert (row.state, row.gateway_id) == ("running", first.gateway.gateway_id)
    assert post(second, secret, idempotency_key="one").status_code == 409  # it is being answered
    held.set()
    asking.join(30)
    (answer,) = answers
    assert answer.status_code == 200
    (row,) = rows(second).values()
    assert (row.state, row.error_code) == ("done", "")
    key = second.key(secret)
    assert key.spent_units == first.bank.total_units > 0 and key.reserved_units == 0
    assert post(second, secret, idempotency_key="one").content == answer.content


def test_a_batch_that_one_runs_is_not_run_by_another_that_starts(start: MakeWorld) -> None:
    first = start()
    secret = first.new_key()
    first.offline.stop_after = 2
    with client_of(first, secret) as client:
        batch_id = begin(client, lines(5)).id
        first.until(lambda: len(first.bank.paid) == 2)
        second = start()
        row = second.run(second.gateway.batches.get(batch_id))
        assert (row.status, row.gateway_id) == ("in_progress", first.gateway.gateway_id)
        first.loop.call_soon_threadsafe(first.offline.go_on.set)
        batch = wait(client, batch_id)
    assert batch.status == "completed" and batch.request_counts.completed == 5
    assert first.offline.orders == [5] and second.offline.orders == []
    key = second.key(secret)
    assert key.spent_units == first.bank.total_units and key.reserved_units == 0


def test_each_goes_on_with_its_own_after_a_restart(start: MakeWorld) -> None:
    first, second = start(), start()
    secret, name = first.new_key(), first.gateway.gateway_id
    for world in (first, second):
        reserve(world, secret, world.gateway.gateway_id)
        world.offline.stop_after = 1
    with client_of(first, secret) as client, client_of(second, secret) as other:
        ours, theirs = begin(client, lines(3)).id, begin(other, lines(4)).id
        for world in (first, second):
            world.until(lambda world=world: len(world.bank.paid) == 1)
        first.stop()
        first.offline.stop_after = None
        first.start()
        assert first.gateway.gateway_id == name != second.gateway.gateway_id
        assert wait(client, ours).request_counts.completed == 3
        row = first.run(first.gateway.batches.get(theirs))
        assert (row.status, row.gateway_id) == ("in_progress", second.gateway.gateway_id)
    found = rows(first)
    assert found[f"req_{name}"].error_code == "gateway_stopped"
    assert found[f"req_{second.gateway.gateway_id}"].state == "running"
    assert first.offline.orders == [3, 2] and second.offline.orders == [4]


def test_a_batch_is_cancelled_at_a_gateway_that_does_not_run_it(start: MakeWorld) -> None:
    first, second = start(), start()
    secret = first.new_key()
    first.offline.stop_after = 4
    with client_of(first, secret) as client, client_of(second, secret) as other:
        batch_id = begin(client, lines(10)).id
        first.until(lambda: len(first.bank.paid) == 4)
        asked = other.batches.cancel(batch_id)
        again = other.batches.cancel(batch_id)
        assert asked.status == again.status == "cancelling"
        second.run(tidy(second.gateway))  # it is not its to end
        assert other.batches.retrieve(batch_id).status == "cancelling"
        first.run(tidy(first.gateway))
        batch = wait(client, batch_id)
        assert batch.status == "cancelled"
        assert batch.cancelling_at == asked.cancelling_at
        assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 6)
        assert len(lines_of(client, batch.output_file_id)) == 4
        with pytest.raises(openai.NotFoundError, match="another gateway"):
            other.files.content(batch.output_file_id)
        with pytest.raises(openai.ConflictError):
            other.batches.cancel(batch_id)
    key = second.key(secret)
    assert key.spent_units == first.bank.total_units > 0 and key.reserved_units == 0


def test_asking_twice_for_a_cancel_does_not_stop_what_ends_the_batch(
    start: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = start()
    secret, held, ending = world.new_key(), threading.Event(), threading.Event()
    bill = world.offline.bill

    async def slow_bill(name: str, model: Any) -> Any:
        ending.set()
        await asyncio.to_thread(held.wait, 30)
        return await bill(name, model)

    monkeypatch.setattr(world.offline, "bill", slow_bill)
    world.offline.stop_after = 1
    with client_of(world, secret) as client:
        batch_id = begin(client, lines(2)).id
        world.until(lambda: len(world.bank.paid) == 1)
        client.batches.cancel(batch_id)
        assert ending.wait(30)
        assert client.batches.cancel(batch_id).status == "cancelling"
        world.run(tidy(world.gateway))
        held.set()
        assert wait(client, batch_id).status == "cancelled"
    assert world.key(secret).reserved_units == 0


def test_what_a_gateway_left_that_never_comes_back_is_ended_when_nothing_can_run_so_long(
    start: MakeWorld,
) -> None:
    first, second = start(), start()
    secret = first.new_key()
    first.offline.stop_after = 2
    with client_of(first, secret) as client:
        batch_id = begin(client, lines(5)).id
        first.until(lambda: len(first.bank.paid) == 2)
    for name in ("free", "begun"):
        reserve(first, secret, name)
    first.run(first.gateway.ledger.begun("req_begun"))
    first.stop()
    (day_s, hour_s) = (24 * 3600, BATCH_GONE_AFTER_S)

    def tidied_after(seconds: int) -> tuple[str, set[str]]:
        second.clock.ahead_s = seconds
        second.run(tidy(second.gateway))
        status = second.run(second.gateway.batches.get(batch_id)).status
        return status, {row.state for row in rows(second).values()}

    assert tidied_after(day_s + hour_s - 60) == ("in_progress", {"running"})
    assert tidied_after(day_s + hour_s + 60) == ("expired", {"running"})
    assert tidied_after(GONE_AFTER_S - 60) == ("expired", {"running"})
    assert second.key(secret).reserved_units == 2000
    assert tidied_after(GONE_AFTER_S + 60) == ("expired", {"failed", "interrupted"})
    assert second.key(secret).reserved_units == 0
    with client_of(second, secret) as client:
        batch = client.batches.retrieve(batch_id)
    assert "gateway that ran it is gone" in batch.errors.data[0].message
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 3)
    found = rows(second)
    assert {row.error_code for row in found.values()} == {"gateway_gone"}
    assert (found["req_free"].state, found["req_free"].idempotency_key) == ("failed", None)
    # What may have been paid is not had, and paid, under this name again.
    assert (found["req_begun"].state, found["req_begun"].idempotency_key) == (
        "interrupted",
        "begun",
    )
    paid = first.bank.total_units
    first.start()  # it comes back after all
    assert first.run(first.gateway.batches.get(batch_id)).status == "expired"
    assert first.bank.total_units == paid and len(first.offline.orders) == 1


def test_a_gateway_does_not_give_up_its_own_as_abandoned(start: MakeWorld) -> None:
    world = start()
    secret = world.new_key()
    reserve(world, secret, "own")
    world.clock.ahead_s += GONE_AFTER_S + 60
    world.run(tidy(world.gateway))
    assert rows(world)["req_own"].state == "running"


def test_work_of_the_time_before_names_is_taken_by_whoever_has_its_file(start: MakeWorld) -> None:
    first = start()
    secret = first.new_key()
    first.offline.stop_after = 1
    with client_of(first, secret) as client:
        batch_id = begin(client, lines(3)).id
        first.until(lambda: len(first.bank.paid) == 1)
    reserve(first, secret, "old")
    first.stop()
    second = start()
    with second.gateway.database.engine.begin() as connection:
        for table in ("requests", "batches"):
            connection.exec_driver_sql(f"UPDATE {table} SET gateway_id = ''")
    second.stop()
    second.start()
    assert rows(second)["req_old"].error_code == "gateway_stopped"
    row = second.run(second.gateway.batches.get(batch_id))
    assert (row.status, row.gateway_id) == ("in_progress", "")
    first.offline.stop_after = None
    first.start()
    with client_of(first, secret) as client:
        assert wait(client, batch_id).request_counts.completed == 3
    row = first.run(first.gateway.batches.get(batch_id))
    assert row.gateway_id == first.gateway.gateway_id
    assert second.offline.orders == []


def test_a_second_gateway_over_the_same_folder_is_refused_and_ends_nothing(
    start: MakeWorld,
) -> None:
    first = start()
    reserve(first, first.new_key(), "on")
    twin = World(first.folder, db_url=first.db_url)
    with pytest.raises(ConfigError, match="running already"):
        twin.start()
    assert rows(first)["req_on"].state == "running"


def test_a_name_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "b"
    name = identity_in(folder)
    assert identity_in(folder) == name != identity_in(other)
    assert [path.name for path in folder.iterdir()] == [NAME_FILE]
    assert (folder / NAME_FILE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    for damaged in ("", "gateway_x\n"):
        (folder / NAME_FILE).write_text(damaged)
        with pytest.raises(ConfigError, match="name cannot be read"):
            identity_in(folder)


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with sole_gateway(tmp_path), pytest.raises(ConfigError), sole_gateway(tmp_path):
        raise AssertionError("two hold it")
    with sole_gateway(tmp_path):
        pass
