"""How do claims and evidence go into a transaction, and how are they read out of one?

The field order of `ITraceJudge.sol`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core.dispute.trace.derive import PLEADED_CLAIM, Choice, How
from core.dispute.trace.evidence import Evidence, RowOpening, RunOpening, WeightOpening
from core.dispute.trace.judge import Claim
from core.dispute.trace.layout import Place
from core.dispute.trace.rows import SignedRows
from core.protocol import commit
from core.protocol.types import RequestLeaf


def signed_tuple(
    leaf: RequestLeaf, position: int, proof: Sequence[bytes], inner: Sequence[bytes] = ()
) -> tuple[Any, ...]:
    """A request as a stage signed it (`SignedRequest`); with `inner` one of its spans is meant."""
    return (*leaf_tuple(leaf), commit.unhex(leaf.inner_root)), position, list(proof), list(inner)


def rows_tuple(model_id: str, rows: SignedRows) -> tuple[Any, ...]:
    """`SignedRows`, which name no model themselves."""
    inner_root = commit.unhex(rows.leaf.inner_root)
    return model_id, leaf_tuple(rows.leaf), rows.layer_from, rows.layer_to, inner_root


def leaf_tuple(leaf: RequestLeaf) -> tuple[Any, ...]:
    """`RequestRows`: a leaf without what is inside the stage."""
    return (
        leaf.request_index,
        commit.unhex(leaf.in_root),
        commit.unhex(leaf.out_root),
        leaf.tokens_in,
        leaf.tokens_out,
    )


def claim_tuple(claim: Claim) -> tuple[Any, ...]:
    choice = claim.choice
    drawn: tuple[Any, ...] = (*(0,) * 9, bytes(32))
    if claim.plea is not None:
        drawn = (PLEADED_CLAIM, *(0,) * 6, claim.plea, 0, bytes(32))
    if choice is not None:
        drawn = (
            int(choice.how),
            choice.preferred,
            choice.served,
            choice.step,
            choice.temperature_micro,
            choice.min_p_micro,
            choice.top_k,
            *choice.key,
            choice.listed,
        )
    return (
        leaf_tuple(claim.leaf),
        claim.layer_from,
        claim.layer_to,
        claim.positions,
        claim.window_from,
        claim.tolerance_entry,
        *drawn,
        claim.trace_root,
    )


def claim_of(found: Mapping[str, Any]) -> Claim:
    """The claim in a decoded call."""
    choice, is_pleaded = None, found["how"] == PLEADED_CLAIM
    if found["how"] and not is_pleaded:
        choice = Choice(
            preferred=found["preferred"],
            served=found["served"],
            step=found["step"],
            temperature_micro=found["temperature"],
            key=(found["key0"], found["key1"]),
            how=How(found["how"]),
            min_p_micro=found["minP"],
            top_k=found["topK"],
            listed=commit.unhex(found["listed"]),
        )
    return Claim(
        leaf=msgspec.convert(found["leaf"], RequestLeaf),
        layer_from=found["layerFrom"],
        layer_to=found["layerTo"],
        positions=found["positions"],
        window_from=found["windowFrom"],
        tolerance_entry=found["tolerance"],
        trace_root=commit.unhex(found["traceRoot"]),
        choice=choice,
        plea=found["key0"] if is_pleaded else None,
    )


def place_of(found: Mapping[str, Any]) -> Place:
    """The place in a decoded event or call."""
    return Place(found["section"], found["op"], found["row"], found["segment"], found["index"])


def evidence_of(found: Mapping[str, Any]) -> Evidence:
    """The evidence in a decoded call."""
    weights = found["weights"]
    return Evidence(
        result=_opening_of(found["result"]),
        runs=tuple(_opening_of(run) for run in found["runs"]),
        weights=WeightOpening(
            _row_of(weights["row"]),
            commit.unhex(weights["name"]),
            commit.unhex(weights["tensorRoot"]),
            tuple(map(commit.unhex, weights["tensorSiblings"])),
        ),
        row=_row_of(found["row"]),
        witness=found["witness"],
        tokens=commit.unhex(found["tokens"]),
    )


def _opening_of(found: Mapping[str, Any]) -> RunOpening:
    return RunOpening(commit.unhex(found["data"]), tuple(map(commit.unhex, found["siblings"])))


def _row_of(found: Mapping[str, Any]) -> RowOpening:
    return RowOpening(
        commit.unhex(found["part"]),
        tuple(map(commit.unhex, found["partSiblings"])),
        tuple(map(commit.unhex, found["rowSiblings"])),
    )


def opening_tuple(found: RunOpening) -> tuple[Any, ...]:
    return (found.data, list(found.siblings))


def row_tuple(found: RowOpening) -> tuple[Any, ...]:
    return (found.part, list(found.part_siblings), list(found.row_siblings))


def weight_tuple(found: WeightOpening) -> tuple[Any, ...]:
    return (row_tuple(found.row), found.name, found.tensor_root, list(found.tensor_siblings))


def evidence_tuple(found: Evidence) -> tuple[Any, ...]:
    return (
        opening_tuple(found.result),
        [opening_tuple(run) for run in found.runs],
        weight_tuple(found.weights),
        row_tuple(found.row),
        found.witness,
        found.tokens,
    )
