"""Is nothing spent that is not covered, and nothing charged that was not paid?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from client.gateway.money.keyring import FRESH_S, Keyring
from client.gateway.records.database import Database, private_sqlite_url
from tests.client.gateway.toy import cost
from tests.client.gateway.world import World

HELLO: list[Any] = [{"role": "user", "content": "say:hello there"}]


def ask(world: World, secret: str, **more: Any) -> Any:
    with openai.OpenAI(base_url=world.base_url, api_key=secret, max_retries=0) as client:
        return client.chat.completions.create(
            **{"model": "toy", "messages": HELLO, "max_tokens": 20, **more}
        )


def test_charged_is_paid_and_nothing_stays_reserved(world: World) -> None:
    secret = world.new_key()
    for _ in range(3):
        ask(world, secret)
    ask(world, secret, n=3, stream=True).close()
    world.until(lambda: world.gateway.exchanges.running == 0)
    key = world.key(secret)
    assert key.spent_units == world.bank.total_units > 0
    assert key.reserved_units == 0
    usage = world.run(world.gateway.keys.usage(key.key_id))
    assert sum(day["cost_units"] for day in usage) == key.spent_units
    rows = world.run(world.gateway.ledger.requests())
    assert sum(row.cost_units for row in rows) == key.spent_units


def test_a_budget_runs_dry_before_work_and_not_after(world: World) -> None:
    once = ask(world, world.new_key())
    most = cost(once.usage.prompt_tokens, 20) + 1  # a shown price is rounded down
    spent = cost(once.usage.prompt_tokens, once.usage.completion_tokens)
    secret = world.new_key("dry", budget_units=most + 2 * spent)
    for _ in range(3):
        ask(world, secret)
    paid = world.bank.total_units
    with pytest.raises(openai.APIStatusError) as failed:
        ask(world, secret)
    assert failed.value.status_code == 402
    assert failed.value.code == "budget_exceeded" and failed.value.type == "billing_error"
    assert failed.value.response.headers["x-should-retry"] == "false"
    details = failed.value.body["headrace"]["details"]  # type: ignore[index]
    assert details["need"] == str(most) and details["have"] == str(most - spent)
    assert "usd" in failed.value.message
    assert world.bank.total_units == paid
    assert world.key(secret).left_units == most - spent


def test_parallel_requests_cannot_overdraw_a_budget(world: World) -> None:
    world.answerer.first_s = 0.3
    once_most = cost(len(world.tokenizer.encode_chat(HELLO)), 20) + 1
    secret = world.new_key("shared", budget_units=3 * once_most)

    async def many() -> list[int]:
        async with openai.AsyncOpenAI(
            base_url=world.base_url, api_key=secret, max_retries=0
        ) as client:

            async def one() -> int:
                try:
                    await client.chat.completions.create(model="toy", messages=HELLO, max_tokens=20)
                except openai.APIStatusError as error:
                    return error.status_code
                return 200

            return await asyncio.gather(*(one() for _ in range(8)))

    codes = asyncio.run(many())
    assert sorted(codes) == [200] * 3 + [402] * 5


def test_a_budget_per_day_comes_back_tomorrow(world: World) -> None:
    most = cost(len(world.tokenizer.encode_chat(HELLO)), 20) + 1
    secret = world.new_key("daily", budget_units=most, budget_period="day")
    ask(world, secret)
    with pytest.raises(openai.APIStatusError):
        ask(world, secret)
    world.clock.ahead_s += 24 * 3600
    ask(world, secret)


def test_the_gateways_own_daily_budget_holds_over_all_keys(
    make_world: Callable[..., World],
) -> None:
    world = make_world(flags={"gateway.daily_budget": "0.003usd"})
    most = cost(len(world.tokenizer.encode_chat(HELLO)), 20)
    assert most < 3000 < 2 * most
    ask(world, world.new_key("a"))
    with pytest.raises(openai.APIStatusError) as failed:
        ask(world, world.new_key("b"))
    assert failed.value.code == "budget_exceeded"
    assert "today" in failed.value.message


def test_no_money_is_402_with_have_need_and_how(world: World) -> None:
    world.answerer.have_units = 5
    with pytest.raises(openai.APIStatusError) as failed:
        ask(world, world.new_key())
    assert (failed.value.status_code, failed.value.code) == (402, "insufficient_funds")
    assert failed.value.body["headrace"]["details"]["have"] == "5"  # type: ignore[index]


def test_a_failure_before_the_first_token_costs_nothing_and_may_be_tried_again(
    world: World,
) -> None:
    secret = world.new_key()
    with pytest.raises(openai.InternalServerError) as failed:
        ask(world, secret, messages=[{"role": "user", "content": "fail-first"}])
    assert (failed.value.status_code, failed.value.code) == (503, "no_route")
    assert failed.value.response.headers["x-should-retry"] == "true"
    assert 0 < int(failed.value.response.headers["retry-after"]) < 60
    key = world.key(secret)
    assert (key.spent_units, key.reserved_units) == (0, 0)


def test_a_failure_after_it_is_paid_as_far_as_it_came_and_not_tried_again(world: World) -> None:
    secret = world.new_key()
    broken = [{"role": "user", "content": "fail-at:5"}]
    with pytest.raises(openai.APIStatusError) as failed:
        ask(world, secret, messages=broken)
    assert failed.value.response.headers["x-should-retry"] == "false"
    prompt = len(world.tokenizer.encode_chat(broken))  # type: ignore[arg-type]
    assert world.key(secret).spent_units == cost(prompt, 5) == world.bank.total_units
    receipt_id = failed.value.response.headers["x-receipt-id"]
    receipt = fetch(world, secret, f"/v1/receipts/{receipt_id}")
    assert receipt["partial"] is True and receipt["cost_units"] == cost(prompt, 5)


def test_a_stream_that_breaks_ends_with_an_error_event_and_without_done(world: World) -> None:
    import httpx2

    secret = world.new_key()
    body = {
        "model": "toy",
        "stream": True,
        "messages": [{"role": "user", "content": "fail-at:5"}],
    }
    headers = {"authorization": f"Bearer {secret}"}
    told = httpx2.post(f"{world.base_url}/chat/completions", json=body, headers=headers).text
    assert "[DONE]" not in told
    last = told.strip().split("\n\n")[-1]
    assert '"error"' in last and '"cost_units"' in last
    with pytest.raises(openai.APIError):
        for _ in ask(world, secret, messages=body["messages"], stream=True):
            pass


def test_a_receipt_is_found_by_every_name_it_has(world: World) -> None:
    secret = world.new_key()
    with openai.OpenAI(base_url=world.base_url, api_key=secret) as client:
        raw = client.chat.completions.with_raw_response.create(model="toy", messages=HELLO)
    for name in (
        raw.headers["x-receipt-id"],
        raw.headers["x-receipt-id"][:13],
        raw.headers["x-request-id"],
    ):
        receipt = fetch(world, secret, f"/v1/receipts/{name}")
        assert receipt["cost_units"] == int(raw.headers["x-cost-units"])
        assert receipt["answers"][0]["operators"]
    other = fetch(world, world.new_key("other"), f"/v1/receipts/{name}", expect=404)
    assert other["error"]["code"] == "receipt_not_found"


def test_a_price_cap_below_the_market_is_refused_with_the_nearest_price(world: World) -> None:
    secret = world.new_key()
    with pytest.raises(openai.APIStatusError) as failed:
        ask(world, secret, extra_headers={"X-Max-Price": "0.5usd/Mtok"})
    assert (failed.value.status_code, failed.value.code) == (402, "price_above_cap")
    assert failed.value.response.headers["x-should-retry"] == "false"
    assert "20usd/Mtok" in failed.value.message
    ask(world, secret, extra_headers={"X-Max-Price": "20usd/Mtok, 80usd/Mtok"})
    with pytest.raises(openai.BadRequestError) as bad:
        ask(world, secret, extra_headers={"X-Max-Price": "5"})
    assert bad.value.param == "X-Max-Price"


def test_headers_become_terms_of_the_order(world: World) -> None:
    from tests.client.gateway.toy import OPERATORS

    ask(
        world,
        world.new_key(),
        extra_headers={
            "X-Trusted-Providers": f"{OPERATORS[0]}, {OPERATORS[1]}",
            "X-Avoid-Providers": OPERATORS[2],
            "X-Verify": "sample=0.25",
            "X-Deadline": "30s",
        },
    )
    terms = world.answerer.asked[-1].terms
    assert {one.lower() for one in terms.trusted} == set(OPERATORS[:2])
    assert {one.lower() for one in terms.avoided} == {OPERATORS[2]}
    assert (terms.audit_bps, terms.deadline_s) == (2500, 30)
    for header, value in (
        ("X-Verify", "maybe"),
        ("X-Deadline", "soon"),
        ("X-Avoid-Providers", "0x12"),
    ):
        with pytest.raises(openai.BadRequestError):
            ask(world, world.new_key(), extra_headers={header: value})


def test_a_deadline_ends_the_answer_and_pays_what_came(world: World) -> None:
    world.answerer.token_s = 0.05
    secret = world.new_key()
    with pytest.raises(openai.APIStatusError) as failed:
        ask(
            world,
            secret,
            messages=[{"role": "user", "content": "forever"}],
            max_tokens=1000,
            extra_headers={"X-Deadline": "1s"},
        )
    assert (failed.value.status_code, failed.value.code) == (504, "deadline_exceeded")
    world.until(lambda: world.gateway.exchanges.running == 0)
    assert world.key(secret).spent_units == world.bank.total_units > 0


def test_keys_that_are_unknown_expired_or_revoked_are_401(world: World) -> None:
    expired = world.new_key("old", expires_at=1)
    revoked = world.new_key("gone")
    world.run(world.gateway.keys.revoke("gone"))
    for secret in ("hr-nobody", expired, revoked):
        with pytest.raises(openai.AuthenticationError) as failed:
            ask(world, secret)
        assert failed.value.code == "invalid_api_key"
    assert fetch(world, "", "/v1/models", expect=401)["error"]["type"] == "authentication_error"


def test_a_key_that_another_process_revokes_spends_nothing_any_more(world: World) -> None:
    secret = world.new_key("shared")
    ask(world, secret)
    paid = world.bank.total_units
    path = world.folder / "gateway" / "gateway.sqlite"
    database = Database.open(private_sqlite_url(path))
    asyncio.run(Keyring(database, world.clock).revoke("shared"))
    database.close()
    with pytest.raises(openai.AuthenticationError) as failed:
        ask(world, secret)
    assert failed.value.code == "invalid_api_key" and "revoked" in failed.value.message
    key = world.key(secret)
    assert world.bank.total_units == paid == key.spent_units and key.reserved_units == 0
    world.clock.ahead_s += FRESH_S + 1
    with pytest.raises(openai.AuthenticationError):  # before it is read at all
        ask(world, secret, model="none")


def test_a_key_is_looked_for_once_in_a_while_and_at_once_after_it_is_revoked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, secret, looked = world.gateway.keys, world.new_key("busy"), list[str]()
    look = keys.find

    async def find(wanted: str) -> Any:
        looked.append(wanted)
        return await look(wanted)

    monkeypatch.setattr(keys, "find", find)
    for _ in range(3):
        ask(world, secret)
    assert looked == [secret]
    world.clock.ahead_s += FRESH_S + 1
    ask(world, secret)
    assert looked == [secret] * 2
    world.run(keys.revoke("busy"))
    with pytest.raises(openai.AuthenticationError):
        ask(world, secret, model="none")
    assert looked == [secret] * 3


def test_a_key_for_other_models_is_403(world: World) -> None:
    with pytest.raises(openai.PermissionDeniedError) as failed:
        ask(world, world.new_key("narrow", models=("other",)))
    assert failed.value.code == "model_not_allowed"


def test_a_rate_limit_says_how_long_to_wait(world: World) -> None:
    secret = world.new_key("slow", requests_per_minute=2)
    with openai.OpenAI(base_url=world.base_url, api_key=secret, max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(model="toy", messages=HELLO)
        assert raw.headers["x-ratelimit-limit-requests"] == "2"
        assert raw.headers["x-ratelimit-remaining-requests"] == "1"
        ask(world, secret)
        with pytest.raises(openai.RateLimitError) as failed:
            ask(world, secret)
    headers = failed.value.response.headers
    assert headers["x-should-retry"] == "true" and 25 <= int(headers["retry-after"]) <= 30
    world.clock.ahead_s += 31
    ask(world, secret)


def test_a_secret_is_nowhere_in_the_database(world: World) -> None:
    secret = world.new_key()
    ask(world, secret)
    kept = b"".join(
        path.read_bytes() for path in (world.folder / "gateway").rglob("*") if path.is_file()
    )
    assert secret.encode() not in kept
    assert world.gateway.local_token.encode() not in kept


def fetch(world: World, secret: str, path: str, expect: int = 200) -> Any:
    import httpx2

    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    answer = httpx2.get(world.url + path, headers=headers)
    assert answer.status_code == expect, answer.text
    return answer.json()
