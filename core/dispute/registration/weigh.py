"""May this T be promised for these weights? Measured before their program is registered.

Whoever cannot keep a tolerance loses its stake by honest work, and weights can be made so that
nobody keeps it. So a program is refused where honest work deviates by more than half of a limit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import torch

from core.dispute.play.program import ModelProgram
from core.dispute.play.tables import corpus_texts
from core.dispute.registration.kernels import on_threads
from core.dispute.registration.natural import largest, random_ids
from core.dispute.registration.search import (
    HALF,
    PARTS,
    HonestWork,
    Searched,
    SearchEffort,
    Site,
    numerics_of,
    search,
)
from core.dispute.trace.calibration import tolerance_for
from core.dispute.trace.families import SIGMA
from core.dispute.trace.program import Program
from core.engine.weights.tokenizer import Tokenizer
from core.engine.weights.weights import contents_hash
from core.protocol.errors import ModelUnsupported
from core.protocol.types import LayerRange

#: Of each natural text: the longest window that has a T, behind a first row.
_ROWS = 65
WEIGHED_FILE = "headrace-weighed.txt"
_VERSION = 2
#: Before every registration.
REGISTERING = SearchEffort(steps=40, ground=1, seconds=0.3, most_rows=16, floor=HALF)
_log = logging.getLogger(__name__)


def check_weights(model_dir: Path, ours: ModelProgram, effort: SearchEffort) -> None:
    """Raise ModelUnsupported where `weigh` refuses. That it did not is kept beside the model, and
    the same weights are not measured again for the same program and effort.
    """
    of = (_VERSION, contents_hash(model_dir), ours.numerics_profile, effort)
    stamp, kept = sha256(repr(of).encode()).hexdigest(), model_dir / WEIGHED_FILE
    if kept.is_file() and kept.read_text("utf-8") == stamp:
        return
    weigh(model_dir, ours, effort)
    try:
        kept.write_text(stamp, encoding="utf-8")
    except OSError as error:
        _log.warning("cannot keep beside the model that it was weighed: %s", error)


def weigh(model_dir: Path, ours: ModelProgram, effort: SearchEffort) -> list[HonestWork]:
    """What honest work on a model's weights came to, the worst first: on natural rows in every
    window that has a T, and what came nearest to its limit on adversarial rows.

    Nothing for a program without tolerances. Raises ModelUnsupported where more than half of a
    limit was reached.
    """
    if not ours.program.tolerances:
        return []
    with on_threads(1):  # matrices are small, and sums do not depend on the machine's cores
        found = [*_natural(model_dir, ours, effort.seed), *_adversarial(model_dir, ours, effort)]
    found.sort(key=lambda work: work.share, reverse=True)
    if found[0].share > HALF:
        raise _refusal(found)
    return found


def _natural(model_dir: Path, ours: ModelProgram, seed: int) -> Iterator[HonestWork]:
    program, rows = ours.program, min(_ROWS, ours.program.context)
    encode = Tokenizer(model_dir).encode
    corpus = torch.tensor([token for text in corpus_texts() for token in encode(text)])
    texts = [torch.cat([corpus[: rows // 2], random_ids(model_dir, rows - rows // 2, seed)])]
    sigma, promised = ours.tables[SIGMA], program.tolerances
    seen = largest(model_dir, sigma, promised, numerics_of(program), texts, _depths(program))
    for tolerance in promised:
        most = seen[tolerance.max_depth, tolerance.min_rows]
        share = most.ratio / (tolerance.parts_per_trillion / PARTS)
        yield HonestWork(
            "natural",
            most.kernel,
            most.span,
            tolerance.min_rows,
            tolerance,
            most.ratio,
            share,
        )


def _adversarial(model_dir: Path, ours: ModelProgram, effort: SearchEffort) -> list[HonestWork]:
    found, model = Searched(), ours.trace_model(model_dir)
    for span in spans(ours.program):
        search(Site(model_dir, ours.program, model, span), effort, found)
    return found.beyond or ([found.worst] if found.worst else [])


def spans(program: Program) -> list[LayerRange]:
    """Stages of every depth that the program has a T for, the deepest that fit.

    Each layer alone; of a greater depth the first stage, the first that is fed rows instead of ids,
    and the last.
    """
    layers, found = len(program.layer_types), dict[tuple[int, int], None]()
    for depth in _depths(program):
        starts = range(layers) if depth == 1 else (0, 1, layers - depth)
        for start in starts:
            if start < layers:
                found[start, min(start + depth, layers)] = None
    return [LayerRange(*span) for span in found]


def _depths(program: Program) -> list[int]:
    layers = len(program.layer_types)
    return sorted({min(t.max_depth, layers) for t in program.tolerances})


def _refusal(found: list[HonestWork]) -> ModelUnsupported:
    worst = found[0]
    of, promised = worst.tolerance, worst.tolerance.parts_per_trillion / PARTS
    ratio = max(w.ratio for w in found if w.tolerance == of and w.share > HALF)
    least, enough = None, "register it without tolerances: nobody is accused of deviating then"
    if math.isfinite(ratio):
        least = tolerance_for(ratio, of.parts_per_trillion) / PARTS
        enough = f"register it with a T of {least:g} there, or more"
    return ModelUnsupported(
        f"honest work on {worst.rows_kind} rows comes to {worst.share:.3g} of its limit, "
        f"more than {HALF:g}",
        why=f"layers {worst.span}, {worst.rows} rows, {worst.how}: D/S is {worst.ratio:.3g}, and T "
        f"is {promised:g} for up to {of.max_depth} layers and {of.min_rows} rows or more",
        next_step=enough,
        rows=worst.rows_kind,
        layers=[worst.span.start, worst.span.end],
        share=worst.share,
        least_t=least,
    )
