"""How does an audit's finding become an accusation: a claim, its trace, how a token was ordered?"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from client.audit.evidence import EvidenceCollector, PromptOpening, tokens_in
from client.audit.rerun import (
    RequestFinding,
    ShardSource,
    StageFinding,
    inputs_of,
    served_rows,
)
from client.audit.spans import StageSpan, inner_roots, spans_of, whole_stage
from client.disputes.inquest import Doubted, Inquest
from client.disputes.prosecution import Accusation, OrderedDraw
from core.dispute.game.game_log import Opened, case_of
from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import RowOpening
from core.dispute.trace.judge import Case, Claim
from core.dispute.trace.sources import answer_rows, cut_rows
from core.protocol import commit
from core.protocol.errors import CheckFailed, RowsWithheld
from core.protocol.types import Order, RequestLeaf, SignedReceipt, Stage

if TYPE_CHECKING:
    from core.chain.chain import Chain
    from core.dispute.play.players import Accuser
    from core.dispute.play.program import ModelProgram


@dataclass(frozen=True)
class StageWork:
    """The rows of one request that a stage signed, at both ends of a span of its layers."""

    place: Stage
    leaf: RequestLeaf
    inputs: bytes
    outputs: bytes
    states: bytes = b""  # of a last stage

    @property
    def layers(self) -> tuple[int, int]:
        return self.place.layer_from, self.place.layer_to


@dataclass(frozen=True)
class Charge:
    """What an auditor is about to claim, its trace not made yet, and the rows that it is about."""

    accused: SignedReceipt
    claim: Claim
    work: StageWork
    drawn: OrderedDraw | None = None
    inner: tuple[bytes, ...] = ()  # roots inside the stage, where the claim is about one span


async def charge_of(
    evidence: EvidenceCollector, source: ShardSource, accused: SignedReceipt, finding: StageFinding
) -> Charge:
    """The claim that the finding's worst request supports; about rows rather than about tokens.

    Raises RowsWithheld, or CheckFailed where the referee judges no such thing: a prompt or count
    that is not the order's, sampling parameters that it does not know, a stage in shadow.
    """
    ours, worst = source.operators, finding.worst
    if ours is None or worst is None or not worst.at_fault:
        raise _unjudged("there is no deviation and no token to accuse")
    signed = next(leaf for leaf in accused.leaves if leaf.request_index == worst.request_index)
    spans = spans_of(evidence.case.plan, finding.stage, ours.program.span_layers)
    blamed = (one for one in spans if (one.layers.start, one.layers.end) == worst.layers)
    span = next(blamed, whole_stage(evidence.case.plan, finding.stage))
    roots = [] if span.is_whole else await inner_roots(evidence, spans, signed)
    leaf, inner = span.leaf(signed, roots), tuple(map(commit.unhex, roots))
    hidden, layers = 4 * ours.program.hidden, len(ours.program.layer_types)
    first, last = span.layers.start == 0, span.layers.end == layers
    inputs = await span.entered(evidence, leaf, 4 if first else hidden)
    outputs = await span.left(evidence, leaf, 4 if last else hidden)
    states = await evidence.rows(finding.stage, "states", leaf, hidden) if last else b""
    work = StageWork(span.place, leaf, inputs, outputs, states)
    deviation = await asyncio.to_thread(_deviation, source, ours, work)
    if deviation is not None:
        return Charge(accused, deviation, work, inner=inner)
    if not last:
        raise _unjudged("no window of these rows lies above the registered tolerance")
    opening = await evidence.opening(worst.request_index)
    claim, tokens = await asyncio.to_thread(_token, source, ours, work, worst, opening)
    rows = answer_rows(cut_rows(outputs, 4), cut_rows(states, hidden))[0]
    served = rows.open(claim.positions - leaf.tokens_in, 0)
    drawn = _drawn(evidence.case.order, opening, served, tokens)
    return Charge(accused, claim, work, drawn, inner)


async def accusation(
    chain: Chain, source: ShardSource, opened: Opened, charge: Charge, folder: Path | None = None
) -> Accusation:
    """The charge with its trace, kept under `folder`.

    Raises CheckFailed when that trace does not convict after all. The bond of an open game is lost
    then, so `would_convict` asks before.
    """
    case = await case_of(chain, opened, charge.claim)
    player = await asyncio.to_thread(_accuser, source, case, charge, folder)
    return Accusation(charge.accused, player, charge.drawn, charge.inner)


def _accuser(source: ShardSource, case: Case, charge: Charge, folder: Path | None) -> Accuser:
    """The player of this charge, its trace made or taken up under `folder`."""
    from core.dispute.play.players import Accuser, with_trace
    from core.dispute.play.prepare import traced

    ours, work = source.operators, charge.work
    assert ours is not None, "a charge is made of a registered program"
    model, rows = ours.trace_model(source.model_dir), (work.inputs, work.outputs, work.states)
    trace, sources = traced(case, model, *rows, folder=folder)
    tokens = charge.drawn.tokens if charge.drawn is not None else b""
    return Accuser(with_trace(case, trace), trace, sources, tokens)


async def would_convict(source: ShardSource, charge: Charge, folder: Path | None = None) -> bool:
    """Whether a charge's trace ends in the verdict that it claims, and no plea is to be expected
    that changes it; a sample of leaves and of seeds is checked.

    The trace is left under `folder` for the game to take up.
    """
    return await asyncio.to_thread(_would_convict, source, charge, folder)


def _would_convict(source: ShardSource, charge: Charge, folder: Path | None) -> bool:
    from core.dispute.play.plea import is_beyond_noise
    from core.dispute.play.selfcheck import faults

    ours = source.operators
    assert ours is not None, "a charge is made of a registered program"
    case = Case(ours.program, (), charge.claim)
    case.check_claim()
    player = _accuser(source, case, charge, folder)
    if not player.is_convicting() or faults(player, 1, random.Random(0)):
        return False
    # A token has no plea.
    is_token = charge.claim.choice is not None
    return is_token or is_beyond_noise(player.case.layout, player.sources)


def _deviation(source: ShardSource, ours: ModelProgram, work: StageWork) -> Claim | None:
    """What the rows of a stage's last positions say against it; None if nothing."""
    from core.dispute.judging.numerics import reexecute
    from core.dispute.play.claims import deviation_claim

    shard = source.load(work.place)
    served = served_rows(shard, work.states if shard.is_last else work.outputs)
    entered = inputs_of(shard, work.inputs)
    first = len(entered) - len(served)
    wanted = range(first, len(entered))
    # Logits are not looked at, and are let go of as they come.
    made = reexecute(shard, entered, logit_rows=wanted, draw=lambda logits: [None] * len(logits))
    reference = made.rows if shard.is_last else made
    sigma, claimed = source.sigma(work.place.layer_to), (work.leaf, work.layers)
    excess = deviation_claim(ours.program, *claimed, served, reference.numpy(), sigma, first)
    return excess.claim if excess is not None else None


def _token(
    source: ShardSource,
    ours: ModelProgram,
    work: StageWork,
    worst: RequestFinding,
    opening: PromptOpening,
) -> tuple[Claim, bytes]:
    """The claim, and the tokens that it lists."""
    import torch

    from core.dispute.play.claims import token_claim, token_due
    from core.dispute.trace.answer import likeliest, to_tokens
    from core.dispute.trace.derive import How
    from core.dispute.trace.draw import DrawError
    from core.engine.batch.whole import head_logits

    produced = worst.first_divergent_step
    if produced is None:
        raise _unjudged("no single token of this answer is wrong")
    shard, leaf = source.load(work.place), work.leaf
    state = torch.from_numpy(served_rows(shard, work.states)[produced]).double()
    logits = head_logits(shard, state[None]).numpy()[0]
    tokens = tokens_in(work.outputs)
    sampling, prompt = opening.sampling, opening.prompt_ids
    history = {
        "prompt": prompt,
        "eos_ids": source.eos_ids,
        "grammar": source.grammar(sampling, prompt),
    }
    due = token_due(logits, sampling, leaf.request_index, tokens[:produced], **history)
    try:
        claim = token_claim(
            ours.program, leaf, work.layers, sampling, tokens, produced, due, logits
        )
    except DrawError as error:
        raise _unjudged(f"the referee does not judge how it was drawn ({error.name})") from None
    choice = claim.choice
    assert choice is not None
    if choice.how != How.OUTSIDE_TOP_K:
        return claim, b""
    return claim, to_tokens(likeliest(logits, choice.served, choice.top_k))


def _drawn(order: Order, opening: PromptOpening, served: RowOpening, tokens: bytes) -> OrderedDraw:
    sampling, shown = opening.sampling.canonical(), opening.shown
    assert shown is not None, "openings are asked for over the wire"
    if shown.opening is None:
        proof = [commit.unhex(sibling) for sibling in shown.sampling_proof]
        return OrderedDraw(order, sampling, proof, served, tokens=tokens)
    said, signature = shown.opening.opening, shown.opening.signature
    return OrderedDraw(order, sampling, [], served, said, signature, tokens)


async def inquest_of(
    evidence: EvidenceCollector, source: ShardSource, accused: SignedReceipt, finding: StageFinding
) -> Inquest | None:
    """What to bring where a game cannot begin with a trace; None where all rows are here and sound.

    Raises CheckFailed for a model without an operator program.
    """
    ours = source.operators
    if ours is None:
        raise _unjudged("no operator program is registered for the model")
    suspects = [accused.leaves[len(finding.requests)]] if finding.withheld else []
    at_fault = {found.request_index for found in finding.requests if found.at_fault}
    suspects += [leaf for leaf in accused.leaves if leaf.request_index in at_fault]
    spans = spans_of(evidence.case.plan, finding.stage, ours.program.span_layers)
    for signed in suspects:
        try:
            roots = await inner_roots(evidence, spans, signed)
        except RowsWithheld:
            whole = evidence.case.plan[finding.stage].layers
            doubted = Doubted(accused, ours.program, signed, whole)
            return Inquest(doubted, random.SystemRandom(), missing=[Boundary.INNER])
        inner = tuple(map(commit.unhex, roots))
        for span in spans:
            leaf = span.leaf(signed, roots)
            doubted = Doubted(accused, ours.program, leaf, span.layers, inner)
            held, missing = await _held(evidence, span, doubted)
            malformed = doubted.malformed(held)
            if malformed is not None or missing:
                return Inquest(doubted, random.SystemRandom(), missing=missing, malformed=malformed)
    return None


async def _held(
    evidence: EvidenceCollector, span: StageSpan, doubted: Doubted
) -> tuple[dict[Boundary, bytes], list[Boundary]]:
    """A request's rows as far as they are handed over, and the boundaries whose rows are not."""
    held, missing, leaf = {}, [], doubted.leaf
    for boundary in (Boundary.IN, *doubted.rows.made):
        row_bytes = doubted.rows.row_bytes(boundary)
        try:
            match boundary:
                case Boundary.IN:
                    held[boundary] = await span.entered(evidence, leaf, row_bytes)
                case Boundary.OUT:
                    held[boundary] = await span.left(evidence, leaf, row_bytes)
                case _:
                    held[boundary] = await evidence.rows(span.stage, "states", leaf, row_bytes)
        except RowsWithheld:
            missing.append(boundary)
    return held, missing


def _unjudged(why: str) -> CheckFailed:
    return CheckFailed(
        "the tolerance game cannot be played about this finding",
        why,
        state="nothing was opened; no bond was paid",
        next_step="do not acknowledge the job; other miners are not affected",
    )
