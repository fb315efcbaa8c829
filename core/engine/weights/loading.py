"""How do stored bytes become a shard's parameters without being held twice?

Bytes are read straight into the parameter where the dtypes agree, else through one small buffer.
Experts are stacked one at a time, and a layer is quantised before the next one is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from core.engine.memory.heap import own_pages
from core.engine.model.coded_linear import CodedLinear
from core.engine.model.conversion import Renaming, TensorGroup
from core.engine.model.naming import Family
from core.engine.model.spread import Spread
from core.engine.model.wide_end import WideHead
from core.engine.native.native import NoKernels
from core.engine.weights.packed import E4M3, CodedRows, CodeKind
from core.engine.weights.tensors import TensorFolder
from core.protocol.errors import ModelUnsupported
from core.protocol.types import LayerRange

_TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_BLOCK_BYTES = 4 * 2**20
_PROVED_ROWS = 64
_log = logging.getLogger(__name__)


class Source(Protocol):
    """Where stored tensors come from."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def fill(self, name: str, target: Tensor) -> None:
        """Copy a tensor into `target` of the same shape [...], of any dtype and on any device."""

    def keep_packed(self, name: str, plain: nn.Linear) -> nn.Module | None:
        """What multiplies by a matrix as it is stored, in place of a module; None for no such."""


class FolderSource:
    """The tensors of a model folder."""

    def __init__(self, folder: TensorFolder) -> None:
        self._folder = folder
        self._block = torch.empty(_BLOCK_BYTES, dtype=torch.uint8)

    def shape(self, name: str) -> tuple[int, ...]:
        entry = self._folder.entry(name)
        if entry.dtype not in _TORCH_DTYPES:
            raise ModelUnsupported(
                f"{name} is stored as {entry.dtype}",
                why="weights must be float64, float32, float16 or bfloat16",
            )
        return entry.shape

    def dtype(self, name: str) -> torch.dtype:
        return _TORCH_DTYPES[self._folder.entry(name).dtype]

    def fill(self, name: str, target: Tensor) -> None:
        entry, flat = self._folder.entry(name), target.view(-1)
        if name in self._folder.packing.weights:
            done = 0
            for block in self._folder.read_values(name):
                flat[done : done + block.size] = torch.from_numpy(block.reshape(-1))
                done += block.size
            return
        stored = _TORCH_DTYPES[entry.dtype]
        if stored == target.dtype and target.device.type == "cpu":
            self._folder.read_into(name, flat.view(torch.uint8).numpy().data)
            return
        done = 0
        for count in self._folder.read_blocks(name, self._block.numpy().data):
            values = self._block[:count].view(stored)
            flat[done : done + len(values)] = values
            done += len(values)

    def keep_packed(self, name: str, plain: nn.Linear) -> nn.Module | None:
        """A packed matrix [out, in] as it is stored, where our kernels multiply by it."""
        weight = self._folder.packing.weights.get(name)
        if weight is None or weight.is_transposed or weight.kind.bits not in (4, 8):
            return None
        try:
            return _coded_linear(weight.kind, self._folder.read_coded(name), plain)
        except NoKernels as error:
            _log.warning("holding %s unpacked: %s", name, error)
            return None


def _coded_linear(kind: CodeKind, rows: CodedRows, plain: nn.Linear) -> CodedLinear:
    codes, zeros = rows.codes, rows.zeros
    if kind.is_signed:  # laid from 0 on, with a zero point
        middle = 2 ** (kind.bits - 1)
        codes = codes ^ np.uint8(middle)
        zeros = np.full_like(rows.scales, middle) if zeros is None else zeros + middle
    if kind == E4M3 and bool(np.isnan(kind.numbers[codes]).any()):
        raise NoKernels("a code is no number")
    made = CodedLinear(
        codes,
        np.ascontiguousarray(rows.scales),
        None if zeros is None else zeros.astype(np.uint8),
        bits=kind.bits,
        group_inputs=rows.group_inputs,
        group_of=rows.group_of,
        mantissa=-1 if kind.mantissa is None else kind.mantissa,
        unit=kind.unit,
        bias=plain.bias,
        dtype=plain.weight.dtype,
    )
    first = slice(0, _PROVED_ROWS)
    some = replace(
        rows,
        codes=rows.codes[first],
        scales=rows.scales[first],
        zeros=None if rows.zeros is None else rows.zeros[first],
    )
    made.prove(some.values(kind))
    return made


class TensorSource:
    """Tensors that are in memory already."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._tensors[name].dtype

    def fill(self, name: str, target: Tensor) -> None:
        target.copy_(self._tensors[name])

    def keep_packed(self, name: str, plain: nn.Linear) -> nn.Module | None:
        return None


@dataclass(frozen=True)
class Filling:
    """What is to be filled: a model on the meta device, cut to `layers` of `total`."""

    model: Any
    family: Family
    layers: LayerRange
    total: int
    spread: Spread
    #: Packed matrices stay as they are stored where there is a kernel for them.
    keeps_packed: bool
    #: Called with a layer when its parameters are complete.
    finish_layer: Callable[[nn.Module], None]


def fill_model(filling: Filling, needed: Mapping[str, str], source: Source) -> None:
    """Give a model the parameters that its shard needs; `needed` maps canonical to stored names.

    Raises ModelUnsupported for tensors that the model does not have, that have another shape or
    that are missing.
    """
    model, renaming = filling.model, Renaming(filling.model)
    by_layer: dict[int, list[TensorGroup]] = {}
    for group in renaming.groups(needed):
        by_layer.setdefault(_layer_of(group.target, filling), []).append(group)
    with own_pages(), torch.no_grad():
        for number in sorted(by_layer):
            for group in by_layer[number]:
                _fill_group(filling, group, renaming, needed, source)
            if number >= 0:
                filling.finish_layer(model.get_submodule(f"{filling.family.layers}.{number}"))
    _refuse_missing(filling)


def _fill_group(
    filling: Filling,
    group: TensorGroup,
    renaming: Renaming,
    needed: Mapping[str, str],
    source: Source,
) -> None:
    if group.converter is None:
        (name,) = group.names
        stored = needed[name]
        read_as: dict[tuple[torch.dtype, torch.device], nn.Parameter] = {}
        for path in _wanted(filling, group.target, needed):
            if filling.keeps_packed and _keep_packed(filling.model, path, source, stored):
                continue
            parameter = _new(filling, path, source.shape(stored), stored, source.dtype(stored))
            kind = parameter.dtype, parameter.device
            if kind not in read_as:
                source.fill(stored, parameter.data)
            _place(filling.model, path, read_as.setdefault(kind, parameter))
        return
    target = _local(group.target, filling)

    def read(name: str) -> Tensor:
        value = torch.empty(source.shape(needed[name]), dtype=filling.model.dtype)
        source.fill(needed[name], value)
        return value

    experts = renaming.convert_by_expert(group, read)
    if experts is not None:
        stacked: nn.Parameter | None = None
        for number, one in experts:
            if stacked is None:
                count = len(next(iter(group.sources.values())))
                stacked = _new(filling, target, (count, *one.shape[1:]), group.names[0])
            stacked.data[number] = one[0]
        assert stacked is not None
        _place(filling.model, target, stacked)
        return
    for name, made in renaming.convert(group, read).items():
        parameter = _new(filling, _local(name, filling), tuple(made.shape), group.names[0])
        parameter.data.copy_(made)
        _place(filling.model, _local(name, filling), parameter)


def _keep_packed(model: Any, path: str, source: Source, stored: str) -> bool:
    """Put what multiplies by the stored matrix in place of a linear module, if there is such."""
    at, _, leaf = path.rpartition(".")
    plain = _owner_of(model, path) if leaf == "weight" else None
    if type(plain) is not nn.Linear or tuple(plain.weight.shape) != source.shape(stored):
        return False
    made = source.keep_packed(stored, plain)
    if made is not None:
        parent, _, name = at.rpartition(".")
        setattr(model.get_submodule(parent), name, made)
    return made is not None


def _wanted(filling: Filling, target: str, needed: Mapping[str, str]) -> list[str]:
    """Where a plain tensor goes: a tied matrix into the embedding, the head, or both at once."""
    family = filling.family
    if target != family.embedding_weight:
        return [_local(target, filling)]
    first, last = filling.layers.start == 0, filling.layers.end == filling.total
    tied_head = last and filling.model.config.tie_word_embeddings
    return [target] * first + [family.head_weight] * bool(tied_head)


def _layer_of(target: str, filling: Filling) -> int:
    """The local number of the layer that holds a parameter, −1 outside the layers."""
    prefix = filling.family.layers + "."
    if not target.startswith(prefix):
        return -1
    return int(target.removeprefix(prefix).partition(".")[0]) - filling.layers.start


def _local(target: str, filling: Filling) -> str:
    number = _layer_of(target, filling)
    if number < 0:
        return target
    prefix = filling.family.layers + "."
    return f"{prefix}{number}.{target.removeprefix(prefix).partition('.')[2]}"


def _new(
    filling: Filling,
    path: str,
    shape: tuple[int, ...],
    stored: str,
    stored_in: torch.dtype | None = None,
) -> nn.Parameter:
    """An empty parameter of the shape and dtype that the model expects at a path.

    A head whose products are float32's is held as exactly as it is stored.
    """
    owner = _owner_of(filling.model, path)
    expected = getattr(owner, path.rpartition(".")[2], None)
    if not isinstance(expected, Tensor):
        raise ModelUnsupported(
            f"this checkpoint is not a plain {filling.family.model_type}",
            why=f"the model has no parameter {path} for {stored}",
        )
    if tuple(expected.shape) != shape:
        raise ModelUnsupported(
            f"{path} has shape {list(shape)}", why=f"the configuration says {list(expected.shape)}"
        )
    is_wide = isinstance(owner, WideHead) and stored_in != torch.bfloat16
    dtype = torch.float32 if is_wide else expected.dtype
    device = filling.spread.devices[filling.spread.part_at(path, filling.family)]
    empty = torch.empty(shape, dtype=dtype, device=device)
    return nn.Parameter(empty, requires_grad=False)


def _owner_of(model: Any, path: str) -> nn.Module | None:
    """The module that a parameter's path is in, if the model has it."""
    try:
        found: nn.Module = model.get_submodule(path.rpartition(".")[0])
    except AttributeError:
        return None
    return found


def _place(model: Any, path: str, parameter: nn.Parameter) -> None:
    module, _, leaf = path.rpartition(".")
    owner = model.get_submodule(module)
    if leaf in owner._buffers:
        owner._buffers[leaf] = parameter.data
    else:
        setattr(owner, leaf, parameter)


def _refuse_missing(filling: Filling) -> None:
    first, last = filling.layers.start == 0, filling.layers.end == filling.total
    family = filling.family
    elsewhere = [] if first else [family.before[0] + "."]
    elsewhere += [] if last else [family.head + "."]
    missing = [
        name
        for name, parameter in filling.model.named_parameters()
        if parameter.is_meta and not name.startswith(tuple(elsewhere))
    ]
    missing += [
        name
        for name, buffer in filling.model.named_buffers()
        if buffer.is_floating_point() and bool(buffer.isnan().any())
    ]
    if missing:
        raise ModelUnsupported(
            "this checkpoint is incomplete",
            why=f"it lacks {len(missing)} tensors of layers {filling.layers}, such as {missing[0]}",
            missing=missing[:20],
        )
