"""What is swapping worth to miners that serve a chain together?

Two chains of two stages each, processes of their own with links of a given latency between them,
serve the same sequences: one has memory for all of them, the other for a third and a second tier.
They take turns.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from statistics import median

from benchmarks.engine.models import model_folder, tiny_folder
from benchmarks.engine.rig.rates import rate_without_bubbles, steady_rate
from benchmarks.engine.rig.rig import PROMPT_TOKENS, Load, Ran, Rig
from benchmarks.engine.serving import CUTS
from benchmarks.table import Row
from core.engine.memory.pages import PAGE_TOKENS
from core.engine.model.config_facts import read_config
from core.engine.weights.shape import describe_model, layer_count

#: In a step of a sixth of them arithmetic takes the time, and not reading weights.
SEQUENCES, NEW_TOKENS, WARM_TOKENS = 240, 24, 8
#: Formula 1 of DeServe: with all of hot memory in two pools, half as many times the requests fit.
GROUPS = 6
ROUNDS = 3
LATENCIES_MS: tuple[float | None, ...] = (None, 64.0, 256.0)
QUICK = {
    "model_folder": tiny_folder,
    "CUTS": {"llama": 1},
    "SEQUENCES": 24,
    "NEW_TOKENS": 4,
    "WARM_TOKENS": 2,
    "GROUPS": 3,
    "ROUNDS": 1,
    "LATENCIES_MS": (None,),
}


def rows() -> list[Row]:
    """Of the random Llama, in halves."""
    return asyncio.run(_rows())


@dataclass
class _Found:
    """Of one latency: tokens per second of both chains and of their steps without bubbles."""

    rates: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    limits: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    are_equal: bool = True  # what both signed, and their tokens


async def _rows() -> list[Row]:
    folder, cut = model_folder("llama"), CUTS["llama"]
    blocks = -(-(PROMPT_TOKENS + NEW_TOKENS + 1) // PAGE_TOKENS)
    for_all, group = SEQUENCES * blocks, -(-SEQUENCES // GROUPS) * blocks
    layers = max(cut, layer_count(read_config(folder)) - cut)
    page_bytes = PAGE_TOKENS * describe_model(folder).kv_bytes_per_token

    def kv_bytes(blocks_held: int) -> int:
        return (blocks_held * layers + 1) * page_bytes  # one page is the padding

    async with (
        Rig(folder, [cut], kv_bytes=kv_bytes(for_all + 1), peer=False) as roomy,
        Rig(folder, [cut], kv_bytes=kv_bytes(2 * group), groups=GROUPS, peer=False) as tight,
    ):
        found = {
            latency_ms: await _take_turns((roomy, tight), latency_ms) for latency_ms in LATENCIES_MS
        }
        stages = [await stage.ask("memory") for stage in tight.stages]
    inside = min(stage["most_inside"] for stage in stages)
    alone = 2 * group // blocks
    are_equal = all(each.are_equal for each in found.values())
    return [
        Row(
            "KV offload in miners, sequences of the same near memory at once",
            "≥ 3 ×",
            f"{inside / alone:.2f} × ({inside} against {alone})",
            "1",
            f"{GROUPS / 2:.1f} × (formula 1)",
            inside >= 3 * alone,
        ),
        *(_kept(latency_ms or 0.0, each) for latency_ms, each in found.items()),
        Row(
            "KV offload in miners, what both stages signed, and tokens",
            "bit-equal",
            "equal" if are_equal else "not equal",
            "–",
            "bit-equal",
            are_equal,
        ),
    ]


def _kept(latency_ms: float, found: _Found) -> Row:
    one, two = (median(some) for some in found.rates)
    of_one, of_two = (median(some) for some in found.limits)
    return Row(
        f"KV offload in miners, two stages, {latency_ms:g} ms one way, "
        "throughput kept against memory for all",
        "≥ 0.9",
        f"{two / one:.2f} ({two:.0f} against {one:.0f} tokens/s)",
        "–",
        f"{of_two / of_one:.2f} (steps of both without bubbles, "
        f"{of_two:.0f} and {of_one:.0f} tokens/s)",
        two >= 0.9 * one,
    )


async def _take_turns(rigs: tuple[Rig, Rig], latency_ms: float | None) -> _Found:
    found = _Found()
    for rig in rigs:  # the first stage learns how long the ring is
        await rig.run(Load.offline(SEQUENCES, WARM_TOKENS), latency_ms=latency_ms)
    for number in range(ROUNDS):
        ran: dict[int, Ran] = {}
        for at in (0, 1) if number % 2 else (1, 0):
            ran[at] = await rigs[at].run(Load.offline(SEQUENCES, NEW_TOKENS), latency_ms=latency_ms)
            found.rates[at].append(steady_rate(ran[at].times))
            found.limits[at].append(rate_without_bubbles(ran[at].times, ran[at].steps))
        found.are_equal &= (ran[0].tokens, ran[0].roots) == (ran[1].tokens, ran[1].roots)
    return found
