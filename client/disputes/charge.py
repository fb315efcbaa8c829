"""How does an audit's finding become an accusation: claim, trace, and for a token how it was ordered?"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.audit.evidence import EvidenceCollector, PromptOpening, tokens_in
from client.audit.rerun import RequestFinding, ShardSource, StageFinding
from client.disputes.inquest import Doubted, Inquest
from client.disputes.prosecution import Accusation, OrderedDraw
from core.dispute.game.game_log import Opened, case_of
from core.dispute.trace.derive import Boundary
from core.dispute.trace.judge import Claim
from core.dispute.trace.sources import CommittedRows, answer_rows, cut_rows
from core.protocol import commit
from core.protocol.errors import CheckFailed, RowsWithheld
from core.protocol.types import RequestLeaf, SignedReceipt
from core.protocol.wire import Side

if TYPE_CHECKING:
    from core.chain.chain import Chain
    from core.dispute.play.program import ModelProgram


@dataclass(frozen=True)
class Charge:
    """What an auditor is about to claim, its trace not made yet, and the rows that it is about."""

    accused: SignedReceipt
    claim: Claim
    inputs: bytes
    outputs: bytes
    states: bytes = b""  # of a last stage
    drawn: OrderedDraw | None = None


async def charge_of(
    evidence: EvidenceCollector, source: ShardSource, accused: SignedReceipt, finding: StageFinding
) -> Charge:
    """The claim that the finding's worst request supports; of a last stage one about its rows before one about its tokens.

    Raises CheckFailed where the referee judges no such thing: a prompt or count that is not the order's, drawing with parameters that
    it does not know, or a stage in shadow; the jury, if the order names it, still does. Raises RowsWithheld.
    """
    ours, worst = source.operators, finding.worst
    if ours is None or worst is None or not worst.at_fault:
        raise _unjudged("there is no deviation and no token to accuse")
    leaf = next(leaf for leaf in accused.leaves if leaf.request_index == worst.request_index)
    stage, place = finding.stage, evidence.case.plan[finding.stage]
    hidden, layers = 4 * ours.program.hidden, len(ours.program.layer_types)
    first, last = place.layer_from == 0, place.layer_to == layers
    inputs = await evidence.rows(stage, "in", leaf, 4 if first else hidden)
    outputs = await evidence.rows(stage, "out", leaf, 4 if last else hidden)
    states = await evidence.rows(stage, "states", leaf, hidden) if last else b""
    deviation = await asyncio.to_thread(
        _deviation, source, ours, place, leaf, inputs, states if last else outputs
    )
    if deviation is not None:
        return Charge(accused, deviation, inputs, outputs, states)
    if not last:
        raise _unjudged("no window of these rows lies above the registered tolerance")
    opening = await evidence.opening(worst.request_index)
    claim, tokens = await asyncio.to_thread(
        _token, source, ours, place, leaf, worst, inputs, outputs, opening
    )
    served = answer_rows(cut_rows(outputs, 4), cut_rows(states, hidden))[0]
    drawn = _drawn(evidence, opening, leaf, claim, served, tokens)
    return Charge(accused, claim, inputs, outputs, states, drawn)


async def accusation(
    chain: Chain, source: ShardSource, opened: Opened, charge: Charge, folder: Path | None = None
) -> Accusation:
    """The charge with its trace, kept under `folder`.

    Raises CheckFailed when that trace does not convict after all: nothing is lost then but the bond of a game that is already open, so
    `would_convict` asks before.
    """
    from core.dispute.play.players import Accuser, with_trace
    from core.dispute.play.prepare import traced

    ours = source.operators
    assert ours is not None, "a charge is made of a registered program"
    case = await case_of(chain, opened, charge.claim)
    model = ours.trace_model(source.model_dir)
    trace, sources = await asyncio.to_thread(
        traced, case, model, charge.inputs, charge.outputs, charge.states, folder=folder
    )
    player = Accuser(with_trace(case, trace), trace, sources, _listed(charge))
    return Accusation(charge.accused, player, charge.drawn)


def _listed(charge: Charge) -> bytes:
    return charge.drawn.tokens if charge.drawn is not None else b""


async def would_convict(source: ShardSource, charge: Charge, folder: Path | None = None) -> bool:
    """Whether a charge's trace ends in the verdict that it claims, and a sample of its leaves holds.

    The trace is left under `folder` for the game to take up.
    """
    return await asyncio.to_thread(_would_convict, source, charge, folder)


def _would_convict(source: ShardSource, charge: Charge, folder: Path | None) -> bool:
    import random

    from core.dispute.play.players import Accuser, with_trace
    from core.dispute.play.prepare import traced
    from core.dispute.play.selfcheck import faults
    from core.dispute.trace.judge import Case

    ours = source.operators
    assert ours is not None, "a charge is made of a registered program"
    model = ours.trace_model(source.model_dir)
    case = Case(ours.program, (), charge.claim)
    case.check_claim()
    rows = charge.inputs, charge.outputs, charge.states
    trace, sources = traced(case, model, *rows, folder=folder)
    player = Accuser(with_trace(case, trace), trace, sources, _listed(charge))
    return player.is_convicting() and not faults(player, 1, random.Random(0))


def _deviation(
    source: ShardSource,
    ours: ModelProgram,
    place: Any,
    leaf: RequestLeaf,
    inputs: bytes,
    outputs: bytes,
) -> Claim | None:
    """What rows of the stage's work, of its last positions at least, say against it; None if nothing."""
    from core.dispute.judging.numerics import reexecute
    from core.dispute.play.claims import deviation_claim

    shard = source.load(place)
    served, entered = source.rows_of(shard, outputs), source.inputs_of(shard, inputs)
    first = len(entered) - len(served)
    wanted = range(first, len(entered))
    # Rows are looked at, logits are not, and are let go of as they come.
    made = reexecute(shard, entered, logit_rows=wanted, draw=lambda logits: [None] * len(logits))
    reference = made.rows if shard.is_last else made
    sigma = source.sigma(place.layer_to)
    layers = (place.layer_from, place.layer_to)
    excess = deviation_claim(ours.program, leaf, layers, served, reference.numpy(), sigma, first)
    return excess.claim if excess is not None else None


def _token(
    source: ShardSource,
    ours: ModelProgram,
    place: Any,
    leaf: RequestLeaf,
    worst: RequestFinding,
    inputs: bytes,
    outputs: bytes,
    opening: PromptOpening,
) -> tuple[Claim, bytes]:
    """The claim, and the tokens that it lists."""
    from core.dispute.judging.numerics import reexecute
    from core.dispute.play.claims import token_claim, token_due
    from core.dispute.trace.answer import likeliest, to_tokens
    from core.dispute.trace.derive import How
    from core.dispute.trace.draw import DrawError

    produced = worst.first_divergent_step
    if produced is None:
        raise _unjudged("no single token of this answer is wrong")
    shard = source.load(place)
    row = leaf.tokens_in - 1 + produced
    logits = reexecute(shard, source.inputs_of(shard, inputs), logit_rows=[row]).numpy()[0]
    tokens = tokens_in(outputs)
    due = token_due(
        logits, opening.sampling, leaf.request_index, tokens[:produced], prompt=opening.prompt_ids, eos_ids=source.eos_ids
    )  # fmt: skip
    layers = (place.layer_from, place.layer_to)
    try:
        claim = token_claim(
            ours.program, leaf, layers, opening.sampling, tokens, produced, due, logits
        )
    except DrawError as error:
        raise _unjudged(f"the referee does not judge how it was drawn ({error.name})") from None
    choice = claim.choice
    assert choice is not None
    if choice.how != How.OUTSIDE_TOP_K:
        return claim, b""
    return claim, to_tokens(likeliest(logits, choice.served, choice.top_k))


def _drawn(
    evidence: EvidenceCollector,
    opening: PromptOpening,
    leaf: RequestLeaf,
    claim: Claim,
    answer: CommittedRows,
    tokens: bytes,
) -> OrderedDraw:
    served = answer.open(claim.positions - leaf.tokens_in, 0)
    order, sampling, shown = evidence.case.order, opening.sampling.canonical(), opening.shown
    assert shown is not None, "openings are asked for over the wire"
    if shown.opening is None:
        proof = [commit.unhex(sibling) for sibling in shown.sampling_proof]
        return OrderedDraw(order, sampling, proof, served, tokens=tokens)
    said, signature = shown.opening.opening, shown.opening.signature
    return OrderedDraw(order, sampling, [], served, said, signature, tokens)


async def inquest_of(
    evidence: EvidenceCollector, source: ShardSource, accused: SignedReceipt, finding: StageFinding
) -> Inquest | None:
    """What to bring where a game cannot begin with a trace: rows that the stage signed and that are none, or questions for rows that
    nobody hands over. None where all rows are here and are rows.

    Raises CheckFailed for a model without an operator program.
    """
    ours = source.operators
    if ours is None:
        raise _unjudged("no operator program is registered for the model")
    suspects = [accused.leaves[len(finding.requests)]] if finding.withheld else []
    suspects += [leaf for leaf in accused.leaves if leaf.request_index in _at_fault(finding)]
    for leaf in suspects:
        doubted = Doubted(accused, ours.program, leaf)
        held, missing = await _held(evidence, doubted)
        malformed = doubted.malformed(held)
        if malformed is not None or missing:
            return Inquest(doubted, random.SystemRandom(), missing=missing, malformed=malformed)
    return None


def _at_fault(finding: StageFinding) -> set[int]:
    return {found.request_index for found in finding.requests if found.at_fault}


async def _held(
    evidence: EvidenceCollector, doubted: Doubted
) -> tuple[dict[Boundary, bytes], list[Boundary]]:
    """A request's rows as far as somebody hands them over, and the boundaries of which nobody does."""
    stage, held, missing = doubted.accused.receipt.stage, {}, []
    for boundary in (Boundary.IN, *doubted.rows.made):
        side: Side = _SIDES[boundary]
        row_bytes = doubted.rows.row_bytes(boundary)
        try:
            held[boundary] = await evidence.rows(stage, side, doubted.leaf, row_bytes)
        except RowsWithheld:
            missing.append(boundary)
    return held, missing


_SIDES: dict[Boundary, Side] = {
    Boundary.IN: "in",
    Boundary.OUT: "out",
    Boundary.STATES: "states",
}


def _unjudged(why: str) -> CheckFailed:
    return CheckFailed(
        "the tolerance game cannot be played about this finding",
        why,
        state="nothing was opened; no bond was paid",
        next_step="do not acknowledge the job; other miners are not affected",
    )
