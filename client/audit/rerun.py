"""Did a stage do what it signed: its layers in float64, from the committed inputs, compared once?

Verdicts follow the calibrated tolerance of the model's numerics profile
(`core/dispute/judging/numerics.py`). One stage's shard is in memory at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from client.audit.evidence import EvidenceCollector, PromptOpening, tokens_in
from client.audit.precheck import ends_clear, rows_clear
from client.audit.spans import StageSpan, inner_roots, spans_of, whole_stage
from client.audit.suspicion import is_due, suspicion
from core.protocol.errors import CheckFailed, ModelUnsupported, RowsWithheld
from core.protocol.types import LayerRange, RequestLeaf, SamplingParams, Stage

if TYPE_CHECKING:
    from core.dispute.judging.numerics import NumericsProfile, NumericsVerdict
    from core.dispute.play.program import ModelProgram
    from core.dispute.trace.program import Program
    from core.engine.model.blocks import ModelShard
    from core.engine.sampling.grammar import Grammar
    from core.engine.weights.tokenizer import Tokenizer


@dataclass(frozen=True)
class RequestFinding:
    """One request at one stage."""

    request_index: int
    at_fault: bool
    reasons: tuple[str, ...]
    ratio: float  # D/S, or nats for tokens, whichever is nearer to its limit
    limit: float  # T, or δ
    first_divergent_step: int | None
    suspicion: str = ""  # why work within the limits stands out (`client/audit/suspicion.py`)
    layers: tuple[int, int] | None = None  # of the stage's span that it says this of


@dataclass(frozen=True)
class StageFinding:
    """A stage's work on all audited requests."""

    stage: int
    operator: str
    layers: tuple[int, int]
    requests: tuple[RequestFinding, ...] = ()
    withheld: str = ""

    @property
    def at_fault(self) -> bool:
        return bool(self.withheld) or any(r.at_fault for r in self.requests)

    @property
    def suspicion(self) -> str:
        """What stands out of honest noise in a stage that is not at fault; "" for nothing."""
        found = (r.suspicion for r in self.requests if r.suspicion and not self.at_fault)
        return next(found, "")

    @property
    def why(self) -> str:
        """What speaks against it, in words; "" for nothing."""
        worst = self.worst
        reasons = "; ".join(worst.reasons) if worst else ""
        if reasons and worst and worst.layers:
            reasons = f"in layers {LayerRange(*worst.layers)}: {reasons}"
        return self.withheld or self.suspicion or reasons

    @property
    def worst(self) -> RequestFinding | None:
        """The request that speaks most against the stage."""
        return max(self.requests, key=lambda r: (r.at_fault, r.ratio / r.limit), default=None)

    def digest(self) -> bytes:
        """SHA-256 of the finding: what a juror's vote refers to."""
        return sha256(msgspec.json.encode(self)).digest()


@dataclass(frozen=True)
class AuditEffort:
    """What looking at a stage took."""

    in_float64: int  # requests, of each span of the stage
    spent_s: float  # of computing, not of loading and fetching

    def __add__(self, other: AuditEffort) -> AuditEffort:
        return AuditEffort(self.in_float64 + other.in_float64, self.spent_s + other.spent_s)


class ShardSource:
    """Float64 shards of one model folder whose weights are proven to be the registered ones."""

    def __init__(
        self,
        model_dir: Path,
        profile: NumericsProfile,
        program: Program | None = None,
        *,
        fetch: Callable[[LayerRange], object] = lambda layers: None,
    ) -> None:
        """`program` is the model's registered operator program, if any: it whitens deviations.

        `fetch` brings layers that are not here.
        """
        self.model_dir, self.profile, self.program = model_dir, profile, program
        self._fetch = fetch

    def shard_root(self, stage: Stage) -> str:
        """The commitment to our own copy of a stage's weights, 0x hex."""
        from core.engine.weights.weights import weight_roots
        from core.protocol.commit import to_hex

        return to_hex(weight_roots(self.model_dir).shard_root(stage.layer_from, stage.layer_to))

    @property
    def numerics(self) -> str:
        """What the model's machines hold weights and compute in."""
        from core.dispute.judging.numerics import BF16

        return "bfloat16" if self.profile.name == BF16.name else "float32"

    def load(self, stage: Stage) -> ModelShard:
        """The layers of a stage in float64."""
        from core.engine.weights.load_shard import load_shard

        self._fetch(stage.layers)
        return load_shard(self.model_dir, stage.layers, numerics=self.numerics, reference=True)

    def load_rough(self, stage: Stage) -> ModelShard:
        """The same layers in float32, for `client/audit/precheck.py`."""
        from core.engine.weights.load_shard import load_shard

        self._fetch(stage.layers)
        return load_shard(self.model_dir, stage.layers)

    def load_own(self, stage: Stage) -> ModelShard:
        """The same layers as their machines run them, for `client/audit/suspicion.py`."""
        from core.engine.weights.load_shard import load_shard

        self._fetch(stage.layers)
        return load_shard(self.model_dir, stage.layers, numerics=self.numerics)

    @property
    def span_layers(self) -> int:
        """Layers between two boundaries that stages of the model sign; 0: all of a stage's."""
        return self.profile.span_layers

    @cached_property
    def operators(self) -> ModelProgram | None:
        """The registered program with its tables. Raises CheckFailed where files make another."""
        from client.audit.programs import local_program

        return local_program(self.model_dir, self.program) if self.program else None

    def sigma(self, boundary: int) -> Any:
        """The size of each channel [hidden] before layer `boundary`; None if none is registered."""
        from core.dispute.trace.families import SIGMA

        return self.operators.tables[SIGMA][boundary] if self.operators else None

    def grammar(self, sampling: SamplingParams, prompt: Sequence[int]) -> Grammar | None:
        """What an answer to this prompt must follow, if anything. Raises GrammarInvalid."""
        from core.engine.sampling.grammar import grammar_of

        return grammar_of(sampling, prompt, self.tokenizer if sampling.grammar else None)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from core.engine.weights.tokenizer import Tokenizer

        return Tokenizer(self.model_dir)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        return self.tokenizer.eos_ids


#: From so many rows on, laying weights out saves more time than it takes.
PREPARED_FROM_ROWS = 512


class _StageJudge:
    """Judges a stage's requests: in float32 first where that is asked for, in float64 in doubt.

    Shards are prepared (`core.engine.batch.whole.prepare`) where there are many `rows` to run.
    """

    def __init__(self, source: ShardSource, place: Stage, *, precheck: bool, rows: int) -> None:
        self._source, self._place, self._rows = source, place, rows
        self._has_rough = precheck and not source.profile.is_shadow
        self._in_float64, self._spent_s = 0, 0.0

    @cached_property
    def _exact(self) -> ModelShard:
        return self._ready(self._source.load(self._place))

    @cached_property
    def _rough(self) -> ModelShard | None:
        return self._ready(self._source.load_rough(self._place)) if self._has_rough else None

    @cached_property
    def _own(self) -> ModelShard:
        is_float32 = self._source.numerics == "float32"
        return (self._rough if is_float32 else None) or self._source.load_own(self._place)

    def _ready(self, shard: ModelShard) -> ModelShard:
        from core.engine.batch.whole import prepare

        is_short = self._rows < PREPARED_FROM_ROWS
        return shard if is_short else prepare(shard, self._source.model_dir)

    def ready(self) -> None:
        """Have a shard in memory. Raises as `ShardSource.load` does."""
        assert self.shard

    @property
    def shard(self) -> ModelShard:
        """For what all precisions have: widths, layers, vocabulary."""
        return self._rough or self._exact

    @property
    def effort(self) -> AuditEffort:
        return AuditEffort(self._in_float64, self._spent_s)

    async def off_loop(self, judge: Callable[..., RequestFinding], *args: Any) -> RequestFinding:
        """Judge in a thread, and count the time."""
        started = time.perf_counter()
        try:
            return await asyncio.to_thread(judge, *args)
        finally:
            self._spent_s += time.perf_counter() - started

    def judge_rows(self, leaf: RequestLeaf, inputs: bytes, outputs: bytes) -> RequestFinding:
        """The activations of a stage that is not the last."""
        from core.dispute.judging.numerics import judge_rows, reexecute

        profile, sigma = self._source.profile, self._sigma
        served = served_rows(self.shard, outputs)
        if (rough := self._rough) is not None:
            seen = rows_clear(profile, rough, inputs_of(rough, inputs), served, sigma)
            if seen is not None:
                rows, ours = seen
                limit = profile.tolerance(len(rough.layers), len(served))
                stands_out = self._stands_out(rows.ratio, limit, inputs, served, ours)
                return RequestFinding(
                    leaf.request_index, False, (), rows.ratio, limit, None, stands_out
                )
        self._in_float64 += 1
        exact = self._exact
        reference = reexecute(exact, inputs_of(exact, inputs)).numpy()
        rows = judge_rows(profile, len(exact.layers), served, reference, sigma)
        stands_out, divergent = "", None
        if rows.at_fault:
            divergent = _first_beyond(rows, served, reference, sigma)
        else:
            stands_out = self._stands_out(rows.ratio, rows.limit, inputs, served, reference)
        near = rows.ratio, rows.limit
        return RequestFinding(
            leaf.request_index, rows.at_fault, rows.reasons, *near, divergent, stands_out
        )

    def judge_ends(self, leaf: RequestLeaf, inputs: bytes, ends: _Ends) -> RequestFinding:
        """A last stage: its state rows as any other's, and its tokens by the head on them."""
        from core.dispute.judging.numerics import TokenMargins, judge_rows, reexecute

        source, profile, shard, sigma = self._source, self._source.profile, self.shard, self._sigma
        tokens, opening = ends.tokens, ends.opening
        unknown = next((i for i, t in enumerate(tokens) if t >= shard.vocab), None)
        if unknown is not None:
            reason = f"token {tokens[unknown]} at step {unknown}, the vocabulary has {shard.vocab}"
            return _plain_fault(leaf, reason, unknown)
        reasons, end = _end_faults(source, opening, tokens)
        served = served_rows(shard, ends.states)

        def margins() -> TokenMargins:
            sampling, prompt = opening.sampling, opening.prompt_ids
            grammar = source.grammar(sampling, prompt)
            how = {"prompt": prompt, "eos_ids": source.eos_ids, "grammar": grammar}
            return TokenMargins(tokens, sampling, leaf.request_index, **how)

        if (rough := self._rough) is not None and not reasons:
            seen = ends_clear(profile, rough, inputs_of(rough, inputs), served, sigma, margins())
            if seen is not None:
                rows, ours, by_token = seen
                limit = profile.tolerance(len(rough.layers), len(served))
                stands_out = self._stands_out(rows.ratio, limit, inputs, served, ours)
                near = _nearer((rows.ratio, limit), (by_token.ratio, 2 * by_token.limit))
                return RequestFinding(leaf.request_index, False, (), *near, None, stands_out)
        self._in_float64 += 1
        exact, drawn, first = self._exact, margins(), leaf.tokens_in - 1
        wanted = range(first, first + len(tokens))
        entered = inputs_of(exact, inputs)
        made = reexecute(exact, entered, logit_rows=wanted, draw=drawn, served=served)
        reference = made.rows.numpy()
        rows = judge_rows(profile, len(exact.layers), served, reference, sigma)
        by_token = drawn.verdict(profile)
        stands_out, divergent = "", None
        if by_token.at_fault:
            divergent = by_token.worst_row
        elif reasons:
            divergent = end
        elif rows.at_fault:
            divergent = _first_beyond(rows, served, reference, sigma)
        else:
            stands_out = self._stands_out(rows.ratio, rows.limit, inputs, served, reference)
        all_reasons = (*reasons, *rows.reasons, *by_token.reasons)
        near = _nearer((rows.ratio, rows.limit), (by_token.ratio, by_token.limit))
        return RequestFinding(
            leaf.request_index, bool(all_reasons), all_reasons, *near, divergent, stands_out
        )

    @cached_property
    def _sigma(self) -> Any:
        return self._source.sigma(self._place.layer_to)

    def _stands_out(
        self, ratio: float, limit: float, inputs: bytes, served: Any, reference: Any
    ) -> str:
        profile = self._source.profile
        if not is_due(profile, ratio, limit):
            return ""
        own = self._own
        return suspicion(profile, own, inputs_of(own, inputs), served, reference, self._sigma)


@dataclass(frozen=True)
class _Ends:
    """What a last stage signed of one request, and what was ordered."""

    tokens: tuple[int, ...]
    states: bytes
    opening: PromptOpening


def check_weights(source: ShardSource, place: Stage, registered_shard_root: str) -> None:
    """Raises CheckFailed when our own copy of a stage's weights is not the registered model."""
    ours = source.shard_root(place)
    if ours != registered_shard_root:
        raise CheckFailed(
            f"our copy of layers {place.layers} is not the registered model",
            f"shard root {ours}, registered {registered_shard_root}",
            next_step="unpack the model again",
        )


async def audit_stage(
    evidence: EvidenceCollector,
    source: ShardSource,
    stage: int,
    leaves: Sequence[RequestLeaf],
    registered_shard_root: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    precheck: bool = False,
    effort: Callable[[AuditEffort], None] = lambda effort: None,
) -> StageFinding:
    """Re-run one stage on these requests.

    With `precheck` a request that a float32 re-run clears is not re-run in float64; `effort` is
    told what it took. A stage whose rows are withheld is at fault: it must answer for what it
    signed. Raises CheckFailed when our own copy of the weights is not the registered model.
    """
    place = evidence.case.plan[stage]
    await asyncio.to_thread(check_weights, source, place, registered_shard_root)
    rows = sum(leaf.tokens_in + leaf.tokens_out for leaf in leaves)
    spans = spans_of(evidence.case.plan, stage, source.span_layers)
    total, found = len(spans) * len(leaves), dict[int, RequestFinding]()
    done, withheld, spent = 0, "", AuditEffort(0, 0.0)
    # The shard of one span is in memory at a time.
    for span in spans:
        judge = _StageJudge(source, span.place, precheck=precheck, rows=rows)
        await asyncio.to_thread(judge.ready)
        before = spent
        try:
            for position, leaf in enumerate(leaves):
                progress(done, total)
                seen = await _audit_request(evidence, judge, spans, span, leaf)
                found[position] = _worse(found.get(position), seen)
                done += 1
        except RowsWithheld as error:
            withheld = f"{error.what}: {error.why}"
            break
        finally:
            spent = before + judge.effort
            effort(spent)
    else:
        progress(total, total)
    findings = tuple(found.values())
    if withheld:
        position = done % len(leaves)
        if any(one.at_fault for one in findings[position:]):
            withheld = ""  # that suffices
        else:
            findings = findings[:position]  # the next one's rows are those withheld
    if withheld and len(spans) > 1:
        in_one = await _in_one(evidence, source, stage, leaves, precheck=precheck)
        if any(one.at_fault for one in in_one):
            findings, withheld = in_one, ""
    layers = place.layer_from, place.layer_to
    return StageFinding(stage, place.operator, layers, findings, withheld)


async def _in_one(
    evidence: EvidenceCollector,
    source: ShardSource,
    stage: int,
    leaves: Sequence[RequestLeaf],
    *,
    precheck: bool,
) -> tuple[RequestFinding, ...]:
    """All layers of a stage that shows nobody what is inside it, by the rows of its neighbours.

    Nothing where these are withheld too, or there is no tolerance for so many layers.
    """
    span = whole_stage(evidence.case.plan, stage)
    rows = sum(leaf.tokens_in + leaf.tokens_out for leaf in leaves)
    judge = _StageJudge(source, span.place, precheck=precheck, rows=rows)
    try:
        source.profile.tolerance(len(span.layers))
        return tuple([await _audit_request(evidence, judge, [span], span, leaf) for leaf in leaves])
    except (RowsWithheld, ModelUnsupported):
        return ()


def _worse(one: RequestFinding | None, other: RequestFinding) -> RequestFinding:
    """What speaks more against the stage, of what two of its spans did of one request."""
    if one is None:
        return other
    by_weight = (one, other) if _weight(one) >= _weight(other) else (other, one)
    worse, rest = by_weight
    return replace(worse, suspicion=worse.suspicion or rest.suspicion)


def _weight(finding: RequestFinding) -> tuple[bool, float]:
    return finding.at_fault, finding.ratio / finding.limit


async def _audit_request(
    evidence: EvidenceCollector,
    judge: _StageJudge,
    spans: Sequence[StageSpan],
    span: StageSpan,
    signed: RequestLeaf,
) -> RequestFinding:
    shard = judge.shard
    if impossible := _impossible_counts(signed, shard.context):
        return _plain_fault(signed, impossible)
    leaf = span.leaf(signed, await inner_roots(evidence, spans, signed))
    found = await _audit_rows(evidence, judge, span, leaf)
    return found if span.is_whole else replace(found, layers=(span.layers.start, span.layers.end))


async def _audit_rows(
    evidence: EvidenceCollector, judge: _StageJudge, span: StageSpan, leaf: RequestLeaf
) -> RequestFinding:
    shard = judge.shard
    first, last, hidden = shard.is_first, shard.is_last, 4 * shard.hidden
    in_bytes, out_bytes = 4 if first else hidden, 4 if last else hidden
    inputs = await span.entered(evidence, leaf, in_bytes)
    outputs = await span.left(evidence, leaf, out_bytes)
    rows = leaf.tokens_in + leaf.tokens_out - 1
    if len(inputs) != rows * in_bytes:
        return _plain_fault(leaf, f"{len(inputs) // in_bytes} input rows for {rows} positions")
    expected = leaf.tokens_out if last else rows
    if len(outputs) != expected * out_bytes:
        return _plain_fault(leaf, f"{len(outputs) // out_bytes} output rows for {expected} due")
    states = await evidence.rows(span.stage, "states", leaf, hidden) if last else b""
    if last and len(states) != expected * hidden:
        return _plain_fault(leaf, f"{len(states) // hidden} state rows for {expected} due")
    if not first and not last:
        return await judge.off_loop(judge.judge_rows, leaf, inputs, outputs)
    opening = await evidence.opening(leaf.request_index)
    fed = tokens_in(inputs) if first else None
    foreign = next((token for token in fed or () if token >= shard.vocab), None)
    if disordered := _disordered(leaf, opening, fed):
        return _plain_fault(leaf, disordered)
    if foreign is not None:
        return _plain_fault(leaf, f"fed token {foreign} of {shard.vocab}")
    if last:
        ends = _Ends(tokens_in(outputs), states, opening)
        return await judge.off_loop(judge.judge_ends, leaf, inputs, ends)
    return await judge.off_loop(judge.judge_rows, leaf, inputs, outputs)


def _plain_fault(leaf: RequestLeaf, reason: str, step: int | None = None) -> RequestFinding:
    """A fault that needs no arithmetic."""
    return RequestFinding(leaf.request_index, True, (reason,), 1.0, 1.0, step)


def _impossible_counts(leaf: RequestLeaf, context: int) -> str:
    """Why no honest stage signs for so many tokens; "" if one may."""
    if not leaf.tokens_in or not leaf.tokens_out:
        return f"signed for {leaf.tokens_in} prompt and {leaf.tokens_out} produced tokens"
    if leaf.tokens_in + leaf.tokens_out > context:
        return f"{leaf.tokens_in} + {leaf.tokens_out} tokens exceed the context of {context}"
    return ""


def _disordered(leaf: RequestLeaf, opening: PromptOpening, fed: tuple[int, ...] | None) -> str:
    """Why this is not the work that was ordered; "" if it is. `fed` are a first stage's inputs."""
    ordered = len(opening.prompt_ids)
    if ordered != leaf.tokens_in:
        return f"counted {leaf.tokens_in} prompt tokens, the order has {ordered}"
    if fed is not None and fed[:ordered] != opening.prompt_ids:
        return "ran on another prompt than the order's"
    return ""


def _first_beyond(verdict: NumericsVerdict, served: Any, reference: Any, sigma: Any) -> int:
    """The first row that alone lies beyond the limit, or the worst where only all together do."""
    from core.dispute.judging.numerics import whitened_relative_l2

    off = whitened_relative_l2(served, reference, sigma).rows
    beyond = (i for i, deviation in enumerate(off) if deviation > verdict.limit)
    return next(beyond, verdict.worst_row)


def _nearer(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Of two measures with their limits the one that is nearer to it, or further beyond."""
    return max(one, other, key=lambda of: of[0] / of[1])


def _end_faults(
    source: ShardSource, opening: PromptOpening, tokens: Sequence[int]
) -> tuple[list[str], int | None]:
    """What is wrong with where the answer ends, and the step at which it should have.

    An answer that ends early is none of it: the requester may have cut it, and its own client
    takes no other early end.
    """
    from core.engine.sampling.stops import AnswerEnding

    sampling = opening.sampling
    tokenizer = source.tokenizer if sampling.stop else None
    ending = AnswerEnding(sampling, source.eos_ids, tokenizer, opening.prompt_ids)
    finishes = [ending.push(token) for token in tokens]
    end = next((i for i, finish in enumerate(finishes) if finish), None)
    if end is None or end == len(tokens) - 1:
        return [], end
    if finishes[end] == "length":
        return [f"{len(tokens)} tokens, at most {sampling.max_new_tokens} ordered"], end
    is_eos = tokens[end] in source.eos_ids and not sampling.ignore_eos
    what = "the end-of-text token" if is_eos else "a stop string"
    return [f"went on after {what} at step {end}"], end


def inputs_of(shard: ModelShard, rows: bytes) -> Any:
    """Committed input rows as the shard takes them: ids [N], or float64 [N, hidden]."""
    import torch

    if shard.is_first:
        return torch.tensor(tokens_in(rows), dtype=torch.int64)
    return torch.from_numpy(served_rows(shard, rows)).to(torch.float64)


def served_rows(shard: ModelShard, rows: bytes) -> Any:
    """Committed activations, f32le, as an array [T, hidden]."""
    import numpy as np

    return np.frombuffer(rows, dtype="<f4").reshape(-1, shard.hidden).copy()


async def audit_job(
    evidence: EvidenceCollector,
    source: ShardSource,
    leaves_by_stage: Sequence[Sequence[RequestLeaf]],
    shard_roots: Sequence[str],
    progress: Callable[[int, int, int], None] = lambda stage, done, total: None,
    *,
    precheck: bool = False,
    effort: Callable[[int, AuditEffort], None] = lambda stage, effort: None,
    stages: Collection[int] | None = None,
) -> list[StageFinding]:
    """`audit_stage` for every stage of a job, or only these, one shard in memory at a time."""
    return [
        await audit_stage(
            evidence,
            source,
            stage,
            leaves,
            shard_roots[stage],
            partial(progress, stage),
            precheck=precheck,
            effort=partial(effort, stage),
        )
        for stage, leaves in enumerate(leaves_by_stage)
        if stages is None or stage in stages
    ]
