"""Which other orders of summation may an honest machine have? In float32, as profiles demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from core.dispute.registration.kernels import Kernel, whole
from core.engine.model.blocks import ModelShard

BLOCK = 16
Product = Callable[[Tensor, Tensor], Tensor]


def _sequential(x: Tensor, w: Tensor) -> Tensor:
    """One term after the other: the order with most roundings. (`cumsum` would add in float64.)"""
    terms = x.float().reshape(-1, x.shape[-1]).T.contiguous()
    columns = w.T.float().contiguous()
    total = torch.zeros(terms.shape[1], len(w))
    product = torch.empty_like(total)
    for term, column in zip(terms, columns, strict=True):
        torch.mul(term[:, None], column, out=product)
        total += product
    return total.reshape(*x.shape[:-1], len(w))


def _blocked(x: Tensor, w: Tensor) -> Tensor:
    """Sums of 16 terms, added one after the other."""
    total = torch.zeros(*x.shape[:-1], len(w))
    for at in range(0, w.shape[1], BLOCK):
        total += x[..., at : at + BLOCK].float() @ w[:, at : at + BLOCK].float().T
    return total


def _split(x: Tensor, w: Tensor) -> Tensor:
    """Sixteen partial sums over interleaved terms, added at the end."""
    return torch.stack(
        [x[..., i::BLOCK].float() @ w[:, i::BLOCK].float().T for i in range(BLOCK)]
    ).sum(0)


def _reordered(x: Tensor, w: Tensor) -> Tensor:
    order = torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(w.shape[1]))
    return x[..., order].float() @ w[:, order].float().T


def _with_products(product: Product) -> Kernel:
    def run(shard: ModelShard, x: Tensor) -> Tensor:
        linears = [m for m in shard.decoder_layers.modules() if isinstance(m, nn.Linear)]
        with ExitStack() as stack:
            for linear in linears:
                stack.enter_context(_multiplying(linear, product))
            return whole(shard, x)

    return run


#: The library's layers with other orders of summation in their products.
OTHER_SUMS: dict[str, Kernel] = {
    "sums one by one": _with_products(_sequential),
    "sums in blocks": _with_products(_blocked),
    "split sums": _with_products(_split),
    "reordered sums": _with_products(_reordered),
}


@contextmanager
def _multiplying(linear: nn.Linear, product: Product) -> Iterator[None]:
    def forward(x: Tensor) -> Tensor:
        out = product(x, linear.weight)
        if linear.bias is not None:
            out = out + linear.bias.float()
        return out.to(x.dtype)

    linear.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del linear.forward
