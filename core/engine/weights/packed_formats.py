"""In which formats do people publish packed weights, and how is each one read?

FP8 with scales of any grain, MXFP4, GPTQ, AWQ (gemm), and what compressed-tensors writes of
integers, FP8 and MXFP4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from core.engine.model.config_facts import CONFIG_FILE, read_config
from core.engine.model.naming import PACKING_KEYS
from core.engine.weights.packed import (
    E2M1,
    E4M3,
    Array,
    CodedRows,
    CodeKind,
    Floats,
    PackedWeight,
    Packing,
    Reader,
)
from core.engine.weights.stored import STORED
from core.protocol.errors import ModelUnsupported

#: What is stored beside weights for activations or caches: nothing of a weight depends on it.
_BESIDE = (".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale")
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # output of a word → its nibble
_E8M0_BIAS = 127


class Described(Protocol):
    """What a header or a manifest says of a stored tensor."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def packing_of(config: Mapping[str, Any], tensors: Mapping[str, Described]) -> Packing:
    """How a checkpoint with this `config.json` is packed.

    Raises ModelUnsupported for a format that is not known, or tensors that do not fit together.
    """
    described = next((config[key] for key in PACKING_KEYS if config.get(key)), None)
    if described is None:
        return Packing()
    method = described.get("quant_method") if isinstance(described, dict) else None
    finder = _FINDERS.get(str(method))
    if finder is None:
        raise ModelUnsupported(
            f"weights packed as {str(method)[:40]!r} are not known",
            why="known are " + ", ".join(_FINDERS),
            next_step="publish it in one of these, or as bfloat16",
        )
    beside = [name for name in tensors if name.endswith(_BESIDE)]
    return Packing(finder(_Checkpoint(described, tensors)), beside)


def packing_in(model_dir: Path, tensors: Mapping[str, Described]) -> Packing:
    """How the checkpoint in a folder is packed. Raises ModelUnsupported as `packing_of`."""
    has_config = (model_dir / CONFIG_FILE).is_file()
    return packing_of(read_config(model_dir), tensors) if has_config else Packing()


@dataclass(frozen=True)
class _Checkpoint:
    settings: Mapping[str, Any]
    tensors: Mapping[str, Described]

    def with_suffix(self, *suffixes: str) -> list[tuple[str, str]]:
        """Of every tensor that ends so, what is before the suffix, and its name."""
        return [
            (name.removesuffix(suffix), name)
            for name in sorted(self.tensors)
            for suffix in suffixes
            if name.endswith(suffix)
        ]

    def pieces(self, roles: Mapping[str, Sequence[str]], optional: Sequence[str] = ()) -> dict:
        """Role → stored name, of several names that a role may have. ModelUnsupported without."""
        found = {}
        for role, names in roles.items():
            stored = next((name for name in names if name in self.tensors), None)
            if stored is not None:
                found[role] = stored
            elif role not in optional:
                raise ModelUnsupported(
                    "a packed weight is incomplete", why=f"{names[0]} is missing"
                )
        return found

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        shape = self.tensors[name].shape
        if len(shape) != dimensions or not all(shape):
            raise _unfit(name, f"it has shape {list(shape)}")
        return shape

    def number(self, key: str, default: int) -> int:
        value = self.settings.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 2**20:
            raise ModelUnsupported("cannot read quantization_config", why=f"{key} is {value!r}")
        return value


def _e8m0_scales(codes: Array) -> Floats:
    found = np.ldexp(np.float32(1), codes.astype(np.int32) - _E8M0_BIAS)
    return np.where(codes == 255, np.float32(np.nan), found).astype(np.float32)


def _unfit(name: str, why: str) -> ModelUnsupported:
    return ModelUnsupported("a packed weight does not fit together", why=f"{name}: {why}")


# FP8 with one scale for the tensor, an output, or a block of outputs and inputs


def _fp8(found: _Checkpoint) -> Iterable[PackedWeight]:
    block = found.settings.get("weight_block_size")
    for name, entry in sorted(found.tensors.items()):
        if entry.dtype.startswith("F8_") and not name.endswith(("_scale", "_scale_inv")):
            scales = (f"{name}_scale_inv", f"{name}_scale")
            yield _bytes_with_scales(found, name, scales, block, E4M3)


def _bytes_with_scales(
    found: _Checkpoint, name: str, scales: Sequence[str], block: Any, kind: CodeKind
) -> PackedWeight:
    """A code of eight bits for every value."""
    if found.tensors[name].dtype not in ("F8_E4M3", "I8"):
        raise _unfit(name, f"it is stored as {found.tensors[name].dtype}")
    shape = found.shape(name, 2)
    roles = {"codes": [name], "scales": scales, "zeros": [f"{name}_zero_point"]}
    pieces = found.pieces(roles, optional=["zeros"])
    given = found.tensors[pieces["scales"]].shape
    outputs_of, inputs_of = _block(shape, given, block, pieces["scales"])
    grid = (-(-shape[0] // outputs_of), -(-shape[1] // inputs_of))
    if math.prod(given) != math.prod(grid):
        raise _unfit(pieces["scales"], f"it has shape {list(given)} for a weight of {list(shape)}")

    def read(tensors: Mapping[str, Array], start: int, end: int) -> CodedRows:
        rows = np.arange(start, end) // outputs_of
        stored, zeros = tensors["scales"].reshape(grid), None
        if found.tensors[pieces["scales"]].dtype not in STORED:
            stored = _e8m0_scales(stored)
        if "zeros" in tensors:
            zeros = CodeKind(8, is_signed=True).numbers[tensors["zeros"].reshape(grid)[rows]]
        return CodedRows(tensors["codes"][start:end], stored[rows], zeros, inputs_of)

    return PackedWeight(name, shape, pieces, kind, read)


def _block(
    shape: tuple[int, ...], scales: tuple[int, ...], block: Any, name: str
) -> tuple[int, int]:
    """Outputs and inputs that share a scale."""
    if math.prod(scales) == 1:
        return shape[0], shape[1]
    if scales in ((shape[0],), (shape[0], 1)):
        return 1, shape[1]
    if block is None and len(scales) == 2 and scales[0] == shape[0] and shape[1] % scales[1] == 0:
        return 1, shape[1] // scales[1]
    match block:
        case [int(outputs), int(inputs)] if 0 < outputs < 2**20 and 0 < inputs < 2**20:
            return outputs, inputs
    raise _unfit(name, f"scales of shape {list(scales)} with a block of {str(block)[:40]}")


# MXFP4: two codes a byte, a power of two for 32 inputs


def _mxfp4(found: _Checkpoint) -> Iterable[PackedWeight]:
    for name, blocks in found.with_suffix("_blocks"):
        pieces = found.pieces({"codes": [blocks], "scales": [f"{name}_scales"]})
        experts, outputs, groups, half = found.shape(blocks, 4)
        if found.tensors[pieces["scales"]].shape != (experts, outputs, groups):
            raise _unfit(pieces["scales"], "its shape is not that of the blocks")
        shape = (experts, 2 * half * groups, outputs)
        read = _nibbles_reader(2 * half)
        yield PackedWeight(name, shape, pieces, E2M1, read, is_transposed=True)


def _nibbles_reader(group_inputs: int) -> Reader:
    def read(tensors: Mapping[str, Array], start: int, end: int) -> CodedRows:
        scales = tensors["scales"]
        scales = scales.reshape(-1, scales.shape[-1])[start:end]
        codes = tensors["codes"].reshape(-1, scales.shape[1] * group_inputs // 2)[start:end]
        both = np.stack([codes & 15, codes >> 4], axis=-1).reshape(end - start, -1)
        return CodedRows(both, _e8m0_scales(scales), None, group_inputs)

    return read


# GPTQ: words along inputs, zero points along outputs


def _gptq(found: _Checkpoint) -> Iterable[PackedWeight]:
    less_one = found.settings.get("checkpoint_format", "gptq") != "gptq_v2"
    for base, name in found.with_suffix(".qweight"):
        pieces = found.pieces(
            {
                "codes": [name],
                "zeros": [f"{base}.qzeros"],
                "scales": [f"{base}.scales"],
                "group_of": [f"{base}.g_idx"],
            },
            optional=["group_of"],
        )
        words, outputs = found.shape(name, 2)
        groups, _ = found.shape(pieces["scales"], 2)
        bits = found.number("bits", 4)
        if "group_of" in pieces:
            (inputs,) = found.shape(pieces["group_of"], 1)
            bits = 32 * words // inputs
        _refuse_bits(name, bits)
        inputs = 32 // bits * words
        if inputs % groups:
            raise _unfit(name, f"{inputs} inputs in {groups} groups")
        if found.tensors[pieces["scales"]].shape[1] != outputs:
            raise _unfit(name, f"{outputs} outputs, and other scales")
        if found.tensors[pieces["zeros"]].shape != (groups, -(-outputs * bits // 32)):
            raise _unfit(pieces["zeros"], f"not the zero points of {groups} groups")
        read = _gptq_reader(bits, inputs // groups, int(less_one))
        weight = f"{base}.weight"
        yield PackedWeight(weight, (outputs, inputs), pieces, CodeKind(bits), read)


def _gptq_reader(bits: int, group_inputs: int, added: int) -> Reader:
    most = 2**bits - 1

    def read(tensors: Mapping[str, Array], start: int, end: int) -> CodedRows:
        words = tensors["codes"][:, start:end]
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        codes = (words[:, None, :] >> shifts[None, :, None] & most).astype(np.uint8)
        codes = np.ascontiguousarray(codes.reshape(-1, end - start).T)
        zeros = _along(tensors["zeros"], bits)[:, start:end]
        zeros = ((zeros + added) & most).T.astype(np.float32)
        scales = np.ascontiguousarray(tensors["scales"][:, start:end].T)
        group_of = tensors.get("group_of")
        if group_of is not None:
            _refuse_groups(group_of, scales.shape[1])
        return CodedRows(codes, scales, zeros, group_inputs, group_of)

    return read


def _along(words: Array, bits: int) -> Array:
    """Codes [rows, words × codes of a word] of words [rows, words], the lowest first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return (words[:, :, None] >> shifts & (2**bits - 1)).reshape(len(words), -1)


def _refuse_bits(name: str, bits: int) -> None:
    if bits not in (2, 4, 8):
        raise _unfit(name, f"codes of {bits} bits; 2, 4 and 8 are known")


def _refuse_groups(group_of: Array, groups: int) -> None:
    if group_of.size and int(group_of.max()) >= groups:
        raise ModelUnsupported(
            "a packed weight does not fit together", why="an input is of a group that has no scale"
        )


# AWQ: words along outputs, in an order of their own


def _awq(found: _Checkpoint) -> Iterable[PackedWeight]:
    version = str(found.settings.get("version", "gemm")).lower()
    if version != "gemm":
        raise ModelUnsupported("cannot read this AWQ model", why=f"its version is {version[:40]!r}")
    for base, name in found.with_suffix(".qweight"):
        pieces = found.pieces(
            {"codes": [name], "zeros": [f"{base}.qzeros"], "scales": [f"{base}.scales"]},
            optional=[] if found.settings.get("zero_point", True) else ["zeros"],
        )
        inputs, words = found.shape(name, 2)
        groups, outputs = found.shape(pieces["scales"], 2)
        if outputs != 8 * words or inputs % groups:
            raise _unfit(name, f"{inputs} inputs in {groups} groups, {8 * words} codes of 4 bits")
        if "zeros" in pieces and found.tensors[pieces["zeros"]].shape != (groups, words):
            raise _unfit(pieces["zeros"], f"not the zero points of {groups} groups")
        read = _awq_reader(inputs // groups)
        weight = f"{base}.weight"
        yield PackedWeight(weight, (outputs, inputs), pieces, CodeKind(4), read)


def _awq_reader(group_inputs: int) -> Reader:
    def codes_of(words: Array, start: int, end: int) -> Array:
        first = start // 8
        nibbles = _along(words[:, first : -(-end // 8)], 4).reshape(len(words), -1, 8)
        ordered = nibbles[:, :, _AWQ_ORDER].reshape(len(words), -1)
        return np.ascontiguousarray(ordered[:, start - 8 * first : end - 8 * first].T)

    def read(tensors: Mapping[str, Array], start: int, end: int) -> CodedRows:
        codes = codes_of(tensors["codes"], start, end).astype(np.uint8)
        scales = np.ascontiguousarray(tensors["scales"][:, start:end].T)
        zeros = np.full_like(scales, 8)
        if "zeros" in tensors:
            zeros = codes_of(tensors["zeros"], start, end).astype(np.float32)
        return CodedRows(codes, scales, zeros, group_inputs)

    return read


# compressed-tensors: integers in words or bytes, FP8, MXFP4


def _compressed(found: _Checkpoint) -> Iterable[PackedWeight]:
    for base, name in found.with_suffix(".weight_packed"):
        scale = f"{base}.weight_scale"
        if found.tensors[name].dtype == "U8":
            yield _compressed_fp4(found, base, name, scale)
        else:
            yield _compressed_words(found, base, name, scale)
    for base, name in found.with_suffix(".weight"):
        if found.tensors[name].dtype in ("F8_E4M3", "I8"):
            is_float = found.tensors[name].dtype != "I8"
            kind = E4M3 if is_float else CodeKind(8, is_signed=True)
            block = _of_groups(found, "block_structure")
            yield _bytes_with_scales(found, name, [f"{base}.weight_scale"], block, kind)


def _of_groups(found: _Checkpoint, key: str) -> Any:
    """What all groups of weights say of themselves under a key.

    Raises ModelUnsupported where they do not say the same.
    """
    groups = found.settings.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    said = []
    for scheme in schemes:
        weights = scheme.get("weights") if isinstance(scheme, dict) else None
        said.append(weights.get(key) if isinstance(weights, dict) else None)
    if any(one != said[0] for one in said):
        raise ModelUnsupported(
            "cannot read quantization_config", why=f"its groups differ in {key}, and must not"
        )
    return said[0] if said else None


def _compressed_fp4(found: _Checkpoint, base: str, name: str, scale: str) -> PackedWeight:
    pieces = found.pieces({"codes": [name], "scales": [scale]})
    outputs, half = found.shape(name, 2)
    _, groups = found.shape(scale, 2)
    is_power = found.tensors[scale].dtype in ("U8", "F8_E8M0")
    if not is_power or f"{base}.weight_global_scale" in found.tensors:
        raise _unfit(scale, "FP4 is known with powers of two as scales (MXFP4) only")
    if 2 * half % groups or found.tensors[scale].shape[0] != outputs:
        raise _unfit(scale, f"not the scales of {outputs} outputs")
    read = _nibbles_reader(2 * half // groups)
    return PackedWeight(f"{base}.weight", (outputs, 2 * half), pieces, E2M1, read)


def _compressed_words(found: _Checkpoint, base: str, name: str, scale: str) -> PackedWeight:
    pieces = found.pieces(
        {
            "codes": [name],
            "scales": [scale],
            "zeros": [f"{base}.weight_zero_point"],
            "group_of": [f"{base}.weight_g_idx"],
            "shape": [f"{base}.weight_shape"],
        },
        optional=["zeros", "group_of", "shape"],
    )
    outputs, words = found.shape(name, 2)
    bits = _of_groups(found, "num_bits")
    _refuse_bits(name, bits if isinstance(bits, int) else 0)
    inputs = 32 // bits * words
    given = found.tensors[scale].shape
    groups = 1 if math.prod(given) == 1 else math.prod(given) // outputs
    if math.prod(given) not in (1, outputs * groups) or not groups or inputs % groups:
        raise _unfit(scale, f"it has shape {list(given)} for a weight of {[outputs, inputs]}")
    if "zeros" in pieces and found.tensors[pieces["zeros"]].shape != (
        -(-outputs * bits // 32),
        groups,
    ):
        raise _unfit(pieces["zeros"], f"not the zero points of {groups} groups")
    middle = 2 ** (bits - 1)

    def read(tensors: Mapping[str, Array], start: int, end: int) -> CodedRows:
        codes = _along(tensors["codes"][start:end], bits).astype(np.uint8)
        scales = tensors["scales"]
        if scales.size == 1:
            scales = np.broadcast_to(scales.reshape(1, 1), (outputs, 1))
        scales = np.ascontiguousarray(scales.reshape(outputs, groups)[start:end])
        zeros = np.full_like(scales, middle)
        if "zeros" in tensors:
            along = _along(np.ascontiguousarray(tensors["zeros"].T), bits)
            zeros = np.ascontiguousarray(along[:, start:end].T).astype(np.float32)
        group_of = tensors.get("group_of")
        if group_of is not None and (group_of == 2**32 - 1).any():
            group_of = None  # −1: in order
        if group_of is not None:
            _refuse_groups(group_of, groups)
        return CodedRows(codes, scales, zeros, inputs // groups, group_of)

    weight = f"{base}.weight"
    return PackedWeight(weight, (outputs, inputs), pieces, CodeKind(bits), read)


_FINDERS: Mapping[str, Callable[[_Checkpoint], Iterable[PackedWeight]]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
}
