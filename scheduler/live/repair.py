"""What is the least that must be told to which machine after one joined, left or changed?

In this order: nothing, where chains still cover the model (the router goes around the gap); standby
machines where the hole is; one serving machine extended or moved on; machines that others can
spare; everybody anew, with as few layers moved as possible. Standby machines then serve at once, as
pipelines of their own or where the model is thinnest. Serving machines are moved for balance alone
only if that is worth the bytes and the pause (`scheduler.live.migrate`), and never sent to standby.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet
from scheduler.live.churn import Cluster, told
from scheduler.live.holdings import Holding, fits, is_whole, loaded_bytes, missing
from scheduler.live.migrate import Judge, Migration, migration
from scheduler.live.repair_steps import restored
from scheduler.live.standby import Rules, with_standby
from scheduler.methods.methods import Budget


@dataclass(frozen=True, slots=True)
class Told:
    """One machine is to hold these layers, of which it must load `load_bytes`."""

    machine_id: str
    layers: LayerRange
    load_bytes: int


@dataclass(frozen=True, slots=True)
class Change:
    """What came of an event: whom to tell what, why, and whether chains cover the model then.

    ``step`` is the mildest one that sufficed: none, standby, extend, several, anew, impossible,
    waiting, balance, or the reason why the event was ignored. ``reason`` and ``why`` say the same
    to people: one sentence, and what a new plan has to say for itself, or what is short.
    """

    told: tuple[Told, ...]
    step: str
    is_covered: bool
    version: int
    reason: str = ""
    why: tuple[str, ...] = ()


def decide(
    cluster: Cluster, now_ms: int, rules: Rules = Rules(), budget: Budget = Budget()
) -> tuple[Cluster, Change]:
    """Whom to tell what, as everything stands now. Again at once: nothing."""
    cluster = _without_misfits(cluster)
    fleet, model, fixed = cluster.fleet, cluster.model, cluster.fixed
    held = holding = dict(cluster.placement)
    step, why = "none", tuple[str, ...]()
    if not is_whole(fleet, model, holding, rules.partial):
        mended = restored(fleet, model, holding, fixed, rules, budget)
        step, holding, why = mended.step, mended.holding, mended.why
    if step not in ("impossible", "waiting"):
        more = with_standby(fleet, model, holding, rules, budget)
        holding, why = more.holding, why or more.why
    later: Mapping[str, LayerRange] = {}
    if step == "none" and holding == held:
        cluster, better = _weighed(cluster, fleet, holding, now_ms, rules, budget)
        later = cluster.next_moves
        if better is not None:
            step, holding = "balance", {**held, **{i: better.holding[i] for i in better.turns[0]}}
            later = {i: better.holding[i] for turn in better.turns[1:] for i in turn}
            why = (
                f"{better.kept_tokens_per_s:.1f} tokens/s become {better.tokens_per_s:.1f}, "
                f"at least {better.loading_tokens_per_s:.1f} while {len(better.moves)} machines "
                "load "
                f"in {len(better.turns)} turns of {better.load_s:.0f} s together",
            )
    tell = []
    for machine_id, layers in sorted(holding.items()):
        member = cluster.members[machine_id]
        if member.told != layers:
            load = loaded_bytes(model, member.serves, layers)
            tell.append(Told(machine_id, layers, load))
            cluster = told(cluster, machine_id, layers, now_ms)
    cluster = replace(cluster, next_moves=later)
    covered = step not in ("impossible", "waiting")
    reason = _reason(cluster, step, held, tell, why, rules)
    return cluster, Change(tuple(tell), step, covered, cluster.version, reason, why)


def _weighed(
    cluster: Cluster, fleet: Fleet, holding: Holding, now_ms: int, rules: Rules, budget: Budget
) -> tuple[Cluster, Migration | None]:
    """The next turn of a migration once the last has loaded, or a new one after each rest."""
    model, serving = cluster.model, dict(cluster.serving)
    if cluster.next_moves:
        if _is_loading(cluster):
            return cluster, None
        judge = Judge.of(fleet, model, holding, serving, rules)
        found = judge.judged({**holding, **cluster.next_moves})
        if found is not None:
            return cluster, found
        cluster = replace(cluster, next_moves={})
    if now_ms - max(cluster.weighed_ms, cluster.changed_ms) < rules.rest_ms:
        return cluster, None
    found = migration(fleet, model, holding, serving, rules, cluster.fixed, budget)
    return replace(cluster, weighed_ms=now_ms), found


def _is_loading(cluster: Cluster) -> bool:
    """Whether a machine was told layers that it does not serve yet."""
    return any(member.told != member.serves for member in cluster.members.values())


def _reason(
    cluster: Cluster,
    step: str,
    held: dict[str, LayerRange],
    tell: list[Told],
    why: tuple[str, ...],
    rules: Rules,
) -> str:
    """The decision in one sentence."""
    if step == "waiting":
        return (
            f"the first plan waits for {rules.min_machines} machines, {len(cluster.members)} here"
        )
    if step == "impossible":
        return f"no whole pipeline: {'; '.join(why)}"
    if step == "balance":
        return (
            f"{tell[0].machine_id} moves to layers {tell[0].layers}, where the model was thinnest"
        )
    beside = sum(it.machine_id not in held for it in tell)
    if step == "none":
        more = f"; {beside} more machines serve beside the others" if beside else ""
        return f"every layer is covered{more}"
    holes = ", ".join(str(hole) for hole in missing(held, cluster.model.layers, rules.partial))
    lack = f"layers {holes} were missing" if holes else "the parts were not connected"
    return f"planned anew: {lack}" if step == "anew" else f"repaired: {lack}"


def _without_misfits(cluster: Cluster) -> Cluster:
    """Assignments that a machine can no longer hold are void; what it serves, it holds."""
    misfits = {
        i: replace(member, told=None, serves=None)
        for i, member in cluster.members.items()
        if member.told is not None
        and member.serves != member.told
        and not fits(member.machine, cluster.model, member.told.start, member.told.end)
    }
    return replace(cluster, members={**cluster.members, **misfits}) if misfits else cluster
