"""How does what a stage makes of its rows change with them? Its operator program in torch.

Every family that has a program is covered, and each value can be shaken, so a search sees by its
gradients where the noise of a stage grows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from core.dispute.play.model import TraceModel
from core.dispute.referee import LeafKind
from core.dispute.trace.layout import EMBED_PART, TABLES_PART, UNSHAKEN, TraceLayout
from core.dispute.trace.program import NONE, Op

_TWO_ROOT = 2 * (2 / torch.pi) ** 0.5
#: A value of an operator, changed.
Shake = Callable[[Tensor], Tensor]


class Differentiable:
    """The layers of a layout as one function of its rows [N, D], in float64."""

    def __init__(self, layout: TraceLayout, model: TraceModel) -> None:
        self._at, self._p, self._model = layout, layout.program, model
        self.sigma = torch.from_numpy(model.sigma(layout))
        self._tensors: dict[tuple[int, int], Tensor] = {}

    def __call__(self, rows: Tensor, shake: Shake | None = None) -> Tensor:
        """What the last layer makes of these rows, [N, D]; each value shaken on the way."""
        entering = rows if shake is None else shake(rows)
        for section in range(1, self._at.once):
            made: list[Tensor] = []
            for op in self._at.section(section).ops:
                found = self._made(section, op, entering, made)
                if shake is not None and op.kind not in UNSHAKEN:
                    found = shake(found)
                made.append(found)
            entering = made[-1]
        return entering

    @cached_property
    def table(self) -> Tensor:
        """The embeddings [V, D] in float32, before they are scaled."""
        return torch.from_numpy(self._model.tensor(EMBED_PART, self._enter.tensor))

    def embed(self, ids: Tensor) -> Tensor:
        """What enters a first stage's layers of ids [N], [N, D]."""
        return self.table[ids].double() * self._number(self._enter)

    @property
    def _enter(self) -> Op:
        return self._at.section(0).ops[0]

    def whitened(self, rows: Tensor) -> Tensor:
        """Each row's size [N] in units of the registered sizes of its channels."""
        return (rows / self.sigma).square().sum(dim=1).sqrt()

    def _tensor(self, section: int, number: int) -> Tensor:
        key = self._at.part(section), number
        if key not in self._tensors:
            self._tensors[key] = torch.from_numpy(self._model.tensor(*key)).double()
        return self._tensors[key]

    def _number(self, op: Op) -> float:
        (found,) = struct.unpack(">d", self._p.constants[op.constant].to_bytes(8, "big"))
        return float(found)

    def _made(self, section: int, op: Op, entering: Tensor, made: list[Tensor]) -> Tensor:
        """Values by position [N, …]; scores [heads, N, N]; scalars [N, 1] or [N, heads]."""

        def of(source: int) -> Tensor:
            return entering if source >= len(made) else made[source]

        a = of(op.a)
        match op.kind:
            case LeafKind.LINEAR:
                bias = None if op.bias == NONE else self._tensor(section, op.bias)[0]
                return torch.nn.functional.linear(a, self._tensor(section, op.tensor), bias)
            case LeafKind.SQUARES:
                groups = self._at.length(op.form)
                return a.reshape(len(a), groups, -1).square().sum(dim=2)
            case LeafKind.NORM_SCALE:
                n = self._at.group(section, self._at.op(section, op.a))
                return (a / n + self._number(op)).rsqrt()
            case LeafKind.NORM:
                r, gain = of(op.b), self._tensor(section, op.tensor)[0] + op.flag
                return (a.reshape(len(a), r.shape[1], -1) * r[:, :, None] * gain).reshape(a.shape)
            case LeafKind.ROPE:
                return self._turned(op, a)
            case LeafKind.COPY:
                return a
            case LeafKind.SCORE:
                return self._scores(op, a, of(op.b))
            case LeafKind.SOFTCAP:
                cap = self._number(op)
                return cap * torch.tanh(a / cap)
            case LeafKind.STABILISER:
                return a.amax(dim=2).T.detach()
            case LeafKind.EXP:
                return torch.exp(of(op.b) - a.T[:, :, None])
            case LeafKind.SUM:
                return a.sum(dim=2).T
            case LeafKind.PROBABILITY:
                return a / of(op.b).T[:, :, None]
            case LeafKind.MIX:
                values = self._by_head(of(op.b), self._p.heads // self._p.key_heads)
                return torch.einsum("hqk,hkd->qhd", a, values).reshape(a.shape[1], -1)
            case LeafKind.SILU:
                return torch.nn.functional.silu(a)
            case LeafKind.GELU_TANH:
                return a * torch.sigmoid(_TWO_ROOT * (a + 0.044715 * a**3))
            case LeafKind.PRODUCT:
                return a * of(op.b)
            case LeafKind.ADD:
                return a + of(op.b)
            case LeafKind.SCALE:
                return a * self._number(op)
            case _:
                raise ValueError(f"{op.kind.name} in a layer")

    def _by_head(self, x: Tensor, share: int) -> Tensor:
        """[heads, N, d], each key head for as many query heads as share it."""
        return x.reshape(len(x), -1, self._p.head_dim).transpose(0, 1).repeat_interleave(share, 0)

    def _turned(self, op: Op, x: Tensor) -> Tensor:
        table = self._model.tensor(TABLES_PART, op.tensor)[: len(x)]
        angles: Any = torch.from_numpy(table).double()
        c, s = angles[:, None, 0::2], angles[:, None, 1::2]
        heads = x.reshape(len(x), -1, 2, self._p.head_dim // 2)
        first, second = heads[:, :, 0], heads[:, :, 1]
        turned = torch.stack((first * c - second * s, second * c + first * s), dim=2)
        return turned.reshape(x.shape)

    def _scores(self, op: Op, q: Tensor, k: Tensor) -> Tensor:
        keys = self._by_head(k, self._p.heads // self._p.key_heads)
        found = self._number(op) * self._by_head(q, 1) @ keys.transpose(1, 2)
        window = 0 if op.bias == NONE else self._p.constants[op.bias]
        back = torch.arange(len(q))[:, None] - torch.arange(len(q))[None, :]
        hidden = (back < 0) | ((back >= window) if window else False)
        return found.masked_fill(hidden, -torch.inf)
