"""Is a plea ever needed on rows of real text, and what does it lift the limit to?

And how far do token ids alone bring an honest stage, through a real prefix of layers? Tokens are
all that a requester without a miner can choose.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.table import Row
from benchmarks.trust.kernels import OTHER_SUMS
from benchmarks.trust.limits import Limits
from benchmarks.trust.town import Town, quick_columns, town
from benchmarks.trust.town import columns as all_columns
from core.dispute.registration.kernels import by_pieces, whole

TEXTS, TOKENS = 12, 160
SEEDS = (0, 101)
MINUTES = 1.0  # of search among token ids, for each model
CHOSEN = 16  # tokens of a sequence
KERNELS = (whole, by_pieces(1), OTHER_SUMS["sums one by one"])
STAGE = 1  # in the middle, behind a real prefix
QUICK: dict[str, Any] = {"TEXTS": 1, "TOKENS": 20, "MINUTES": 0.0, "columns": quick_columns}


def columns() -> list[tuple[str, str]]:
    """Float32 alone: a program's weights are float32, and bfloat16 machines round them."""
    return [(model, profile) for model, profile in all_columns() if profile == "fp32"]


@dataclass
class Tally:
    """Windows that were looked at, how many would need a plea, and the worst of each."""

    windows: int = 0
    above: int = 0
    share: float = 0.0  # D over T·S
    lifted: float = 0.0  # K·N over T·S


def rows() -> list[Row]:
    """Two rows a model."""
    torch.set_num_threads(1)
    found = []
    for model, profile in columns():
        with town(model, profile) as here:
            found += [_natural(here), _chosen(here)]
    return found


def _natural(here: Town) -> Row:
    tally = Tally()
    for ids in here.prompts(TEXTS, TOKENS):
        _count(here, ids, tally)
    return Row(
        f"{here.name}: natural rows that need a plea; what a plea lifts the limit to",
        "0; ≤ 2 T",
        f"{tally.above} of {tally.windows} windows (at most {tally.share:.3f} T); "
        f"{tally.lifted:.2f} T",
        "–",
        "–",
        tally.windows > 0 and tally.above == 0 and tally.lifted <= 2,
    )


def _chosen(here: Town) -> Row:
    until, worst, how = time.monotonic() + 60 * MINUTES, 0.0, "–"
    tried, best = 0, list[int]()
    for name, ids in _sequences(here):
        tally = Tally()
        _count(here, ids, tally)
        tried += 1
        if tally.share > worst:
            worst, how, best = tally.share, name, list(ids)
    rng = np.random.default_rng(0)
    while time.monotonic() < until:  # one token at a time, whatever makes it worse stays
        ids = list(best)
        ids[rng.integers(len(ids))] = int(rng.integers(_vocab(here)))
        tally = Tally()
        _count(here, ids, tally)
        tried += 1
        if tally.share > worst:
            worst, how, best = tally.share, f"{how.removesuffix(', searched')}, searched", ids
    return Row(
        f"{here.name}: token ids chosen against an honest stage, through a real prefix",
        "≤ 0.5 T",
        f"{worst:.3f} T ({how}; {tried} sequences)",
        "–",
        "1",
        tried > 0 and worst <= 0.5,
    )


def _sequences(here: Town) -> Iterator[tuple[str, list[int]]]:
    """Token ids as a requester might choose them."""
    rng, vocab = np.random.default_rng(1), _vocab(here)
    table = here.shards[0].model.get_input_embeddings().weight.detach().float()
    by_size = table.norm(dim=1).argsort().tolist()
    yield "random ids", rng.integers(vocab, size=CHOSEN).tolist()
    yield "one token again and again", [int(by_size[vocab // 2])] * CHOSEN
    yield "two tokens in turn", [int(by_size[0]), int(by_size[-1])] * (CHOSEN // 2)
    yield "smallest embeddings", by_size[:CHOSEN]
    yield "largest embeddings", by_size[-CHOSEN:]
    yield "first ids", list(range(CHOSEN))


def _vocab(here: Town) -> int:
    return int(here.shards[0].model.get_input_embeddings().weight.shape[0])


def _count(here: Town, ids: Sequence[int], tally: Tally) -> None:
    """Every window of a request at the stage, by each of some honest kernels."""
    prefix, shard = here.shards[0], here.shards[STAGE]
    rows = prefix.forward(torch.tensor(list(ids)), prefix.new_cache()).float()
    limits = Limits(here, STAGE, rows, SEEDS)
    tally.lifted = max(tally.lifted, limits.lifted())
    for kernel in KERNELS:
        for shares in limits.shares(kernel(shard, rows), pleaded=False):
            tally.windows += len(shares)
            tally.above += int((shares > 1).sum())
            tally.share = max(tally.share, float(shares.max()))
