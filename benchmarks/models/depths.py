"""Is a lie that six layers show also shown by a stage of any depth, and is no honest one accused?

A random llama of eighty layers. One layer in the middle of a stage lies. The stage is judged span
by span, from the rows inside it that it signed, and as a whole, by the tolerance for as many layers
where there is one. Beside it the same lie of the same layer is judged in a stage of six layers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.table import Row
from benchmarks.trust import lies
from core.dispute.judging.numerics import NumericsProfile, judge_rows, profile_of, reexecute
from core.dispute.play.program import ModelProgram
from core.dispute.registration.natural import largest, random_ids
from core.dispute.trace.families import SIGMA
from core.engine.model.blocks import ModelShard, output_of
from core.engine.weights.load_shard import load_shard
from core.models.publication import program_to_publish
from core.protocol.errors import ModelUnsupported
from core.protocol.types import LayerRange
from devnet.models.tiny_models import write_tiny_model

LAYERS, DEPTHS = 80, (1, 6, 18, 30, 48, 64, 80)
ROWS, TEXTS = 80, 3
QUICK = {"LAYERS": 13, "DEPTHS": (6, 13), "TEXTS": 1}
NUMERICS = ("float32", "bfloat16")
HONEST_WINDOWS = 1_000


class _Verdict(NamedTuple):
    """Of one lie of a stage, and of the same lie in a stage of six layers."""

    in_six: bool
    by_spans: bool
    others: int  # honest spans that were accused
    as_a_whole: bool | None  # None: there is no tolerance for so many layers


def _of_layer(how: lies.Spoil) -> Callable[[ModelShard, int], None]:
    def spoil(shard: ModelShard, layer: int) -> None:
        with torch.no_grad():
            how(shard.decoder_layers[layer])

    return spoil


def _skip(shard: ModelShard, layer: int) -> None:
    shard.decoder_layers[layer].register_forward_hook(lambda module, args, out: args[0])


LIES: dict[str, Callable[[ModelShard, int], None]] = {
    "int8": _of_layer(lies.int8),
    "fp8": _of_layer(lies.fp8),
    "int4": _of_layer(lies.int4),
    "weights off by 10^-2": _of_layer(lies.perturbed),
    "a layer skipped": _skip,
}


def rows() -> list[Row]:
    """A row of lies and one of honest work for each numerics."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-depths-") as name:
            folder = write_tiny_model(Path(name) / "deep", layers=LAYERS, weight_std=0.1)
            return [row for numerics in NUMERICS for row in _rows(folder, numerics)]
    finally:
        torch.set_num_threads(threads)


def _rows(folder: Path, numerics: str) -> list[Row]:
    program = program_to_publish(folder, numerics)
    assert program is not None, "a llama has a program"
    judged = {
        (depth, lie): _judged(folder, numerics, program, depth, spoil)
        for depth in DEPTHS
        for lie, spoil in LIES.items()
    }
    shown = {key: verdict for key, verdict in judged.items() if verdict.in_six}
    missed = [f"{lie} at {depth}" for (depth, lie), found in shown.items() if not found.by_spans]
    alone = sum(verdict.as_a_whole is True for verdict in shown.values())
    unjudged = sum(verdict.as_a_whole is None for verdict in shown.values())
    others = sum(verdict.others for verdict in judged.values())
    of_lies = Row(
        f"llama of {LAYERS} layers, {numerics}: {', '.join(LIES)}, of one layer, in stages of "
        f"{', '.join(map(str, DEPTHS))}",
        "what six layers show, all do",
        f"{len(shown)} of {len(judged)} shown by six layers, {len(shown) - len(missed)} of them "
        f"by the stage's spans; honest spans accused: {others}",
        f"as a whole {alone} of {len(shown)}, {unjudged} without a tolerance",
        "all of them",
        bool(shown) and not missed and not others,
    )
    texts = [random_ids(folder, ROWS, seed) for seed in range(TEXTS)]
    promised, span_layers = program.program.tolerances, program.program.span_layers
    found = largest(folder, program.tables[SIGMA], promised, numerics, texts, (span_layers,))
    shares = {
        (t.max_depth, t.min_rows): 1e12
        * found[t.max_depth, t.min_rows].ratio
        / t.parts_per_trillion
        for t in promised
        if t.max_depth >= span_layers and found[t.max_depth, t.min_rows].windows
    }
    windows = sum(found[key].windows for key in shares)
    most = max(shares.values())
    of_honest = Row(
        f"llama of {LAYERS} layers, {numerics}: honest kernels through all spans",
        f"0 of {HONEST_WINDOWS:,} windows or more accused",
        f"{windows:,} windows, the furthest at {most:.2f} T",
        "–",
        "0.5 T",
        most < 1 and (windows >= HONEST_WINDOWS or QUICK["LAYERS"] == LAYERS),
    )
    return [of_lies, of_honest]


def _judged(
    folder: Path,
    numerics: str,
    program: ModelProgram,
    depth: int,
    spoil: Callable[[ModelShard, int], None],
) -> _Verdict:
    start = min(1, LAYERS - depth)
    stage = LayerRange(start, start + depth)
    spans = stage.spans(program.program.span_layers)
    load = partial(load_shard, folder, numerics=numerics)
    ids = random_ids(folder, ROWS, 7)
    entering: Any = ids
    if start:
        before = load(LayerRange(0, start))
        entering = before.forward(ids, before.new_cache())
    shard = load(stage)
    spoil(shard, depth // 2)
    boundaries = [entering, *_made(shard, entering, spans)]
    profile, sigma = profile_of(program.program), program.tables[SIGMA]
    liar = next(i for i, span in enumerate(spans) if stage.start + depth // 2 in span)
    accused = [
        _is_accused(folder, numerics, profile, span, sigma, boundaries[i], boundaries[i + 1])
        for i, span in enumerate(spans)
    ]
    try:
        ends = boundaries[0], boundaries[-1]
        whole = _is_accused(folder, numerics, profile, stage, sigma, *ends)
    except ModelUnsupported:
        whole = None
    six = load(spans[liar])
    spoil(six, stage.start + depth // 2 - spans[liar].start)
    came = boundaries[liar]
    (made,) = _made(six, came, spans[liar : liar + 1])
    in_six = _is_accused(folder, numerics, profile, spans[liar], sigma, came, made)
    return _Verdict(in_six, accused[liar], sum(accused) - accused[liar], whole)


def _made(shard: ModelShard, entering: Tensor, spans: Sequence[LayerRange]) -> list[Tensor]:
    """What left each span of the stage, [T, D]."""
    with ExitStack() as stack:
        left = [
            stack.enter_context(output_of(shard.decoder_layers[span.end - shard.layers.start - 1]))
            for span in spans
        ]
        shard.forward(entering, shard.new_cache(), last_only=True)
    return [rows[0].detach().reshape(len(entering), -1).float() for rows in left]


def _is_accused(
    folder: Path,
    numerics: str,
    profile: NumericsProfile,
    layers: LayerRange,
    sigma: Any,
    entered: Tensor,
    left: Tensor,
) -> bool:
    profile.tolerance(len(layers))
    exact = load_shard(folder, layers, numerics=numerics, reference=True)
    made: Any = reexecute(exact, entered if exact.is_first else entered.double(), states=True)
    reference = (made.rows if exact.is_last else made).numpy()
    served = left.numpy()
    # The first position is a giant in many models, and no window of a game begins before the rest.
    verdict = judge_rows(profile, len(layers), served[1:], reference[1:], sigma[layers.end])
    return verdict.at_fault
