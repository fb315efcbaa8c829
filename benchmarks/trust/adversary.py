"""How far off is an honest stage on rows that were chosen against it?

The party that chooses rows chooses how rounding grows in them. Two searches go by gradients: for
rows that the layers cancel, and for rows in which random shakes grow most. What they find is then
changed by units in the last place, until some kernel's roundings add up. Honest kernels compute all
of it; their distance is held to the larger of T·S and K·N, as after a plea (`docs/trust.md` §4).
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.table import Row
from benchmarks.trust.gradients import Differentiable
from benchmarks.trust.kernels import OTHER_SUMS
from benchmarks.trust.limits import tolerance_of
from core.dispute.play.build import Boundaries
from core.dispute.play.model import TraceModel
from core.dispute.play.plea import SAMPLED, Conditioning, most_noise
from core.dispute.play.program import model_program
from core.dispute.registration.kernels import by_pieces, whole
from core.dispute.trace.families import (
    BF16_PLEA,
    BF16_TOLERANCES,
    FAMILIES,
    FP32_PLEA,
    FP32_TOLERANCES,
)
from core.dispute.trace.layout import TraceLayout
from core.dispute.trace.program import Program
from core.engine.model.blocks import ModelShard
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange

#: Of search, for each family and profile.
MINUTES = 1.0
QUICK: dict[str, Any] = {
    "MINUTES": 0.0,
    "FAMILIES": ("llama",),
    "PROFILES": ("fp32",),
    "DEPTHS": (1,),
    "WINDOWS": (1,),
    "STEPS": 3,
    "GROUND": 1,
}
PROFILES = ("fp32", "bf16")
PROMISES = {
    "fp32": (FP32_TOLERANCES, FP32_PLEA),
    "bf16": (BF16_TOLERANCES, BF16_PLEA),
}
FORMS = {"fp32": ("float32", torch.float32), "bf16": ("bfloat16", torch.bfloat16)}
LAYERS, FIRST, DEPTHS, WINDOWS = 4, 1, (1, 2), (1, 16, 64)
GROUND = 24  # changes of what was found
STEPS = 80  # of a search from one start


@dataclass(frozen=True)
class Stage:
    """Some layers of a model, as an attacker knows them."""

    folder: Path
    program: Program
    model: TraceModel
    profile: str
    depth: int

    def layout(self, rows: int) -> TraceLayout:
        return TraceLayout(self.program, FIRST, FIRST + self.depth, rows, 0)

    def load(self) -> ModelShard:
        span = LayerRange(FIRST, FIRST + self.depth)
        return load_shard(self.folder, span, numerics=FORMS[self.profile][0])


@dataclass
class Found:
    """What was judged, and how near it came to convicting an honest stage."""

    judged: int = 0
    share: float = 0.0  # of the limit, after a plea
    bare: float = 0.0  # D over T·S, largest
    how: str = "–"
    tried: set[str] = field(default_factory=set)


def rows() -> list[Row]:
    """One row a family and profile."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return [
            _row(family, profile, searched(Path(folder), family, profile, 60 * MINUTES))
            for family in FAMILIES
            for profile in PROFILES
        ]


def _row(family: str, profile: str, found: Found) -> Row:
    return Row(
        f"rows chosen against an honest stage, {family}, {profile}",
        "≤ 0.5 of the limit",
        f"{found.share:.3f} ({found.how}; {found.judged} executions, {MINUTES:g} min)",
        f"{found.bare:.3g} T without a plea",
        "1",
        found.judged > 0 and found.share <= 0.5,
    )


def searched(folder: Path, family: str, profile: str, seconds: float) -> Found:
    """The worst that the searches find within this time, at each depth."""
    from devnet.models.tiny_models import write_tiny_model

    path = folder / f"{family}-{profile}"
    name = {"gemma3_text": "gemma3"}.get(family, family)
    write_tiny_model(path, name, layers=LAYERS, dtype=FORMS[profile][0])
    tolerances, plea = PROMISES[profile]
    ours = model_program(path, tolerances, plea=plea)
    found, model = Found(), ours.trace_model(path)
    for depth in DEPTHS:
        stage = Stage(path, ours.program, model, profile, depth)
        search(stage, found, time.monotonic() + seconds / len(DEPTHS))
    return found


def search(stage: Stage, found: Found, until: float) -> None:
    """Each attack again and again, from other starts, until it is time. At least once."""
    rng, shard = torch.Generator().manual_seed(stage.depth), stage.load()
    while not found.judged or time.monotonic() < until:
        for name, attack in ATTACKS.items():
            for rows in attack(stage, rng, until):
                held = rows.to(FORMS[stage.profile][1])
                for many in WINDOWS if len(held) == 1 else (1,):
                    _judge(stage, shard, held.repeat(many, 1), name, rng, found)
            if found.judged and time.monotonic() >= until and len(found.tried) == len(ATTACKS):
                return


def _judge(
    stage: Stage, shard: ModelShard, rows: Tensor, name: str, rng: torch.Generator, found: Found
) -> None:
    """The rows through honest kernels, the worst one again on rows changed a little; what comes
    nearest to the limit is kept.
    """
    found.tried.add(name)
    layout = stage.layout(len(rows))
    least = tolerance_of(stage.program, stage.depth, len(rows))

    def conditioning(given: Tensor) -> Conditioning:
        return Conditioning(layout, stage.model, Boundaries(given.float().numpy()))

    def far(of: Conditioning, served: Tensor) -> float:
        found.judged += 1
        return math.sqrt(of.deviation(served.float().numpy()).sum() / of.size.sum())

    ways, first = kernels(shard), conditioning(rows)
    worst = max(ways, key=lambda way: far(first, ways[way](rows)))
    changed = (rows, *(_moved(rows, rng) for _ in range(GROUND)))
    exact = [conditioning(given) for given in changed]
    ratios = [far(of, ways[worst](given)) for given, of in zip(changed, exact, strict=True)]
    ratio, of = max(zip(ratios, exact, strict=True), key=lambda one: one[0])
    found.bare = max(found.bare, ratio / least)
    if ratio / least < found.share:
        return  # far below what was found, whatever a plea adds
    noise = max(math.sqrt(of.change(seed).sum() / of.size.sum()) for seed in SAMPLED)
    share = ratio / max(least, most_noise(stage.program) * noise)
    if share > found.share:
        found.share = share
        found.how = f"{name}, {len(rows)} rows, {stage.depth} layers, {worst}"


def _moved(rows: Tensor, rng: torch.Generator) -> Tensor:
    """Each number by at most two units in its last place."""
    steps = torch.randint(-2, 3, rows.shape, generator=rng).to(rows.dtype)
    return rows + steps * torch.finfo(rows.dtype).eps * rows.abs()


def kernels(shard: ModelShard) -> dict[str, Callable[[Tensor], Tensor]]:
    """Honest ways to compute rows: all at once, one by one, and with other orders of summation."""
    known = {"whole": whole, "one by one": by_pieces(1)} | OTHER_SUMS
    return {name: partial(kernel, shard) for name, kernel in known.items()}


# --- attacks ---


def cancelled(stage: Stage, rng: torch.Generator, until: float) -> Iterator[Tensor]:
    """A row that the layers nearly cancel, x + f(x) ≈ 0: by damped least squares."""
    f = Differentiable(stage.layout(1), stage.model)
    x = torch.randn(1, len(f.sigma), generator=rng, dtype=torch.float64) * f.sigma
    for _ in range(STEPS // 2):
        x = x - f(x) / 2

    def left(x: Tensor) -> Tensor:
        return (f(x[None]) / f.sigma)[0]

    def ratio(x: Tensor) -> float:
        return float(f.whitened(f(x)) / f.whitened(x))

    damping, best = 1e-2, ratio(x)
    for _ in range(STEPS):
        jacobian = torch.autograd.functional.jacobian(left, x[0]) * f.sigma
        square = jacobian.T @ jacobian
        damped = square + damping * torch.diag(square.diagonal() + 1e-9)
        tried = x - torch.linalg.solve(damped, jacobian.T @ left(x[0])) * f.sigma
        if ratio(tried) < best:
            x, best, damping = tried, ratio(tried), max(damping / 5, 1e-12)
        else:
            damping *= 4
        if damping > 1e6 or best < 1e-7 or time.monotonic() > until:
            break
    yield x


def amplified(stage: Stage, rng: torch.Generator, until: float) -> Iterator[Tensor]:
    """Rows in which a random shake grows most: by Adam, from natural sizes."""
    for count in (2, 16):
        f = Differentiable(stage.layout(count), stage.model)
        width = len(f.sigma)
        x = torch.randn(count, width, generator=rng, dtype=torch.float64) * f.sigma
        x.requires_grad_()
        by = torch.optim.Adam([x], lr=float(f.sigma.mean()) / 20)

        def shake(value: Tensor) -> Tensor:
            signs = torch.randint(0, 2, value.shape, generator=rng).double() * 2 - 1
            return value * (1 + signs * 2.0**-16)

        for _ in range(STEPS):
            by.zero_grad()
            exact = f(x)
            noise = f.whitened(f(x, shake) - exact)
            loss = (f.whitened(exact).square().sum() / noise.square().sum()).log()
            loss.backward()
            by.step()
            if time.monotonic() > until:
                break
        yield x.detach()


ATTACKS: dict[str, Callable[[Stage, torch.Generator, float], Iterator[Tensor]]] = {
    "cancelled": cancelled,
    "amplified": amplified,
}
