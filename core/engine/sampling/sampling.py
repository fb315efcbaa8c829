"""Which token do these logits give, so that an auditor can draw it again? (`docs/protocol.md` §5)

Gumbel-max over Philox4x32-10: the requester's seed is committed before the work, so the machine
that samples has no freedom left, and an auditor with nearly the same logits finds nearly the same
scores. What is drawn for a request does not depend on the batch it is drawn in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from core.engine.sampling.drawing import draw_of_all, draw_of_few
from core.engine.sampling.filters import Candidates, kept, may_leave_out
from core.engine.sampling.sampler import Sampler
from core.protocol.errors import CheckFailed, GrammarInvalid
from core.protocol.types import SamplingParams

#: What −∞ is told as, since JSON has no such number.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True)
class TokenChoice:
    """A drawn token.

    `logprob` and `top` (id and logprob, likeliest first) are of the model's own logits, before any
    parameter of the request; None and empty unless asked for.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample_batch(logits: Any, samplers: Sequence[Sampler]) -> list[TokenChoice | CheckFailed]:
    """What each row of logits [B, V] gives its request; `take` the token to go on.

    `logits` is a tensor on any device, or rows, each a tensor or what numpy reads as one. A row of
    NaN, +inf or nothing but −inf gives the reason instead and spoils no other.
    """
    if len(logits) != len(samplers):
        raise ValueError(f"{len(samplers)} requests and {len(logits)} rows of logits")
    is_elsewhere = bool(len(logits)) and bool(getattr(logits[0], "is_cuda", False))
    tokens = largest_there(logits, samplers) if is_elsewhere else {}
    rows = _fetched(logits, [i for i in range(len(samplers)) if i not in tokens], is_elsewhere)
    few: dict[int, Candidates] = {}
    failed: dict[int, CheckFailed] = {}
    for i, row in rows.items():
        try:
            found = _drawn(row, samplers[i])
        except (ValueError, GrammarInvalid) as error:
            failed[i] = CheckFailed("no token can be drawn", str(error))
            continue
        if isinstance(found, Candidates):
            few[i] = found
        else:
            tokens[i] = found
    tokens |= draw_of_few(few, samplers)
    return [
        failed[i] if i in failed else _choice(rows.get(i), tokens[i], sampler.params)
        for i, sampler in enumerate(samplers)
    ]


def largest_there(logits: Any, samplers: Sequence[Sampler]) -> dict[int, int]:
    """The tokens of rows that need nothing but their largest logit, found on the device that holds
    them, by row. Rows without a finite largest are left out. A vocabulary of logits is dear to
    move, its largest is not.
    """
    import torch

    plain = [i for i, sampler in enumerate(samplers) if sampler.is_plainly_greedy]
    if not plain:
        return {}
    largest, ids = torch.stack([logits[i] for i in plain]).max(dim=1)  # the first of several
    found = zip(plain, largest.tolist(), ids.tolist(), strict=True)
    return {i: token for i, value, token in found if math.isfinite(value)}


def _on_host(logits: Any) -> Any:
    """Logits as an array; of a tensor, a copy only if it lies elsewhere or is narrower."""
    if hasattr(logits, "detach"):
        tensor = logits.detach()
        logits = (tensor if tensor.dtype.itemsize >= 4 else tensor.float()).cpu().numpy()
    return np.asarray(logits)


def _fetched(logits: Any, wanted: Sequence[int], is_elsewhere: bool) -> dict[int, Any]:
    """Rows on the host by number; those elsewhere in one go."""
    if is_elsewhere and wanted:
        import torch

        together = _on_host(torch.stack([logits[i] for i in wanted]))
        return dict(zip(wanted, together, strict=True))
    return {i: _on_host(logits[i]) for i in wanted}


def _drawn(row: Any, sampler: Sampler) -> int | Candidates:
    """The token, or what is left to draw from."""
    if sampler.params.temperature_micro == 0:
        if not sampler.changes_logits:
            best = int(np.argmax(row))  # NaN's place if there is one
            if math.isfinite(row[best]):
                return best
        return int(np.argmax(sampler.edited(row)))
    edited = sampler.edited(row)
    if may_leave_out(sampler.params, len(edited)):
        return kept(edited, sampler.params)
    return draw_of_all(edited, sampler)


def _choice(row: npt.NDArray[Any] | None, token: int, params: SamplingParams) -> TokenChoice:
    if row is None or params.n_logprobs is None:
        return TokenChoice(token)
    import torch

    normaliser = float(torch.logsumexp(torch.from_numpy(row), 0))
    count = min(params.n_logprobs, len(row))
    least = np.partition(row, len(row) - count)[len(row) - count] if count else math.inf
    ids = np.flatnonzero(row >= least)
    ids = ids[np.argsort(-row[ids], kind="stable")][:count]

    def logprob(i: Any) -> float:
        return min(0.0, max(float(np.float32(row[i] - normaliser)), LEAST_LOGPROB))

    return TokenChoice(token, logprob(token), tuple((int(i), logprob(i)) for i in ids))
