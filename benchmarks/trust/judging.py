"""What does an auditor say about a stage of a served request?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from benchmarks.trust.town import SAMPLED, Served, Town, attention, honest
from core.dispute.judging.numerics import (
    StudentVerdict,
    judge_rows,
    reexecute,
    standing_of,
    studentised,
    whitened_relative_l2,
)
from core.engine.batch.whole import head_logits
from core.protocol.types import LayerRange
from tests.core.engine.draws import judge_tokens


class Finding(IntEnum):
    """From nothing to the harshest; `SUSPICIOUS` is unpaid until cleared, and evicted."""

    CLEAN = 0
    SUSPICIOUS = 1
    SLASHED = 2


@dataclass(frozen=True)
class Judged:
    """One stage on one request.

    `excess` is D/S over T, or nats over δ; `q` the studentised deviation, 0 where none was taken.
    """

    stage: int
    finding: Finding
    excess: float
    q: float = 0.0


class Judge:
    """An auditor of one town.

    What depends on a stage's inputs alone is computed once for all that is judged on them.
    """

    def __init__(self, town: Town) -> None:
        self._town = town
        self._references: dict[tuple[LayerRange, bytes], Any] = {}
        self._noises: dict[tuple[LayerRange, bytes], Any] = {}

    def stage(self, served: Served, stage: int, *, student: bool = True) -> Judged:
        """Re-run one stage in float64 from what it was given, and compare once.

        `student`: with own executions, too.
        """
        town, given = self._town, served.entering(stage)
        span, profile = town.spans[stage], town.profile
        key = (span, sha256(given.numpy().tobytes()).digest())
        if stage == len(town.spans) - 1:
            return self._ends(served, stage, key)
        if key not in self._references:
            self._references[key] = reexecute(town.auditing(span), given).numpy()
        reference, sigma = self._references[key], town.sigma[span.end]
        verdict = judge_rows(profile, len(span), served.rows[stage], reference, sigma)
        q = 0.0
        if student:
            if key not in self._noises:
                self._noises[key] = self._noise(stage, given, reference)
            rows = whitened_relative_l2(served.rows[stage], reference, sigma).rows
            q = studentised(rows, self._noises[key])
        finding = Finding.CLEAN
        if standing_of(profile, q) == StudentVerdict.SUSPICIOUS:
            finding = Finding.SUSPICIOUS
        if verdict.at_fault:
            finding = Finding.SLASHED
        return Judged(stage, finding, verdict.ratio / verdict.limit, q)

    def _ends(self, served: Served, stage: int, key: tuple[LayerRange, bytes]) -> Judged:
        """The last stage: its state rows and, by norm and head of these, its tokens. Where there
        are none, its tokens by the rows that our own layers make.
        """
        town, span, count = self._town, self._town.spans[stage], len(served.tokens)
        exact, first = town.auditing(span), len(served.prompt) - 1
        if key not in self._references:
            wanted = range(first, len(served.entering(stage)))
            made = reexecute(exact, served.entering(stage), logit_rows=wanted, states=True)
            self._references[key] = made.rows.numpy()
        rows, verdicts = self._references[key][:count], []
        states = rows
        if served.states is not None:
            states, sigma = served.states[:count], town.sigma[span.end]
            verdicts.append(judge_rows(town.profile, len(span), states, rows, sigma))
        logits = head_logits(exact, torch.from_numpy(states).double())
        of = served.tokens, SAMPLED, served.request
        verdicts.append(judge_tokens(town.profile, logits, *of, prompt=served.prompt))
        at_fault = any(verdict.at_fault for verdict in verdicts)
        excess = max(verdict.ratio / verdict.limit for verdict in verdicts)
        return Judged(stage, Finding.SLASHED if at_fault else Finding.CLEAN, excess)

    def _noise(self, stage: int, given: Any, reference: Any) -> Any:
        """Rms by row of the auditor's own executions in the served precision, by two kernels."""
        own = self._town.shards[stage]
        x = given if stage == 0 else given.to(own.dtype)
        sigma = self._town.sigma[self._town.spans[stage].end]
        squares = []
        for worker in (honest, attention(own, "eager")):
            rows = worker(own, 0)(x).float().numpy()
            squares.append(whitened_relative_l2(rows, reference, sigma).rows ** 2)
        return np.sqrt(np.mean(squares, axis=0))
