"""Which machines exist: records merged by sequence, ghosts and strangers kept out."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from core.protocol import records
from core.protocol.types import LayerRange
from matcher.fleet.fleet_view import (
    LEAST_TAU_MS,
    MOST_GB_S,
    MOST_TFLOPS,
    fleet_of,
    forget,
    machine_of,
    merge,
    plannable,
    present,
    serving,
)
from matcher.fleet.shapes import shape_of
from scheduler.fleet.fleet import Shard
from scheduler.flow.max_flow import max_flow
from tests.town.fleet import (
    MODEL_ID,
    NOW_MS,
    SPEC,
    machine_key,
    make_record,
    seal,
    serving_at,
    sighting,
    standing,
)
from tests.town.orders import DOMAIN

ONE = machine_key(1).address


def found(*sealed: tuple[int, bytes]) -> dict[str, bytes]:
    return {machine_key(number).address.lower(): raw for number, raw in sealed}


def test_a_newer_record_replaces_an_older_one_and_never_the_reverse() -> None:
    older, newer = make_record(1), make_record(1, state="DRAINING")
    known, _ = merge({}, found((1, seal(1, newer, 5))), DOMAIN, NOW_MS)
    known, refused = merge(known, found((1, seal(1, older, 4))), DOMAIN, NOW_MS + 500)
    assert (known[ONE].record.state, known[ONE].sequence, refused) == ("DRAINING", 5, 0)
    known, _ = merge(known, found((1, seal(1, older, 6))), DOMAIN, NOW_MS + 900)
    assert (known[ONE].record.state, known[ONE].seen_ms) == ("JOIN", NOW_MS + 900)


def test_a_rejoin_with_the_same_operator_is_one_machine() -> None:
    known, _ = merge({}, found((1, seal(1, make_record(1), 1))), DOMAIN, NOW_MS)
    again = make_record(1, endpoint="127.0.0.1:9999")
    known, _ = merge(known, found((1, seal(1, again, 2))), DOMAIN, NOW_MS)
    assert len(known) == 1
    assert known[ONE].record.endpoint == "127.0.0.1:9999"


def test_the_same_bytes_again_do_not_keep_a_ghost_alive() -> None:
    raw = found((1, seal(1, make_record(1), 1)))
    known, _ = merge({}, raw, DOMAIN, NOW_MS)
    known, _ = merge(known, raw, DOMAIN, NOW_MS + 9_000)
    assert known[ONE].alive(NOW_MS + 10_000)
    assert not known[ONE].alive(NOW_MS + 10_001)


def test_an_old_record_replayed_after_it_was_forgotten_is_refused() -> None:
    raw = found((1, seal(1, make_record(1), 1)))
    known, _ = merge({}, raw, DOMAIN, NOW_MS)
    known = forget(known, NOW_MS + 700_000, 600_000)
    assert known == {}
    assert merge(known, raw, DOMAIN, NOW_MS + 700_000) == ({}, 1)


def test_a_record_under_another_name_or_of_another_key_is_refused() -> None:
    stolen = {machine_key(2).address.lower(): seal(1, make_record(1))}
    forged = found((1, seal(2, make_record(1))))
    assert merge({}, stolen, DOMAIN, NOW_MS) == ({}, 1)
    assert merge({}, forged, DOMAIN, NOW_MS) == ({}, 1)


@given(st.binary(max_size=300), st.text(max_size=50))
def test_garbage_in_the_swarm_is_counted_and_never_raised(raw: bytes, key: str) -> None:
    assert merge({}, {key: raw}, DOMAIN, NOW_MS) == ({}, 1)


def test_an_empty_lookup_is_not_a_departure() -> None:
    known, _ = merge({}, found((1, seal(1, make_record(1)))), DOMAIN, NOW_MS)
    assert merge(known, {}, DOMAIN, NOW_MS + 1000)[0] == known


def test_only_the_alive_with_standing_and_the_right_model_are_present() -> None:
    everybody = {
        s.operator: s
        for s in (
            sighting(1),
            sighting(2, state="LEFT"),
            sighting(3, state="DOWN"),
            sighting(4, seen_ms=NOW_MS - 20_000),
            sighting(5, model_id="0x" + "77" * 32),
            sighting(6),
            sighting(7),
        )
    }
    standings = {operator: standing() for operator in everybody}
    standings[machine_key(6).address] = standing(can_work=False)
    del standings[machine_key(7).address]
    assert [s.operator for s in present(everybody, standings, MODEL_ID, NOW_MS)] == [ONE]


def test_a_draining_machine_neither_plans_nor_serves() -> None:
    both = (serving_at(1, 0, 10), serving_at(2, 0, 10, state="DRAINING"))
    assert [s.operator for s in plannable(both)] == [ONE]
    assert [s.operator for s in serving(both)] == [ONE]


def test_told_is_not_loaded() -> None:
    assert serving([sighting(1, state="SERVING"), sighting(2, allocation=4)]) == ()


def test_measured_latencies_become_links_in_their_own_direction() -> None:
    two = machine_key(2).address
    fleet = fleet_of([sighting(1, rho_ms={two: 3.5}), sighting(2)])
    assert fleet.links.rho_ms(fleet.by_id[ONE], fleet.by_id[two]) == 3.5


def test_numbers_that_no_machine_has_leave_it_out_of_the_fleet() -> None:
    assert machine_of(sighting(1, tflops=0.0)) is None
    assert machine_of(sighting(1, bandwidth_gb_s=math.nan)) is None
    poisoned = sighting(1, rho_ms={machine_key(2).address: math.nan})
    assert fleet_of([poisoned, sighting(2, tflops=0.0)]).links.pairs == {}


def test_a_claim_beyond_any_machine_counts_as_the_fastest_one() -> None:
    boast = machine_of(sighting(1, tflops=1e9, bandwidth_gb_s=1e9, tau_ms_per_layer=1e-9))
    assert boast is not None
    assert (boast.tflops, boast.bandwidth_gb_s) == (MOST_TFLOPS, MOST_GB_S)
    assert boast.tau_ms_per_layer == LEAST_TAU_MS
    here = [sighting(n, memory_bytes=2**30, tflops=1e9, bandwidth_gb_s=1e9) for n in range(1, 33)]
    fleet = fleet_of([*here, sighting(33, memory_bytes=2**30)])
    everything = [Shard(machine.id, LayerRange(0, SPEC.layers)) for machine in fleet.machines]
    flow = max_flow(fleet, shape_of(SPEC), tuple(everything), partial=True)
    assert 0 < flow.tokens_per_s < math.inf


def test_a_record_is_signed_for_one_deployment() -> None:
    raw = found((1, seal(1, make_record(1))))
    elsewhere = records.signing.Domain(1, DOMAIN.verifying_contract)
    assert merge({}, raw, elsewhere, NOW_MS) == ({}, 1)
