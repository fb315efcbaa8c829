"""How many tokens a second does a machine pass with k layers, T(k), given what it was measured at
and who is with it?

Helix §4.3 profiles T(k); its published tables are derived from two curves per type of machine, and
so are these. A machine's batch grows with its KV room and with the share of a request's round trip
that is spent on it, so T(k) depends on all the other machines, and falls faster than 1/k.

Compared with the published tables of both models on 24 and 42 nodes: `AS_PUBLISHED` with what their
authors set by hand gives all of them to the last digit. The default, which settles instead of
swinging and does not round batches, is off by 2 to 4 % on average for 70B (at most 12 %), 5 to 10 %
for 30B (at most 30 %, at batches of one to three requests).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from scheduler.fleet.costs import (
    capacities,
    correction,
    kv_tokens,
    prefill_ms_per_layer,
    tau_ms_per_layer,
)
from scheduler.fleet.fleet import Fleet, Machine, ModelShape
from scheduler.fleet.workload import Workload

#: What Helix's planner assumes of a request.
PUBLISHED_WORKLOAD = Workload(750, 240)
#: No layer takes less, whatever a curve says.
SHORTEST_MS = 1e-6


@dataclass(frozen=True, slots=True)
class RateOptions:
    """``kv_share`` is how much of the KV room is in use; ``rounds`` how often speeds and shares are
    made to agree.

    ``whole_requests`` rounds the typical batch as the published tables do, which makes steps (down
    to no decode step at all, hence no cost for it); without it the curves decide. ``monotone``
    lifts T(k) to the largest T(j) with j ≥ k: who holds fewer layers is never slower.
    """

    workload: Workload = PUBLISHED_WORKLOAD
    kv_share: float = 0.3
    rounds: int = 10
    whole_requests: bool = False
    monotone: bool = True


#: Reproduces the published tables.
AS_PUBLISHED = RateOptions(whole_requests=True, monotone=False)


def typical_layers(fleet: Fleet, model: ModelShape) -> dict[str, int]:
    """k̂, the layers that a machine holds in a typical plan, by id: two thirds of its most, or its
    most where that is tight.

    Helix sets this by hand per card, never more than a layer away. Machines that hold nothing are
    left out.
    """
    most = {m.id: c for m in fleet.machines if (c := max(capacities(m, model)))}
    guess = {machine_id: max(1, round(2 * layers / 3)) for machine_id, layers in most.items()}
    return guess if sum(guess.values()) >= 1.2 * model.layers else most


def token_rates(
    fleet: Fleet,
    model: ModelShape,
    options: RateOptions = RateOptions(),
    typical: Mapping[str, int] | None = None,
    speeds: Mapping[str, float] | None = None,
) -> dict[str, tuple[float, ...]]:
    """T(1), T(2), … of every machine that holds a layer, by id.

    With t the time a token takes in one layer and k̂ the typical layers of a kind, a machine's
    share of the round trip is k t / (k t + (L − k) t̄), t̄ the mean of t weighed by k̂. Its decode
    batch B is that share of the requests that fit, kv_share · KV / (in + out), at most `out` (one
    prompt a batch). Serving one request then takes a prompt of its own and `out` places in batches
    of B: T(k) = (in + out) / (k (prefill(in) + out · decode(B) / B)).

    ``typical`` gives k̂ by kind (default: `typical_layers` of each machine), ``speeds`` the 1/t by
    kind to start from, in any unit. Who is faster spends less of the round trip, so has smaller
    batches, so is slower: taken as printed, the rounds swing. Here each goes half the way and they
    settle; with ``whole_requests`` they go all the way, and the published tables are what ten
    rounds from their authors' start end with (24 nodes: an A100 alternates between 16,365 and
    20,509).
    """
    by_id = typical_layers(fleet, model)
    able = [machine for machine in fleet.machines if machine.id in by_id]
    twins = Counter(_anonymous(machine) for machine in able)
    hat = {_anonymous(m): typical[m.kind] if typical else by_id[m.id] for m in able}
    if speeds is not None:
        ms = {m: 1 / speeds[m.kind] for m in twins}
    else:
        ms = {
            m: 1 / (_rate(m, model, hat[m], hat[m] / model.layers, options) * hat[m]) for m in twins
        }
    weight = {m: many * hat[m] for m, many in twins.items()}
    total = sum(weight.values())

    def rate(machine: Machine, k: int) -> float:
        mean = sum(weight[m] * ms[m] for m in twins) / total
        here = k * ms[machine]
        share = here / (here + (model.layers - k) * mean)
        return _rate(machine, model, k, share, options)

    for _ in range(options.rounds):
        now = {m: 1 / (rate(m, hat[m]) * hat[m]) for m in twins}
        ms = now if options.whole_requests else {m: math.sqrt(ms[m] * now[m]) for m in twins}
    tables = {}
    for machine in twins:
        rates = [rate(machine, k) for k in range(1, max(capacities(machine, model)) + 1)]
        if options.monotone:
            for k in range(len(rates) - 2, -1, -1):
                rates[k] = max(rates[k], rates[k + 1])
        tables[machine] = tuple(rates)
    return {machine.id: tables[_anonymous(machine)] for machine in able}


def with_token_rates(
    fleet: Fleet,
    model: ModelShape,
    options: RateOptions = RateOptions(),
    typical: Mapping[str, int] | None = None,
    speeds: Mapping[str, float] | None = None,
) -> Fleet:
    """The fleet with a derived T(k) in every measured profile that came without one.

    Machines without a profile are left to the roofline of `scheduler.fleet.costs`, but count in
    everybody's round trip.
    """
    wanting = {
        m.id for m in fleet.machines if m.profile and m.profile.tokens_per_s_by_layers is None
    }
    if not wanting:
        return fleet
    rates = token_rates(fleet, model, options, typical, speeds)
    machines = []
    for machine in fleet.machines:
        if machine.id in wanting and machine.profile and machine.id in rates:
            table = rates[machine.id]
            missing = machine.profile.max_layers - len(table)  # it holds more than the model has
            profile = replace(machine.profile, tokens_per_s_by_layers=table + table[-1:] * missing)
            machine = replace(machine, profile=profile)
        machines.append(machine)
    return Fleet(tuple(machines), fleet.links, fleet.coordinator)


def _anonymous(machine: Machine) -> Machine:
    """The machine without what does not change its speed, so that equal ones are computed once."""
    return replace(machine, id="-", region="", access_ms=0.0, stability=1.0)


def _rate(machine: Machine, model: ModelShape, k: int, share: float, options: RateOptions) -> float:
    prompt, output = options.workload.input_tokens, options.workload.output_tokens
    fit = options.kv_share * kv_tokens(machine, model, k)
    if options.whole_requests:
        return _rate_of_whole_requests(machine, model, k, int(fit) * share, options.workload)
    batch = min(output, max(1.0, fit / (prompt + output) * share))  # a step in a batch of its own
    prompt_ms = prefill_ms_per_layer(machine, model, round(prompt))
    steps_ms = output / batch * _decode_ms(machine, model, batch)
    return 1e3 * (prompt + output) / (k * max(SHORTEST_MS, prompt_ms + steps_ms))


def _rate_of_whole_requests(
    machine: Machine, model: ModelShape, k: int, tokens: float, workload: Workload
) -> float:
    """The same with the prompt's tokens in a batch, and the decode steps in it, each rounded to a
    whole number.
    """
    prompt, output = workload.input_tokens, workload.output_tokens
    batch = tokens / (prompt + output)
    prompts = batch / output
    if prompts > 1:
        prompts, batch = 1.0, output
    prompt_tokens, steps = round(prompts * prompt), round(batch)
    if not prompt_tokens:  # no KV room to speak of
        return _rate(machine, model, k, 0.0, RateOptions(workload))
    prompt_ms = prefill_ms_per_layer(machine, model, int(prompt_tokens / prompts))
    steps_ms = _decode_ms(machine, model, steps) / prompts
    return 1e3 * ((prompt_tokens + steps) / prompts) / (k * max(SHORTEST_MS, prompt_ms + steps_ms))


def _decode_ms(machine: Machine, model: ModelShape, batch: float) -> float:
    if machine.profile is not None:
        return correction(machine, model) * machine.profile.decode_ms_per_layer(batch)
    return tau_ms_per_layer(machine, model, max(1, round(batch)))
