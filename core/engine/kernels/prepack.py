"""How are linear layers laid out once so that they run fast and give the same bits in any batch?

A weight is reordered into what its kernel reads from first to last (`layouts`). The product of a
row then no longer depends on the other rows nor on the number of threads, and batches of 2 to 64
rows run up to four times faster than from the plain weight. Every shape is proved before it is
used, and what cannot be packed stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from core.engine.kernels.layouts import WeightLayout, layouts_of
from core.engine.kernels.lookup import map_embedding
from core.engine.memory.heap import return_freed_memory
from core.engine.model.blocks import ModelShard
from core.engine.model.wide_end import WideHead

_CHECK_ROWS = (1, 2, 3, 16, 61, 128)
_CHECK_COLUMNS = 4096
#: Children that every decoder gives one and the same tensor, first to last.
_READ_ALIKE = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Packed:
    """What `prepack` has done: modules packed and left plain."""

    packed: int
    plain: int
    reason: str  # why some are plain; "" when none is
    least_rows: int  # from how many rows on a row's product does not depend on the others: 1 or 2
    layouts: tuple[str, ...] = ()  # names of those in use


@dataclass(frozen=True)
class _Verdict:
    """The layout of a shape, or why there is none; from how many rows on it keeps its bits."""

    layout: WeightLayout | None
    reason: str
    least_rows: int


class PackedLinear(nn.Module):
    """Stands for a linear module; holds its weight in a layout's order only."""

    def __init__(self, layout: WeightLayout, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` is [out, in]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.layout, self.packed = layout, layout.lay(weight)
        self.spaces: list[Tensor] = []  # memory for wide results, unused now

    def forward(self, x: Tensor, *space: Tensor) -> Tensor:
        """[…, in] → […, out]; `space` is memory for the result, of a layout that takes some."""
        return self.layout.multiply(x, self.packed, self.bias, self.out_features, *space)


class JoinedLinear(nn.Module):
    """One of several linear modules that get the same tensor in turn: one product serves all."""

    def __init__(self, whole: PackedLinear, sizes: list[int], number: int) -> None:
        super().__init__()
        self.out_features, self.in_features = sizes[number], whole.in_features
        self._shared: dict[str, Any] = {"whole": whole, "x": None, "outs": ()}
        self._sizes, self._number = sizes, number

    @classmethod
    def of(
        cls, layout: WeightLayout, weights: list[Tensor], biases: list[Tensor | None]
    ) -> list[JoinedLinear]:
        """Parts for weights [out, in] of equal width and biases [out]."""
        bias = None if biases[0] is None else torch.cat([b for b in biases if b is not None])
        whole, sizes = PackedLinear(layout, torch.cat(weights), bias), [len(w) for w in weights]
        parts = [cls(whole, sizes, number) for number in range(len(sizes))]
        for part in parts:
            part._shared = parts[0]._shared
        return parts

    @property
    def whole(self) -> PackedLinear:
        """The product that this is a part of."""
        found: PackedLinear = self._shared["whole"]
        return found

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out of this part]; the last part forgets what was shared."""
        shared = self._shared
        if shared["x"] is not x:
            shared["outs"] = shared["whole"](x).split(self._sizes, -1)
            shared["x"] = x
        out: Tensor = shared["outs"][self._number]
        if self._number == len(self._sizes) - 1:
            shared["x"], shared["outs"] = None, ()
        return out


def prepack(shard: ModelShard, *, head: bool = True, model_dir: Path | None = None) -> Packed:
    """Pack the linear modules of a shard in place, except those whose kernels fail the check.

    With `head` the output head is packed too. A matrix that it shares with the embedding is then
    held twice, unless `model_dir` says in which files the embedding may stay. Afterwards
    `shard.forward` answers with the packed kernels' bits.
    """
    if shard.device.type != "cpu":
        return Packed(0, _count(shard.model), f"nothing is packed on {shard.device.type}", 2)
    verdicts: dict[tuple[Any, ...], _Verdict] = {}
    packed = plain = 0
    reasons: list[str] = []
    output = id(shard.model.get_output_embeddings())
    # A holder of a replaced module keeps its plain weight: the list has only what has children.
    for parent in [m for m in shard.model.modules() if next(m.children(), None) is not None]:
        for names in _groups(parent):
            modules = [getattr(parent, name) for name in names]
            weights = [_plain_weight(module) for module in modules]
            held = [weight for weight in weights if weight is not None]
            if len(held) < len(names) or (id(modules[0]) == output and not head):
                continue
            multiplied = torch.float32 if isinstance(modules[0], WideHead) else held[0].dtype
            key = sum(map(len, held)), held[0].shape[1], held[0].dtype, multiplied
            if key not in verdicts:
                verdicts[key] = _verdict(held, multiplied)
            layout = verdicts[key].layout
            if layout is None:
                plain += len(names)
                reasons.append(verdicts[key].reason)
                continue
            if len(held) == 1:
                setattr(parent, names[0], PackedLinear(layout, held[0], modules[0].bias))
            else:
                parts = JoinedLinear.of(layout, held, [module.bias for module in modules])
                for name, part in zip(names, parts, strict=True):
                    setattr(parent, name, part)
            packed += len(names)
            if id(modules[0]) == output and model_dir is not None:
                table_at = shard.model.get_input_embeddings().weight.data_ptr()
                if table_at == held[0].data_ptr():
                    map_embedding(shard, model_dir)
            del held, weights, modules
            return_freed_memory()
    least_rows = 2 if plain else max((v.least_rows for v in verdicts.values()), default=2)
    used = {v.layout.name for v in verdicts.values() if v.layout is not None}
    reason = reasons[0] if reasons else ""
    return Packed(packed, plain, reason, least_rows, tuple(sorted(used)))


def _groups(parent: nn.Module) -> list[tuple[str, ...]]:
    """Names of a module's linear children; those that read the same tensor together."""
    children = dict(parent.named_children())
    found = [names for names in _READ_ALIKE if all(_joins(children, n, names[0]) for n in names)]
    joined = {name for names in found for name in names}
    return found + [(name,) for name in children if name not in joined]


def _joins(children: dict[str, nn.Module], name: str, first: str) -> bool:
    module, lead = children.get(name), children.get(first)
    if type(module) is not nn.Linear or type(lead) is not nn.Linear:
        return False
    alike = (module.bias is None) == (lead.bias is None)
    return (
        alike
        and module.in_features == lead.in_features
        and module.weight.dtype == lead.weight.dtype
    )


def _plain_weight(module: nn.Module) -> Tensor | None:
    """[out, in] of a module that multiplies by an ordinary matrix held here; None for others."""
    if type(module) in (nn.Linear, WideHead):
        weight: Tensor = module.weight
    elif type(module) is Conv1D:
        weight = module.weight.t()
    else:
        return None
    ordinary = type(weight.data) is Tensor and not hasattr(weight, "__tensor_flatten__")
    return weight.detach() if ordinary and not weight.is_meta else None


def _verdict(weights: list[Tensor], multiplied: torch.dtype) -> _Verdict:
    """The first layout whose product of this shape is right, or what is wrong with each.

    Products are those of rows in `multiplied`.
    """
    weight = torch.cat([part[:_CHECK_COLUMNS] for part in weights])
    if weight.dtype not in _TOLERANCES:
        return _Verdict(None, f"{weight.dtype} is not packed", 2)
    layouts, missing = layouts_of(weight.dtype, multiplied)
    reasons = [missing] if missing else []
    for layout in layouts:
        reason, least_rows = _try(layout, weight.to(multiplied), weight)
        if not reason:
            return _Verdict(layout, "", least_rows)
        reasons.append(f"{layout.name}: {reason}")
    return _Verdict(None, "; ".join(reasons), 2)


def _try(layout: WeightLayout, weight: Tensor, held: Tensor) -> tuple[str, int]:
    """What is wrong with products of this shape (or ""), and from how many rows bits stay.

    `held` is what is laid out of the weight [out, in].
    """
    made = torch.Generator().manual_seed(0)
    x = torch.randn(max(_CHECK_ROWS), weight.shape[1], generator=made).to(weight.dtype)
    columns = len(weight)
    try:
        laid = layout.lay(held)
        whole = layout.multiply(x, laid, None, columns)
        parts = {n: layout.multiply(x[:n].contiguous(), laid, None, columns) for n in _CHECK_ROWS}
    except (RuntimeError, AttributeError) as error:
        return str(error).splitlines()[0], 2
    expected = nn.functional.linear(x, weight).double()
    off = float((whole.double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not off <= _TOLERANCES[weight.dtype]:
        return f"the packed product of {list(weight.shape)} is off by {off:.1e}", 2
    unequal = [rows for rows, part in parts.items() if not torch.equal(part, whole[:rows])]
    if unequal and unequal[-1] > 1:
        shape = list(weight.shape)
        return f"the packed product of {shape} differs between {unequal[-1]} and {len(x)} rows", 2
    return "", 2 if unequal else 1


def _count(model: nn.Module) -> int:
    return sum(_plain_weight(module) is not None for module in model.modules())
