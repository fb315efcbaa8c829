"""A spread flow keeps nearly the maximum and loads no link more than it must."""

from __future__ import annotations

import pytest

from core.protocol.types import LayerRange
from scheduler.fleet import Coordinator, Fleet, Link, Links, ModelShape, Shard
from scheduler.helix.max_flow import max_flow
from scheduler.placement.spread import KEPT, narrowed, spread_flow
from tests.scheduler.placement.worlds import machine


def two_by_two() -> tuple[Fleet, ModelShape, tuple[Shard, ...]]:
    """Two machines before and two after four equal links, any two of which would do."""
    ids = ("a", "b", "c", "d")
    fleet = Fleet(
        tuple(machine(m, (10.0, 10.0)) for m in ids),
        Links({(x, y): Link(1.0, 0.8) for x in "ab" for y in "cd"}, default_ms=1.0),
        Coordinator(),
    )
    model = ModelShape(2, 100, 0, 0, False, 8, 1e9, activation_bytes_per_token=10_000)
    placement = tuple(Shard(m, LayerRange(0, 1) if m in "ab" else LayerRange(1, 2)) for m in ids)
    return fleet, model, placement


def test_all_links_share_what_two_could_carry() -> None:
    fleet, model, placement = two_by_two()
    flow = spread_flow(fleet, model, placement)
    crossing = [flow.links.get((x, y), 0.0) for x in "ab" for y in "cd"]
    assert flow.tokens_per_s >= KEPT * 20 * (1 - 1e-6)
    assert max(crossing) <= 20 / 4 * 1.02


def test_narrowed_links_carry_their_share() -> None:
    fleet, model, placement = two_by_two()
    half = narrowed(fleet, 0.25)
    assert max_flow(half, model, placement).tokens_per_s == pytest.approx(10.0)
