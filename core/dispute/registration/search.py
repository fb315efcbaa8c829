"""How far off is an honest stage on rows that were chosen against it?

The party that chooses rows chooses how rounding grows in them. Two searches go by gradients: for
rows that the layers cancel, and for rows in which random shakes grow most; of a first stage only
the token ids can be chosen. What they find is then changed by units in the last place, until some
kernel's roundings add up. Honest kernels compute all of it; their distance is held to the larger of
T·S and K·N, as after a plea (`docs/trust.md` §4).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.dispute.play.build import Boundaries
from core.dispute.play.model import TraceModel
from core.dispute.play.operators import Floats, Plain
from core.dispute.play.plea import SAMPLED, Conditioning, most_noise
from core.dispute.registration.gradients import Differentiable
from core.dispute.registration.kernels import Kernel, honest_ways
from core.dispute.trace.families import BF16_PLEA
from core.dispute.trace.layout import TraceLayout
from core.dispute.trace.program import Program, Tolerance
from core.engine.model.blocks import MAX_ACTIVATION, ModelShard
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange

PARTS = 10**12
#: Of the limit, at most, for honest work.
HALF = 0.5
#: Token ids whose embeddings a gradient points at, and that are looked at.
_POINTED_AT = 4


@dataclass(frozen=True)
class SearchEffort:
    """How long rows are sought against each stage: by equal seeds and steps, the same rows.

    Every attack runs once at least, from as many starts as there are rounds. In the first
    round they share `seconds`; after them nothing begins anew, and no attack steps on.
    """

    steps: int = 80  # of a search from one start
    ground: int = 24  # changes of what was found
    rounds: int = 1
    seconds: float = math.inf
    most_rows: int = 64  # of a window
    floor: float = 0.0  # shares of a limit up to this are not told apart: fewer pleas to try
    seed: int = 0


@dataclass(frozen=True)
class Site:
    """Some layers of a model as one stage has them, and as an attacker knows them."""

    folder: Path
    program: Program
    model: TraceModel
    span: LayerRange
    #: Where honest machines compute.
    device: str = "cpu"

    @property
    def numerics(self) -> str:
        """What its machines compute in, a name of `formats.FORMATS`."""
        return numerics_of(self.program)

    @cached_property
    def gradients(self) -> Differentiable:
        return Differentiable(self._layout(1), self.model)

    def conditioning(self, x: Tensor) -> Conditioning:
        """What ids [N] or rows [N, D] make exactly, and shaken."""
        given = x.float().numpy() if self.span.start else x.numpy().astype(np.uint32)
        sums = _TorchSums(self.program.part_terms)
        return Conditioning(self._layout(len(x)), self.model, Boundaries(given), sums)

    def load(self) -> ModelShard:
        return load_shard(self.folder, self.span, numerics=self.numerics, device=self.device)

    def _layout(self, rows: int) -> TraceLayout:
        return TraceLayout(self.program, self.span.start, self.span.end, rows, 0)


class _TorchSums(Plain):
    """Multiplies by weights on as many threads as torch has.

    Numpy's own threads wait for each other at every product, which takes a hundred times as long on
    a machine that does something else beside this.
    """

    def linear(self, x: Floats, weight: Any, bias: Any | None) -> Floats:
        rows, matrix = torch.from_numpy(x), torch.from_numpy(weight)
        sums = torch.zeros(len(x), len(weight), dtype=torch.float64)
        for at in range(0, x.shape[1], self._terms):
            sums += rows[:, at : at + self._terms] @ matrix[:, at : at + self._terms].double().T
        found: Floats = sums.numpy()
        return found if bias is None else found + bias.astype(np.float64)


@dataclass(frozen=True)
class HonestWork:
    """How near to a limit honest work came, on which rows and by which kernel."""

    rows_kind: str  # natural or adversarial
    how: str
    span: LayerRange
    rows: int  # of the window
    tolerance: Tolerance
    ratio: float  # D/S
    share: float  # D over T·S, or after a plea over the larger of T·S and K·N


@dataclass
class Searched:
    """What was judged, and how near it came to convicting an honest stage."""

    judged: int = 0
    bare: float = 0.0  # D over T·S, largest
    worst: HonestWork | None = None
    tried: set[str] = field(default_factory=set)
    #: Everything beyond half of its limit.
    beyond: list[HonestWork] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.worst.share if self.worst else 0.0

    def add(self, work: HonestWork) -> None:
        if self.worst is None or work.share > self.worst.share:
            self.worst = work
        if work.share > HALF:
            self.beyond.append(work)


def numerics_of(program: Program) -> str:
    """A program whose shakes are bfloat16's is of machines that compute in it."""
    return "bfloat16" if program.plea.own_bits == BF16_PLEA.own_bits else "float32"


def tolerance_of(program: Program, depth: int, rows: int) -> Tolerance | None:
    """The least T of a window of so many rows, for a stage of `depth` layers; None without one."""
    fitting = (t for t in program.tolerances if depth <= t.max_depth and rows >= t.min_rows)
    return min(fitting, key=lambda t: t.parts_per_trillion, default=None)


def search(
    site: Site, effort: SearchEffort, found: Searched, extra: Mapping[str, Kernel] | None = None
) -> None:
    """Each attack against one stage, from several starts; `extra` kernels compute beside ours."""
    until = time.monotonic() + effort.seconds
    attacks = ATTACKS if site.span.start else TOKEN_ATTACKS
    rng = torch.Generator().manual_seed(effort.seed << 20 | site.span.start << 10 | site.span.end)
    judge = _Judge(site, effort, rng, found, honest_ways(site.load, extra))
    for number in range(effort.rounds):
        for name, attack in attacks.items():
            now = time.monotonic()
            if number and now >= until:
                return
            end = until if number else now + effort.seconds / len(attacks)
            for x in attack(site, effort.steps, rng, end):
                judge.look_at(name, x)


@dataclass(frozen=True)
class _Judge:
    site: Site
    effort: SearchEffort
    rng: torch.Generator
    found: Searched
    ways: Mapping[str, Callable[[Tensor], Tensor]]

    def look_at(self, attack: str, x: Tensor) -> None:
        """Ids [N] or rows [N, D] by every kernel, by the worst one again on rows changed a little,
        in every window that has a T. One row is repeated to fill the longest.
        """
        self.found.tried.add(attack)
        site, is_rows = self.site, x.is_floating_point()
        if len(x) == 1:
            longest = max(t.min_rows for t in site.program.tolerances)
            x = x.repeat(min(longest, self.effort.most_rows), *[1] * (x.ndim - 1))
        if is_rows:
            x = x.to(getattr(torch, site.numerics))
            if not bool((x.abs() <= MAX_ACTIVATION).all()):
                return  # a stage takes no such rows
        first = _Exact(site.conditioning(x))
        works = [self._worked(first, name, x) for name in self.ways]
        worst = max(works, key=lambda work: max((w.bare for w in work), default=0.0))
        if not worst:
            return  # so few rows have no T at this depth
        works = [worst]
        for _ in range(self.effort.ground if is_rows else 0):
            moved = _moved(x, self.rng)
            works.append(self._worked(_Exact(site.conditioning(moved)), worst[0].kernel, moved))
        for of_length in zip(*works, strict=True):
            self._plead(attack, max(of_length, key=lambda w: w.bare))

    def _worked(self, exact: _Exact, kernel: str, x: Tensor) -> list[_Window]:
        """The worst window of each length that has a T, of what this kernel makes."""
        self.found.judged += 1
        far = exact.of.deviation(self.ways[kernel](x).float().numpy())
        found = []
        for rows in sorted({t.min_rows for t in self.site.program.tolerances}):
            tolerance = tolerance_of(self.site.program, len(self.site.span), rows)
            if tolerance is not None and rows <= len(x):
                ratios = _ratios(window_sums(far, rows), window_sums(exact.of.size, rows))
                at = int(ratios.argmax())
                found.append(
                    _Window(kernel, exact, slice(at, at + rows), tolerance, float(ratios[at]))
                )
        return found

    def _plead(self, attack: str, worst: _Window) -> None:
        """Keep what comes nearest to its limit, or is too far, whatever a plea adds."""
        found, span = self.found, self.site.span
        found.bare = max(found.bare, worst.bare)
        enough = max(self.effort.floor, min(found.share, HALF))
        share, noise, most = worst.bare, 0.0, most_noise(self.site.program)
        for seed in SAMPLED if most else ():
            if share <= enough:
                break
            noise = max(noise, worst.exact.noise(seed, worst.window))
            share = worst.ratio / max(worst.least, most * noise)
        if share > enough:
            rows = worst.window.stop - worst.window.start
            how = f"{attack}, {worst.kernel}"
            found.add(
                HonestWork("adversarial", how, span, rows, worst.tolerance, worst.ratio, share)
            )


@dataclass(frozen=True)
class _Exact:
    """What some rows make, and each shake of it once."""

    of: Conditioning
    _changes: dict[int, Any] = field(default_factory=dict)

    def noise(self, seed: int, window: slice) -> float:
        """N over S."""
        if seed not in self._changes:
            self._changes[seed] = self.of.change(seed)
        return math.sqrt(self._changes[seed][window].sum() / self.of.size[window].sum())


@dataclass(frozen=True)
class _Window:
    """A window of what a kernel made of some rows."""

    kernel: str
    exact: _Exact
    window: slice
    tolerance: Tolerance
    ratio: float  # D over S

    @property
    def least(self) -> float:
        return self.tolerance.parts_per_trillion / PARTS

    @property
    def bare(self) -> float:
        return self.ratio / self.least


def _ratios(far: Any, size: Any) -> Any:
    """D/S of windows, infinite for what is no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.sqrt(far / size)
    return np.where(far == 0, 0.0, np.where(np.isnan(found), np.inf, found))


def window_sums(squares: Any, rows: int) -> Any:
    """Sums over every `rows` neighbours."""
    return np.lib.stride_tricks.sliding_window_view(squares, rows).sum(axis=1)


def _moved(rows: Tensor, rng: torch.Generator) -> Tensor:
    """Each number by at most two units in its last place."""
    steps = torch.randint(-2, 3, rows.shape, generator=rng).to(rows.dtype)
    return rows + steps * torch.finfo(rows.dtype).eps * rows.abs()


# --- attacks ---

Attack = Callable[[Site, int, torch.Generator, float], Iterator[Tensor]]


def cancelled(site: Site, steps: int, rng: torch.Generator, until: float) -> Iterator[Tensor]:
    """A row that the layers nearly cancel, x + f(x) ≈ 0: by damped least squares."""
    f = site.gradients
    x = torch.randn(1, len(f.sigma), generator=rng, dtype=torch.float64) * f.sigma
    for _ in range(steps // 2):
        x = x - f(x) / 2

    def left(x: Tensor) -> Tensor:
        return (f(x[None]) / f.sigma)[0]

    def ratio(x: Tensor) -> float:
        return float(f.whitened(f(x)) / f.whitened(x))

    damping, best = 1e-2, ratio(x)
    for _ in range(steps):
        jacobian = torch.autograd.functional.jacobian(left, x[0], vectorize=True) * f.sigma
        square = jacobian.T @ jacobian
        damped = square + damping * torch.diag(square.diagonal() + 1e-9)
        step = torch.linalg.solve_ex(damped, jacobian.T @ left(x[0])).result
        tried = x - step * f.sigma
        if ratio(tried) < best:
            x, best, damping = tried, ratio(tried), max(damping / 5, 1e-12)
        else:
            damping *= 4
        if damping > 1e6 or best < 1e-7 or time.monotonic() > until:
            break
    yield x


def amplified(site: Site, steps: int, rng: torch.Generator, until: float) -> Iterator[Tensor]:
    """Rows in which a random shake grows most: by Adam, from natural sizes."""
    f = site.gradients
    for count in (16, 2):
        x = torch.randn(count, len(f.sigma), generator=rng, dtype=torch.float64) * f.sigma
        x.requires_grad_()
        by = torch.optim.Adam([x], lr=float(f.sigma.mean()) / 20)
        for _ in range(steps):
            by.zero_grad()
            _calm(f, x, rng).backward()
            by.step()
            if time.monotonic() > until:
                break
        yield x.detach()


def named(site: Site, steps: int, rng: torch.Generator, until: float) -> Iterator[Tensor]:
    """Token ids in which a random shake grows most: one after the other, by gradients."""
    f, table = site.gradients, site.gradients.table
    for count in (16, 1):
        ids = torch.randint(len(table), (count,), generator=rng)
        best = math.inf
        for _ in range(steps):
            x = f.embed(ids).requires_grad_()
            calm = _calm(f, x, rng)
            best = min(best, calm.item())
            (slope,) = torch.autograd.grad(calm, x)
            at = int(torch.randint(count, (1,), generator=rng))
            for token in (table @ slope[at].to(table.dtype)).topk(_POINTED_AT, largest=False)[1]:
                tried = ids.clone()
                tried[at] = token
                with torch.no_grad():
                    calm = _calm(f, f.embed(tried), rng)
                if calm < best:
                    ids, best = tried, calm.item()
            if time.monotonic() > until:
                break
        yield ids


def _calm(f: Differentiable, x: Tensor, rng: torch.Generator) -> Tensor:
    """Logarithm of the rows' size over what one random shake of all values makes of them."""

    def shake(value: Tensor) -> Tensor:
        signs = torch.randint(0, 2, value.shape, generator=rng).double() * 2 - 1
        return value * (1 + signs * 2.0**-16)

    exact = f(x)
    noise = f.whitened(f(x, shake) - exact)
    return (f.whitened(exact).square().sum() / noise.square().sum()).log()


ATTACKS: dict[str, Attack] = {"cancelled": cancelled, "amplified": amplified}
TOKEN_ATTACKS: dict[str, Attack] = {"named": named}
