"""What is swapping worth to miners that serve a ring together?

Two rings of two stages each, the miner's own compute threads with links of a given latency between them, serve the same
sequences: one ring has memory for all of them, the other for a third and a second tier. They take turns, a few tokens at a time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from hashlib import sha256
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.engine.models import model_folder
from benchmarks.table import Row

if TYPE_CHECKING:
    from core.engine.sizing import Offload
    from miner.compute import Compute

SEQUENCES, PROMPT_TOKENS, TOKENS, BURSTS = 48, 24, 6, 4
GROUPS = 6
LATENCIES_S = (0.0, 0.064, 0.256)
HALVES = ((0, 9), (9, 18))


def rows() -> list[Row]:
    """Of the random Llama, in halves."""
    return asyncio.run(_rows())


@dataclass
class _Link:
    """What is sent in one turn of the loop arrives together."""

    one_way_s: float
    _leaving: asyncio.Future[None] | None = None

    async def cross(self) -> None:
        if self._leaving is None:
            loop = asyncio.get_running_loop()
            self._leaving = loop.create_future()
            loop.call_soon(self._depart)
        await asyncio.shield(self._leaving)

    def _depart(self) -> None:
        assert self._leaving is not None, "somebody leaves"
        leaving, self._leaving = self._leaving, None
        asyncio.get_running_loop().call_later(self.one_way_s, leaving.set_result, None)


@dataclass
class _Sequence:
    number: int
    sampler: Any
    fed: list[int]
    tokens: list[int] = field(default_factory=list)
    seen: Any = field(default_factory=sha256)


class _Ring:
    """A first and a last stage, and sequences that go round."""

    def __init__(self, head: Compute, tail: Compute) -> None:
        from core.engine.sampling import Sampler
        from core.protocol.types import SamplingParams

        self.head, self.tail = head, tail
        params = SamplingParams(max_new_tokens=10**4)
        self.sequences = [
            _Sequence(n, Sampler(params, n), [(17 * n + at) % 32000 for at in range(PROMPT_TOKENS)])
            for n in range(SEQUENCES)
        ]
        self.most_inside = 0

    async def burst(self, one_way_s: float, tokens: int) -> float:
        """So many tokens of every sequence; tokens per second."""
        there, back = _Link(one_way_s), _Link(one_way_s)
        started = time.perf_counter()
        await asyncio.gather(*(self._go_on(each, there, back, tokens) for each in self.sequences))
        taken_s = time.perf_counter() - started
        waiting = max(self.head.waiting_requests, self.tail.waiting_requests)
        self.most_inside = max(self.most_inside, self.head.requests - waiting)
        return SEQUENCES * tokens / taken_s

    async def _go_on(self, each: _Sequence, there: _Link, back: _Link, tokens: int) -> None:
        key = ("job", each.number)
        how: dict[str, Any] = {"ring": "ring", "most_rows": _positions()}
        for step in range(tokens):
            trace: list[int] = []
            out = await self.head.rows(key, each.fed, trace=trace, **how)
            await there.cross()
            company = self.head.company(key)
            choice = await self.tail.token(
                key, out, each.sampler, trace=trace, company=company, **how
            )
            await back.cross()
            self.head.heard(key, trace, is_last=step == tokens - 1)
            each.sampler.take(choice.token)
            each.fed = [choice.token]
            each.tokens.append(choice.token)
            each.seen.update(out)

    def answers(self) -> list[tuple[bytes, list[int]]]:
        """Of every sequence: a hash of all rows between the stages, and the tokens."""
        return [(each.seen.digest(), each.tokens) for each in self.sequences]

    def close(self) -> None:
        self.head.close()
        self.tail.close()


async def _rows() -> list[Row]:
    from core.engine.sizing import Offload

    one_tier = await _ring(None, SEQUENCES * _blocks() * 9 + 9)
    each = -(-SEQUENCES // GROUPS) * _blocks() * 9
    two_tier = await _ring(Offload(GROUPS, 0.5), 2 * each)
    rings = (one_tier, two_tier)
    for ring in rings:  # the prompts
        await ring.burst(0.0, 1)
    found: list[Row] = []
    alone = two_tier.head.kv_capacity_tokens * 2 // GROUPS // (16 * _blocks())
    for one_way_s in LATENCIES_S:
        rates: list[list[float]] = [[], []]
        for number in range(BURSTS):
            for at in (0, 1) if number % 2 else (1, 0):
                rate = await rings[at].burst(one_way_s, TOKENS)
                if number:  # the first one settles the number of microbatches
                    rates[at].append(rate)
        one, two = (median(some) for some in rates)
        kept, numbers = two / one, two_tier.head.numbers()
        tickets = one_tier.head.numbers().microbatches
        found.append(
            Row(
                f"KV offload in the miner, two stages, {one_way_s * 1e3:.0f} ms one-way, throughput kept against memory for all",
                "≥ 0.9",
                f"{kept:.2f} ({two:.0f} against {one:.0f} tokens/s; {GROUPS} groups, one tier chose {tickets} microbatches, "
                f"waited {numbers.swap_waited_s:.2f} s of {numbers.busy_s:.0f})",
                "–",
                "1",
                kept >= 0.9,
            )
        )
    inside, equal = two_tier.most_inside, one_tier.answers() == two_tier.answers()
    for ring in rings:
        ring.close()
    return [
        Row(
            "KV offload in the miner, sequences of the same near memory at once",
            "≥ 3 ×",
            f"{inside / alone:.2f} × ({inside} against {alone})",
            "1",
            f"{GROUPS / 2:.1f} × (formula 1)",
            inside >= 3 * alone,
        ),
        *found,
        Row(
            "KV offload in the miner, rows between the stages and tokens",
            "bit-equal",
            "equal" if equal else "not equal",
            "–",
            "bit-equal",
            equal,
        ),
    ]


async def _ring(second: Offload | None, pages: int) -> _Ring:
    from core.engine.model import load_shard
    from core.engine.shape import describe_model
    from core.protocol.types import LayerRange
    from miner.compute import Compute

    folder, made = model_folder("llama"), []
    for half in HALVES:
        compute = Compute(threads=1)
        layers = LayerRange(*half)
        page_bytes = 16 * describe_model(folder).kv_bytes_per_token

        def load(layers: LayerRange = layers) -> Any:
            return load_shard(folder, layers)

        await compute.load(load, kv_bytes=(pages + 1) * page_bytes, model_dir=folder, second=second)
        await compute.measure()
        made.append(compute)
    return _Ring(*made)


def _positions() -> int:
    return PROMPT_TOKENS + 1 + TOKENS * BURSTS * len(LATENCIES_S)


def _blocks() -> int:
    return -(-_positions() // 16)
