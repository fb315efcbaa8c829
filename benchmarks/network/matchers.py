"""What does a batch lose when the matcher that it began with fails, wherever that is?

Real machines with a tiny model on loopback, the real client, two matchers and the chain in memory.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table import Row
from client.orders.matcher_api import Goes
from client.pipeline.pipeline import Match
from core.protocol import signing
from core.protocol import types as t
from devnet.models.tiny_models import write_tiny_model
from tests.failover.clerks import (
    CUTS,
    KILLED,
    POINTS,
    Clerk,
    dues,
    matchers_of,
    policy_of,
    time_passes,
    tokens_paid,
)
from tests.town.town import Town, Watch, prompts

LINES, TOKENS = 200, 8
WENT_ON_S = 3.0
QUICK = {"LINES": 3, "POINTS": POINTS[:1]}


@dataclass(frozen=True)
class Played:
    """One batch: lines that are not what they should be, stages with less than their pay, tokens
    that no job counts, or two do, and how long the requester was without a matcher.
    """

    lines_lost: int
    stages_unpaid: int
    tokens_unpaid: int
    tokens_twice: int
    went_on_s: float


class TimedClerk(Clerk):
    """A matcher that notes when it failed, and when it was first asked for a job."""

    def __init__(self, town: Town, number: int) -> None:
        super().__init__(town, number)
        self.failed_at = self.asked_at = 0.0

    async def _at(self, point: str) -> None:
        if self.fails is not None and self.fails[0] == point:
            self.failed_at = self.failed_at or time.monotonic()
        await super()._at(point)

    async def open_job(
        self, signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        self.asked_at = self.asked_at or time.monotonic()
        return await super().open_job(signed, domain, goes_on)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="headrace-matchers-") as name:
        model = write_tiny_model(Path(name) / "tiny", "llama", layers=CUTS[-1][1])
        played = {
            point: asyncio.run(_play(_made(Path(name) / "-".join(point)), model, *point))
            for point in POINTS
        }
    lost = sum(one.lines_lost for one in played.values())
    unpaid = sum(one.stages_unpaid + one.tokens_unpaid for one in played.values())
    twice = sum(one.tokens_twice for one in played.values())
    slowest = max(one.went_on_s for (_, how), one in played.items() if how == KILLED)
    return [
        Row(
            f"matcher fails in a batch of {LINES}: lines lost, work unpaid, tokens paid twice",
            "0, 0, 0",
            f"{lost}, {unpaid}, {twice}",
            "-",
            f"{len(POINTS)} points and ways of failing",
            lost == unpaid == twice == 0,
        ),
        Row(
            "until the requester asks the second one, killed first one",
            f"≤ {WENT_ON_S:g} s",
            f"{slowest:.2f} s",
            "-",
            "the slowest",
            slowest <= WENT_ON_S,
        ),
    ]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _play(folder: Path, model: Path, point: str, how: str) -> Played:
    town = Town(folder, model)
    try:
        await town.start(*CUTS)
        first, second = TimedClerk(town, 0), TimedClerk(town, 1)
        first.fails, watch = (point, how), Watch()
        asked = prompts(LINES, tokens=TOKENS)
        await town.begin(asked, watch, **policy_of(matchers_of(first, second)))
        first.wake()
        await time_passes(town)
        lost = sum(
            watch.tokens.get(prompt.custom_id) != town.expected(prompt, index)
            for index, prompt in enumerate(asked)
        )
        given = sum(len(tokens) for tokens in watch.tokens.values())
        counted = sum(tokens_paid(town).values())
        unpaid = sum(town.chain.earned[operator] < pay for operator, pay in dues(town)[0].items())
        waited_s = second.asked_at - first.failed_at if second.asked_at else 0.0
        return Played(lost, unpaid, max(0, given - counted), max(0, counted - given), waited_s)
    finally:
        await town.close()
