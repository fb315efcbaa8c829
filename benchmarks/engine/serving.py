"""How fast do two stages answer their clients, against Hugging Face `generate` in one process?

Stages are the product's own, with encryption, commitments and receipts, one compute thread each. `generate` is measured between
our runs, with one thread; a row is the median of the ratios of the rounds. "64 ms" is one way, between stages.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from statistics import median

from benchmarks.engine.models import NAMES, model_folder
from benchmarks.engine.rig.rates import rate_without_bubbles, steady_rate, token_s
from benchmarks.engine.rig.rig import Load, Ran, Rig
from benchmarks.engine.rig.steps import decode_s
from benchmarks.table import Row
from core.engine.guesses import MOST_GUESSES
from miner.run import GUESS_BELOW

#: Where the second stage begins, so that both take about as long.
CUTS = {"gemma": 17, "smollm": 17, "llama": 10}
ROUNDS, NEW_TOKENS, WARM_TOKENS = 3, 32, 12
FAR_MS = 64.0
#: (clients, one-way ms between stages) → what it must reach, and what Petals reaches, of `generate` at batch 1.
REACH: dict[tuple[int, float | None], tuple[float, str]] = {
    (1, None): (0.9, "0.75"),
    (4, None): (2.8, "1.2"),
    (16, None): (12.0, "1.2"),
    (1, FAR_MS): (0.26, "0.14"),
    (4, FAR_MS): (1.05, "0.5"),
    (16, FAR_MS): (4.4, "1.0"),
}


def rows() -> list[Row]:
    """One client for each model, more of them and the links for the random Llama."""
    return asyncio.run(_rows())


async def _rows() -> list[Row]:
    found: list[Row] = []
    for name in ("smollm", "gemma", "llama"):
        if not model_folder(name).exists():
            found.append(Row(NAMES[name], "installed", "not installed", "–", "–", False))
            continue
        wanted = list(REACH) if name == "llama" else [(1, None)]
        async with Rig(model_folder(name), [CUTS[name]]) as rig:
            found += await _model_rows(rig, NAMES[name], wanted)
    found.append(await _guessing_row())
    return found


async def _guessing_row() -> Row:
    """One stream over links, with tokens guessed ahead and without, taking turns. The random Llama repeats itself soon."""
    folder, cut, load = model_folder("llama"), [CUTS["llama"]], Load(1, new_tokens=2 * NEW_TOKENS)
    ratios, rates, equal = [], [], True
    async with (
        Rig(folder, cut, peer=False) as plain,
        Rig(folder, cut, peer=False, guess_below=GUESS_BELOW) as guessing,
    ):
        for rig in (plain, guessing):
            await rig.run(Load(1, new_tokens=WARM_TOKENS), latency_ms=FAR_MS)
        for _ in range(ROUNDS):
            one = await plain.run(load, latency_ms=FAR_MS)
            other = await guessing.run(load, latency_ms=FAR_MS)
            rates.append((steady_rate(one.times), steady_rate(other.times)))
            ratios.append(rates[-1][1] / rates[-1][0])
            equal &= one.tokens == other.tokens
    ratio = median(ratios)
    return Row(
        f"{NAMES['llama']}, one stream at {FAR_MS:g} ms one way on text that repeats, guessing ahead",
        "≥ 1.5, tokens equal",
        f"{ratio:.2f} ({median(r for _, r in rates):.1f} tokens/s), {'equal' if equal else 'not equal'}",
        f"1 ({median(r for r, _ in rates):.1f} tokens/s: without guesses)",
        f"{MOST_GUESSES + 1} (every guess right)",
        ratio >= 1.5 and equal,
    )


async def _model_rows(rig: Rig, title: str, wanted: list[tuple[int, float | None]]) -> list[Row]:
    ratios: dict[tuple[int, float | None], list[float]] = defaultdict(list)
    runs: dict[tuple[int, float | None], list[Ran]] = defaultdict(list)
    peers: list[float] = []
    equal = True
    await rig.generate(1, 4)
    for latency_ms in dict.fromkeys(latency_ms for _, latency_ms in wanted):
        crowds = [clients for clients, at in wanted if at == latency_ms]
        for clients in (*crowds, max(crowds)):  # streams open, the ring and its steps are learnt
            await rig.run(Load(clients, new_tokens=WARM_TOKENS), latency_ms=latency_ms)
        for _ in range(ROUNDS):
            for clients in crowds:
                reference = await rig.generate(1, NEW_TOKENS)
                ran = await rig.run(Load(clients, new_tokens=NEW_TOKENS), latency_ms=latency_ms)
                peers.append(steady_rate(reference.times))
                ratios[clients, latency_ms].append(steady_rate(ran.times) / peers[-1])
                runs[clients, latency_ms].append(ran)
                equal &= all(tokens == reference.tokens[0] for tokens in ran.tokens)
    found = []
    for (clients, latency_ms), values in ratios.items():
        reach, petals = REACH[clients, latency_ms]
        ratio, ran = median(values), runs[clients, latency_ms][-1]
        far = "" if latency_ms is None else f", {latency_ms:g} ms one way"
        limit = _limit_rate(ran, latency_ms or 0.0) / median(peers)
        found.append(
            Row(
                f"{title}, {_clients(clients)}, two stages{far}, tokens/s against generate at batch 1",
                f"≥ {reach}",
                f"{ratio:.2f} ({steady_rate(ran.times):.1f} tokens/s)",
                f"1 ({median(peers):.1f} tokens/s); Petals {petals}",
                f"{limit:.3f} (these steps{far and ' and links'} without bubbles)",
                ratio >= reach,
            )
        )
    found.append(
        Row(
            f"{title}, greedy tokens of every answer against generate",
            "equal",
            "equal" if equal else "not equal",
            "–",
            "equal",
            equal,
        )
    )
    if (1, FAR_MS) in runs:
        found.append(_physical_row(title, runs[1, FAR_MS]))
    return found


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
    """No stage computes faster than without bubbles, and no token comes sooner than its steps and links take."""
    alone = 1 / (sum(map(decode_s, ran.steps)) + 2 * latency_ms / 1000)
    clients = len(ran.times)
    if clients == 1:
        return alone
    return min(clients * alone, rate_without_bubbles(ran.times, ran.steps))


def _clients(count: int) -> str:
    return "one client" if count == 1 else f"{count} clients"
