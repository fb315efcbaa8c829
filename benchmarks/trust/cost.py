"""What does auditing a shard cost against what serving it took, in processor time of one thread?

A request is served by our own batch engine, alone, and judged by what an auditor runs: the float32
look that clears honest work, and the float64 judgement. A decoded token reads every weight for one
row, an audit reads it once for all rows: told beside, row for row. A prompt is served all at once
like an audit, so of a whole request an audit is a larger share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.table import Row
from benchmarks.trust.town import Town, columns, quick_columns, town
from client.audit.precheck import rows_clear
from core.dispute.judging.numerics import judge_rows, reexecute
from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.engine.batch.whole import prepare
from core.engine.kernels.layouts import layouts_of
from core.engine.kernels.prepack import prepack
from core.engine.model.blocks import ModelShard

PROMPT_TOKENS, NEW_TOKENS, STAGE, TIMES = 64, 96, 1, 5
ROWS = PROMPT_TOKENS + NEW_TOKENS - 1  # the last token is not fed back
LIMITS = {"float32": 0.08, "float64": 0.20}
_PEAK_SIZE = 1024
QUICK = {
    "PROMPT_TOKENS": 16,
    "NEW_TOKENS": 8,
    "ROWS": 23,
    "TIMES": 1,
    "_PEAK_SIZE": 128,
    "columns": quick_columns,
}


@dataclass(frozen=True)
class Cost:
    """Seconds of processor time, the least of several tries.

    `audit` and `peak` (multiplications a second) by precision.
    """

    served_s: float
    prompt_s: float
    library_s: float
    audit: dict[str, float]
    peak: dict[str, float]
    multiplications: int  # of an audit's products with weights

    @property
    def decoded_s(self) -> float:
        """One token."""
        return (self.served_s - self.prompt_s) / (ROWS - PROMPT_TOKENS)

    def of_serving(self, precision: str) -> float:
        """An audit's share of serving the request."""
        return self.audit[precision] / self.served_s

    def of_decoding(self, precision: str) -> float:
        """An audited row's share of a decoded token."""
        return self.audit[precision] / ROWS / self.decoded_s

    def least(self, precision: str) -> float:
        """`of_serving` of an audit that is nothing but products at this processor's best."""
        return self.multiplications / self.peak[precision] / self.served_s


def rows() -> list[Row]:
    """For each model: the pre-check in float32, the judgement in float64."""
    torch.set_num_threads(1)
    found: list[Row] = []
    for model, profile in columns():
        if profile == "fp32":
            with town(model, profile) as here:
                found += _rows_of(here)
    return found


def _rows_of(here: Town) -> list[Row]:
    cost, span = _measured(here), here.spans[STAGE]
    found = []
    for precision, limit in LIMITS.items():
        share, audit_s = cost.of_serving(precision), cost.audit[precision]
        served_ms, audit_ms = 1e3 * cost.served_s, 1e3 * audit_s
        item = f"{here.name}, audit in {precision} of {len(span)} layers, one thread"
        ours = (
            f"{100 * share:.1f} % of a request of {PROMPT_TOKENS} + {NEW_TOKENS} tokens by our "
            f"batch engine ({audit_ms:.0f} of {served_ms:.0f} ms); row for row "
            f"{100 * cost.of_decoding(precision):.1f} % of decoding "
            f"({audit_ms / ROWS:.2f} of {1e3 * cost.decoded_s:.2f} ms a token)"
        )
        peer = (
            f"{100 * audit_s / cost.library_s:.1f} % of such a request by the library's loop "
            f"({1e3 * cost.library_s:.0f} ms)"
        )
        best = (
            f"{100 * cost.least(precision):.1f} %: products alone at this processor's "
            f"{cost.peak[precision] * 2e-9:.0f} GFLOP/s"
        )
        reach = f"≤ {100 * limit:.0f} % of serving it"
        found.append(Row(item, reach, ours, peer, best, share <= limit))
    return found


def _measured(here: Town) -> Cost:
    span, profile, sigma = here.spans[STAGE], here.profile, here.sigma[here.spans[STAGE].end]
    job = here.serve(0, here.prompts(1, PROMPT_TOKENS)[0], NEW_TOKENS)
    given, signed = job.entering(STAGE), job.rows[STAGE]
    packed, plain = here.load(span), here.load(span)
    least = prepack(packed, model_dir=here.folder).least_rows
    weights = sum(
        m.weight.numel() for m in plain.decoder_layers.modules() if isinstance(m, nn.Linear)
    )
    rough, exact = prepare(here.load(span), here.folder), here.auditing(span)

    def clear() -> None:
        assert rows_clear(profile, rough, given, signed, sigma), "honest work is not cleared"

    def judge() -> None:
        reference = reexecute(exact, given).numpy()
        assert not judge_rows(profile, len(span), signed, reference, sigma).at_fault

    x = given.float()
    engine = BatchEngine(packed, kv_bytes=2**26, prefix_share=0, least_rows=least)
    taken: dict[str, list[float]] = {}
    try:
        for _ in range(TIMES):  # taking turns: whatever slows the machine slows all of them
            _time(taken, "library", lambda: _decode(plain, x))
            _time(taken, "served", lambda: _serve(engine, x))
            _time(taken, "prompt", lambda: _serve(engine, x[:PROMPT_TOKENS]))
            _time(taken, "float32", clear)
            _time(taken, "float64", judge)
            for precision in LIMITS:
                _time(taken, f"{precision} product", _product(getattr(torch, precision)))
    finally:
        engine.close()
    best = {name: min(times) for name, times in taken.items()}
    return Cost(
        best["served"],
        best["prompt"],
        best["library"],
        {precision: best[precision] for precision in LIMITS},
        {precision: _PEAK_SIZE**3 / best[f"{precision} product"] for precision in LIMITS},
        ROWS * weights,
    )


def _product(dtype: torch.dtype) -> Callable[[], object]:
    """The best that this processor is known to do."""
    square = torch.ones(_PEAK_SIZE, _PEAK_SIZE, dtype=dtype)
    layouts, _ = layouts_of(dtype)
    if not layouts:
        return lambda: square @ square
    laid = layouts[0].lay(square)
    return lambda: layouts[0].multiply(square, laid, None, _PEAK_SIZE)


def _time(taken: dict[str, list[float]], name: str, work: Callable[[], object]) -> None:
    started = time.process_time()
    work()
    taken.setdefault(name, []).append(time.process_time() - started)


def _decode(shard: ModelShard, x: Tensor) -> None:
    cache = shard.new_cache()
    shard.forward(x[:PROMPT_TOKENS], cache)
    for at in range(PROMPT_TOKENS, len(x)):
        shard.forward(x[at : at + 1], cache)


def _serve(engine: BatchEngine, x: Tensor) -> None:
    """A prompt and single steps as a miner runs them."""
    engine.open(0)
    engine.step([RequestPiece(0, x[:PROMPT_TOKENS], 0)])
    for at in range(PROMPT_TOKENS, len(x)):
        engine.step([RequestPiece(0, x[at : at + 1], at)])
    engine.free(0)
