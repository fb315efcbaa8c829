"""How does a stage lie here? Coarser weights, less work, another's answers, another's tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.trust.town import Work, Worker
from core.engine.model.blocks import ModelShard

Spoil = Callable[[nn.Module], None]
CUT_TO = 32


def _matrices(layer: nn.Module) -> list[nn.Parameter]:
    return [p for p in layer.parameters() if p.dim() == 2]


def int8(layer: nn.Module) -> None:
    """One scale per output channel."""
    for w in _matrices(layer):
        scale = w.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / 127
        w.copy_(torch.round(w.float() / scale) * scale)


def fp8(layer: nn.Module) -> None:
    """e4m3 with one scale per output channel."""
    for w in _matrices(layer):
        scale = w.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / 448
        w.copy_((w.float() / scale).to(torch.float8_e4m3fn).float() * scale)


def int4(layer: nn.Module) -> None:
    """Groups of 64 inputs share a scale."""
    for w in _matrices(layer):
        groups = w.float().reshape(len(w), -1, 64)
        scale = groups.abs().amax(dim=2, keepdim=True).clamp_min(1e-30) / 7
        w.copy_((torch.round(groups / scale) * scale).reshape(w.shape))


def perturbed(layer: nn.Module) -> None:
    """Every weight off by a hundredth of itself, at random."""
    rng = torch.Generator().manual_seed(1)
    for w in _matrices(layer):
        w.copy_(w.float() * (1 + 1e-2 * torch.randn(w.shape, generator=rng)))


def spoil(shard: ModelShard, how: Spoil, layers: int) -> None:
    """In place, in the first `layers` of the shard's layers."""
    with torch.no_grad():
        for layer in list(shard.decoder_layers)[:layers]:
            how(layer)


def skip_layer(shard: ModelShard) -> None:
    """The first owned layer hands on what it was given."""

    def hand_on(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return args[0]

    shard.decoder_layers[0].register_forward_hook(hand_on)


def stale_keys(shard: ModelShard) -> None:
    """Keys and values of every position are those of the one before it."""
    for name, module in shard.decoder_layers.named_modules():
        if name.endswith(("k_proj", "v_proj")):
            _delay(module)


def _delay(module: nn.Module) -> None:
    last: list[Tensor] = []

    def delayed(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        rows = out[0] if out.dim() == 3 else out
        before = last[-1] if last and len(rows) == 1 else rows[:1]
        last[:] = [rows[-1:].clone()]
        shifted = torch.cat([before, rows[:-1]])
        return shifted.unsqueeze(0) if out.dim() == 3 else shifted

    module.register_forward_hook(delayed)


def truncated(shard: ModelShard, request: int) -> Work:
    """Context is cut: behind the first chunk, rows see `CUT_TO` positions of it."""
    whole, cut = shard.new_cache(), shard.new_cache()
    kept = 2 * CUT_TO - CUT_TO // 2

    def work(x: Tensor) -> Tensor:
        if cut.length:
            return shard.forward(x, cut)
        head = shard.forward(x[:kept], whole)
        shard.forward(x[kept - CUT_TO : kept], cut)
        return torch.cat([head, shard.forward(x[kept:], cut)])

    return work


def replaying(recorded: Tensor) -> Worker:
    """Hands out rows of an earlier request."""

    def worker(shard: ModelShard, request: int) -> Work:
        done = [0]

        def work(x: Tensor) -> Tensor:
            at = done[0] % len(recorded)
            done[0] += len(x)
            return recorded[(torch.arange(len(x)) + at) % len(recorded)]

        return work

    return worker
