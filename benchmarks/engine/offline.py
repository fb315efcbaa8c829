"""How much do two stages get done for offline loads, and what of it do long links cost?

Gemma 3 270M in float32, many sequences at once. `generate` may use as many threads as our stages
together, or one, whichever is faster. The number of microbatches is the stage's own choice.
"""

from __future__ import annotations

import asyncio
import sys
from statistics import median

from benchmarks.engine.models import NAMES, model_folder, tiny_folder
from benchmarks.engine.rig.rates import rate_without_bubbles, steady_rate
from benchmarks.engine.rig.rig import Load, Ran, Rig
from benchmarks.engine.serving import CUTS
from benchmarks.table import Row
from core.protocol.errors import PeerUnreachable

SEQUENCES, NEW_TOKENS = 64, 24
#: Enough that the fastest steps a row fill a ring of half a second. Short prompts and long answers:
#: most of each answer is written while all are, and the ends of a run have too few for any ring.
FAR_SEQUENCES, FAR_PROMPT_TOKENS, FAR_NEW_TOKENS, FAR_WARM_TOKENS = 480, 4, 32, 8
GENERATE_TOKENS = {16: 16, 64: 8}
REACH = {16: 3.1, 64: 1.9}
#: One-way ms → share of the zero-latency rate to reach, and what two fixed microbatches keep.
KEPT = {16.0: (0.97, 0.79), 64.0: (0.97, 0.53), 256.0: (0.96, 0.24)}
ROUNDS, FAR_ROUNDS = 2, 5
#: A stage gives slots back once a second; the runs of a short form are over sooner.
SLOTS = 2 * FAR_SEQUENCES + SEQUENCES
QUICK = {
    "model_folder": tiny_folder,
    "CUTS": {"gemma": 1},
    "SEQUENCES": 16,
    "NEW_TOKENS": 4,
    "FAR_SEQUENCES": 16,
    "FAR_NEW_TOKENS": 4,
    "FAR_WARM_TOKENS": 2,
    "GENERATE_TOKENS": {16: 3},
    "REACH": {16: REACH[16]},
    "KEPT": {16.0: KEPT[16.0]},
    "ROUNDS": 1,
    "FAR_ROUNDS": 1,
}


def rows() -> list[Row]:
    """Against `generate` at batch 16 and 64, and at three latencies against none."""
    if not model_folder("gemma").exists():
        return [Row(NAMES["gemma"], "installed", "not installed", "–", "–", False)]
    return asyncio.run(_rows())


async def _rows() -> list[Row]:
    async with Rig(model_folder("gemma"), [CUTS["gemma"]], max_requests=SLOTS) as rig:
        await rig.run(Load.offline(SEQUENCES, 4))
        return [*await _against_generate(rig), *await _over_links(rig)]


async def _against_generate(rig: Rig) -> list[Row]:
    ours: list[float] = []
    peers: dict[tuple[int, int], list[float]] = {(b, n): [] for b in REACH for n in (1, 2)}
    ran: Ran | None = None
    for _ in range(ROUNDS):
        ran = await rig.run(Load.offline(SEQUENCES, NEW_TOKENS))
        ours.append(steady_rate(ran.times))
        for batch, threads in peers:
            theirs = await rig.generate(batch, GENERATE_TOKENS[batch], threads=threads)
            peers[batch, threads].append(steady_rate(theirs.times))
    assert ran is not None
    limit = rate_without_bubbles(ran.times, ran.steps)
    found = []
    for batch, reach in REACH.items():
        rate, threads = max((median(peers[batch, n]), n) for n in (1, 2))
        ratio = median(o / p for o, p in zip(ours, peers[batch, threads], strict=True))
        other = median(peers[batch, 3 - threads])
        found.append(
            Row(
                f"{NAMES['gemma']}, {SEQUENCES} offline sequences, two stages, "
                f"tokens/s against generate at batch {batch}",
                f"≥ {reach}",
                f"{ratio:.2f} ({median(ours):.0f} tokens/s)",
                f"1 ({rate:.0f} tokens/s with {threads} thread(s), {other:.0f} with {3 - threads})",
                f"{limit / rate:.2f} (these steps without bubbles)",
                ratio >= reach,
            )
        )
    return found


async def _far(rig: Rig, latency_ms: float | None) -> Ran:
    """After a run in which the first stage learns how long the ring is."""
    for new_tokens in (FAR_WARM_TOKENS, FAR_NEW_TOKENS):
        load = Load.offline(FAR_SEQUENCES, new_tokens, FAR_PROMPT_TOKENS)
        ran = await _unbroken(rig, load, latency_ms)
    return ran


async def _unbroken(rig: Rig, load: Load, latency_ms: float | None) -> Ran:
    """A machine that stands still takes a stage for dead, and this ring has no other: once more."""
    try:
        return await rig.run(load, latency_ms=latency_ms)
    except PeerUnreachable as error:
        print(f"a run broke off and is repeated: {error}", file=sys.stderr)
        return await rig.run(load, latency_ms=latency_ms)


async def _over_links(rig: Rig) -> list[Row]:
    """Each latency between two runs without, so that other load on the machine weighs on both.

    Load that is shorter than a run does not, hence the limit: the same steps without bubbles.
    """
    shares: dict[float, list[float]] = {latency_ms: [] for latency_ms in KEPT}
    limits: dict[float, list[float]] = {latency_ms: [] for latency_ms in KEPT}
    rates: dict[float, float] = {}
    for _ in range(FAR_ROUNDS):
        near = steady_rate((await _far(rig, None)).times)
        for latency_ms in KEPT:
            far = await _far(rig, latency_ms)
            rates[latency_ms] = steady_rate(far.times)
            before, near = near, steady_rate((await _far(rig, None)).times)
            shares[latency_ms].append(rates[latency_ms] / ((before + near) / 2))
            without = rate_without_bubbles(far.times, far.steps)
            limits[latency_ms].append(without / ((before + near) / 2))
    return [
        Row(
            f"{NAMES['gemma']}, {FAR_SEQUENCES} offline sequences, {latency_ms:g} ms one way, "
            "share of the rate without",
            f"≥ {reach}",
            f"{_spread(shares[latency_ms])}; {rates[latency_ms]:.0f} of {near:.0f} tokens/s)",
            f"two fixed microbatches {fixed}",
            f"{_spread(limits[latency_ms])}; these steps without bubbles)",
            median(shares[latency_ms]) >= reach,
        )
        for latency_ms, (reach, fixed) in KEPT.items()
    ]


def _spread(values: list[float]) -> str:
    """Their median, and each of them after an open bracket."""
    return f"{median(values):.3f} ({', '.join(f'{value:.2f}' for value in values)}"
