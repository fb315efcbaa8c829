"""Which machines are alike for throughput and latency, and what can each kind do?

A kind is equal capacities, equal decode rates and equal per-token times. θ of a pipeline is the
rate of one of its stages, so only finitely many rates matter: the *steps*, and for each of them the
most layers a kind may take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from scheduler.fleet.arrays import Floats, Ints
from scheduler.fleet.costs import Capacities, capacities, head_ms, tau_ms_per_layer, tokens_per_s
from scheduler.fleet.fleet import Machine, ModelShape


@dataclass(frozen=True, eq=False)
class MachineKind:
    """What the plan sees of a machine. ``rates`` is T(1), T(2), …, times its stability.

    ``tau_ms`` and ``head_ms`` are per-token times at batch 1. Kinds are compared by identity:
    `group` makes one of each.
    """

    capacities: Capacities
    rates: tuple[float, ...]
    tau_ms: float
    head_ms: float

    @cached_property
    def rising(self) -> tuple[float, ...]:
        """The rates times −1, for bisection."""
        return tuple(-rate for rate in self.rates)

    @property
    def values(self) -> tuple[Capacities, float, float, tuple[float, ...]]:
        """What makes two kinds the same, in the order kinds are listed: fastest first."""
        return self.capacities, self.tau_ms, self.head_ms, self.rates

    @property
    def best_rate(self) -> float:
        """The most layer·tokens/s it can give: max over k of k · T(k)."""
        return max(k * rate for k, rate in enumerate(self.rates, start=1))


@dataclass(frozen=True)
class Grouped:
    """Kinds in order of per-token time, fastest first, and the machines of each, in order of id."""

    layers: int
    kinds: tuple[MachineKind, ...]
    members: tuple[tuple[Machine, ...], ...]
    kind_of: dict[str, int]


def kind_of(machine: Machine, model: ModelShape) -> MachineKind:
    """The kind of one machine that holds at least one layer."""
    caps = capacities(machine, model)
    if machine.profile is None or machine.profile.tokens_per_s_by_layers is None:
        one = tokens_per_s(machine, model, 1) * machine.stability
        rates = [one / k for k in range(1, caps.plain + 1)]
    else:
        listed = (tokens_per_s(machine, model, k) for k in range(1, caps.plain + 1))
        # A table that rises again is cut to what fewer layers reach: then fewer layers never serve
        # less.
        rates = [rate * machine.stability for rate in accumulate(listed, min)]
    return MachineKind(
        caps, tuple(rates), tau_ms_per_layer(machine, model), head_ms(machine, model)
    )


def group(machines: Sequence[Machine], model: ModelShape) -> Grouped:
    """The kinds of these machines; those that hold no layer are left out."""
    alike: dict[tuple[float | None, ...], MachineKind | None] = {}
    one_of: dict[tuple[object, ...], MachineKind] = {}
    members: dict[MachineKind, list[Machine]] = {}
    for machine in machines:
        key = (
            machine.memory_bytes,
            machine.weight_fraction,
            machine.kv_fraction,
            machine.overhead_bytes,
            machine.tflops,
            machine.bandwidth_gb_s,
            machine.tau_ms_per_layer,
            machine.tau_batch,
            machine.stability,
            None if machine.profile is None else id(machine.profile),
        )
        if key not in alike:
            holds = capacities(machine, model).plain >= 1 and machine.stability > 0
            if holds:
                made = kind_of(machine, model)
                alike[key] = one_of.setdefault(made.values, made)
            else:
                alike[key] = None
        kind = alike[key]
        if kind is not None:
            members.setdefault(kind, []).append(machine)
    kinds = sorted(members, key=lambda kind: (kind.tau_ms, kind.head_ms, kind.values))
    listed = tuple(tuple(sorted(members[kind], key=lambda m: m.id)) for kind in kinds)
    where = {machine.id: t for t, group_ in enumerate(listed) for machine in group_}
    return Grouped(model.layers, tuple(kinds), listed, where)


#: Layers lost at an end that cannot be: no plan loses that many.
NEVER = 1 << 20


@dataclass(frozen=True)
class Steps:
    """The rates that θ can take, ascending, and [kind, step]: most layers in each position.

    ``plain_or_none`` is far below 0 where a machine reaches the step with no layer at all;
    ``first_loss`` and ``last_loss`` are the layers that being an end costs, NEVER where no layer is
    left.
    """

    layers: int
    rates: Floats
    plain: Ints
    first: Ints
    last: Ints
    both: Ints
    plain_or_none: Ints
    first_loss: Ints
    last_loss: Ints
    ends_alike: bool
    tau_ms: Floats
    head_ms: Floats


def steps_of(kinds: Sequence[MachineKind], layers: int) -> Steps:
    """Tables of all steps of these kinds."""
    rates = np.unique(np.concatenate([np.array(kind.rates) for kind in kinds]))
    shape = (len(kinds), len(rates))
    plain, first, last, both = (np.zeros(shape, dtype=np.int64) for _ in range(4))
    for t, kind in enumerate(kinds):
        falling = np.array(kind.rates)[::-1]
        plain[t] = len(falling) - np.searchsorted(falling, rates, side="left")
        for table, most in zip((first, last, both), kind.capacities[1:], strict=True):
            table[t] = np.minimum(plain[t], most)
    return Steps(
        layers,
        rates,
        plain,
        first,
        last,
        both,
        np.where(plain > 0, plain, -NEVER),
        np.where(first > 0, plain - first, NEVER),
        np.where(last > 0, plain - last, NEVER),
        np.array_equal(first, last),
        np.array([kind.tau_ms for kind in kinds]),
        np.array([kind.head_ms for kind in kinds]),
    )
