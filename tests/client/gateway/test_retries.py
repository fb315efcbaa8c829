"""Is a retry ever paid twice: with a name, without one, side by side, over drops and restarts?"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from client.gateway.money.ledger import (
    DONE,
    FORGET_AT_ONCE,
    KEEP_NAMED_S,
    KEEP_S,
    RequestEnding,
    Reservation,
)
from client.gateway.records.tables import PaidRequestRow
from client.gateway.start import recover
from client.orders.orders import Prompt, PromptBatch
from client.pipeline.pipeline import Match
from client.records.store import ClientStore
from core.protocol.types import SamplingParams
from tests.client.gateway.killable import killable
from tests.client.gateway.toy import cost
from tests.client.gateway.world import World
from tests.town.orders import signed_order
from tests.town.stages import Stages

BODY = {
    "model": "toy",
    "messages": [{"role": "user", "content": "say:paid once"}],
    "max_tokens": 30,
}


def post(world: World, secret: str, body: Any = BODY, **headers: str) -> httpx2.Response:
    sent = {"authorization": f"Bearer {secret}"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    return httpx2.post(f"{world.base_url}/chat/completions", json=body, headers=sent, timeout=30)


def test_the_same_name_and_body_is_answered_again_and_paid_once(world: World) -> None:
    secret = world.new_key()
    first = post(world, secret, idempotency_key="a")
    paid = world.bank.total_units
    again = post(world, secret, idempotency_key="a")
    assert again.status_code == 200 and again.content == first.content
    assert again.headers["x-request-id"] == first.headers["x-request-id"]
    assert again.headers["x-idempotent-replay"] == "true"
    assert world.bank.total_units == paid == world.key(secret).spent_units
    assert post(world, world.new_key("other"), idempotency_key="a").content != first.content


def test_streams_are_answered_again_byte_for_byte(world: World) -> None:
    secret, body = world.new_key(), {**BODY, "stream": True}
    first = post(world, secret, body, idempotency_key="s")
    again = post(world, secret, body, idempotency_key="s")
    assert first.text.endswith("data: [DONE]\n\n") and again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert len(world.bank.paid) == 1


def test_another_body_under_the_same_name_is_refused(world: World) -> None:
    secret = world.new_key()
    post(world, secret, idempotency_key="a")
    other = post(world, secret, {**BODY, "max_tokens": 31}, idempotency_key="a")
    assert other.status_code == 422
    assert other.json()["error"]["code"] == "idempotency_mismatch"
    assert other.headers["x-should-retry"] == "false"
    dearer = post(world, secret, idempotency_key="a", x_max_price="90usd/Mtok")
    assert dearer.status_code == 422


def test_side_by_side_one_is_answered_and_the_others_are_told_to_wait(world: World) -> None:
    world.answerer.first_s = 0.4
    secret = world.new_key()

    async def many() -> list[httpx2.Response]:
        headers = {"authorization": f"Bearer {secret}", "idempotency-key": "p"}
        async with httpx2.AsyncClient(timeout=30) as client:
            url = f"{world.base_url}/chat/completions"
            return await asyncio.gather(
                *(client.post(url, json=BODY, headers=headers) for _ in range(6))
            )

    answers = asyncio.run(many())
    assert sorted(a.status_code for a in answers) == [200] + [409] * 5
    waiting = next(a for a in answers if a.status_code == 409)
    assert waiting.json()["error"]["code"] == "idempotency_running"
    assert waiting.headers["x-should-retry"] == "true" and waiting.headers["retry-after"] == "1"
    assert len(world.bank.paid) == 1
    assert post(world, secret, idempotency_key="p").status_code == 200
    assert len(world.bank.paid) == 1


def test_a_named_request_that_failed_for_nothing_may_be_made_again(world: World) -> None:
    secret = world.new_key()
    world.answerer.have_units = 1
    assert post(world, secret, idempotency_key="f").status_code == 402
    world.answerer.have_units = None
    assert post(world, secret, idempotency_key="f").status_code == 200


def test_the_name_is_good_for_a_day(world: World) -> None:
    secret = world.new_key()
    post(world, secret, idempotency_key="d")
    world.clock.ahead_s += 25 * 3600
    world.run(world.gateway.ledger.forget_answers())
    assert post(world, secret, {**BODY, "max_tokens": 31}, idempotency_key="d").status_code == 200


def test_answers_are_forgotten_when_nobody_may_ask_for_them_and_not_before(world: World) -> None:
    ledger, key_id = world.gateway.ledger, world.key(world.new_key()).key_id
    many = FORGET_AT_ONCE + 5

    async def answered(number: int, name: str | None) -> None:
        request_id = f"req_{number}"
        await ledger.reserve(
            Reservation(request_id, f"rcpt_{number}", key_id, "/v1", "toy", "hash", name, 0)
        )
        await ledger.end(request_id, RequestEnding(DONE, answer="kept"))

    async def fill() -> None:
        for number in range(many):
            await answered(number, None)
        await answered(many, "named")
        await ledger.reserve(Reservation("req_on", "rcpt_on", key_id, "/v1", "toy", "h", "on", 0))

    def rows() -> dict[str, PaidRequestRow]:
        """After everything was forgotten that may be: here, or by the gateway's own tidying."""
        world.run(ledger.forget_answers())
        return {row.request_id: row for row in world.run(ledger.requests(limit=1000))}

    world.run(fill())
    assert [row.answer for row in rows().values()].count("kept") == many + 1
    world.clock.ahead_s += KEEP_S + 1
    assert [row.request_id for row in rows().values() if row.answer] == [f"req_{many}"]
    assert rows()["req_on"].idempotency_key == "on"
    world.clock.ahead_s += KEEP_NAMED_S
    left = rows()
    assert not any(row.answer for row in left.values())
    assert left[f"req_{many}"].idempotency_key is None and left["req_on"].state == "running"


def test_a_retry_without_a_name_joins_what_is_under_way(world: World) -> None:
    world.answerer.first_s = 0.5
    secret, answers = world.new_key(), list[httpx2.Response]()

    def first() -> None:
        answers.append(post(world, secret))

    thread = threading.Thread(target=first)
    thread.start()
    world.until(lambda: world.answerer.running)
    answers.append(post(world, secret, x_stainless_retry_count="1"))
    thread.join()
    assert answers[0].content == answers[1].content
    assert len(world.bank.paid) == 1


def test_a_retry_without_a_name_gets_what_has_just_ended_and_later_a_new_answer(
    world: World,
) -> None:
    secret = world.new_key()
    first = post(world, secret)
    assert post(world, secret, x_stainless_retry_count="1").content == first.content
    assert len(world.bank.paid) == 1
    post(world, secret)  # not a retry: somebody asks again
    assert len(world.bank.paid) == 2
    world.clock.ahead_s += 61
    post(world, secret, x_stainless_retry_count="1")
    assert len(world.bank.paid) == 3


def test_over_a_clean_restart_the_answer_is_still_there(world: World) -> None:
    secret = world.new_key()
    first = post(world, secret, idempotency_key="r")
    world.stop()
    world.start()
    again = post(world, secret, idempotency_key="r")
    assert again.content == first.content
    unnamed = post(world, secret, x_stainless_retry_count="1")
    assert unnamed.content == first.content
    assert len(world.bank.paid) == 1


def test_killed_before_the_first_token_it_runs_again_and_is_paid_once(world: World) -> None:
    secret = world.new_key()
    world.stop()
    with killable(world.folder, world.port, first_s=60.0) as other:
        asking = _behind(other.url, secret, "k")
        _until_reserved(world)
        other.kill()
        asking.join()
    world.start()
    assert world.key(secret).reserved_units == 0
    assert post(world, secret, idempotency_key="k").status_code == 200
    assert len(world.bank.paid) == 1


def test_killed_in_the_middle_it_is_not_paid_a_second_time(world: World) -> None:
    secret = world.new_key()
    world.stop()
    with killable(world.folder, world.port, token_s=0.3) as other:
        asking = _behind(other.url, secret, "m")
        _until_begun(world)
        other.kill()
        asking.join()
    world.start()
    told = post(world, secret, idempotency_key="m")
    assert told.status_code == 409
    assert told.json()["error"]["code"] == "idempotency_interrupted"
    assert told.headers["x-should-retry"] == "false"
    assert _rows(world)[0].state == "interrupted"
    assert not world.answerer.asked


async def test_what_the_requesters_records_hold_is_charged_at_the_next_start_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    """The process may have died before it noted the first token: the requester's records decide."""
    ledger, key_id = world.gateway.ledger, world.key(world.new_key()).key_id
    stages, store = Stages(), ClientStore(tmp_path / "client.sqlite")
    batch = PromptBatch.of(
        [
            Prompt(f"{name}.0", (1, 2, 3), SamplingParams(max_new_tokens=9), bytes(32))
            for name in ("req_paid", "req_unpaid")
        ]
    )
    job = stages.match(batch, signed_order(batch))
    job = Match(job.job_id, job.signed, job.plan, ("a:1", "b:2", "c:3"), "0xab")
    store.add_job("sub", job, batch, 1)
    store.finish_request(job.job_id, 0, [7, 8], "stop", cost_units=31)
    for name in ("req_paid", "req_unpaid", "req_unknown"):
        opening = Reservation(name, f"rcpt_{name}", key_id, "/v1", "toy", "hash", name, 1000)
        world.run(ledger.reserve(opening))
    world.run(ledger.begun("req_unpaid"))
    world.gateway.store = store
    world.run(recover(world.gateway))
    rows = {row.request_id: row for row in world.run(ledger.requests())}
    paid = rows["req_paid"]
    assert (paid.state, paid.cost_units, paid.tokens_out) == ("interrupted", 31, 2)
    assert paid.idempotency_key == "req_paid"  # it may not be had, and paid, under this name again
    for name in ("req_unpaid", "req_unknown"):
        assert (rows[name].state, rows[name].cost_units) == ("failed", 0)
        assert rows[name].idempotency_key is None
    totals = world.run(ledger.totals())
    assert (totals["reserved_units"], totals["spent_units"]) == (0, 31)
    store.close()


def test_the_first_token_waits_for_no_note_and_the_second_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, held = world.gateway.ledger, threading.Event()
    note, told = ledger.begun, list[int]()

    async def begun(request_id: str) -> None:
        await asyncio.to_thread(held.wait, 30)
        (exchange,) = world.gateway.exchanges._all
        told.append(len(exchange.events))
        await note(request_id)

    monkeypatch.setattr(ledger, "begun", begun)
    secret, url = world.new_key(), f"{world.base_url}/chat/completions"
    headers = {"authorization": f"Bearer {secret}"}
    with httpx2.stream("POST", url, json={**BODY, "stream": True}, headers=headers) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if '"content":"p"' in line)
        assert first and not told
        held.set()
        rest = list(lines)
    assert told == [2]  # the role and the first token
    assert rest[-2] == "data: [DONE]"
    (row,) = _rows(world)
    assert row.begun_at is not None and row.state == "done"


def test_through_a_proxy_that_drops_the_answer_the_official_client_pays_once(
    world: World,
) -> None:
    proxy = DroppingProxy(world.port, drops=1)
    secret = world.new_key()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key=secret) as client:
        answer = client.chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "paid once"
    assert proxy.dropped == 1
    assert len(world.bank.paid) == 1 and world.key(secret).spent_units == world.bank.total_units


def test_through_a_proxy_that_cuts_the_request_the_retry_joins_it(world: World) -> None:
    world.answerer.first_s = 1.2
    proxy = DroppingProxy(world.port, drops=1, after_s=0.3)
    secret = world.new_key()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key=secret) as client:
        answer = client.chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "paid once"
    assert len(world.answerer.asked) == 1 and len(world.bank.paid) == 1


def test_a_client_that_leaves_stops_the_miners_and_pays_for_what_it_got(world: World) -> None:
    world.answerer.token_s = 0.02
    secret = world.new_key()
    body = [{"role": "user", "content": "forever"}]
    with openai.OpenAI(base_url=world.base_url, api_key=secret) as client:
        stream = client.chat.completions.create(
            model="toy",
            messages=body,
            stream=True,
            max_tokens=3000,  # type: ignore[arg-type]
        )
        for number, _ in enumerate(stream):
            if number == 10:
                break
        left_at = time.monotonic()
        stream.close()
    (stopped_at,) = world.until(lambda: list(world.answerer.stopped_at.values()))
    assert stopped_at - left_at < 20.0  # of the sixty that the whole answer would take
    world.until(lambda: world.gateway.exchanges.running == 0)
    (row,) = _rows(world)
    assert row.state == "cancelled"
    assert row.tokens_out < 1000
    assert row.cost_units == cost(row.tokens_in, row.tokens_out) == world.bank.total_units
    key = world.key(secret)
    assert key.spent_units == row.cost_units and key.reserved_units == 0


def test_a_client_that_leaves_while_it_waits_for_the_first_token_pays_nothing(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.answerer.first_s = 30
    secret = world.new_key()
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(
            f"{world.base_url}/chat/completions",
            json=BODY,
            headers={"authorization": f"Bearer {secret}"},
            timeout=0.3,
        )
    world.until(lambda: world.answerer.stopped_at)
    world.until(lambda: world.gateway.exchanges.running == 0)
    assert world.bank.total_units == 0 == world.key(secret).spent_units


def _rows(world: World) -> list[Any]:
    return world.run(world.gateway.ledger.requests())


def _behind(url: str, secret: str, name: str) -> threading.Thread:
    """Ask in a thread, whatever comes of it."""

    def ask() -> None:
        headers = {"authorization": f"Bearer {secret}", "idempotency-key": name}
        with contextlib.suppress(httpx2.HTTPError):
            httpx2.post(f"{url}/v1/chat/completions", json=BODY, headers=headers, timeout=60)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


def _look(world: World, query: str) -> int:
    """A number out of the database of a gateway in another process."""
    with contextlib.closing(sqlite3.connect(world.folder / "gateway" / "gateway.sqlite")) as found:
        return int(found.execute(query).fetchone()[0] or 0)


def _until_reserved(world: World) -> None:
    world.until(lambda: _look(world, "SELECT SUM(reserved_units) FROM api_keys"), within_s=30)


def _until_begun(world: World) -> None:
    world.until(lambda: _look(world, "SELECT COUNT(begun_at) FROM requests"), within_s=30)


class DroppingProxy:
    """Passes connections on; the first few answers are dropped once there, or cut after a time."""

    def __init__(self, upstream_port: int, drops: int, after_s: float | None = None) -> None:
        self._upstream, self._drops, self._after_s = upstream_port, drops, after_s
        self.dropped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        upstream = socket.create_connection(("127.0.0.1", self._upstream))
        threading.Thread(target=_pump, args=(client, upstream), daemon=True).start()
        if self.dropped < self._drops:
            self.dropped += 1
            if self._after_s is None:
                upstream.recv(1)  # the answer is there
                time.sleep(0.2)
            else:
                time.sleep(self._after_s)
            for one in (client, upstream):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            return
        _pump(upstream, client)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
