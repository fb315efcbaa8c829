"""Why does this miner get no work? Each reason with the fact behind it, the gravest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from core.protocol.units import format_duration
from miner.commands.facts import Json, MinerFacts, OwnerOnChain
from miner.commands.market import model_id_of
from miner.commands.results import Reason

HOUR_S = 3600
_GRAVITY = {"blocks": 0, "unknown": 1, "costs": 2, "fine": 3}
#: MinerRegistry's states.
NONE, ACTIVE, COOLDOWN, EXITED = range(4)
_Weight = Literal["blocks", "unknown", "costs", "fine"]
_Found = tuple[_Weight, str, str]
"""How grave it is, the fact, and what to do."""


def reasons(facts: MinerFacts) -> list[Reason]:
    """Ranked: what blocks all work, is unknown, costs some, is fine; of equals the earlier step."""
    found = [(topic, *one) for topic, look in _LOOKS.items() for one in look(facts)]
    ordered = sorted(found, key=lambda reason: _GRAVITY[reason[1]])
    return [Reason(rank, *one) for rank, one in enumerate(ordered, start=1)]


def _blocks(fact: str, fix: str) -> _Found:
    return "blocks", fact, fix


def _costs(fact: str, fix: str) -> _Found:
    return "costs", fact, fix


def _fine(fact: str) -> _Found:
    return "fine", fact, ""


def _unknown(fact: str, fix: str) -> _Found:
    return "unknown", fact, fix


def _registration(facts: MinerFacts) -> Iterator[_Found]:
    if facts.operator is None:
        yield _blocks(facts.operator_problem, "miner register --stake AMOUNT")
        return
    chain = facts.chain
    if chain is None:
        yield _unknown(facts.chain_problem, "miner doctor")
    elif chain.state == NONE:
        yield _blocks(
            f"no miner on this chain names operator {facts.operator}",
            f"miner register --stake {facts.settings.show_token(chain.min_stake)}",
        )
    elif chain.operator.lower() != facts.operator.lower():
        yield _blocks(
            f"the owner works with another operator now: {chain.operator}",
            "miner config set miner.operator NAME, then start it anew",
        )
    elif chain.state == EXITED:
        yield _blocks("the owner has left", "miner register --stake AMOUNT")
    else:
        yield _fine(f"owner {chain.owner}")


def _stake(facts: MinerFacts) -> Iterator[_Found]:
    chain, show = facts.chain, facts.settings.show_token
    if chain is None or chain.state in (NONE, EXITED):
        return
    if chain.state == COOLDOWN:
        yield _blocks(
            f"{show(chain.leaving)} is being taken out, so nothing new is given",
            "miner withdraw --cancel",
        )
    elif chain.stake < chain.min_stake:
        short = chain.min_stake - chain.stake
        yield _blocks(
            f"{show(chain.stake)} is below the minimum of {show(chain.min_stake)}",
            f"miner stake add {show(short)}",
        )
    else:
        more = [m for m in facts.others if (m["stakeUnits"] or 0) > chain.stake]
        yield _fine(
            f"{show(chain.stake)}, the minimum is {show(chain.min_stake)}; "
            f"{len(more)} of {len(facts.others)} others stake more"
        )


def _reputation(facts: MinerFacts) -> Iterator[_Found]:
    chain = facts.chain
    if chain is None or chain.state in (NONE, EXITED):
        return
    standing, why = (facts.own or {}).get("standing"), (facts.own or {}).get("standingWhy")
    if chain.jailed_for_s:
        yield _blocks(
            f"jailed for {format_duration(chain.jailed_for_s)} more after {_strikes(chain)}",
            "miner unjail, when the time is over",
        )
    elif chain.open_disputes:
        yield _blocks(
            f"no new job while {chain.open_disputes} disputes are open against it",
            "miner disputes ls",
        )
    elif not chain.can_work and chain.state == ACTIVE and chain.stake >= chain.min_stake:
        yield _blocks(f"the jail time after {_strikes(chain)} is over but not left", "miner unjail")
    elif standing == "left out":
        yield _blocks(f"the matcher leaves it out: {why}", "ask that auditor for its verdict")
    elif chain.strikes:
        yield _costs(
            f"{_strikes(chain)} stay on record, so others come first, and requesters may avoid it",
            "nothing takes them back; miner disputes ls shows why",
        )
    elif standing == "last":
        yield _costs(f"others come first: {why}", "keep rows as long as they may be asked for")
    else:
        yield _fine("no strike, no open dispute")


def _strikes(chain: OwnerOnChain) -> str:
    return f"{chain.strikes} strike" + ("" if chain.strikes == 1 else "s")


def _daemon(facts: MinerFacts) -> Iterator[_Found]:
    daemon = facts.daemon
    if daemon is None and facts.is_running:
        yield _unknown(
            facts.daemon_problem, "try again; if it stays so, miner stop, then miner start"
        )
    elif daemon is None:
        yield _blocks(facts.daemon_problem, "miner start")
    elif daemon["problem"]:
        yield _blocks(daemon["problem"], "miner doctor")
    elif daemon["state"] in ("DRAINING", "LEFT"):
        yield _blocks(
            f"it is {daemon['state']}: paused, or on its way out",
            "miner update --resume, or miner start once it has left",
        )
    elif not daemon["chainReachable"]:
        yield _blocks("it does not reach the chain, so it accepts nothing", "miner doctor")
    elif daemon["layers"] is None:
        told = "no matcher has told it layers yet"
        own = facts.own
        if own is not None and own["standby"]:
            told = "the matcher keeps it in reserve: others hold the model already"
        yield _blocks(told, "miner start --layers A:B holds layers of your choice")
    else:
        yield _fine(f"{daemon['state']} layers {daemon['layers']} of {daemon['model']}")


def _record(facts: MinerFacts) -> Iterator[_Found]:
    if facts.matcher_problem:
        yield _unknown(facts.matcher_problem, "miner doctor")
        return
    own = facts.own
    if own is None:
        yield _blocks(
            f"the matcher sees none of {len(facts.miners)} records from this machine",
            "miner doctor; check network.bootstrap_peers and miner.peers",
        )
    elif not own["alive"]:
        yield _blocks(
            f"its last record is {own['ageMs'] / 1000:.0f} s old, so it counts as gone",
            "miner status; then miner start",
        )
    else:
        yield _fine(f"{own['state']}, seen {own['ageMs'] / 1000:.1f} s ago")


def _reachability(facts: MinerFacts) -> Iterator[_Found]:
    own = facts.own
    if facts.reached is False:
        where = (own or facts.daemon or {}).get("endpoint")
        yield _blocks(
            f"nobody answers at {where}, which is what peers dial: {facts.reach_problem}",
            "open the port, set miner.announce_host and miner.announce_port, or miner.reach = "
            '"relay"',
        )
    elif facts.others and facts.operator is not None:
        mine = facts.operator.lower()
        seen = [m for m in facts.others if mine in {who.lower() for who in m["rhoMs"]}]
        text = f"{len(seen)} of {len(facts.others)} other machines of this model have reached it"
        if seen:
            yield _fine(text)
        else:
            yield _costs(text, "open the port, or set miner.announce_host to what others can dial")
    elif facts.reached:
        yield _fine("it answers; no other machine of this model is there to ask")


def _coverage(facts: MinerFacts) -> Iterator[_Found]:
    if facts.matcher_problem:
        return
    model = facts.model
    if model is None:
        yield _blocks(
            f"{facts.settings.miner.model} is not a registered model of this network",
            "choose one: client models; then miner config set miner.model NAME",
        )
    elif not model["covered"]:
        yield _blocks(
            f"no chain of machines holds all {model['layers']} layers: they reach to layer "
            f"{model['coveredTo']}",
            "hold missing layers with --layers, or wait for more machines",
        )
    else:
        yield _fine(
            f"at least {model['copies']} of the machines "
            f"hold{'s' if model['copies'] == 1 else ''} each layer"
        )


def _price(facts: MinerFacts) -> Iterator[_Found]:
    own = facts.own
    if own is None or "priceOutShown" not in own:
        return
    rivals = [m for m in facts.others if _overlap(own, m) and "priceOutShown" in m]
    cheaper = [m for m in rivals if _asks(m) < _asks(own)]
    text = f"{own['priceInShown']} in, {own['priceOutShown']} out"
    if not rivals:
        yield _fine(f"{text}; nobody else holds these layers")
    elif cheaper:
        lowest = min(cheaper, key=_asks)
        yield _costs(
            f"{text} is above {len(cheaper)} of {len(rivals)} others with these layers; the "
            f"lowest is {lowest['priceInShown']} in, {lowest['priceOutShown']} out",
            f"miner update --price {lowest['priceInShown']},{lowest['priceOutShown']}",
        )
    else:
        yield _fine(f"{text}; none of {len(rivals)} others with these layers asks less")


def _asks(machine: Json) -> int:
    return int(machine["priceIn"]) + int(machine["priceOut"])


def _overlap(one: Json, other: Json) -> bool:
    a, b = one["layers"], other["layers"]
    return bool(a and b and a[0] < b[1] and b[0] < a[1])


def _demand(facts: MinerFacts) -> Iterator[_Found]:
    if facts.matcher_problem or facts.chain is None:
        return
    wanted, since = model_id_of(facts.settings), facts.chain.now_s - HOUR_S
    asked = [
        job for job in facts.jobs if job["modelId"].lower() == wanted and job["createdAt"] >= since
    ]
    requests = sum(job["requests"] for job in asked)
    mine = (facts.operator or "").lower()
    ours = [job for job in asked if mine in {s["operator"].lower() for s in job["stages"]}]
    text = (
        f"{len(asked)} orders of up to {requests} requests in the last hour, {len(ours)} of "
        f"them here"
    )
    if not asked:
        text = "nobody ordered this model in the last hour"
    if asked:
        yield _fine(text)
    else:
        yield _costs(text, "serve a model that is asked for: client models")


def _room(facts: MinerFacts) -> Iterator[_Found]:
    daemon = facts.daemon
    if daemon is None or daemon["layers"] is None:
        return
    text = f"{daemon['freeRequests']} of {daemon['maxRequests']} places are free"
    if daemon["freeRequests"]:
        yield _fine(text)
    else:
        yield _costs(text, "raise miner.max_batch or miner.memory_limit")


#: In the order of the steps by which a miner gets work.
_LOOKS: dict[str, Callable[[MinerFacts], Iterator[_Found]]] = {
    "registration": _registration,
    "stake": _stake,
    "reputation": _reputation,
    "daemon": _daemon,
    "record": _record,
    "reachability": _reachability,
    "coverage": _coverage,
    "price": _price,
    "demand": _demand,
    "room": _room,
}
