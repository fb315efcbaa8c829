"""How do final norm and head compute in float32 behind layers of bfloat16?

A token is judged by float64 logits of the state row that the stage signed (`docs/trust.md` §6), so
what is behind the row has to be as exact as float32 makes it: logits rounded to bfloat16 are whole
nats off. The head's matrix stays in bfloat16 where the files have it so, and is read once a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from core.engine.model.naming import Family

#: Of a matrix, weights that are widened at a time: they stay in the caches until they are used.
_BLOCK_WEIGHTS = 1 << 18
_PIECES = 3  # of eight bits each: all of a float32


class WideHead(nn.Module):
    """An output matrix held in bfloat16 or float32, whose products are float32's."""

    def __init__(self, plain: nn.Linear) -> None:
        """As wide as `plain`, whose numbers are still to be read."""
        super().__init__()
        self.out_features, self.in_features = plain.out_features, plain.in_features
        self.weight = nn.Parameter(plain.weight.detach(), requires_grad=False)
        bias = plain.bias
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out] in float32."""
        rows = x.float().reshape(-1, self.in_features)
        if self.weight.dtype == torch.float32:
            made = rows @ self.weight.t()
        elif rows.is_cuda:
            made = by_pieces(rows, self.weight, torch.float32, torch.bfloat16)
        else:
            made = _by_blocks(rows, self.weight)
        if self.bias is not None:
            made += self.bias
        return made.view(*x.shape[:-1], self.out_features)


def by_pieces(
    rows: Tensor, weight: Tensor, sums: torch.dtype | None, multiplied: torch.dtype
) -> Tensor:
    """Rows [n, in] of float32 by a weight [out, in] in `multiplied`, bfloat16 on a device.

    A row is the sum of three of bfloat16, and all are multiplied at once: the weight is read once.
    `sums` is what the product keeps and gives its sums in, where it has to be told.
    """
    pieces, left = [], rows
    for _ in range(_PIECES):
        pieces.append(left.bfloat16())
        left = left - pieces[-1].float()
    options = {} if sums is None else {"out_dtype": sums}
    made: Tensor = torch.mm(torch.cat(pieces).to(multiplied), weight.t(), **options)
    return made.float().view(_PIECES, len(rows), -1).flip(0).sum(0)


def _by_blocks(rows: Tensor, weight: Tensor) -> Tensor:
    made = rows.new_empty(len(rows), len(weight))
    step = max(1, _BLOCK_WEIGHTS // weight.shape[1])
    for at in range(0, len(weight), step):
        made[:, at : at + step] = rows @ weight[at : at + step].float().t()
    return made


def widen_end(model: Any, family: Family) -> None:
    """Have a model's last modules compute in float32: those behind its layers, and the head.

    Before weights are read into it, so that they are read as exactly as the files have them.
    """
    for path in family.after:
        module = model.get_submodule(path)
        module.float()
        module.register_forward_pre_hook(_widened, with_kwargs=True)
    parent, _, name = family.head.rpartition(".")
    setattr(model.get_submodule(parent), name, WideHead(model.get_submodule(family.head)))


def _widened(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def wide(value: Any) -> Any:
        is_half = isinstance(value, Tensor) and value.is_floating_point()
        return value.float() if is_half else value

    return tuple(map(wide, args)), {name: wide(value) for name, value in kwargs.items()}
