"""What does auditing a shard cost against what serving it took, in processor time of one thread?"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.table import Row
from benchmarks.trust.town import Town, columns, town
from core.engine.batch import BatchEngine
from core.engine.blocks import Shard
from core.engine.numerics import reexecute
from core.engine.pieces import Piece
from core.engine.prepack import prepack

PROMPT_TOKENS, NEW_TOKENS, STAGE, TIMES = 64, 96, 1, 2
PRECHECK, FLOAT64 = 0.08, 0.20


def rows() -> list[Row]:
    """For each model: served alone and one of eight, the pre-check in float32, the judgement in float64."""
    torch.set_num_threads(1)
    found: list[Row] = []
    for model, profile in columns():
        if profile == "fp32":
            with town(model, profile) as here:
                found += _rows_of(here)
    return found


def _rows_of(here: Town) -> list[Row]:
    span = here.spans[STAGE]
    packed = here.load(span)
    least = prepack(packed, model_dir=here.folder).least_rows
    plain, exact = here.load(span), here.exact(span)
    x = torch.randn(PROMPT_TOKENS + NEW_TOKENS, packed.hidden, generator=torch.Generator().manual_seed(3))  # fmt: skip
    x *= torch.from_numpy(here.sigma[span.start]).float()
    taken: dict[str, list[float]] = {}
    for _ in range(TIMES):  # taking turns, so that whatever slows the machine slows all of them
        _time(taken, "plain decode", lambda: _decode(plain, x))
        _time(taken, "served alone", lambda: _serve(packed, x, 1, least))
        _time(taken, "float32", lambda: plain.forward(x, plain.new_cache()))
        _time(taken, "float64", lambda: reexecute(exact, x.double()))
    best = {name: min(times) for name, times in taken.items()}
    served = best["served alone"]
    counts = f"{PROMPT_TOKENS} + {NEW_TOKENS} tokens through {len(span)} layers, one thread"
    found = []
    for name, limit in (("float32", PRECHECK), ("float64", FLOAT64)):
        share, library = best[name] / served, best[name] / best["plain decode"]
        found.append(
            Row(
                f"{here.name}, audit in {name} of {counts}",
                f"≤ {100 * limit:.0f} % of serving it",
                f"{100 * share:.1f} % ({1e3 * best[name]:.0f} of {1e3 * served:.0f} ms by our batch engine)"
                + (
                    ": its packed kernels decode faster, an audit multiplies plainly"
                    if share > limit
                    else ""
                ),
                f"{100 * library:.1f} % of decoding by the library's loop ({1e3 * best['plain decode']:.0f} ms)",
                "–",
                share <= limit,
            )
        )
    return found


def _time(taken: dict[str, list[float]], name: str, work: Callable[[], object]) -> None:
    started = time.process_time()
    work()
    taken.setdefault(name, []).append(time.process_time() - started)


def _decode(shard: Shard, x: Tensor) -> None:
    cache = shard.new_cache()
    shard.forward(x[:PROMPT_TOKENS], cache)
    for at in range(PROMPT_TOKENS, len(x)):
        shard.forward(x[at : at + 1], cache)


def _serve(shard: Shard, x: Tensor, batch: int, least_rows: int) -> None:
    """A prompt and single steps as a miner runs them."""
    engine = BatchEngine(shard, kv_bytes=2**26, prefix_share=0, least_rows=least_rows)
    try:
        for i in range(batch):
            engine.open(i)
            engine.step([Piece(i, x[:PROMPT_TOKENS], 0)])
        for at in range(PROMPT_TOKENS, len(x)):
            engine.step([Piece(i, x[at : at + 1], at) for i in range(batch)])
    finally:
        engine.close()
