"""Tiny models of every family that has an operator program, with traces of their shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.dispute.play.build import Builder
from core.dispute.play.held import (
    ShardSources,
    ShardTrace,
    boundaries_of,
    build_trace,
    sources_of,
)
from core.dispute.play.operators import Plain
from core.dispute.play.program import ModelProgram, model_program
from core.dispute.play.values import TraceValues
from core.dispute.trace.derive import Choice, Derivation
from core.dispute.trace.families import FP32_TOLERANCES
from core.dispute.trace.layout import Place, TraceLayout
from devnet.models.tiny_models import write_tiny_model

#: Widths on both sides of 128 terms, so that reductions go by partial sums in some.
FAMILIES = {
    "llama": 64,
    "qwen2": 160,
    "qwen3": 64,
    "mistral": 160,
    "gemma2": 64,
    "gemma3": 160,
}
#: Of a plea, in a trace of two passes.
SEED = 77
#: (layer_from, layer_to, positions, whether it ends in a deviation, or in the token drawn at the
#: last position)
SHARDS = ((0, 2, 40, True), (1, 2, 150, True), (2, 3, 133, False))
CHOICE = Choice(3, 5, 0, 0, (0, 0))


@dataclass(frozen=True)
class Tiny:
    folder: Path
    hidden: int
    ours: ModelProgram

    @classmethod
    def make(cls, folder: Path, family: str, **options: Any) -> Tiny:
        hidden = FAMILIES[family]
        path = write_tiny_model(folder / family, family, layers=3, hidden=hidden, **options)
        return cls(path, hidden, model_program(path, FP32_TOLERANCES))

    def rows(self, shard: tuple[int, int, int, bool], seed: int = 0) -> tuple[bytes, bytes]:
        """What went in and what came out, at random."""
        start, _, positions, _ = shard
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, 256, positions).astype("<u4").tobytes()
        sizes = rng.normal(size=(2, positions, self.hidden)).astype("<f4")
        return ids if start == 0 else sizes[0].tobytes(), sizes[1].tobytes()

    def layout(self, shard: tuple[int, int, int, bool], plea: int | None = None) -> TraceLayout:
        start, end, positions, deviates = shard
        if not deviates:
            return TraceLayout.of_token(self.ours.program, positions - 1)
        return TraceLayout(self.ours.program, start, end, positions, max(0, positions - 20), plea)

    def signed(self, shard: tuple[int, int, int, bool]) -> tuple[bytes, ...]:
        """The shard's rows; what comes out of a last one are state rows, here of every position."""
        inputs, left = self.rows(shard)
        if not self.ours.program.ends_at(shard[1]):
            return inputs, left
        return inputs, bytes(4 * shard[2]), left

    def values(self, shard: tuple[int, int, int, bool], arithmetic: Plain) -> TraceValues:
        """What this arithmetic makes of the shard."""
        layout = self.layout(shard)
        boundaries = boundaries_of(layout, *self.signed(shard))
        found = TraceValues(layout)
        Builder(layout, self.ours.trace_model(self.folder), boundaries, arithmetic).build(found)
        return found

    def trace(
        self,
        shard: tuple[int, int, int, bool],
        folder: Path | None = None,
        plea: int | None = None,
    ) -> tuple[ShardTrace, ShardSources, Derivation]:
        layout, rows = self.layout(shard, plea), self.signed(shard)
        model = self.ours.trace_model(self.folder)
        trace = build_trace(layout, model, boundaries_of(layout, *rows), folder=folder)
        derivation = Derivation(layout, 3 * 10**7, None if shard[3] else CHOICE)
        return trace, sources_of(layout.program, shard[:2], model, *rows), derivation


def with_value(trace: ShardTrace, place: Place, value: float) -> ShardTrace:
    """The trace with one other value."""
    values = TraceValues(trace.layout)
    values.flat[:] = trace.values.flat
    values.flat[values.offset(place)] = value
    return ShardTrace(values)
