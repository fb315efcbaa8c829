"""Which layers of a stage lie between two boundaries that it signed, and which rows crossed them?

A stage of many layers signs boundaries inside it (`docs/protocol.md` §3), so that what is judged is
shallow whatever a machine holds. A stage of few has one span: all of its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client.audit.evidence import EvidenceCollector
from core.protocol.types import LayerRange, RequestLeaf, Stage
from core.protocol.wire import Side, inner_side


@dataclass(frozen=True)
class StageSpan:
    """Span `number` of a stage, of the `count` that it has."""

    stage: int
    place: Stage  # of these layers alone
    number: int
    count: int

    @property
    def layers(self) -> LayerRange:
        return self.place.layers

    @property
    def is_whole(self) -> bool:
        """Whether the stage has no boundary inside it."""
        return self.count == 1

    @property
    def is_last(self) -> bool:
        """Whether its rows leave the stage."""
        return self.number == self.count - 1

    def leaf(self, signed: RequestLeaf, inner: Sequence[str]) -> RequestLeaf:
        """A request as this span saw it, of a stage with these roots inside it."""
        return signed if self.is_whole else signed.span(inner, self.number)

    async def entered(
        self, evidence: EvidenceCollector, leaf: RequestLeaf, row_bytes: int
    ) -> bytes:
        """The rows that entered it, of its own leaf of a request. Raises RowsWithheld."""
        side: Side = "in" if self.number == 0 else inner_side(self.number - 1)
        return await evidence.rows(self.stage, side, leaf, row_bytes, root=leaf.in_root)

    async def left(self, evidence: EvidenceCollector, leaf: RequestLeaf, row_bytes: int) -> bytes:
        """The rows that left it, or the ids of a last stage. Raises RowsWithheld."""
        side: Side = "out" if self.is_last else inner_side(self.number)
        return await evidence.rows(self.stage, side, leaf, row_bytes, root=leaf.out_root)


def spans_of(plan: Sequence[Stage], stage: int, span_layers: int) -> list[StageSpan]:
    """The spans of a stage, one where `span_layers` is 0 or it has no more layers."""
    place = plan[stage]
    layers = place.layers.spans(span_layers)
    return [
        StageSpan(stage, Stage(place.operator, span.start, span.end), number, len(layers))
        for number, span in enumerate(layers)
    ]


def whole_stage(plan: Sequence[Stage], stage: int) -> StageSpan:
    """All layers of a stage, whatever it signed inside: between rows that its neighbours have."""
    return StageSpan(stage, plan[stage], 0, 1)


async def inner_roots(
    evidence: EvidenceCollector, spans: Sequence[StageSpan], signed: RequestLeaf
) -> list[str]:
    """The roots inside a stage that it signed of a request. Raises RowsWithheld."""
    if spans[0].is_whole:
        return []
    return await evidence.inner(spans[0].stage, signed, [span.layers for span in spans])
