"""Which logits does a request change before its token is drawn: biases, penalties, and ends that
come too early?

Sparse: only tokens that are biased, were in the prompt or were produced can differ from the model's
own logits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from core.protocol.types import MICRO, SamplingParams

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class Edits:
    """The tokens of one request that do not keep their logits, and how often each was produced."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int] = (), eos_ids: Collection[int] = ()
    ) -> None:
        """The last `params.first_step` tokens of the prompt count as produced."""
        self._repetition = params.repetition_penalty_micro / MICRO
        self._frequency = params.frequency_penalty_micro / MICRO
        self._presence = params.presence_penalty_micro / MICRO
        self.counts_produced = bool(
            self._repetition != 1 or self._frequency != 0 or self._presence != 0
        )
        self._early = params.min_new_tokens
        self._eos = np.array(sorted(eos_ids), dtype=np.int64)
        biased = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
        asked = np.asarray(prompt if self._repetition != 1 else (), dtype=np.int64)
        self._used = 0
        self._ids, self._bias, self._count = np.empty(0, np.int64), np.empty(0), np.empty(0)
        self._place: dict[int, int] = {}
        self._is_seen = np.empty(0, bool)
        self._add(np.unique(np.concatenate([biased, asked])))
        for token, bias in params.logit_bias:
            self._bias[self._place[token]] = bias / MICRO
        self._is_seen[: self._used] = np.isin(self._ids[: self._used], asked)
        for token in prompt[len(prompt) - min(params.first_step, len(prompt)) :]:
            self.take(token)

    def take(self, token: int) -> None:
        """Count a produced token."""
        if not self.counts_produced:
            return
        place = self._place.get(token)
        if place is None:
            place = self._used
            self._add(np.array([token], dtype=np.int64))
        self._count[place] += 1
        self._is_seen[place] = True

    def fork(self) -> Edits:
        """A copy that goes on by itself."""
        other = copy(self)
        if self.counts_produced:
            other._place = dict(self._place)
            for name in ("_ids", "_bias", "_count", "_is_seen"):
                setattr(other, name, getattr(self, name).copy())
        return other

    def apply(self, row: Floats, step: int) -> None:
        """Change the logits [V] of token number `step` of the answer in place.

        In this order: the bias is added; a logit of a token seen is divided by the repetition
        penalty if above 0, else multiplied by it; frequency penalty times count, then presence
        penalty, are subtracted for produced tokens; ends are masked while `step` is below the least
        number of tokens. Ids that the model does not have are passed over.
        """
        used = slice(0, self._used)
        ids, bias, count = self._ids[used], self._bias[used], self._count[used]
        if len(ids):
            known = ids < len(row)
            if not known.all():
                ids, bias, count = ids[known], bias[known], count[known]
            x = row[ids] + bias
            if self.counts_produced:
                seen = self._is_seen[used][known]
                penalised = np.where(x > 0, x / self._repetition, x * self._repetition)
                x = np.where(seen, penalised, x)
                x -= self._frequency * count
                x -= self._presence * (count > 0)
            row[ids] = x
        if step < self._early:
            row[self._eos[self._eos < len(row)]] = -np.inf

    def change_nothing(self, step: int) -> bool:
        """Whether `apply` leaves every logit as it is."""
        return not self._used and step >= self._early

    def _add(self, ids: Ids) -> None:
        need = self._used + len(ids)
        if need > len(self._ids):
            grown = 2 * need
            self._ids = _resized(self._ids, grown)
            self._bias, self._count = _resized(self._bias, grown), _resized(self._count, grown)
            self._is_seen = _resized(self._is_seen, grown)
        self._ids[self._used : need] = ids
        self._place |= {int(token): self._used + i for i, token in enumerate(ids)}
        self._used = need


def _resized(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    grown = np.zeros(size, dtype=array.dtype)
    grown[: len(array)] = array
    return grown
