"""Which rotary tables and channel scales has a model, the same bytes on every machine?

Rotary tables are cosines and sines of the float32 angles that the model's library computes,
correctly rounded to float32. σ is the rms of each channel before each layer over a fixed corpus,
from a float64 execution, kept to 8 significant bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from core.dispute.trace.families import ROPE_FULL, ROPE_SLIDING, SIGMA, unsupported

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
#: Rotations whose angles do not depend on how long the request is.
_FIXED = ("default", "linear", "llama3", "yarn")
_SIGNIFICANT_BITS = 8
#: Results this near the middle between two float32 (in float64 steps of 2^29 a float32 step) are
#: settled with more digits.
_UNSURE_STEPS = 64
_DIGITS = 60
CORPUS_FILE = "corpus.jsonl"


def corpus_texts() -> list[str]:
    """The texts that σ is measured on."""
    text = resources.files("core.dispute.play").joinpath(CORPUS_FILE).read_text("utf-8")
    return [str(json.loads(line)["text"]) for line in text.splitlines() if line.strip()]


def rotary_angles(config_json: str) -> dict[str, tuple[Float32s, float]]:
    """(inverse frequencies, factor on cosine and sine) of each rotary table of a configuration.

    Raises ModelUnsupported for rotations that change with the length of a request.
    """
    import torch

    from core.engine.model.library import AutoModelForCausalLM
    from core.engine.model.refusal import parse_config

    config = parse_config(config_json)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    kind = type(getattr(model.base_model, "rotary_emb", None))
    if kind is type(None):
        raise unsupported("no rotary embedding")
    found = _angles(kind(parse_config(config_json)))
    if not found:
        raise unsupported("a rotary embedding of another kind")
    return found


def _angles(rotary: Any) -> dict[str, tuple[Float32s, float]]:
    kinds = getattr(rotary, "rope_type", "default")
    if not isinstance(kinds, Mapping):
        _check_fixed(str(kinds))
        return {ROPE_FULL: (_numbers(rotary.inv_freq), float(rotary.attention_scaling))}
    found = {}
    for table, layer_type in ((ROPE_FULL, "full_attention"), (ROPE_SLIDING, "sliding_attention")):
        if layer_type in kinds:
            _check_fixed(str(kinds[layer_type]))
            found[table] = (
                _numbers(getattr(rotary, f"{layer_type}_inv_freq")),
                float(getattr(rotary, f"{layer_type}_attention_scaling")),
            )
    if found:  # a model with layers of one kind only has the other table too: programs count both
        found.setdefault(ROPE_FULL, next(iter(found.values())))
        found.setdefault(ROPE_SLIDING, found[ROPE_FULL])
    return found


def _numbers(tensor: Any) -> Float32s:
    return np.asarray(tensor.detach().float().cpu().numpy(), dtype=np.float32)


def _check_fixed(kind: str) -> None:
    if kind not in _FIXED:
        raise unsupported(f"a rotation of the kind {kind}")


def rotary_table(inverse: Float32s, factor: float, context: int) -> Float32s:
    """[context, 2 · half]: cosine and sine of each frequency in turn, as float32."""
    table = np.empty((context, 2 * len(inverse)), dtype=np.float32)
    for at in range(0, context, 4096):
        positions = np.arange(at, min(context, at + 4096), dtype=np.float32)
        angles = (positions[:, None] * inverse[None, :]).astype(np.float64)
        table[at : at + 4096, 0::2] = _rounded(np.cos(angles) * factor, angles, factor, _cosine)
        table[at : at + 4096, 1::2] = _rounded(np.sin(angles) * factor, angles, factor, _sine)
    return table


def _rounded(found: Float64s, angles: Float64s, factor: float, exact: Any) -> Float32s:
    """The nearest float32, with more digits where float64 does not settle the rounding."""
    near = found.astype(np.float32)
    slack = np.abs(found) * (_UNSURE_STEPS * 2.0**-53) + 2.0**-60
    unsure = (found - slack).astype(np.float32) != (found + slack).astype(np.float32)
    with localcontext() as context:
        context.prec = _DIGITS
        for index in zip(*np.nonzero(unsure), strict=True):
            near[index] = _nearest_float32(exact(float(angles[index])) * Decimal(factor))
    return near


def _nearest_float32(value: Decimal) -> np.float32:
    low = np.float32(float(value))
    around = [np.nextafter(low, np.float32(-4)), low, np.nextafter(low, np.float32(4))]
    return min(around, key=lambda x: abs(Decimal(float(x)) - value))


def _sine(angle: float) -> Decimal:
    return _series(angle, 1)


def _cosine(angle: float) -> Decimal:
    return _series(angle, 0)


def _series(angle: float, first: int) -> Decimal:
    """Σ (−1)^n x^(2n + first) / (2n + first)! after taking whole turns off."""
    with localcontext() as context:
        context.prec = _DIGITS
        turn = 8 * (4 * _arctan(5) - _arctan(239))  # Machin: π/4 = 4 arctan(1/5) − arctan(1/239)
        x = Decimal(angle) % turn
        term = x if first else Decimal(1)
        total, n = term, first
        while abs(term) > Decimal(10) ** -_DIGITS:
            n += 2
            term = -term * x * x / (n * (n - 1))
            total += term
        return total


def _arctan(inverse: int) -> Decimal:
    x = Decimal(1) / inverse
    power, total, n, sign = x, x, 1, 1
    while power > Decimal(10) ** -(_DIGITS + 5):
        power, n, sign = power * x * x, n + 2, -sign
        total += sign * power / n
    return total


def sigma_table(sizes: Sequence[Float64s]) -> Float32s:
    """σ [boundaries, D] from the rms of each channel at each boundary.

    A silent channel counts unscaled.
    """
    rms = np.stack(sizes)
    rms = np.where(rms > 0, rms, 1.0)
    fraction, exponent = np.frexp(rms)
    scale = 2.0**_SIGNIFICANT_BITS
    kept = np.ldexp(np.round(fraction * scale) / scale, exponent)
    return np.asarray(kept, dtype=np.float32)


def tables_of(
    angles: Mapping[str, tuple[Float32s, float]], context: int, sigma: Float32s
) -> dict[str, Float32s]:
    """The tensors under a program's tables root."""
    found = {name: rotary_table(*angle, context) for name, angle in angles.items()}
    return found | {SIGMA: sigma}
