"""Which machines are there now, in whose name, and what may they be given?

The swarm says what a machine offers, the chain says whether its operator may work; only a machine
with both counts. A record must be fresh by its author's clock when we first see it and must keep
changing by ours, so that no replayed record, nor the last one of a dead machine, counts. One
operator is one machine: a re-join replaces, it never adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from core.chain.machines import ListedMachine
from core.protocol import signing
from core.protocol.ids import address
from core.protocol.records import MinerRecord, is_fresh, unseal
from core.protocol.types import LayerRange
from matcher.fleet.links import links_of, said_of
from matcher.fleet.regions import regions_of
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet, Machine

#: A machine's own limit covers weights and cache; this share of it is kept for weights.
WEIGHT_FRACTION = 0.75
KV_FRACTION = 0.25
#: Faster than any machine. Who claims more counts as this: plans are made of sums of rates, and no
#: claim may make one too large to compute with.
MOST_TFLOPS, MOST_GB_S, LEAST_TAU_MS = 1e5, 1e5, 1e-4


@dataclass(frozen=True)
class Sighting:
    """The newest record of one operator, and since when we have known exactly this record."""

    operator: str  # checksummed; the machine's id in every plan
    record: MinerRecord
    sequence: int
    seen_ms: int
    raw: bytes = b""

    def age_ms(self, now_ms: int) -> int:
        return max(0, now_ms - self.seen_ms)

    def alive(self, now_ms: int) -> bool:
        """Whether it announced itself within its own time to live and did not say that it left."""
        fresh = self.age_ms(now_ms) <= self.record.ttl_ms
        return fresh and self.record.state not in ("LEFT", "DOWN")


@dataclass(frozen=True)
class ChainStanding:
    """What the chain says of an operator: `can_work` is for the general minimum stake.

    `strikes` is how often its owner was slashed, ever. `machines` are those that its owner has
    announced there; the swarm says what the operator offers.
    """

    owner: str
    stake_units: int
    can_work: bool
    strikes: int = 0
    machines: tuple[ListedMachine, ...] = ()


Sightings = Mapping[str, Sighting]
Standings = Mapping[str, ChainStanding]


def merge(
    known: Sightings, found: Mapping[str, bytes], domain: signing.Domain, now_ms: int
) -> tuple[dict[str, Sighting], int]:
    """What is known after a look at the swarm, and how many records were refused.

    Refused: not signed by its author, stored under another's key, too large, or past its time. A
    sequence that is not newer changes nothing. Operators that are gone from the swarm stay known
    until `forget` drops them, because one empty look-up is not a departure.
    """
    merged, refused = dict(known), 0
    by_key = {sighting.operator.lower(): sighting for sighting in known.values()}
    for key, raw in found.items():
        before = by_key.get(key.lower())
        if before is not None and before.raw == raw:
            continue
        opened = unseal(raw, domain)
        if opened is None or opened[0].operator.lower() != key.lower():
            refused += 1
            continue
        record, sequence = opened
        if before is not None and sequence <= before.sequence:
            continue
        if not is_fresh(record, now_ms):
            refused += 1
            continue
        operator = address(record.operator.lower())
        merged[operator] = Sighting(operator, record, sequence, now_ms, raw)
    return merged, refused


def forget(known: Sightings, now_ms: int, after_ms: int) -> dict[str, Sighting]:
    """Without the machines that have been silent for longer than `after_ms`."""
    return {op: sighting for op, sighting in known.items() if sighting.age_ms(now_ms) <= after_ms}


def present(
    known: Sightings, standing: Standings, model_id: str, now_ms: int
) -> tuple[Sighting, ...]:
    """Alive machines of this model whose operators may work, in order of operator."""
    return tuple(
        sighting
        for operator, sighting in sorted(known.items())
        if sighting.alive(now_ms)
        and sighting.record.model_id == model_id
        and (known_as := standing.get(operator)) is not None
        and known_as.can_work
    )


def plannable(sightings: Iterable[Sighting]) -> tuple[Sighting, ...]:
    """Those that take part in phase 1: a draining machine gets nothing new."""
    return tuple(s for s in sightings if s.record.state in ("JOIN", "SERVING"))


def serving(sightings: Iterable[Sighting]) -> tuple[Sighting, ...]:
    """Those that answer now: told and loaded are two things."""
    return tuple(s for s in sightings if s.record.state == "SERVING" and s.record.layers)


def layers_of(sightings: Iterable[Sighting]) -> dict[str, LayerRange]:
    """Who serves which layers."""
    return {s.operator: s.record.layers for s in serving(sightings) if s.record.layers is not None}


def machine_of(sighting: Sighting) -> Machine | None:
    """The planner's machine, in no region; None for a record with numbers that no machine has."""
    record = sighting.record
    try:
        return Machine(
            id=sighting.operator,
            memory_bytes=record.memory_bytes,
            tflops=min(record.tflops, MOST_TFLOPS),
            bandwidth_gb_s=min(record.bandwidth_gb_s, MOST_GB_S),
            weight_fraction=WEIGHT_FRACTION,
            kv_fraction=KV_FRACTION,
            max_concurrent=record.max_requests,
            tau_ms_per_layer=max(record.tau_ms_per_layer, LEAST_TAU_MS)
            if record.tau_ms_per_layer
            else None,
        )
    except FleetError:
        return None


def fleet_of(sightings: Iterable[Sighting]) -> Fleet:
    """Machines, the links between them by the word of both ends, and their regions."""
    sightings = tuple(sightings)
    rho_ms, mb_s = said_of((sighting.operator, sighting.record) for sighting in sightings)
    regions = regions_of({s.operator: s.record.region for s in sightings}, rho_ms)
    machines = [
        replace(machine, region=regions[machine.id])
        for machine in map(machine_of, sightings)
        if machine is not None
    ]
    return Fleet(tuple(machines), links_of(rho_ms, mb_s))
