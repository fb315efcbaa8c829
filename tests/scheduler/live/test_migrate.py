"""Weights move only where it pays, in turns that let the others serve, and no more of them than
needed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.worlds import cluster
from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard, in_layer_order
from scheduler.flow.valid import validate_placement
from scheduler.live.churn import Cluster, Member
from scheduler.live.holdings import Holding, is_whole
from scheduler.live.migrate import Judge, Migration, migration, throughput
from scheduler.live.repair import decide
from scheduler.live.standby import Rules
from scheduler.methods.methods import Budget
from scheduler.stages.stage_patterns import stage_patterns
from tests.scheduler.search.worlds import clusters
from tests.scheduler.worlds import holding, toy_model

RULES = Rules(method="stages", load_bytes_per_s=250e6, horizon_s=1800.0)
NOW = 10**6


def without_one(lost: int) -> tuple[Fleet, ModelShape, Holding]:
    """Helix's 24 nodes after one stage's holder has left."""
    fleet, model = cluster("single24")
    held = stage_patterns(fleet, model, most_stages=14).placement
    gone = held[lost].machine_id
    left = fleet.subset(m for m in fleet.machines if m.id != gone)
    return left, model, {i: layers for i, layers in held if i != gone}


def shards_of(held: Holding) -> Placement:
    return in_layer_order(Shard(*item) for item in held.items())


def moved(fleet: Fleet, model: ModelShape, held: Holding, rules: Rules = RULES) -> Migration | None:
    return migration(fleet, model, held, held, rules)


def test_the_best_placement_is_left_alone() -> None:
    fleet, model = cluster("single24")
    best = stage_patterns(fleet, model)
    assert moved(fleet, model, dict(best.placement)) is None


def test_a_loss_is_made_up_for_while_the_others_serve() -> None:
    fleet, model, held = without_one(5)
    found = moved(fleet, model, held)
    assert found is not None
    assert found.kept_tokens_per_s < 1020 and found.tokens_per_s > 1470
    assert found.loading_tokens_per_s >= 0.5 * found.kept_tokens_per_s
    assert found.tokens > found.tokens_if_kept == found.kept_tokens_per_s * RULES.horizon_s
    assert sorted(i for turn in found.turns for i in turn) == sorted(
        i for i, layers in found.holding.items() if held.get(i) != layers
    )
    validate_placement(shards_of(found.holding), fleet, model)


def test_nothing_moves_when_loading_takes_longer_than_it_pays() -> None:
    fleet, model, held = without_one(5)
    assert moved(fleet, model, held, replace(RULES, horizon_s=2.0)) is None
    assert moved(fleet, model, held, replace(RULES, worth_share=0.9)) is None
    assert moved(fleet, model, held, replace(RULES, least_served=0.99)) is None


def test_fewer_machines_move_where_as_much_passes() -> None:
    fleet, model, held = without_one(5)
    patched = moved(fleet, model, held, replace(RULES, method="even"))
    assert patched is not None and len(patched.moves) <= 3
    back = {**patched.holding, **{i: held[i] for i in patched.moves[:1] if i in held}}
    assert throughput(fleet, model, back) < patched.tokens_per_s


def test_whoever_only_drops_layers_does_so_after_others_have_them() -> None:
    model = toy_model(6)
    fleet = Fleet(tuple(holding(i, 4) for i in "abcd"))
    held = {
        "a": LayerRange(0, 3),
        "b": LayerRange(3, 6),
        "c": LayerRange(3, 6),
        "d": LayerRange(4, 6),
    }
    target = {**held, "a": LayerRange(0, 2), "d": LayerRange(2, 6)}
    rules = Rules(worth_share=-1.0, least_served=0.1, load_bytes_per_s=100.0, horizon_s=1e6)
    judge = replace(Judge.of(fleet, model, held, held, rules), now=1e-3)
    found = judge.judged(target)
    assert found is not None and found.turns == (("d",), ("a",))


def test_droppers_go_together_so_that_whole_slices_never_stop_meeting() -> None:
    """Each of two full holders keeps one half: after the first alone no chain of whole slices would
    be left.
    """
    model = toy_model(6)
    fleet = Fleet(tuple(holding(i, 6) for i in "ab"))
    held = {"a": LayerRange(0, 6), "b": LayerRange(0, 6)}
    target = {"a": LayerRange(0, 3), "b": LayerRange(3, 6)}
    rules = Rules(worth_share=-1.0, partial=False, load_bytes_per_s=100.0, horizon_s=1e6)
    judge = replace(Judge.of(fleet, model, held, held, rules), now=1e-3)
    found = judge.judged(target)
    assert found is not None and found.turns == (("a", "b"),)
    assert found.loading_tokens_per_s > 0


def test_what_has_not_loaded_yet_serves_nobody() -> None:
    """The second holder of the thin layers is still loading: nobody else may leave them."""
    model = toy_model(4)
    fleet = Fleet(tuple(holding(i, 2) for i in "abcd"))
    held = {i: LayerRange(0, 2) for i in "abc"} | {"d": LayerRange(2, 4)}
    rules = Rules(load_bytes_per_s=1e6)
    assert migration(fleet, model, held, held, rules) is not None
    serving = {i: held[i] for i in "ad"}
    found = migration(fleet, model, held, serving, rules)
    assert found is not None and "a" not in found.turns[0]


def test_turns_are_told_one_by_one_as_they_load_and_forgotten_when_somebody_leaves() -> None:
    fleet, model, held = without_one(5)
    members = {m.id: Member(m, 1, 0, held.get(m.id), held.get(m.id)) for m in fleet.machines}
    start = Cluster(model, fleet.links, members, coordinator=fleet.coordinator)
    first, change = decide(start, NOW, RULES)
    assert change.step == "balance" and first.next_moves
    assert not set(first.next_moves) & {told.machine_id for told in change.told}
    again, nothing = decide(first, NOW + 10**6, RULES)
    assert nothing.told == () and again.next_moves == first.next_moves, "they are still loading"
    now, state, turns = NOW, first, 1
    while state.next_moves:
        loaded = {i: replace(m, serves=m.told) for i, m in state.members.items()}
        assert is_whole(fleet, model, dict(state.serving))
        now += 1000
        state, change = decide(replace(state, members=loaded), now, RULES)
        assert change.step == "balance", "no rest between the turns of one migration"
        turns += 1
    assert turns > 1
    assert throughput(fleet, model, dict(state.placement)) > 1470


def test_a_budget_ends_the_search_with_what_was_found() -> None:
    fleet, model, held = without_one(5)
    ticks = iter(range(10**6))
    found = migration(fleet, model, held, held, RULES, budget=Budget(lambda: next(ticks), 0.0))
    assert found is None or found.tokens > found.tokens_if_kept


@given(clusters(most_machines=5, most_layers=6), st.data(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_migration_is_valid_worth_it_and_keeps_serving(
    world: tuple[Fleet, ModelShape], data: st.DataObject, partial: bool
) -> None:
    fleet, model = world
    held: Holding = {}
    for m in fleet.machines:
        assert m.profile is not None
        k = data.draw(st.integers(0, min(m.profile.max_layers, model.layers)))
        if k:
            start = data.draw(st.integers(0, model.layers - k))
            held[m.id] = LayerRange(start, start + k)
    if not is_whole(fleet, model, held, partial):
        return
    rules = replace(RULES, partial=partial, load_spread=0.0)
    fixed = data.draw(st.sets(st.sampled_from(sorted(held)), max_size=1))
    found = migration(fleet, model, held, held, rules, fixed)
    assert found == migration(fleet, model, held, held, rules, fixed)
    if found is None:
        return
    validate_placement(shards_of(found.holding), fleet, model)
    assert not fixed & set(found.moves)
    assert is_whole(fleet, model, found.holding, partial)
    now = throughput(fleet, model, held, partial)
    assert found.tokens_per_s == pytest.approx(throughput(fleet, model, found.holding, partial))
    assert found.tokens_per_s >= now * (1 + rules.worth_share)
    assert found.loading_tokens_per_s >= now * rules.least_served * (1 - 1e-9)
    assert set(held) <= set(found.holding), "nobody healthy is sent to standby"
