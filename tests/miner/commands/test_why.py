"""Does `miner why` name what keeps work away, and first what keeps all of it away?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from miner.commands.facts import MinerFacts, OwnerOnChain
from miner.commands.results import Reason
from miner.commands.why import ACTIVE, COOLDOWN, NONE, reasons

OPERATOR, OTHER, OWNER = ("0x" + c * 40 for c in "abc")
MODEL = "0x" + "12" * 32
USD = 10**6


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags = {"network.models.tiny": MODEL, "miner.model": "tiny"}
    return load(folders=Folders.at(tmp_path), environ={}, flags=flags)


def machine(operator: str, **changes: Any) -> dict[str, Any]:
    values = {
        "operator": operator,
        "alive": True,
        "state": "SERVING",
        "modelId": MODEL,
        "ageMs": 400,
        "standby": False,
        "layers": [0, 4],
        "priceIn": 100,
        "priceOut": 400,
        "priceInShown": "0.1usd/Mtok",
        "priceOutShown": "0.4usd/Mtok",
        "stakeUnits": 500 * USD,
        "rhoMs": {},
        "endpoint": "127.0.0.1:7001",
    }
    return values | changes


@pytest.fixture
def healthy(settings: Settings) -> MinerFacts:
    """A miner that has everything: nothing blocks it."""
    chain = OwnerOnChain(OWNER, OPERATOR, ACTIVE, 500 * USD, 100 * USD, 0, 0, 0, 0, True, 10_000)
    daemon = {
        "state": "SERVING",
        "problem": None,
        "layers": "0-3",
        "model": "tiny",
        "chainReachable": True,
        "freeRequests": 3,
        "maxRequests": 4,
        "endpoint": "127.0.0.1:7001",
    }
    job = {"modelId": MODEL, "createdAt": 9_000, "requests": 2, "stages": [{"operator": OPERATOR}]}
    return MinerFacts(
        settings,
        OPERATOR,
        "",
        daemon,
        "",
        chain,
        "",
        miners=[machine(OPERATOR), machine(OTHER, rhoMs={OPERATOR: 1.0})],
        models=[{"modelId": MODEL, "covered": True, "copies": 2, "layers": 4, "coveredTo": 4}],
        jobs=[job],
        reached=True,
    )


def of(found: list[Reason], topic: str) -> Reason:
    (one,) = (reason for reason in found if reason.topic == topic)
    return one


def on_chain(facts: MinerFacts, **changes: Any) -> MinerFacts:
    assert facts.chain is not None
    return replace(facts, chain=replace(facts.chain, **changes))


def test_nothing_is_wrong_with_a_healthy_miner_and_every_fact_is_told(healthy: MinerFacts) -> None:
    found = reasons(healthy)
    assert {reason.weight for reason in found} == {"fine"}
    assert {reason.topic for reason in found} == {
        "registration",
        "stake",
        "reputation",
        "daemon",
        "record",
        "reachability",
        "coverage",
        "price",
        "demand",
        "room",
    }
    assert all(reason.fact and not reason.next for reason in found)
    assert [reason.rank for reason in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize(
    ("topic", "fact", "fix", "changes"),
    [
        ("registration", "no miner", "register --stake 100usd", {"state": NONE}),
        ("registration", "another operator", "miner.operator", {"operator": OTHER}),
        ("stake", "below the minimum", "stake add 60usd", {"stake": 40 * USD, "can_work": False}),
        ("stake", "taken out", "--cancel", {"state": COOLDOWN, "leaving": USD, "can_work": False}),
        (
            "reputation",
            "jailed for 1h",
            "unjail",
            {"jailed_for_s": 3600, "strikes": 1, "can_work": False},
        ),
        ("reputation", "2 disputes are open", "ls", {"open_disputes": 2, "can_work": False}),
        ("reputation", "is over", "unjail", {"strikes": 2, "can_work": False}),
    ],
)
def test_what_the_chain_holds_against_it_comes_first(
    healthy: MinerFacts, topic: str, fact: str, fix: str, changes: dict[str, Any]
) -> None:
    first = reasons(on_chain(healthy, **changes))[0]
    assert (first.topic, first.weight) == (topic, "blocks")
    assert fact in first.fact
    assert fix in first.next


def test_a_strike_costs_work_but_does_not_end_it(healthy: MinerFacts) -> None:
    assert of(reasons(on_chain(healthy, strikes=1)), "reputation").weight == "costs"


@pytest.mark.parametrize(
    ("standing", "weight"), [("left out", "blocks"), ("last", "costs"), ("good", "fine")]
)
def test_what_auditors_told_the_matcher_is_shown(
    healthy: MinerFacts, standing: str, weight: str
) -> None:
    own = machine(OPERATOR, standing=standing, standingWhy="auditor 0x12 found it at fault")
    found = of(reasons(replace(healthy, miners=[own, *healthy.others])), "reputation")
    assert found.weight == weight
    assert ("auditor 0x12" in found.fact) == (weight != "fine")


def test_a_dearer_machine_is_told_by_how_many_and_what_the_lowest_asks(healthy: MinerFacts) -> None:
    low = machine(OTHER, priceOut=300, priceOutShown="0.3usd/Mtok", rhoMs={OPERATOR: 1.0})
    apart = machine("0x" + "d" * 40, priceOut=1, layers=[4, 8])
    found = of(reasons(replace(healthy, miners=[machine(OPERATOR), low, apart])), "price")
    assert found.weight == "costs"
    assert "above 1 of 1 others" in found.fact, "who holds other layers is no rival"
    assert found.next == "miner update --price 0.1usd/Mtok,0.3usd/Mtok"


def test_a_port_that_nobody_answers_blocks_and_one_that_nobody_else_reached_costs(
    healthy: MinerFacts,
) -> None:
    closed = replace(healthy, reached=False, reach_problem="refused")
    assert of(reasons(closed), "reachability").weight == "blocks"
    unseen = replace(healthy, miners=[machine(OPERATOR), machine(OTHER)])
    assert of(reasons(unseen), "reachability").weight == "costs"


def test_a_hole_in_the_model_blocks_and_says_where(healthy: MinerFacts) -> None:
    holed = [{"modelId": MODEL, "covered": False, "copies": 0, "layers": 4, "coveredTo": 2}]
    found = of(reasons(replace(healthy, models=holed)), "coverage")
    assert found.weight == "blocks"
    assert "layer 2" in found.fact


def test_what_could_not_be_asked_is_unknown_and_not_fine(healthy: MinerFacts) -> None:
    blind = replace(
        healthy,
        chain=None,
        chain_problem="no answer",
        miners=[],
        models=[],
        jobs=[],
        reached=None,
        matcher_problem="no matcher answers",
    )
    found = reasons(blind)
    assert {r.topic: r.weight for r in found} == {
        "registration": "unknown",
        "record": "unknown",
        "daemon": "fine",
        "room": "fine",
    }


def test_a_miner_that_does_not_run_or_that_nobody_sees_or_asks_for_is_told_so(
    healthy: MinerFacts,
) -> None:
    asleep = replace(healthy, daemon=None, daemon_problem="it is not running", reached=None)
    assert reasons(asleep)[0].next == "miner start"
    silent = replace(asleep, daemon_problem="no answer", is_running=True)
    assert of(reasons(silent), "daemon").weight == "unknown", "a busy machine is not a stopped one"
    assert healthy.daemon is not None
    paused = replace(healthy, daemon=healthy.daemon | {"state": "DRAINING"})
    assert "--resume" in of(reasons(paused), "daemon").next
    unseen = replace(healthy, miners=[machine(OTHER)])
    assert of(reasons(unseen), "record").weight == "blocks"
    unasked = replace(healthy, jobs=[])
    assert of(reasons(unasked), "demand").weight == "costs"
