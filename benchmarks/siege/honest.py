"""What do honest clients notice? Four of them stream answers through the gateway all the time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any

import httpx2

from tests.swarm.world import MODEL

MAX_TOKENS = 32
TIMEOUT_S = 60.0


@dataclass
class HonestAnswer:
    """One request as its client saw it. Times are of the monotonic clock, in seconds."""

    began: float
    tokens_at: list[float] = field(default_factory=list)
    ended: float | None = None
    error: str = ""

    def first_s(self, now: float) -> float:
        """How long the first token took, or has taken so far."""
        first = self.tokens_at[0] if self.tokens_at else self.ended or now
        return first - self.began


@dataclass(frozen=True)
class Period:
    """What the clients had in some seconds."""

    tokens_per_s: float
    answers: int
    errors: tuple[str, ...]
    worst_first_s: float
    median_first_s: float
    others: float
    """Processors that were taken by what is no part of this: it spoils the comparison."""


class Crowd:
    """The clients and all their answers, in the order of their beginning."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._numbers = count()
        self.answers: list[HonestAnswer] = []

    def begun(self, since: float, until: float) -> list[HonestAnswer]:
        return [answer for answer in self.answers if since <= answer.began < until]

    def period(self, since: float, until: float, others: float) -> Period:
        """What came between two moments, and what became of the requests begun there."""
        tokens = sum(since <= at < until for answer in self.answers for at in answer.tokens_at)
        begun, now = self.begun(since, until), time.monotonic()
        waited = [answer.first_s(now) for answer in begun] or [until - since]
        errors = tuple(answer.error for answer in begun if answer.error)
        rate = tokens / (until - since)
        return Period(rate, len(begun), errors, max(waited), median(waited), others)

    def normal_after_s(self, since: float, normal_first_s: float) -> float:
        """Until the first token of a request that began after `since` and waited no longer than is
        normal; infinite if there was none.
        """
        firsts = [
            answer.tokens_at[0] - since
            for answer in self.begun(since, float("inf"))
            if answer.tokens_at and not answer.error and answer.first_s(0.0) <= normal_first_s
        ]
        return min(firsts, default=float("inf"))

    async def ask_on(self, http: httpx2.AsyncClient, key: str) -> None:
        """Ask one thing after the other, without end."""
        while True:
            answer = HonestAnswer(time.monotonic())
            self.answers.append(answer)
            try:
                await self._ask(http, key, answer)
            except httpx2.HTTPError as error:
                answer.error = f"{type(error).__name__} {error}"
            answer.ended = time.monotonic()
            if answer.error:  # as clients do that are refused
                await asyncio.sleep(0.5)

    async def _ask(self, http: httpx2.AsyncClient, key: str, answer: HonestAnswer) -> None:
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"What is {next(self._numbers)} good for?"}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        headers = {"authorization": f"Bearer {key}"}
        async with http.stream("POST", self._url, json=body, headers=headers) as got:
            if got.status_code != 200:
                text = (await got.aread()).decode(errors="replace")
                answer.error = f"{got.status_code} {text[:200]}"
                return
            last = ""
            async for line in got.aiter_lines():
                if line.startswith("data: {"):
                    told = json.loads(line[6:])
                    if "error" in told:
                        answer.error = str(told["error"])[:200]
                    elif any(c["delta"].get("content") for c in told.get("choices", ())):
                        answer.tokens_at.append(time.monotonic())
                last = line or last
            if last != "data: [DONE]" and not answer.error:
                answer.error = "the stream ended early"


@asynccontextmanager
async def crowd(url: str, keys: Sequence[str]) -> AsyncIterator[Crowd]:
    """A client for each key."""
    clients = Crowd(url)
    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
        asking = [asyncio.create_task(clients.ask_on(http, key)) for key in keys]
        try:
            yield clients
        finally:
            for task in asking:
                task.cancel()
            ended = await asyncio.gather(*asking, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
