"""Which serving machines should load other layers because it pays, when loading costs time?

A placement is worth the tokens it passes until the horizon. Machines load in turns, as many at once
as the others can make up for: a fleet that serves is not stopped for a better plan. Weights move
only where that pays, and none without which as much passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.fleet.costs import tokens_per_s
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard, in_layer_order
from scheduler.flow.flow_lp import solve_flow_lp
from scheduler.flow.max_flow import max_flow
from scheduler.live.hand_over import least_moved
from scheduler.live.holdings import (
    Holding,
    Layers,
    is_whole,
    layer_supply,
    loaded_bytes,
    whole_flow,
)
from scheduler.live.rebalance import should_rebalance
from scheduler.live.standby import Rules, pipelines_of, thinnest_slice
from scheduler.methods.methods import Budget
from scheduler.stages.patches import patches

#: Holders of the layers that most others hold: this many are looked at for a move of their own.
LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class Migration:
    """A placement to go to, and who loads together, one turn after the other.

    Throughputs are as it is, the least of all turns (which take ``load_s`` in all), and after.
    ``tokens`` is what passes until the horizon, ``tokens_if_kept`` what would without a move.
    """

    holding: Holding
    turns: tuple[tuple[str, ...], ...]
    kept_tokens_per_s: float
    loading_tokens_per_s: float
    tokens_per_s: float
    load_s: float
    tokens: float
    tokens_if_kept: float

    @property
    def moves(self) -> tuple[str, ...]:
        return tuple(sorted(i for turn in self.turns for i in turn))


@dataclass(frozen=True, slots=True)
class Judge:
    """What targets are worth, from here: ``serving`` is what has been loaded of what is held."""

    fleet: Fleet
    model: ModelShape
    holding: Layers
    serving: Layers
    rules: Rules
    now: float

    @classmethod
    def of(
        cls, fleet: Fleet, model: ModelShape, holding: Layers, serving: Layers, rules: Rules
    ) -> Judge:
        now = throughput(fleet, model, holding, rules.partial)
        return cls(fleet, model, holding, serving, rules, now)

    def judged(self, target: Layers, more_than: float = 0.0) -> Migration | None:
        """What a target is worth; None if it is no better, brings too little, or stops too much."""
        rules = self.rules
        after = throughput(self.fleet, self.model, target, rules.partial)
        stay = self.now * rules.horizon_s
        most = max(after, self.now) * rules.horizon_s
        if after < self.now * (1 + rules.worth_share) or most <= max(stay, more_than):
            return None
        if not is_whole(self.fleet, self.model, target, rules.partial):
            return None
        serves = is_whole(self.fleet, self.model, self.serving, rules.partial)
        turns, least, spent_s, tokens = list[tuple[str, ...]](), self.now, 0.0, 0.0
        state, loaded = dict(self.holding), dict(self.serving)
        left = [i for i, layers in target.items() if self.holding.get(i) != layers]
        # A machine that only drops layers does so last, when others have them, and at once.
        left.sort(key=lambda i: (not self.load_s(i, target[i]), self.load_s(i, target[i]), i))
        while left:
            turn, rate = self._turn(state, loaded, left, target)
            broken = serves and not is_whole(self.fleet, self.model, loaded, rules.partial)
            if not turn or broken or rate < self.now * rules.least_served:
                return None
            turn_s = max(self.load_s(i, target[i]) for i in turn)
            counted_s = max(0.0, min(turn_s, rules.horizon_s - spent_s))
            turns.append(turn)
            least, spent_s, tokens = min(least, rate), spent_s + turn_s, tokens + rate * counted_s
            for i in turn:
                state[i] = loaded[i] = target[i]
            left = [i for i in left if i not in turn]
        tokens += after * max(0.0, rules.horizon_s - spent_s)
        if tokens <= max(stay, more_than):
            return None
        return Migration(dict(target), tuple(turns), self.now, least, after, spent_s, tokens, stay)

    def load_s(self, machine_id: str, layers: LayerRange) -> float:
        """How long a machine loads what it does not hold of these."""
        held = self.holding.get(machine_id)
        return loaded_bytes(self.model, held, layers) / self.rules.load_bytes_per_s

    def _turn(
        self, state: Layers, loaded: Layers, left: Sequence[str], target: Layers
    ) -> tuple[tuple[str, ...], float]:
        """Who may load together now, and what the others pass meanwhile."""
        fleet, model, partial = self.fleet, self.model, self.rules.partial
        serves = is_whole(fleet, model, loaded, partial)
        staying, still, chosen = dict(state), dict(loaded), list[str]()
        rate = throughput(fleet, model, staying, partial)
        for i in left:
            loads = self.load_s(i, target[i]) > 0
            if not loads and self.load_s(left[0], target[left[0]]) > 0:
                break  # droppers go together: one by one they would leave ends that do not meet
            if i in staying and loads:
                others = {other: layers for other, layers in staying.items() if other != i}
                ready = {other: layers for other, layers in still.items() if other != i}
                without = throughput(fleet, model, others, partial)
                if without < self.now * self.rules.least_served or (
                    serves and not is_whole(fleet, model, ready, partial)
                ):
                    continue
                staying, still, rate = others, ready, without
            chosen.append(i)
        return tuple(chosen), rate


def migration(
    fleet: Fleet,
    model: ModelShape,
    holding: Layers,
    serving: Layers,
    rules: Rules,
    fixed: Collection[str] = (),
    budget: Budget = Budget(),
) -> Migration | None:
    """The best way on from a placement that covers the model; None where none is worth its moves.

    Nothing is looked for unless loads are as uneven as Parallax §3.4 asks of a new plan. Then,
    until the budget is over: single machines moved to where the model is thin, a few moved together
    (with partial slices), everybody planned anew.
    """
    uneven = should_rebalance(
        fleet, model, _shards(holding), rules.load_spread, partial=rules.partial
    )
    if not uneven.rebalance:
        return None
    judge = Judge.of(fleet, model, holding, serving, rules)
    best: Migration | None = None
    for target in _targets(judge, fixed, budget):
        found = judge.judged(target, 0.0 if best is None else best.tokens * (1 + 1e-9))
        best = found or best
        if budget.left_s <= 0:
            break
    return None if best is None else _without_needless(judge, best)


def throughput(fleet: Fleet, model: ModelShape, holding: Layers, partial: bool = True) -> float:
    """Tokens per second over these slices, used in parts or whole.

    Links count behind a coordinator; in a fleet any two holders are taken to reach each other.
    """
    if not holding:
        return 0.0
    placement = _shards(holding)
    if fleet.coordinator is not None:
        return max_flow(fleet, model, placement, partial=partial).tokens_per_s
    if not partial:
        return whole_flow(fleet, model, holding)
    return solve_flow_lp(fleet, model, placement).tokens_per_s


def _targets(judge: Judge, fixed: Collection[str], budget: Budget) -> Iterator[Layers]:
    fleet, model, rules, holding = judge.fleet, judge.model, judge.rules, judge.holding
    yield from _single(judge, fixed)
    if rules.partial:
        at_least = judge.now * (1 + rules.worth_share)
        for placement in patches(fleet, model, _shards(holding), at_least=at_least, fixed=fixed):
            yield {**holding, **dict(placement)}
    free = fleet.subset(machine for machine in fleet.machines if machine.id not in fixed)
    anew = pipelines_of(free, model, rules, budget)
    if anew.holding:
        yield least_moved(fleet, model, anew.holding, holding, fixed)


def _single(judge: Judge, fixed: Collection[str]) -> Iterator[Layers]:
    """One machine, whose layers most others hold, at a time."""
    fleet, model, holding = judge.fleet, judge.model, judge.holding
    supply = layer_supply(fleet, model, holding)
    thinnest = supply.index(min(supply))

    def spare(i: str) -> tuple[float, float, str]:
        layers = holding[i]
        least = min(supply[layers.start : layers.end])
        return -least, tokens_per_s(fleet.by_id[i], model, len(layers)), i

    movable = [i for i in holding if thinnest not in holding[i] and i not in fixed]
    for i in sorted(movable, key=spare)[:LOOKED_AT]:
        rest = {other: layers for other, layers in holding.items() if other != i}
        layers = thinnest_slice(fleet.by_id[i], fleet, model, rest, judge.rules.partial)
        if layers is not None and layers != holding[i]:
            yield {**rest, i: layers}


def _without_needless(judge: Judge, best: Migration) -> Migration:
    """Take back, one by one, every move without which as many tokens pass."""

    target = best.holding
    for i in sorted(best.moves, key=lambda i: (-judge.load_s(i, target[i]), i)):
        fewer = {other: layers for other, layers in best.holding.items() if other != i}
        if i in judge.holding:
            fewer[i] = judge.holding[i]
        best = judge.judged(fewer, best.tokens * (1 - 1e-9)) or best
    return best


def _shards(holding: Layers) -> Placement:
    return in_layer_order(Shard(*item) for item in holding.items())
