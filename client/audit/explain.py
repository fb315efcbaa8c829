"""How far is each layer of a stage from float64, against its tolerance: `auditor check --explain`?

Only a stage's boundary is signed; between its ends stands our own float32 run of the same layers,
which is honest. A served boundary that stands out from that line is more than noise.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client.audit.evidence import EvidenceCollector
from client.audit.rerun import ShardSource, inputs_of, served_rows
from client.audit.spans import inner_roots, spans_of
from core.protocol.types import RequestLeaf
from core.runtime.commands.results import Result

if TYPE_CHECKING:
    from core.engine.model.blocks import ModelShard

_LOWEST, _WIDTH = -9, 36  # powers of ten on the scale, and its characters


@dataclass(frozen=True)
class LayerLine:
    """The deviation after one layer of a stage, over all rows of a request."""

    layer: int
    honest: float  # our own float32 execution against float64
    served: float | None  # what the stage signed, at its end only
    tolerance: float | None  # T, where a tolerance is promised


@dataclass(frozen=True)
class ExplainedStage:
    """A stage's request, layer by layer."""

    stage: int
    request_index: int
    lines: tuple[LayerLine, ...]
    studentised: float  # the largest mean ratio of served to honest deviation over 16 rows
    standing: str


async def explain_stage(
    evidence: EvidenceCollector, source: ShardSource, stage: int, leaf: RequestLeaf
) -> ExplainedStage:
    """Layer by layer, for one request, over the rows that the stage signed. Raises RowsWithheld."""
    spans = spans_of(evidence.case.plan, stage, source.span_layers)
    inner = await inner_roots(evidence, spans, leaf)
    lines, q = list[LayerLine](), 0.0
    for span in spans:
        shard = await asyncio.to_thread(source.load, span.place)
        part, width = span.leaf(leaf, inner), 4 * shard.hidden
        inputs = await span.entered(evidence, part, 4 if shard.is_first else width)
        if shard.is_last:
            outputs = await evidence.rows(stage, "states", part, width)
        else:
            outputs = await span.left(evidence, part, width)
        own = await asyncio.to_thread(source.load_own, span.place)
        found, most = await asyncio.to_thread(_explain, source, shard, own, inputs, outputs)
        lines, q = lines + found, max(q, most)
    standing = await asyncio.to_thread(_standing, source, q)
    return ExplainedStage(stage, leaf.request_index, tuple(lines), q, standing)


def _explain(
    source: ShardSource,
    exact: ModelShard,
    own: ModelShard,
    inputs: bytes,
    outputs: bytes,
) -> tuple[list[LayerLine], float]:
    """A line for each layer, and how the rows that left stand out of our own noise."""
    from core.dispute.judging.numerics import studentised, whitened_relative_l2

    x = inputs_of(exact, inputs)
    served = served_rows(exact, outputs)
    # A last stage signs rows of the positions that it drew at: the last ones.
    true_rows, own_rows = (
        [rows[-len(served) :] for rows in _by_layer(shard, x)] for shard in (exact, own)
    )
    lines, depth = [], len(exact.layers)
    for number, (reference, ours) in enumerate(zip(true_rows, own_rows, strict=True)):
        layer = exact.layers.start + number
        sigma = source.sigma(layer + 1)
        is_end = number == depth - 1
        lines.append(
            LayerLine(
                layer,
                whitened_relative_l2(ours, reference, sigma).ratio,
                whitened_relative_l2(served, reference, sigma).ratio if is_end else None,
                source.profile.tolerance(number + 1, len(served)),
            )
        )
    sigma = source.sigma(exact.layers.end)
    noise = whitened_relative_l2(own_rows[-1], true_rows[-1], sigma).rows
    return lines, studentised(whitened_relative_l2(served, true_rows[-1], sigma).rows, noise)


def _standing(source: ShardSource, q: float) -> str:
    from core.dispute.judging.numerics import standing_of

    return standing_of(source.profile, q).value


def _by_layer(shard: ModelShard, x: Any) -> list[Any]:
    """Activations [T, D] after each layer, all positions at once."""
    from core.engine.model.blocks import output_of

    with ExitStack() as stack:
        kept = [stack.enter_context(output_of(layer)) for layer in shard.decoder_layers]
        x = x if shard.is_first else x.to(shard.dtype)
        shard.forward(x, shard.new_cache(), last_only=True)
    return [hidden.detach().reshape(-1, shard.hidden).double().numpy() for (hidden,) in kept]


def bar(value: float) -> str:
    """A deviation on a logarithmic scale from 10^-9 to 1."""
    if not value > 0:
        return ""
    share = (min(0.0, math.log10(value)) - _LOWEST) / -_LOWEST
    return "█" * max(1, round(share * _WIDTH)) if math.isfinite(value) else "█" * _WIDTH


class Layer(Result, frozen=True, forbid_unknown_fields=False):
    """`check --explain`: a second document, a row per layer."""

    stage: str
    after_layer: str
    honest_here: str
    served: str
    allowed: str
    on_a_log_scale: str
    studentised: str


def rows_of(explained: ExplainedStage) -> list[Layer]:
    """Rows of the table that is printed."""
    stands = f"{explained.studentised:.2f} {explained.standing}"
    return [
        Layer(
            stage=str(explained.stage),
            after_layer=str(line.layer),
            honest_here=f"{line.honest:.2e}",
            served="" if line.served is None else f"{line.served:.2e}",
            allowed=f"{line.tolerance:.0e}" if line.tolerance is not None else "–",
            on_a_log_scale=bar(line.honest if line.served is None else line.served),
            studentised="" if line.served is None else stands,
        )
        for line in explained.lines
    ]
