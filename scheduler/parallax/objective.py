"""What are the constants of Z(k) for these machines?"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.fleet.costs import capacities, head_ms, tau_ms_per_layer
from scheduler.fleet.fleet import Links, Machine, ModelShape
from scheduler.parallax.parallax_allocate import Objective


def objective_for(
    machines: Sequence[Machine],
    links: Links,
    model: ModelShape,
    alpha: float = 1.0,
    t_comp_ms: float | None = None,
    r_rtt_ms: float | None = None,
) -> Objective:
    """T_comp is the capacity-weighted mean time of L layers and head, r_RTT the mean ρ of pairs.

    Both can be overridden.
    """
    if t_comp_ms is None:
        weights = [capacities(machine, model).plain for machine in machines]
        t_comp_ms = sum(
            weight * (tau_ms_per_layer(machine, model) * model.layers + head_ms(machine, model))
            for weight, machine in zip(weights, machines, strict=True)
        ) / max(1, sum(weights))
    return Objective(
        alpha, t_comp_ms, mean_rho_ms(machines, links) if r_rtt_ms is None else r_rtt_ms
    )


def mean_rho_ms(machines: Sequence[Machine], links: Links) -> float:
    """Mean one-way latency over reachable pairs, measured ones if any; 0 without pairs."""
    ids = {machine.id for machine in machines}
    measured = [
        link.latency_ms
        for (a, b), link in sorted(links.pairs.items())
        if a != b and a in ids and b in ids and link.latency_ms < float("inf")
    ]
    if measured:
        return sum(measured) / len(measured)
    by_region: dict[str, list[Machine]] = {}
    for machine in machines:
        by_region.setdefault(machine.region, []).append(machine)
    total, pairs = 0.0, 0
    for a, group_a in sorted(by_region.items()):
        for b, group_b in sorted(by_region.items()):
            many = len(group_a) * (len(group_b) - (a == b))
            region = links.regions.get((a, b)) or links.regions.get((b, a))
            latency = region.latency_ms if region else links.default_ms
            if many == 0 or latency is None or latency == float("inf"):
                continue
            if region:
                for group in (group_a, group_b):
                    latency += sum(machine.access_ms for machine in group) / len(group)
            total, pairs = total + many * latency, pairs + many
    return total / pairs if pairs else 0.0
