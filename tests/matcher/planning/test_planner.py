"""Phase 1 on a living fleet: covered whenever it can be, and nobody moved for nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from matcher.fleet.fleet_view import Sighting, fleet_of
from matcher.fleet.shapes import shape_of
from matcher.planning.planner import Placement, nobody, plan, seen
from matcher.routes.routes import Chosen, LiveRoutes
from scheduler.fleet.costs import capacity, position_of
from scheduler.live.churn import Cluster
from scheduler.live.standby import Rules
from tests.town.fleet import (
    NOW_MS,
    SPEC,
    machine_key,
    make_order,
    serving_at,
    sighting,
    standing,
)

SHAPE = shape_of(SPEC)
AT_ONCE = Rules(partial=False)
LATER = NOW_MS + 120_000


@dataclass(frozen=True)
class Decided:
    """A placement and the cluster it was decided for."""

    cluster: Cluster
    placement: Placement

    @property
    def assignments(self) -> dict[str, LayerRange]:
        return dict(self.placement.assignments)

    @property
    def standby(self) -> tuple[str, ...]:
        return self.placement.standby

    @property
    def reason(self) -> str:
        return self.placement.reason


def op(number: int) -> str:
    return machine_key(number).address


def decide(
    previous: Decided | None,
    *present: Sighting,
    now_ms: int = NOW_MS,
    rules: Rules = AT_ONCE,
) -> Decided | None:
    """The next decision over records that were all heard just now."""
    before = (nobody(SHAPE), None) if previous is None else (previous.cluster, previous.placement)
    heard = [replace(machine, seen_ms=now_ms) for machine in present]
    cluster, found = plan(seen(before[0], heard, now_ms), before[1], now_ms, rules)
    return None if found is None else Decided(cluster, found)


def covers(assignments: dict[str, LayerRange] | object) -> bool:
    reached = {0}
    for layers in sorted(dict(assignments).values()):  # type: ignore[call-overload]
        if layers.start in reached:
            reached.add(layers.end)
    return SPEC.layers in reached


THIRDS = (serving_at(1, 0, 10), serving_at(2, 10, 20), serving_at(3, 20, 30))


def placed() -> Decided:
    """Machines 1, 2, 3 serve the thirds that they were told a minute ago."""
    found = decide(None, *THIRDS, now_ms=NOW_MS - 60_000)
    assert found is not None
    return found


def test_the_first_machines_are_told_the_whole_model_between_them() -> None:
    found = decide(None, sighting(1), sighting(2), sighting(3))
    assert found is not None
    assert covers(found.assignments)
    assert set(found.assignments) == {op(1), op(2), op(3)}
    assert found.placement.explanation


def test_nothing_is_decided_while_machines_still_come_and_go() -> None:
    rules = replace(AT_ONCE, settle_ms=2000)
    cluster = seen(nobody(SHAPE), [sighting(1), sighting(2)], NOW_MS - 1000)
    cluster = seen(cluster, [sighting(1), sighting(2), sighting(3)], NOW_MS)
    assert plan(cluster, None, NOW_MS + 1999, rules)[1] is None
    assert plan(cluster, None, NOW_MS + 2000, rules)[1] is not None


def test_the_first_plan_waits_for_the_number_of_machines_asked_for() -> None:
    rules = replace(AT_ONCE, min_machines=3)
    big = {"memory_bytes": 2**30}
    early = decide(None, sighting(1, **big), sighting(2, **big), rules=rules)
    assert early is not None and early.assignments == {} and "waits for 3" in early.reason
    everybody = (sighting(1, **big), sighting(2, **big), sighting(3, **big))
    found = decide(early, *everybody, rules=rules)
    assert found is not None and covers(found.assignments)


def test_too_few_machines_are_told_nothing_and_why() -> None:
    found = decide(None, sighting(1))
    assert found is not None
    assert found.assignments == {}
    assert found.standby == (op(1),)
    assert "no whole pipeline" in found.reason
    assert decide(found, sighting(1), now_ms=LATER) is None


def test_a_restarted_matcher_leaves_running_machines_as_they_are() -> None:
    found = decide(None, *THIRDS)
    assert found is not None
    assert found.assignments == placed().assignments
    assert decide(found, *THIRDS, now_ms=LATER) is None


def test_a_faster_newcomer_moves_nobody() -> None:
    newcomer = sighting(4, memory_bytes=500 * 2**20, tflops=50.0, bandwidth_gb_s=900.0)
    found = decide(placed(), *THIRDS, newcomer)
    assert found is not None
    for number in (1, 2, 3):
        assert found.assignments[op(number)] == placed().assignments[op(number)]
    assert op(4) in found.assignments
    assert covers(found.assignments)


def test_newcomers_that_hold_the_model_together_make_their_own_pipeline() -> None:
    found = decide(placed(), *THIRDS, sighting(4), sighting(5), sighting(6))
    assert found is not None
    assert covers({o: r for o, r in found.assignments.items() if o in {op(4), op(5), op(6)}})
    assert covers({o: r for o, r in found.assignments.items() if o in {op(1), op(2), op(3)}})


def test_a_lost_machine_is_replaced_and_the_others_stay() -> None:
    found = decide(placed(), THIRDS[0], THIRDS[2], sighting(4))
    assert found is not None
    assert found.assignments == {
        op(1): LayerRange(0, 10),
        op(3): LayerRange(20, 30),
        op(4): LayerRange(10, 20),
    }
    assert "repaired" in found.reason


def test_a_hole_is_shared_by_several_small_machines() -> None:
    small = {"memory_bytes": 100 * 2**20}
    found = decide(placed(), THIRDS[0], THIRDS[2], sighting(4, **small), sighting(5, **small))
    assert found is not None
    assert covers(found.assignments)
    assert found.assignments[op(1)] == LayerRange(0, 10)
    assert found.assignments[op(3)] == LayerRange(20, 30)


def test_without_a_replacement_the_survivors_are_planned_anew_if_they_suffice() -> None:
    big = {"memory_bytes": 500 * 2**20}
    survivors = (serving_at(1, 0, 10, **big), serving_at(3, 20, 30, **big))
    found = decide(placed(), *survivors)
    assert found is not None
    assert covers(found.assignments)
    assert found.assignments[op(1)].start == 0  # alike machines keep the end they hold


def test_survivors_that_do_not_suffice_keep_their_layers() -> None:
    found = decide(placed(), THIRDS[0], THIRDS[2])
    assert found is not None
    assert found.assignments == {op(1): LayerRange(0, 10), op(3): LayerRange(20, 30)}
    assert decide(found, THIRDS[0], THIRDS[2], now_ms=LATER) is None


def test_the_lost_machine_coming_back_gets_its_layers_again() -> None:
    gone = decide(placed(), THIRDS[0], THIRDS[2])
    back = decide(gone, THIRDS[0], THIRDS[2], sighting(2), now_ms=LATER)
    assert back is not None
    assert back.assignments == placed().assignments


def test_a_machine_that_reloads_keeps_its_place() -> None:
    assert decide(placed(), THIRDS[0], sighting(2), THIRDS[2], now_ms=LATER) is None


def test_a_machine_that_came_back_smaller_is_not_told_what_it_cannot_hold() -> None:
    shrunk = sighting(2, memory_bytes=50 * 2**20)
    found = decide(placed(), THIRDS[0], shrunk, THIRDS[2], sighting(4))
    assert found is not None
    assert found.assignments[op(4)] == LayerRange(10, 20)
    assert op(2) not in found.assignments


def test_layers_fixed_by_their_owner_are_planned_around() -> None:
    fixed = serving_at(1, 0, 10, allocation=0)
    found = decide(None, fixed, sighting(2), sighting(3))
    assert found is not None
    assert op(1) not in found.assignments
    assert covers({**found.assignments, op(1): LayerRange(0, 10)})


def test_a_machine_that_claims_more_layers_than_the_model_has_is_ignored() -> None:
    found = decide(None, serving_at(9, 0, 40), sighting(1), sighting(2), sighting(3))
    assert found is not None
    assert op(9) not in {*found.assignments, *found.standby}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([60, 150, 250, 400, 700, 1200]), min_size=1, max_size=7),
    st.data(),
)
def test_through_any_coming_and_going_plans_fit_and_cover_when_they_say_so(
    memories: list[int], data: st.DataObject
) -> None:
    """No machine is told more than it holds, no unknown one anything; a covered fleet stays put."""
    placement: Decided | None = None
    now = NOW_MS
    rules = replace(AT_ONCE, rest_ms=10**9)
    for _ in range(4):
        here = data.draw(st.sets(st.integers(0, len(memories) - 1)))
        present = []
        for number in sorted(here):
            told = placement.assignments.get(op(number)) if placement else None
            memory = {"memory_bytes": memories[number] * 2**20}
            loaded = told is not None and data.draw(st.booleans())
            present.append(
                serving_at(number, told.start, told.end, **memory)
                if told is not None and loaded
                else sighting(number, **memory)
            )
        now += 60_000
        decided = decide(placement, *present, now_ms=now, rules=rules)
        before, placement = placement, decided or placement
        if placement is None:
            continue
        fleet = fleet_of(present)
        if decided is not None:
            assert set(decided.assignments) | set(decided.standby) == set(fleet.by_id)
            assert not set(decided.assignments) & set(decided.standby)
            for operator, layers in decided.assignments.items():
                machine = fleet.by_id[operator]
                assert len(layers) <= capacity(machine, SHAPE, position_of(layers, SHAPE))
        if before is not None and decided is not None:
            stayed = {o: r for o, r in before.assignments.items() if o in fleet.by_id}
            if covers(stayed):
                assert {o: decided.assignments[o] for o in stayed} == stayed
        assert decide(placement, *present, now_ms=now, rules=rules) is None


def test_machines_move_to_where_the_model_is_thin_only_after_a_rest_and_if_it_helps() -> None:
    rules = replace(AT_ONCE, rest_ms=60_000)
    big = {"memory_bytes": 2**30}
    here = (
        serving_at(1, 0, 15, **big),
        serving_at(2, 15, 30, **big),
        serving_at(3, 0, 15, **big),
        serving_at(4, 0, 15, **big),
    )
    before = decide(None, *here, rules=rules)
    assert before is not None
    assert before.assignments == {s.operator: s.record.layers for s in here}
    assert decide(before, *here, now_ms=NOW_MS + 59_000, rules=rules) is None
    unworthy = replace(rules, worth_share=5.0)
    assert decide(before, *here, now_ms=NOW_MS + 61_000, rules=unworthy) is None
    after = decide(before, *here, now_ms=NOW_MS + 61_000, rules=rules)
    assert after is not None
    assert covers(after.assignments)
    stay = {o: layers for o, layers in after.assignments.items() if layers == before.assignments[o]}
    assert len(stay) < 4 and covers(stay), "whoever loads now, the others serve"
    assert decide(after, *here, now_ms=NOW_MS + 62_000, rules=rules) is None


def test_a_report_from_before_the_decision_does_not_undo_it() -> None:
    """Serving old layers until it has heard of the new ones is no reason to plan again."""
    found = decide(placed(), THIRDS[0], THIRDS[2], sighting(4))
    assert found is not None
    again = decide(found, THIRDS[0], THIRDS[2], serving_at(4, 3, 9), now_ms=NOW_MS + 1)
    assert again is None


def test_a_time_that_no_machine_takes_is_not_believed_and_its_layers_are() -> None:
    here = [replace(machine, seen_ms=NOW_MS) for machine in THIRDS[:2]]
    odd = serving_at(3, 20, 30, tau_ms_per_layer=1e8)
    cluster = seen(nobody(SHAPE), [*here, odd], NOW_MS)
    member = cluster.members[op(3)]
    assert member.serves == LayerRange(20, 30) and member.machine.tau_ms_per_layer is None


def test_a_machine_alone_that_cannot_hold_the_model_stands_by() -> None:
    found = decide(None, sighting(1))
    assert found is not None
    assert (found.placement.assignments, list(found.placement.standby)) == ({}, [op(1)])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_order_of_records_does_not_matter(count: int) -> None:
    present = [sighting(n) for n in range(count)]
    one, other = decide(None, *present), decide(None, *reversed(present))
    assert one is not None
    assert other is not None
    assert one.assignments == other.assignments


def test_a_machine_found_in_another_region_is_still_the_same_machine() -> None:
    first = placed()
    moved = (serving_at(1, 0, 10, region="mars"), *THIRDS[1:])
    cluster = seen(first.cluster, [replace(one, seen_ms=LATER) for one in moved], LATER)
    assert cluster.members[op(1)].machine.region == "mars"
    assert cluster.members[op(1)].incarnation == first.cluster.members[op(1)].incarnation
    assert cluster.changed_ms == first.cluster.changed_ms, "nothing waits for it to settle"


def far_apart(number: int, *inside: int, region: str = "") -> Sighting:
    """Machine `number` of four, near these and far from the others."""
    rho_ms = {op(n): 2.0 if n in inside else 80.0 for n in range(1, 5) if n != number}
    return sighting(number, memory_bytes=600 * 2**20, region=region, rho_ms=rho_ms)


def test_parallax_plans_inside_regions_stated_or_guessed() -> None:
    coasts = (
        far_apart(1, 3, region="eu"),
        far_apart(2, 4, region="us"),
        far_apart(3, 1),
        far_apart(4, 2),
    )
    found = decide(None, *coasts, rules=Rules(method="regions", partial=False))
    assert found is not None
    told = found.assignments
    for pair in ((1, 3), (2, 4)):
        assert covers({op(n): told[op(n)] for n in pair}), "no hop goes over the sea"


def test_slices_of_helix_overlap_and_an_order_uses_a_part_of_one() -> None:
    speeds = {1: 20.0, 2: 20.0, 3: 10.0, 4: 20.0}
    big = {"memory_bytes": 600 * 2**20}
    near = {n: {op(other): 2.0 for other in speeds if other != n} for n in speeds}
    here = [sighting(n, bandwidth_gb_s=speed, rho_ms=near[n], **big) for n, speed in speeds.items()]
    found = decide(None, *here, rules=Rules(method="helix", partial=True))
    assert found is not None
    told = found.assignments
    assert {(told[op(n)].start, told[op(n)].end) for n in speeds} == {
        (0, 10),
        (0, 15),
        (10, 30),
        (15, 30),
    }
    serve = [serving_at(n, told[op(n)].start, told[op(n)].end, rho_ms=near[n]) for n in speeds]
    holds = {told[op(n)].start: op(n) for n in speeds if told[op(n)].end in (15, 30)}
    others = {op(n) for n in speeds} - {holds[0], holds[10]}
    for partial, ends in ((True, [(0, 10), (10, 30)]), (False, None)):
        routes = LiveRoutes(SPEC, SHAPE, partial=partial)
        routes.see(serve, {s.operator: standing() for s in serve}, NOW_MS)
        chosen = routes.take("job", make_order(), NOW_MS, others)
        parts = None
        if isinstance(chosen, Chosen):
            parts = [(stage.layer_from, stage.layer_to) for stage in chosen.plan]
        assert parts == ends
