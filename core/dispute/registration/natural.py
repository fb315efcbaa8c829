"""How far is honest work on natural rows from float64, at every span of layers?

Every span of a depth is run from the same committed inputs by each kernel of ours and compared with
a float64 execution, whitened by the model's σ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.dispute.judging.numerics import reexecute, whitened_relative_l2
from core.dispute.registration.kernels import honest_ways
from core.dispute.trace.program import Tolerance
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import describe_model
from core.protocol.types import LayerRange

#: Of a text, at most.
ROWS = 129


class Largest(NamedTuple):
    """The largest D/S of an honest window, how many windows there were, and where that one was."""

    ratio: float = 0.0
    windows: int = 0
    span: LayerRange = LayerRange(0, 1)
    kernel: str = ""


def largest(
    model_dir: Path,
    sigma: Any,
    tolerances: Sequence[Tolerance],
    numerics: str,
    texts: Sequence[Tensor],
    depths: Sequence[int],
    device: str = "cpu",
) -> dict[tuple[int, int], Largest]:
    """(max_depth, min_rows) → the largest of each tolerance's windows.

    `sigma` [boundaries, D] are the program's. `texts` are ids [N]; their first rows, which are
    giants, are left out. `numerics` is a name of `formats.FORMATS`. The kernels are the device's.
    """
    found = {(t.max_depth, t.min_rows): Largest() for t in tolerances}
    for span, kernel, served, exact in deviations(model_dir, numerics, texts, depths, device):
        scale = np.asarray(sigma[span.end], np.float64)
        for (depth, rows), before in found.items():
            if len(span) > depth:
                continue
            worst, count = before.ratio, before.windows
            for at in range(0, len(served) - rows + 1, rows):
                window = slice(at, at + rows)
                worst = max(worst, whitened_relative_l2(served[window], exact[window], scale).ratio)
                count += 1
            where = (span, kernel) if worst > before.ratio else before[2:]
            found[depth, rows] = Largest(worst, count, *where)
    return found


def random_ids(model_dir: Path, rows: int, seed: int) -> Tensor:
    """A text of random tokens [rows]."""
    vocab = describe_model(model_dir).vocab
    return torch.from_numpy(np.random.default_rng(seed).integers(3, vocab, rows))


def deviations(
    model_dir: Path,
    numerics: str,
    texts: Sequence[Tensor],
    depths: Sequence[int],
    device: str = "cpu",
) -> Iterator[tuple[LayerRange, str, Any, Any]]:
    """(span, kernel, served rows, exact rows), both [N - 1, D], of every span of these depths."""
    layers = describe_model(model_dir).layers
    for depth in depths:
        entering = list(texts)
        for start in range(0, layers, depth):
            span = LayerRange(start, min(start + depth, layers))
            load = partial(load_shard, model_dir, span, numerics=numerics, device=device)
            exact, ways = load(reference=True), honest_ways(load)
            for i, x in enumerate(entering):
                made: Any = reexecute(exact, x if start == 0 else x.double(), states=True)
                reference = (made.rows if exact.is_last else made).numpy()
                served = {name: run(x) for name, run in ways.items()}
                for name, rows in served.items():
                    yield span, name, rows.float().numpy()[1:], reference[1:]
                entering[i] = next(iter(served.values()))
