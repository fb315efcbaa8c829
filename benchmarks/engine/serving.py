"""How fast do two stages answer their clients, against Hugging Face `generate` in one process?

Stages are the product's own, with encryption, commitments and receipts, one compute thread each.
`generate` is measured between our runs, with one thread; a row is the median of the ratios of the
rounds. "64 ms" is one way, between stages.

Over links stages run once with guesses, as a miner's do, and once without. The random Llama repeats
itself soon, so guesses are right; on text without repetitions there are none. Without links nothing
is guessed here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from statistics import median

from benchmarks.engine.models import NAMES, model_folder, tiny_folder
from benchmarks.engine.rig.rates import rate_without_bubbles, steady_rate, token_s
from benchmarks.engine.rig.rig import Load, Ran, Rig
from benchmarks.engine.rig.steps import decode_s
from benchmarks.table import Row
from core.engine.sampling.guesses import MOST_GUESSES

#: Where the second stage begins, so that both take about as long.
CUTS = {"gemma": 17, "smollm": 17, "llama": 10, "tiny": 1}
MODELS: tuple[str, ...] = ("smollm", "gemma", "llama")
ROUNDS, NEW_TOKENS, WARM_TOKENS = 3, 32, 12
#: More of them, since eight may come at once.
FAR_TOKENS = 64
FAR_MS = 64.0
#: Clients → what it must reach, and what Petals reaches, of `generate` at batch 1.
REACH = {1: (0.9, "0.75"), 4: (2.8, "1.2"), 16: (12.0, "1.2")}
REACH_FAR = {1: (0.26, "0.14"), 4: (1.05, "0.5"), 16: (4.4, "1.0")}
QUICK = {
    "MODELS": ("llama",),
    "model_folder": tiny_folder,
    "CUTS": {"llama": 1},
    "ROUNDS": 1,
    "NEW_TOKENS": 4,
    "WARM_TOKENS": 2,
    "REACH": {1: REACH[1]},
    "REACH_FAR": {},
}


def rows() -> list[Row]:
    """One client for each model, more of them and the links for the random Llama."""
    return asyncio.run(_rows())


async def _rows() -> list[Row]:
    found: list[Row] = []
    for name in MODELS:
        folder, cut, title = model_folder(name), [CUTS[name]], NAMES[name]
        if not folder.exists():
            found.append(Row(title, "installed", "not installed", "–", "–", False))
            continue
        async with Rig(folder, cut) as rig:
            found += await _near_rows(rig, title, list(REACH) if name == "llama" else [1])
            if name == "llama" and REACH_FAR:
                async with Rig(folder, cut, peer=False, guesses=True) as guessing:
                    found += await _far_rows(rig, guessing, title)
    return found


async def _near_rows(rig: Rig, title: str, crowds: list[int]) -> list[Row]:
    ratios: dict[int, list[float]] = defaultdict(list)
    runs: dict[int, Ran] = {}
    peers: list[float] = []
    equal = True
    await rig.generate(1, 4)
    for clients in (*crowds, max(crowds)):  # streams open, the ring and its steps are learnt
        await rig.run(Load(clients, new_tokens=WARM_TOKENS))
    for _ in range(ROUNDS):
        for clients in crowds:
            reference = await rig.generate(1, NEW_TOKENS)
            ran = runs[clients] = await rig.run(Load(clients, new_tokens=NEW_TOKENS))
            peers.append(steady_rate(reference.times))
            ratios[clients].append(steady_rate(ran.times) / peers[-1])
            equal &= all(tokens == reference.tokens[0] for tokens in ran.tokens)
    found = []
    for clients, values in ratios.items():
        reach, petals = REACH[clients]
        found.append(
            Row(
                f"{title}, {_clients(clients)}, two stages, tokens/s against generate at batch 1",
                f"≥ {reach}",
                f"{median(values):.2f} ({steady_rate(runs[clients].times):.1f} tokens/s)",
                f"1 ({median(peers):.1f} tokens/s); Petals {petals}",
                f"{_limit_rate(runs[clients], 0.0) / median(peers):.3f} "
                "(these steps without bubbles)",
                median(values) >= reach,
            )
        )
    return [*found, _equal_row(f"{title}, greedy tokens of every answer against generate", equal)]


async def _far_rows(plain: Rig, guessing: Rig, title: str) -> list[Row]:
    """Over links, with tokens guessed ahead and without, taking turns."""
    ratios: dict[int, list[tuple[float, float]]] = defaultdict(list)
    runs: dict[int, list[tuple[Ran, Ran]]] = defaultdict(list)
    peers: list[float] = []
    equal = True
    for rig in (plain, guessing):
        for clients in (*REACH_FAR, max(REACH_FAR)):
            await rig.run(Load(clients, new_tokens=WARM_TOKENS), latency_ms=FAR_MS)
    for _ in range(ROUNDS):
        for clients in REACH_FAR:
            reference = await plain.generate(1, NEW_TOKENS)
            peers.append(steady_rate(reference.times))
            load = Load(clients, new_tokens=FAR_TOKENS)
            pair = [await rig.run(load, latency_ms=FAR_MS) for rig in (plain, guessing)]
            one, other = (steady_rate(ran.times) / peers[-1] for ran in pair)
            ratios[clients].append((one, other))
            runs[clients].append((pair[0], pair[1]))
            answers = [tokens for ran in pair for tokens in ran.tokens]
            equal &= all(tokens == answers[0] for tokens in answers)
            equal &= answers[0][:NEW_TOKENS] == reference.tokens[0]
    found = []
    for clients, values in ratios.items():
        reach, petals = REACH_FAR[clients]
        without, ours = (median(each) for each in zip(*values, strict=True))
        ran, guessed = runs[clients][-1]
        limit = _limit_rate(ran, FAR_MS) / median(peers)
        found.append(
            Row(
                f"{title}, {_clients(clients)}, two stages, {FAR_MS:g} ms one way, "
                "guessing ahead, tokens/s against generate at batch 1",
                f"≥ {reach}",
                f"{ours:.2f} ({steady_rate(guessed.times):.1f} tokens/s); "
                f"without guesses {without:.2f} ({steady_rate(ran.times):.1f})",
                f"1 ({median(peers):.1f} tokens/s); Petals {petals}",
                f"without guesses {limit:.3f} (these steps and links without bubbles)",
                ours >= reach,
            )
        )
    found.append(_equal_row(f"{title}, the same over links, with guesses and without", equal))
    found.append(_physical_row(title, [ran for ran, _ in runs[1]]))
    gain = median(ours / without for without, ours in ratios[1])
    found.append(
        Row(
            f"{title}, one stream at {FAR_MS:g} ms one way on text that repeats, guessing ahead",
            "≥ 1.5, tokens equal",
            f"{gain:.2f} ({steady_rate(runs[1][-1][1].times):.1f} tokens/s), "
            f"{'equal' if equal else 'not equal'}",
            f"1 ({steady_rate(runs[1][-1][0].times):.1f} tokens/s: without guesses)",
            f"{MOST_GUESSES + 1} (every guess right)",
            gain >= 1.5 and equal,
        )
    )
    return found


def _equal_row(title: str, equal: bool) -> Row:
    return Row(title, "equal", "equal" if equal else "not equal", "–", "equal", equal)


def _physical_row(title: str, runs: list[Ran]) -> Row:
    """One stream over links against the time that steps and links take by themselves."""
    shares = []
    for ran in runs:
        needed_s = sum(map(decode_s, ran.steps)) + 2 * FAR_MS / 1000
        shares.append(needed_s / token_s(ran.times[0]))
    needed_ms = 1000 * (sum(map(decode_s, runs[-1].steps)) + 2 * FAR_MS / 1000)
    taken_ms = 1000 * token_s(runs[-1].times[0])
    return Row(
        f"{title}, one stream at {FAR_MS:g} ms one way, of the physical limit",
        "≥ 0.95",
        f"{median(shares):.3f} ({taken_ms:.1f} ms a token)",
        "–",
        f"1 ({needed_ms:.1f} ms: stage times and links)",
        median(shares) >= 0.95,
    )


def _limit_rate(ran: Ran, latency_ms: float) -> float:
    """Tokens per second: stages without bubbles, and no token sooner than its steps and links."""
    alone = 1 / (sum(map(decode_s, ran.steps)) + 2 * latency_ms / 1000)
    clients = len(ran.times)
    if clients == 1:
        return alone
    return min(clients * alone, rate_without_bubbles(ran.times, ran.steps))


def _clients(count: int) -> str:
    return "one client" if count == 1 else f"{count} clients"
