"""Batches of a key with a small rate, and more of them than run at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.client.gateway.batches.test_batches import (
    CHAT,
    begin,
    content,
    file_of,
    line,
    lines_of,
    wait,
)
from tests.client.gateway.world import World

RATE = {"requests_per_minute": 4}


def client_of(world: World, **limits: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=world.base_url, api_key=world.new_key(**limits), timeout=10)


def test_a_batch_takes_its_keys_rate_and_waits_for_more(world: World) -> None:
    lines = [line(number) for number in range(8)]
    with client_of(world, **RATE) as client:
        batches = [begin(client, lines).id for _ in range(2)]  # two requests each
        world.clock.ahead_s += 60
        world.until(lambda: len(world.bank.paid) == 4)
        # What would come without a rate comes before another key's batch is done.
        with client_of(world, name="other") as other:
            assert wait(other, begin(other, lines).id).status == "completed"
        assert len(world.bank.paid) == 4 + 8
        for minute in range(1, 4):
            world.clock.ahead_s += 60
            world.until(lambda due=12 + 4 * minute: len(world.bank.paid) == due)
        for batch_id in batches:
            batch = wait(client, batch_id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 8)
            answers = lines_of(client, batch.output_file_id)
            assert content(answers["line-7"]) == "answer 7 🚀"


def test_a_batch_takes_its_keys_rate_of_tokens_and_gives_back_what_it_did_not_need(
    world: World,
) -> None:
    with client_of(world, tokens_per_minute=400) as client:
        began_s = time.monotonic()
        batch = begin(client, [line(number) for number in range(20)])
        world.until(lambda: world.bank.paid)
        with client_of(world, name="other") as other:
            assert wait(other, begin(other, [line(1)]).id).status == "completed"
        # A line may need 76 tokens and needs 50: without giving back it were 4, and more as time
        # passes on a busy machine.
        world.until(lambda: len(world.bank.paid) >= 1 + 6)
        passed_s = time.monotonic() - began_s
        assert len(world.bank.paid) - 1 > 4 + 400 * passed_s / 60 / 76
        while (done := len(world.bank.paid)) < 1 + 20:
            world.clock.ahead_s += 60
            world.until(lambda done=done: len(world.bank.paid) > done)
        assert wait(client, batch.id).request_counts.completed == 20


def test_a_waiting_batch_can_be_cancelled(world: World) -> None:
    with client_of(world, **RATE) as client:
        batch = begin(client, [line(number) for number in range(8)])
        world.until(lambda: len(world.bank.paid) == 2)
        client.batches.cancel(batch.id)
        ended = wait(client, batch.id)
        assert (ended.status, ended.request_counts.completed) == ("cancelled", 2)


def test_a_key_has_only_so_many_batches_that_have_not_ended(
    make_world: Callable[..., World],
) -> None:
    world = make_world(flags={"gateway.open_batches_per_key": "3"})
    world.offline.stop_after = 0
    with client_of(world) as greedy, client_of(world, name="other") as other:
        batches = [begin(greedy, [line(1)]).id for _ in range(3)]
        with pytest.raises(openai.RateLimitError, match="too many batches") as refused:
            begin(greedy, [line(1)])
        assert refused.value.code == "too_many_batches"
        begin(other, [line(1)])
        world.loop.call_soon_threadsafe(world.offline.go_on.set)
        assert {wait(greedy, one).status for one in batches} == {"completed"}
        begin(greedy, [line(1)])


def test_making_a_batch_is_a_request_of_its_keys_rate(world: World) -> None:
    with client_of(world, requests_per_minute=3) as client:
        client.max_retries = 0
        file = client.files.create(file=file_of(["no line"]), purpose="batch")
        asked = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        for _ in range(2):
            client.batches.create(**asked)
        with pytest.raises(openai.RateLimitError, match="too many requests"):
            client.batches.create(**asked)


def test_so_many_batches_run_at_once_and_the_others_wait(make_world: Callable[..., World]) -> None:
    world = make_world(flags={"gateway.batches_at_once": "3", "gateway.batches_per_key": "2"})
    world.offline.stop_after = 0
    with client_of(world) as greedy, client_of(world, name="other") as other:
        batches = [begin(greedy, [line(1)]).id for _ in range(5)]
        others = [begin(other, [line(1)]).id for _ in range(2)]
        world.until(lambda: len(world.offline.orders) == 3)
        waiting = [greedy.batches.retrieve(one).status for one in batches[2:]]
        assert waiting == ["validating"] * 3
        assert other.batches.retrieve(others[1]).status == "validating"
        assert greedy.batches.cancel(batches[4]).status in ("cancelling", "cancelled")
        world.loop.call_soon_threadsafe(world.offline.go_on.set)
        assert {wait(greedy, one).status for one in batches[:4]} == {"completed"}
        assert {wait(other, one).status for one in others} == {"completed"}
        assert wait(greedy, batches[4]).status == "cancelled"
