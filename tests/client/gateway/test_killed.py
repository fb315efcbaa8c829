"""A gateway is killed at each point where money moves: its keys, its receipts and the chain agree.

The next start pays for what came, charges it, and takes a batch up where it was.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.gateway.mortal import Mortal, Point
from tests.client.gateway.reckoning import (
    IN_BATCH,
    IN_CHAT,
    LINES,
    OPENING_FEE,
    TOKENS,
    WHILE_CANCELLING,
    accounts,
    begin_batch,
    body,
    check_answers,
    ended,
    is_quiet,
    killed_in_a_batch,
    killed_in_a_chat,
    killed_while_cancelling,
    open_up,
    some_tokens,
)
from tests.town.village import Village


@pytest.fixture
async def village(village: Village) -> Village:
    await open_up(village)
    return village


@pytest.mark.parametrize("point", IN_CHAT, ids=str)
async def test_killed_in_a_chat(village: Village, point: Point) -> None:
    secret = await killed_in_a_chat(village, point)
    second = await Mortal(village).begin()
    try:
        await second.until(lambda: is_quiet(village, second))
        charged, taken = await accounts(village, second)
        assert charged == taken
        answer = await second.post(secret, "/completions", json=body(1))
        assert answer.status_code == 200, answer.text
    finally:
        await second.end()


@pytest.mark.parametrize("point", IN_BATCH, ids=str)
async def test_killed_in_a_batch(village: Village, model_dir: Path, point: Point) -> None:
    secret, name = await killed_in_a_batch(village, point)
    second = await Mortal(village).begin()
    try:
        batch = await ended(second, secret, name)
        assert batch["status"] == "completed", batch
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        assert await check_answers(second, secret, batch, model_dir) == LINES
        await second.until(lambda: is_quiet(village, second))
        charged, taken = await accounts(village, second)
        assert charged == taken
        assert len(village.matches) == 1, "no line was bought twice"
    finally:
        await second.end()


@pytest.mark.parametrize("point", WHILE_CANCELLING, ids=str)
async def test_killed_while_a_batch_is_cancelled(
    village: Village, model_dir: Path, point: Point
) -> None:
    with village.held(TOKENS // 2):
        secret, name = await killed_while_cancelling(village, point)
        second = await Mortal(village).begin()
        try:
            batch = await ended(second, secret, name)
            assert batch["status"] == "cancelled", batch
            done = await check_answers(second, secret, batch, model_dir)
            assert batch["request_counts"] == {
                "total": LINES,
                "completed": done,
                "failed": LINES - done,
            }
            await second.until(lambda: is_quiet(village, second))
            charged, taken = await accounts(village, second)
            assert charged == taken > OPENING_FEE, "what came of it is paid"
        finally:
            await second.end()


async def test_lines_wait_for_a_machine_that_is_away(village: Village, model_dir: Path) -> None:
    gateway = await Mortal(village).begin()
    try:
        secret = await gateway.new_key()
        with village.held(TOKENS // 2):
            name = await begin_batch(gateway, secret, LINES)
            await gateway.until(lambda: some_tokens(village))
            lost = village.machines[1]
            await lost.kill()
            async with asyncio.timeout(30):
                while len(village.goes) < 3:  # nobody holds these layers
                    await asyncio.sleep(0.05)
        await village.replace(lost)
        batch = await ended(gateway, secret, name)
        assert batch["status"] == "completed", batch
        assert batch["request_counts"]["completed"] == LINES
        assert await check_answers(gateway, secret, batch, model_dir) == LINES
        charged, taken = await accounts(village, gateway)
        assert charged == taken
    finally:
        await gateway.end()
