"""How far may an honest machine be from the exact answer, and when is it too far?

Served values are compared once, with a float64 execution from the committed inputs, under one
calibrated tolerance per profile and depth. Distances are whitened: every channel counts in units of
its own size, because plain distances see only the few giant channels that decoders have.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.dispute.judging.margin import gain, margin_of
from core.dispute.trace.families import BF16_PLEA, FP32_PROFILE, SPAN_LAYERS
from core.dispute.trace.program import Program
from core.engine.batch.whole import run_whole
from core.engine.model.blocks import MAX_ACTIVATION, Draw, Final, ModelShard
from core.engine.sampling.grammar import Grammar
from core.engine.sampling.sampling import Sampler
from core.protocol.errors import ModelUnsupported
from core.protocol.types import MICRO, SamplingParams

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NumericsProfile:
    """What a model's machines promise about precision, and what an auditor holds them to."""

    name: str
    #: (deepest shard in layers, tolerance T): a window is at fault iff D > T·S.
    tolerance_by_depth: tuple[tuple[int, float], ...]
    #: One row alone is a fault above this, for shards of at most `single_row_depth` layers.
    single_row: float
    single_row_depth: int
    #: A produced token is a fault above this margin in nats, by norm and head of its state row.
    token_margin: float
    #: What an answer does not follow from the model above, replayed from its ids: one token's
    #: margin in nats.
    replay_margin: float
    window_rows: int
    least_rows: int
    #: Studentised deviations up to the first are clean, beyond the second suspicious
    #: (`studentised`).
    clean_q: float = 4.0
    suspicious_q: float = 10.0
    #: T for windows of fewer than `window_rows` rows; empty: the same.
    short_by_depth: tuple[tuple[int, float], ...] = ()
    #: Largest mean of min(margin, 1 nat) over `mean_tokens` replayed tokens or more: what an answer
    #: may owe to near ties.
    mean_margin: float = math.inf
    mean_tokens: int = 64
    #: Layers between two boundaries that a stage signs; 0: all that it has.
    span_layers: int = SPAN_LAYERS

    @property
    def is_shadow(self) -> bool:
        """Nothing was calibrated: deviations are measured, and no machine is accused of one."""
        return not self.tolerance_by_depth

    def tolerance(self, depth: int, rows: int | None = None) -> float:
        """T for a shard of `depth` layers over `rows` rows (a full window); infinite in shadow.

        Raises ModelUnsupported for deeper shards than were calibrated.
        """
        if self.is_shadow:
            return math.inf
        is_short = rows is not None and rows < self.window_rows
        table = (self.short_by_depth if is_short else ()) or self.tolerance_by_depth
        for deepest, tolerance in table:
            if 1 <= depth <= deepest:
                return tolerance
        raise ModelUnsupported(
            f"no tolerance for a shard of {depth} layers",
            why=f"profile {self.name} is calibrated for 1 to {self.tolerance_by_depth[-1][0]}",
            next_step="serve the model in shallower shards",
        )


#: float32 weights, activations, accumulation and wire, without TF32.
FP32 = NumericsProfile(
    name=FP32_PROFILE,
    tolerance_by_depth=((1, 1e-5), (6, 3e-5), (30, 1e-4)),
    single_row=1e-4,
    single_row_depth=10,
    token_margin=0.01,
    replay_margin=0.01,
    window_rows=64,
    least_rows=16,
)
#: bfloat16 weights, activations and wire, float32 accumulation, norm and head in float32; the
#: published table, see `families.BF16_TOLERANCES`.
BF16 = NumericsProfile(
    name="bf16",
    tolerance_by_depth=((1, 1.5e-2), (6, 3.3e-2), (18, 6.5e-2)),
    short_by_depth=((1, 3e-2), (6, 6.6e-2), (18, 1.3e-1)),
    single_row=0.25,
    single_row_depth=10,
    token_margin=0.01,
    replay_margin=1.0,
    window_rows=64,
    least_rows=16,
    clean_q=1.6,
    suspicious_q=1.8,
    mean_margin=0.02,
)
PROFILES = {FP32.name: FP32}
_PARTS = 10**12


def profile_of(program: Program) -> NumericsProfile:
    """What a model's operator program promises, as an auditor tests it.

    Without tolerances: a shadow profile. A program whose shakes are bfloat16's is of such machines,
    whose own noise is what coarser weights are told by.
    """
    kind = BF16 if program.plea.own_bits == BF16_PLEA.own_bits else FP32
    entries = sorted(program.tolerances, key=lambda t: t.max_depth)
    rows = {entry.min_rows for entry in entries}
    single = [entry for entry in entries if entry.min_rows == 1]
    least = min((row for row in rows if row > 1), default=kind.least_rows)
    window = max(rows, default=kind.window_rows)
    return NumericsProfile(
        name=kind.name,
        tolerance_by_depth=tuple(
            (entry.max_depth, entry.parts_per_trillion / _PARTS)
            for entry in entries
            if entry.min_rows == window
        ),
        short_by_depth=tuple(
            (entry.max_depth, entry.parts_per_trillion / _PARTS)
            for entry in entries
            if entry.min_rows == least and least < window
        ),
        single_row=single[-1].parts_per_trillion / _PARTS if single else math.inf,
        single_row_depth=single[-1].max_depth if single else 0,
        token_margin=program.delta_micro / MICRO,
        replay_margin=kind.replay_margin,
        window_rows=window,
        least_rows=least,
        clean_q=kind.clean_q,
        suspicious_q=kind.suspicious_q,
        mean_margin=kind.mean_margin,
        mean_tokens=kind.mean_tokens,
        span_layers=program.span_layers,
    )


@dataclass(frozen=True)
class Deviation:
    """D and S of the tolerance test D > T·S, and each row's own ratio (+inf for non-finite
    rows).
    """

    D: float
    S: float
    rows: Floats  # [T]

    @property
    def ratio(self) -> float:
        if self.S > 0:
            return self.D / self.S
        return 0.0 if self.D == 0 else float("inf")


@dataclass(frozen=True)
class NumericsVerdict:
    """What the numbers say about one shard's work on one request; `at_fault` with the reasons."""

    at_fault: bool
    reasons: tuple[str, ...]
    ratio: float  # worst window's D/S; for tokens the largest margin in nats
    limit: float
    worst_row: int
    behind: int = 0  # tokens that are not the auditor's own choice

    @property
    def headroom(self) -> float:
        """limit / ratio: how many times worse the work could have been."""
        return self.limit / self.ratio if self.ratio else float("inf")


def whitened_relative_l2(
    served: Any, reference: Any, sigma: npt.NDArray[Any] | None = None
) -> Deviation:
    """D² = ΣΣ((y−s)/σ)², S² = ΣΣ(s/σ)² over rows [T, D], and dev_t = ‖(y_t−s_t)/σ‖ / ‖s_t/σ‖.

    `sigma` [D] is the size of each channel; without it, the rms of the reference rows. Channels
    that are zero throughout the reference count unscaled.
    """
    y, s = _matrix(served), _matrix(reference)
    if y.shape != s.shape:
        raise ValueError(f"served {y.shape} and reference {s.shape} differ in shape")
    return _deviation(*_squares(y, s, sigma))


def _squares(y: Floats, s: Floats, sigma: npt.NDArray[Any] | None) -> tuple[Floats, Floats]:
    """Each row's Σ((y−s)/σ)² and Σ(s/σ)²."""
    scale = np.sqrt(np.mean(s * s, axis=0)) if sigma is None else np.asarray(sigma, np.float64)
    scale = np.where(scale > 0, scale, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        off, own = (y - s) / scale, s / scale
        error = np.einsum("td,td->t", off, off)
        size = np.einsum("td,td->t", own, own)
    return np.where(np.isfinite(y).all(axis=1), error, np.inf), size


def _deviation(error: Floats, size: Floats) -> Deviation:
    """Of rows' squared errors, infinite for what is not finite, and squared sizes."""
    rows, total = np.sqrt(error / np.where(size > 0, size, 1.0)), float(error.sum())
    D = math.sqrt(total) if math.isfinite(total) else math.inf
    return Deviation(D, float(np.sqrt(size.sum())), rows)


class StudentVerdict(Enum):
    """What a studentised deviation says.

    A suspicious job is audited again and not paid until it is cleared; no stage is slashed for it.
    """

    CLEAN = "clean"
    UNCLEAR = "unclear"
    SUSPICIOUS = "suspicious"


STUDENT_ROWS = 16


def studentised(deviations: Floats, noise: Floats) -> float:
    """The largest geometric mean of dev_t / noise_t over 16 rows in a row (over all of fewer).

    `deviations` [T] are those of the accused rows, `noise` [T] the deviations of honest executions
    of the same rows in the served precision: rows that are sensitive are so for every kernel, which
    is why this tells coarser weights from noise where plain deviations do not. Rows that are exact
    in both count as equal; one that is exact only here counts as infinitely off.
    """
    if len(deviations) != len(noise) or not len(noise):
        raise ValueError(f"{len(deviations)} deviations and {len(noise)} of noise")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((deviations == 0) & (noise == 0), 1.0, deviations / noise)
        logs = np.log(np.maximum(ratios, 1e-12))
    width = min(STUDENT_ROWS, len(logs))
    if np.isinf(logs).any() or np.isnan(logs).any():
        return math.inf
    sums = np.concatenate([[0.0], np.cumsum(logs)])
    return float(np.exp((sums[width:] - sums[:-width]).max() / width))


def standing_of(profile: NumericsProfile, q: float) -> StudentVerdict:
    """Where a studentised deviation stands in a profile."""
    if q <= profile.clean_q:
        return StudentVerdict.CLEAN
    return StudentVerdict.SUSPICIOUS if q > profile.suspicious_q else StudentVerdict.UNCLEAR


def judge_rows(
    profile: NumericsProfile,
    depth: int,
    served: Any,
    reference: Any,
    sigma: npt.NDArray[Any] | None = None,
) -> NumericsVerdict:
    """Whether served activations [T, D] of a shard of `depth` layers are at fault.

    The whole request and every `window_rows` rows of it are held to T(depth); requests shorter than
    `least_rows` only to the single-row rules, which also catch a single tampered step in a long
    one. Rows from the first non-finite reference row on are not judged: their inputs are
    another stage's fault.
    """
    y, s = _matrix(served), _matrix(reference)
    tolerance = profile.tolerance(depth, len(s))
    if y.shape != s.shape:
        raise ValueError(f"served {y.shape} and reference {s.shape} differ in shape")
    judged = _finite_rows(s)
    if not judged:
        return NumericsVerdict(False, (), 0.0, tolerance, 0)
    y, s = y[:judged], s[:judged]
    error, size = _squares(y, s, sigma)
    whole = _deviation(error, size)
    reasons = []
    broken = np.flatnonzero(np.isinf(whole.rows))
    if len(broken):
        reasons.append(f"row {broken[0]} is not finite")
    worst_row = int(np.argmax(whole.rows))
    if depth <= profile.single_row_depth and whole.rows[worst_row] > profile.single_row:
        reasons.append(
            f"row {worst_row} deviates by {whole.rows[worst_row]:.2e}, more than "
            f"{profile.single_row:.0e}"
        )
    ratio = whole.ratio
    if len(y) >= profile.least_rows:
        width = profile.window_rows
        for start in {*range(0, len(y) - width, width), max(0, len(y) - width)}:
            window = slice(start, start + width)
            ratio = max(ratio, _deviation(error[window], size[window]).ratio)
        if ratio > tolerance:
            reasons.append(f"deviation {ratio:.2e} exceeds the tolerance {tolerance:.0e}")
    return NumericsVerdict(bool(reasons), tuple(reasons), ratio, tolerance, worst_row)


class TokenMargins:
    """How far behind the best produced tokens are, by the auditor's logits.

    A `Draw`: it takes them a few rows at a time. A machine that samples from a cheap model and then
    runs the real one over its tokens has perfect activations: only this finds it. Tokens from the
    first non-finite row of logits on are not judged.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        params: SamplingParams,
        request_index: int,
        *,
        prompt: Sequence[int] = (),
        eos_ids: Collection[int] = (),
        grammar: Grammar | None = None,
    ) -> None:
        self.tokens, self.margins = tokens, list[float]()  # nats
        self._params = params
        self._sampler = Sampler(params, request_index, prompt, eos_ids, grammar)
        self._seen = 0

    @property
    def are_all_finite(self) -> bool:
        """Whether every token was judged so far as there are logits for all."""
        return len(self.margins) == len(self.tokens)

    def __call__(self, logits: Any) -> list[float]:
        """The margins of the next tokens, of their rows of logits [n, V].

        0 for those that are not judged.
        """
        rows = _matrix(logits)
        first, self._seen = self._seen, self._seen + len(rows)
        if self._seen > len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens and {self._seen} rows of logits")
        judged = _finite_rows(rows) if len(self.margins) == first else 0
        for row, token in zip(rows[:judged], self.tokens[first:], strict=False):
            self.margins.append(margin_of(row, token, self._sampler))
            self._sampler.take(token)
        return self.margins[first:] + [0.0] * (len(rows) - judged)

    def verdict(self, profile: NumericsProfile) -> NumericsVerdict:
        """Whether the tokens follow from the logits of their state rows; `ratio` and `limit` are
        in nats.

        The limit is the profile's margin times what the parameters make of an error of a logit
        (`core.dispute.judging.margin.gain`).
        """
        return self._verdict(profile.token_margin)

    def replayed(self, profile: NumericsProfile) -> NumericsVerdict:
        """The same of logits that the whole model makes of the ids: one token, and their mean."""
        found, margins = self._verdict(profile.replay_margin), self.margins
        many = len(margins) >= profile.mean_tokens
        mean = float(np.minimum(margins, 1.0).mean()) if many else 0.0
        if mean <= profile.mean_margin * gain(self._params):
            return found
        reason = f"{len(margins)} tokens are {mean:.3g} nat behind on average"
        return replace(found, at_fault=True, reasons=(*found.reasons, reason))

    def _verdict(self, most: float) -> NumericsVerdict:
        margins = self.margins
        worst = int(np.argmax(margins)) if margins else 0
        largest = margins[worst] if margins else 0.0
        limit = most * gain(self._params)
        reasons = []
        if largest > limit:
            reasons.append(
                f"token {worst} ({self.tokens[worst]}) is {largest:.3g} nat behind the best, more "
                f"than {limit:.3g}"
            )
        behind = sum(m > 0 for m in margins)
        return NumericsVerdict(bool(reasons), tuple(reasons), largest, limit, worst, behind)


def reexecute(
    shard: ModelShard,
    inputs: Any,
    *,
    logit_rows: Sequence[int] | None = None,
    states: bool = False,
    draw: Draw | None = None,
    served: Tensor | None = None,
) -> Tensor | Final:
    """The float64 answer to a request's committed inputs, all positions at once (teacher forcing).

    `shard` must be a float64 shard. `inputs` are ids [T] or activations [T, D]. Keys and values are
    recomputed from them; a machine's cache is never trusted. Returns activations [T, D], or logits
    [T, V] on the last stage, with `states` the rows that they are made of beside them. There
    `logit_rows` picks positions: request positions nIn−1 … nIn+nOut−2 give the produced tokens.
    With `draw` a last stage gives what that makes of logits, as `run_whole` does, and says nothing
    of rows without an answer. With `served` [T, D], state rows that were signed, logits are those
    of these rows by norm and head alone. From the first input row on that a stage would refuse
    (NaN, beyond `MAX_ACTIVATION`) the answer is NaN.
    """
    if shard.dtype != torch.float64:
        raise ValueError(f"an audit runs in float64, not {shard.dtype}")
    x = torch.as_tensor(inputs)
    wanted = list(range(len(x)) if logit_rows is None or not shard.is_last else logit_rows)
    if wanted and not 0 <= min(wanted) <= max(wanted) < len(x):
        raise ValueError(f"rows {min(wanted)} … {max(wanted)} of a request with {len(x)}")
    # A masked NaN still spoils attention, 0 · NaN, so it must not be fed at all.
    sound = len(x)
    if not shard.is_first:
        usable = (x.abs() <= MAX_ACTIVATION).all(dim=1)
        sound = len(x) if bool(usable.all()) else int(usable.int().argmin())
    places = [i for i, row in enumerate(wanted) if row < sound]
    known = torch.tensor([wanted[i] for i in places], dtype=torch.int64)
    judged = None if served is None else torch.as_tensor(served)[places]
    made: Any = None
    if places:
        made = run_whole(shard, x[:sound], known, states=True, draw=draw, served=judged)
    if not shard.is_last:
        return _filled(made, places, len(wanted), shard.hidden)
    rows, logits = (None, [] if draw else None) if made is None else made
    if draw is None:
        logits = _filled(logits, places, len(wanted), shard.vocab)
        if not states:
            return logits
    return Final(_filled(rows, places, len(wanted), shard.hidden), logits)


def _filled(rows: Tensor | None, places: list[int], count: int, width: int) -> Tensor:
    """These rows at their places among `count`, the others NaN."""
    if rows is not None and len(places) == count:
        return rows
    whole = torch.full((count, width), torch.nan, dtype=torch.float64)
    if rows is not None:
        whole[places] = rows
    return whole


def _finite_rows(values: Floats) -> int:
    """How many rows come before the first that holds NaN or infinity."""
    finite = np.isfinite(values).all(axis=1)
    return len(values) if finite.all() else int(np.argmin(finite))


def _matrix(values: Any) -> Floats:
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"expected rows [T, D], got shape {matrix.shape}")
    return matrix
