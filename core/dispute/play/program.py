"""What are the operator program and the tables of a model folder?

Made once and kept beside the model. The program's hash is the model's numerics profile, so what is
kept is data of the model: a machine whose library computes other tables finds that at once, by the
hash.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from eth_utils.crypto import keccak

from core.dispute.play import tables
from core.dispute.play.build import Boundaries, Builder, run_section
from core.dispute.play.model import TraceModel
from core.dispute.play.operators import Plain
from core.dispute.referee import LeafKind
from core.dispute.trace.calibration import delta_for
from core.dispute.trace.families import (
    FP32_PLEA,
    SIGMA,
    Traits,
    compile_program,
    traits_of,
)
from core.dispute.trace.layout import TraceLayout
from core.dispute.trace.program import HEAD, Plea, Program, Tolerance
from core.engine.model.config_facts import read_config
from core.engine.weights.pulled import PulledFolder
from core.engine.weights.weights import WeightRoots, contents_hash, weight_roots
from core.protocol.errors import ModelUnsupported

PROGRAM_FILE = "headrace-program.npz"
_VERSION = 3
_CORPUS_TOKENS = 64  # of each text at most
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelProgram:
    """A model's program, and the tables that its root commits to."""

    program: Program
    tables: dict[str, tables.Float32s]

    @property
    def numerics_profile(self) -> str:
        """What the model's specification names: Keccak-256 of the program's bytes, 0x-hex."""
        return "0x" + keccak(self.program.to_bytes()).hex()

    def trace_model(self, model_dir: Path) -> TraceModel:
        """The folder's tensors with these tables."""
        return TraceModel.open(model_dir, self.tables)


def model_program(
    model_dir: Path,
    tolerances: Sequence[Tolerance] = (),
    delta_micro: int | None = None,
    plea: Plea = FP32_PLEA,
) -> ModelProgram:
    """The program of a model folder with these tolerances, δ and noise.

    Without tolerances no machine is accused of deviating; without δ it is the least that the head's
    weights allow. Measures σ the first time (one float64 execution over some hundred tokens) and
    keeps it beside the model. Raises ModelUnsupported for a model that no program describes, and
    for a smaller δ: honest tokens could be convicted by it.
    """
    model_dir = Path(model_dir)
    traits, weights, made = _made_of(model_dir)
    if math.isinf(made.head_gain):
        raise ModelUnsupported(
            f"{model_dir.name} is a part of a published model", why="its δ needs all of it"
        )
    least = delta_for(traits.hidden, made.head_gain)
    if delta_micro is not None and delta_micro < least:
        raise ModelUnsupported(
            f"δ is {delta_micro / 10**6:g} nat, and this model's head needs {least / 10**6:g}",
            why="honest rounding in norm and head may be larger on rows chosen for it",
            next_step=f"register it with a δ of {least / 10**6:g} nat or more",
        )
    promised = tuple(tolerances), least if delta_micro is None else delta_micro, plea
    return _program(model_dir, traits, weights, made, *promised)


def program_like(model_dir: Path, registered: Program) -> ModelProgram:
    """What the folder's own program is with what a registered one promises: tolerances, δ, noise,
    and the spans of its stages.
    """
    promised = registered.tolerances, registered.delta_micro, registered.plea
    found = _program(model_dir, *_made_of(model_dir), *promised)
    return replace(found, program=replace(found.program, span_layers=registered.span_layers))


def _program(
    model_dir: Path,
    traits: Traits,
    weights: WeightRoots,
    made: _Made,
    tolerances: tuple[Tolerance, ...],
    delta_micro: int,
    plea: Plea,
) -> ModelProgram:
    found = tables.tables_of(made.angles, traits.context, made.sigma)
    root = TraceModel.open(model_dir, found).tables_root
    program = compile_program(traits, weights.tensors, root, tolerances, delta_micro, plea)
    return ModelProgram(program, found)


def _made_of(model_dir: Path) -> tuple[Traits, WeightRoots, _Made]:
    """Read from beside the model, or made."""
    traits, weights = traits_of(read_config(model_dir)), weight_roots(model_dir)
    made = _read(model_dir)
    if made is None:
        pulled = PulledFolder.find(model_dir)
        made = _published(pulled, traits) if pulled else _make(model_dir, traits, weights)
        _keep(model_dir, made)
    return traits, weights, made


@dataclass(frozen=True)
class _Made:
    angles: dict[str, tuple[tables.Float32s, float]]
    sigma: tables.Float32s
    head_gain: float  # largest |g·w|, see `delta_for`; infinite where another measured σ


def _make(model_dir: Path, traits: Traits, weights: WeightRoots) -> _Made:
    config = json.dumps(read_config(model_dir), sort_keys=True)
    angles = tables.rotary_angles(config)
    blank = np.ones((traits.layers + 1, traits.hidden), dtype=np.float32)
    short = replace(traits, context=min(traits.context, _CORPUS_TOKENS))
    drafts = tables.tables_of(angles, short.context, blank)
    model = TraceModel.open(model_dir, drafts)
    program = compile_program(short, weights.tensors, model.tables_root)
    sigma = tables.sigma_table(_sizes(program, model, _corpus(model_dir, traits)))
    return _Made(angles, sigma, _head_gain(program, model))


def _published(pulled: PulledFolder, traits: Traits) -> _Made:
    """As the publisher measured σ: no part of the model can measure it alone."""
    config = json.dumps(read_config(pulled.model_dir), sort_keys=True)
    bits = np.frombuffer(pulled.manifest.sigma, dtype="<u2")
    if bits.size != (traits.layers + 1) * traits.hidden:
        raise ModelUnsupported(
            "the model's manifest has no sizes of its channels",
            why=f"it has {bits.size}, the model {traits.layers + 1} rows of {traits.hidden}",
        )
    sigma = np.left_shift(bits, 16, dtype="<u4").view("<f4").reshape(traits.layers + 1, -1)
    return _Made(tables.rotary_angles(config), sigma, math.inf)


def _head_gain(program: Program, model: TraceModel) -> float:
    """Largest |g·w| of a factor of the final norm and a weight of its channel in the head."""
    ops, part = program.sections[HEAD].ops, len(program.layer_types)
    norm = next(op for op in ops if op.kind == LeafKind.NORM)
    matrix = model.tensor(part, next(op.tensor for op in ops if op.kind == LeafKind.LINEAR))
    factors = np.abs(model.tensor(part, norm.tensor)[0].astype(np.float64) + norm.flag)
    columns = np.maximum(matrix.max(axis=0), -matrix.min(axis=0)).astype(np.float64)
    return float((factors * columns).max())


def _corpus(model_dir: Path, traits: Traits) -> list[list[int]]:
    from core.engine.weights.tokenizer import Tokenizer

    tokenizer = Tokenizer(model_dir)
    most = min(_CORPUS_TOKENS, traits.context)
    found = [tokenizer.encode(text)[:most] for text in tables.corpus_texts()]
    return [ids for ids in found if len(ids) > 1]


def _sizes(
    program: Program, model: TraceModel, corpus: Sequence[Sequence[int]]
) -> list[tables.Float64s]:
    """Rms of each channel at every boundary.

    First positions are left out: a decoder's first row is a giant.
    """
    layers = len(program.layer_types)
    layouts = [TraceLayout(program, 0, layers, len(ids), 0) for ids in corpus]
    builders = [
        Builder(
            layout, model, Boundaries(np.array(ids, dtype=np.uint32)), Plain(program.part_terms)
        )
        for layout, ids in zip(layouts, corpus, strict=True)
    ]
    rows: list[Any] = [np.zeros((len(ids), program.hidden)) for ids in corpus]
    sizes = []
    for section in range(layers + 1):
        for i, (builder, layout) in enumerate(zip(builders, layouts, strict=True)):
            made = run_section(builder, layout, section, rows[i])
            rows[i] = made[max(made)][:, 0]
        counted = np.concatenate([r[1:] for r in rows])
        sizes.append(np.sqrt(np.mean(counted * counted, axis=0)))
    return sizes


def _stamp(model_dir: Path) -> str:
    corpus = "\n".join(tables.corpus_texts())
    said = f"{_VERSION} {contents_hash(model_dir)} {_CORPUS_TOKENS} {corpus}"
    return sha256(said.encode()).hexdigest()


def _read(model_dir: Path) -> _Made | None:
    try:
        with np.load(model_dir / PROGRAM_FILE) as kept:
            if str(kept["stamp"]) != _stamp(model_dir):
                return None
            factors = dict(zip(kept["names"].tolist(), kept["factors"].tolist(), strict=True))
            angles = {name: (kept[f"angles.{name}"], float(factors[name])) for name in factors}
            return _Made(angles, kept[SIGMA], float(kept["head_gain"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        _log.warning("ignoring %s, it is unreadable: %s", model_dir / PROGRAM_FILE, error)
        return None


def _keep(model_dir: Path, made: _Made) -> None:
    names = sorted(made.angles)
    content: dict[str, Any] = {
        "stamp": np.array(_stamp(model_dir)),
        "names": np.array(names),
        "factors": np.array([made.angles[name][1] for name in names]),
        SIGMA: made.sigma,
        "head_gain": np.array(made.head_gain),
    } | {f"angles.{name}": made.angles[name][0] for name in names}
    draft = model_dir / f".{PROGRAM_FILE}.{os.getpid()}.{threading.get_ident()}"
    try:
        with draft.open("wb") as out:
            np.savez(out, **content)
        draft.replace(model_dir / PROGRAM_FILE)
    except OSError as error:
        _log.warning("cannot keep the program's tables beside the model: %s", error)


def has_program(model_dir: Path) -> bool:
    """Whether the tolerance game knows all of this model's operators."""
    try:
        traits_of(read_config(model_dir))
    except ModelUnsupported:
        return False
    return True
