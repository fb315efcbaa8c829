"""What does the next token of a request depend on beside its logits?"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from core.engine.sampling.edits import Edits
from core.engine.sampling.grammar import Grammar
from core.engine.sampling.noise import request_key
from core.protocol.types import SamplingParams

Floats = npt.NDArray[np.float64]


class Sampler:
    """One request on its way from token to token."""

    def __init__(
        self,
        params: SamplingParams,
        request_index: int,
        prompt: Sequence[int] = (),
        eos_ids: Collection[int] = (),
        grammar: Grammar | None = None,
    ) -> None:
        """Penalties and continued answers need `prompt`, a least number of tokens `eos_ids`.

        Parameters with a grammar need it as it stands before the first token (`grammar_of`).
        """
        if bool(params.grammar) != (grammar is not None):
            raise ValueError("a grammar goes with the parameters that name it")
        self.params, self.grammar = params, grammar
        self.step = params.first_step
        index = request_index if params.key_index is None else params.key_index
        self.key = request_key(params.seed, index)
        self.edits = Edits(params, prompt, eos_ids)

    def take(self, token: int) -> None:
        """The token at `step` is this one; the next is due."""
        self.edits.take(token)
        if self.grammar is not None:
            self.grammar.take(token)
        self.step += 1

    def fork(self, tokens: Sequence[int] = ()) -> Sampler:
        """Another sampler that stands where this one will after `tokens`: for drafted positions."""
        other = copy(self)
        other.edits = self.edits.fork()
        other.grammar = self.grammar and self.grammar.fork()
        for token in tokens:
            other.take(token)
        return other

    @property
    def changes_logits(self) -> bool:
        """Whether bias, penalties, an early end or a grammar touch the next token's logits."""
        return self.grammar is not None or not self.edits.change_nothing(self.step)

    @property
    def is_plainly_greedy(self) -> bool:
        """Whether the next token is that of the largest logit, and nothing else is asked."""
        params = self.params
        is_greedy = params.temperature_micro == 0 and params.n_logprobs is None
        return is_greedy and not self.changes_logits

    def edited(self, logits: Any) -> Floats:
        """Logits [V] in float64 as they are drawn from. ValueError for NaN, +inf, all −inf."""
        row = np.array(logits, dtype=np.float64)
        if row.ndim != 1 or not row.size:
            raise ValueError(f"logits must be one row, not of shape {row.shape}")
        _check(row)
        if self.changes_logits:
            self.edits.apply(row, self.step)
            if self.grammar is not None:
                self.grammar.apply(row)
            _check(row)
        return row


def _check(row: npt.NDArray[Any]) -> None:
    if not math.isfinite(row.max()):  # NaN if any is
        raise ValueError("logits hold NaN or infinity")
