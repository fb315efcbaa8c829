"""How does a side of a game get the trace of what a claim is about?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from core.dispute.play.held import (
    ShardSources,
    ShardTrace,
    boundaries_of,
    build_trace,
    sources_of,
)
from core.dispute.play.model import TraceModel
from core.dispute.trace.judge import Case
from core.protocol import commit
from core.protocol.errors import CheckFailed
from core.protocol.types import RequestLeaf


def traced(
    case: Case,
    model: TraceModel,
    inputs: bytes,
    outputs: bytes,
    states: bytes = b"",
    *,
    folder: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[ShardTrace, ShardSources]:
    """The trace of a claim's rows, and what its leaves read beside it.

    `inputs`, `outputs` and a last stage's `states` are all rows that the stage signed for this
    request. With a `folder` the trace is kept there and taken up again. Raises CheckFailed when the
    rows are not those that the claim's request leaf commits to.
    """
    layout, claim = case.layout, case.claim
    layers = claim.layer_from, claim.layer_to
    sources = sources_of(case.program, layers, model, inputs, outputs, states)
    check_rows(claim.leaf, sources)
    trace = build_trace(
        layout,
        model,
        boundaries_of(layout, inputs, outputs, states),
        folder=folder,
        progress=progress,
    )
    return trace, sources


def check_rows(leaf: RequestLeaf, sources: ShardSources) -> None:
    """Raises CheckFailed unless these are the rows under a request leaf's roots."""
    sent = sources.outputs.root
    if sources.states is not None:
        sent = commit.answer_root(sent, sources.states.root)
    for side, root, found in (
        ("in", leaf.in_root, sources.inputs.root),
        ("out", leaf.out_root, sent),
    ):
        if commit.unhex(root) != found:
            raise CheckFailed(
                f"the rows of request {leaf.request_index} ({side}) are not those that were signed",
                f"their root is {commit.to_hex(found)}, signed was {root}",
            )
