"""What becomes of money when a gateway is killed, and of a batch whose machines are away?

A gateway is stopped dead at each point where money moves, over real machines with a tiny model, and
started anew. And of a batch's pipeline a machine is gone for a minute.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.table import Row
from client.context import Context
from devnet.models.tiny_models import write_tiny_model
from tests.client.gateway.mortal import Mortal, Point
from tests.client.gateway.reckoning import (
    IN_BATCH,
    IN_CHAT,
    LINES,
    TOKENS,
    WHILE_CANCELLING,
    accounts,
    begin_batch,
    check_answers,
    ended,
    is_quiet,
    killed_in_a_batch,
    killed_in_a_chat,
    killed_while_cancelling,
    open_up,
    some_tokens,
)
from tests.town.files import files_in
from tests.town.village import Village

CHAT_POINTS, BATCH_POINTS, CANCEL_POINTS = len(IN_CHAT), len(IN_BATCH), len(WHILE_CANCELLING)
AWAY_S, AWAY_LINES = 60.0, 200
QUICK = {"CHAT_POINTS": 1, "BATCH_POINTS": 1, "CANCEL_POINTS": 1, "AWAY_S": 0.5, "AWAY_LINES": 12}
#: For a gateway that was started anew to have paid for everything.
SETTLED_WITHIN_S = 60.0


@asynccontextmanager
async def _village(model_dir: Path) -> AsyncIterator[Village]:
    with tempfile.TemporaryDirectory() as folder:
        village = Village(Path(folder), model_dir)
        await open_up(village)
        try:
            yield village
        finally:
            await village.close()


async def _in_a_chat(village: Village, point: Point) -> tuple[str, str]:
    return await killed_in_a_chat(village, point), ""


KILLED = {"chat": _in_a_chat, "batch": killed_in_a_batch, "cancel": killed_while_cancelling}


async def _killed(model_dir: Path, point: Point, kind: str) -> bool:
    """Whether keys, receipts and chain agree after a kill there, and no line was bought twice."""
    async with _village(model_dir) as village:
        secret, name = await KILLED[kind](village, point)
        second = await Mortal(village).begin()
        try:
            async with asyncio.timeout(SETTLED_WITHIN_S):
                batch = await ended(second, secret, name) if name else None
                await second.until(lambda: is_quiet(village, second))
            charged, taken = await accounts(village, second)
            whole = batch is None or await _is_whole(second, secret, batch, model_dir, kind)
            return charged == taken and whole and (kind != "batch" or len(village.matches) == 1)
        except (AssertionError, TimeoutError):
            return False
        finally:
            await second.end()


async def _is_whole(
    gateway: Mortal, secret: str, batch: dict[str, Any], model_dir: Path, kind: str
) -> bool:
    done = await check_answers(gateway, secret, batch, model_dir)
    return kind == "cancel" or done == LINES


async def _away(model_dir: Path) -> tuple[int, bool]:
    """Lines that are right though a machine is gone for a while, and whether the accounts agree."""
    async with _village(model_dir) as village:
        gateway = await Mortal(village).begin()
        try:
            secret = await gateway.new_key()
            with village.held(TOKENS // 2):
                name = await begin_batch(gateway, secret, AWAY_LINES)
                await gateway.until(lambda: some_tokens(village))
                lost = village.machines[1]
                await lost.kill()
                await asyncio.sleep(AWAY_S)
            await village.replace(lost)
            async with asyncio.timeout(AWAY_S + 120):
                batch = await ended(gateway, secret, name, within_s=AWAY_S + 120)
            done = await check_answers(gateway, secret, batch, model_dir)
            charged, taken = await accounts(village, gateway)
            return done, charged == taken
        finally:
            await gateway.end()


async def _measure(model_dir: Path) -> tuple[list[str], int, bool]:
    asked = [("chat", one) for one in IN_CHAT[:CHAT_POINTS]]
    asked += [("batch", one) for one in IN_BATCH[:BATCH_POINTS]]
    asked += [("cancel", one) for one in WHILE_CANCELLING[:CANCEL_POINTS]]
    wrong = [
        f"{kind}, {point}" for kind, point in asked if not await _killed(model_dir, point, kind)
    ]
    return wrong, *await _away(model_dir)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_tiny_model(Path(folder) / "tiny", "llama", layers=6)
        with patch.object(Context, "files_of", files_in(model_dir)):
            wrong, done, agree = asyncio.run(_measure(model_dir))
    points = CHAT_POINTS + BATCH_POINTS + CANCEL_POINTS
    return [
        Row(
            f"killed at each of {points} points of chat and batch",
            "key = receipts = chain, no line twice",
            f"{points - len(wrong)} agree" + "".join(f"; not {one}" for one in wrong),
            "",
            f"{points}",
            not wrong,
        ),
        Row(
            f"a machine gone for {AWAY_S:g} s in a batch with a day's window",
            f"{AWAY_LINES} of {AWAY_LINES} lines right",
            f"{done} right" + ("" if agree else "; key and chain differ"),
            "",
            f"{AWAY_LINES}",
            done == AWAY_LINES and agree,
        ),
    ]
