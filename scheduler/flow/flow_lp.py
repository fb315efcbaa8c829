"""How many tokens/s can a placement pass when machines may serve any part of a slice?

Over the segments between slice boundaries, y(m, g) tokens/s of machine m on segment g: Σ_m y(m, g)
= T for every segment, Σ_g layers(g) y(m, g) ≤ rate of m. Slices are intervals, so the largest T is
a minimum cut found by Newton's method (Dinkelbach 1967), and its shares by serving each segment
from the slice that ends first (Glover 1967): both exact and without a solver. Fewest entries (hops)
at a given T is a linear program. Any two holders are taken to reach each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.arrays import Floats
from scheduler.fleet.costs import Position, capacity, tokens_per_s
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Placement
from scheduler.flow.interval_flow import largest_flow, share_out


@dataclass(frozen=True)
class FlowLp:
    """What a placement passes.

    ``tokens_per_s`` is the largest T, ``ub`` what no placement on this fleet passes (Σ of best
    rates / L). ``shares`` are tokens/s of (machine, segment). ``layer_price`` is what one more
    layer·token/s at a layer adds to T, ``machine_price`` the same for a machine's rate, 0 where it
    is not short. ``bottleneck`` lists the layers that bind.
    """

    tokens_per_s: float
    ub: float
    segments: tuple[LayerRange, ...]
    shares: Mapping[tuple[str, LayerRange], float]
    layer_price: tuple[float, ...]
    machine_price: Mapping[str, float]
    bottleneck: tuple[LayerRange, ...]


def rate_of(machine: Machine, model: ModelShape, layers: int) -> float:
    """Layer·tokens/s that a machine gives when it holds that many layers, times its stability."""
    return layers * tokens_per_s(machine, model, layers) * machine.stability


def solve_flow_lp(fleet: Fleet, model: ModelShape, placement: Placement) -> FlowLp:
    """The largest T, and shares that serve it.

    Raises PlanError for a shard of an unknown machine or beyond the model. T is 0 while a layer has
    no holder.
    """
    grouped = slices_of(fleet, model, placement)
    by_slice, rates, slices = grouped.by_slice, grouped.rates, grouped.slices
    spans, together, widths = grouped.spans, grouped.together, grouped.widths
    most, short = largest_flow(spans, together, widths)
    shares = share_out(spans, together, widths, most)
    segments = tuple(LayerRange(a, b) for a, b in pairwise(grouped.edges))
    return FlowLp(
        tokens_per_s=most,
        ub=sum(best_rate(m, model) for m in fleet.machines) / model.layers,
        segments=segments,
        shares=_by_machine(shares, spans, slices, by_slice, rates, segments),
        layer_price=layer_prices(short, widths),
        machine_price=_machine_prices(short, widths, spans, slices, by_slice),
        bottleneck=tuple(segments[g] for g in np.flatnonzero(short)),
    )


@dataclass(frozen=True, slots=True)
class Slices:
    """Machines by slice, and slices as spans of segments: a slice is one for the flow."""

    by_slice: Mapping[LayerRange, Sequence[str]]
    rates: Mapping[str, float]
    slices: Sequence[LayerRange]
    edges: Sequence[int]
    spans: Sequence[tuple[int, int]]
    together: Sequence[float]
    widths: Floats


def slices_of(fleet: Fleet, model: ModelShape, placement: Placement) -> Slices:
    """A placement by slice. Raises PlanError for unknown machines, second shards, false layers."""
    by_slice: dict[LayerRange, list[str]] = {}
    rates: dict[str, float] = {}
    for machine_id, layers in placement:
        machine = fleet.by_id.get(machine_id)
        if machine is None:
            raise PlanError("unknown-machine", f"{machine_id} is not in the fleet", machine_id)
        if not 0 <= layers.start < layers.end <= model.layers:
            raise PlanError("gap", f"{machine_id} holds layers {layers}", machine_id)
        if machine_id in rates:
            raise PlanError("machine-twice", f"{machine_id} has two shards", machine_id)
        rates[machine_id] = rate_of(machine, model, len(layers))
        by_slice.setdefault(layers, []).append(machine_id)
    slices = sorted(by_slice)
    together = [sum(rates[m] for m in sorted(by_slice[layers])) for layers in slices]
    edges = sorted({0, model.layers} | {e for layers in slices for e in (layers.start, layers.end)})
    at = {edge: i for i, edge in enumerate(edges)}
    spans = [(at[layers.start], at[layers.end]) for layers in slices]
    widths = np.diff(np.array(edges, dtype=np.float64))
    return Slices(by_slice, rates, slices, edges, spans, together, widths)


def best_rate(machine: Machine, model: ModelShape) -> float:
    """The most layer·tokens/s a machine gives with any number of layers it can hold."""
    most = capacity(machine, model, Position.PLAIN)
    if machine.profile is None or machine.profile.tokens_per_s_by_layers is None:
        return rate_of(machine, model, 1) if most else 0.0
    return max((rate_of(machine, model, k) for k in range(1, most + 1)), default=0.0)


def _by_machine(
    shares: Floats,
    spans: Sequence[tuple[int, int]],
    slices: Sequence[LayerRange],
    by_slice: Mapping[LayerRange, Sequence[str]],
    rates: Mapping[str, float],
    segments: Sequence[LayerRange],
) -> dict[tuple[str, LayerRange], float]:
    """A slice's share goes to its machines by rate, which changes neither flow nor entries."""
    result = {}
    for i, layers in enumerate(slices):
        whole = sum(rates[m] for m in by_slice[layers])
        for machine_id in sorted(by_slice[layers]):
            part = rates[machine_id] / whole if whole > 0 else 0.0
            for g in range(*spans[i]):
                result[machine_id, segments[g]] = float(shares[i, g]) * part
    return result


def layer_prices(
    short: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], widths: Floats
) -> tuple[float, ...]:
    """What one more layer·token/s adds to the flow, layer by layer; the prices sum to 1."""
    price = 1.0 / float(widths[short].sum())
    return tuple(
        price if is_short else 0.0
        for is_short, width in zip(short, widths, strict=True)
        for _ in range(int(width))
    )


def _machine_prices(
    short: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    widths: Floats,
    spans: Sequence[tuple[int, int]],
    slices: Sequence[LayerRange],
    by_slice: Mapping[LayerRange, Sequence[str]],
) -> dict[str, float]:
    price = 1.0 / float(widths[short].sum())
    return {
        machine_id: price if short[a:b].any() else 0.0
        for (a, b), layers in zip(spans, slices, strict=True)
        for machine_id in sorted(by_slice[layers])
    }
