"""Finding the swarm again after a restart, with real peers in their own processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.protocol.errors import ConfigError, PeerUnreachable
from core.protocol.records import SwarmCheck
from core.runtime.database import sqlite_url
from core.runtime.folders import Folders
from core.runtime.network.transport import Swarm
from core.runtime.settings import Settings, load
from matcher.audits.audit_desk import Pays
from matcher.daemon.start import chain_of, database_url, join_swarm, rules_of
from matcher.records.store import Store
from scheduler.methods.methods import METHODS
from tests.town.orders import DOMAIN, NOW_S, key

CHECK = SwarmCheck(DOMAIN)
#: A well-formed address where nobody listens.
NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWKoQSYphVZHqqrM8GLK5NA8NSVFmeaEDPrfcdm894qYwy"


def settings(folder: Path, **flags: object) -> Settings:
    return load(flags=flags, environ={}, folders=Folders.at(folder))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store.open(sqlite_url(tmp_path / "m.sqlite"))
    yield found
    found.close()


@pytest.mark.swarm
async def test_a_restarted_matcher_finds_the_swarm_that_it_began(
    tmp_path: Path, store: Store
) -> None:
    """The network file names only its own former address; the machines are remembered."""
    first = join_swarm(settings(tmp_path), store, CHECK)
    other = Swarm.start("127.0.0.1", 0, first.addresses())
    again = None
    try:
        own = first.addresses()
        store.remember_swarm(own, await first.peers(), NOW_S)
        first.close()
        named = settings(tmp_path, **{"network.bootstrap_peers": ",".join(own)})
        again = join_swarm(named, store, CHECK)
        assert set(await again.peers()) == set(other.addresses())
    finally:
        for swarm in (first, other, again):
            if swarm is not None:
                swarm.close()


@pytest.mark.swarm
async def test_a_matcher_whose_former_peers_are_gone_starts_alone(
    tmp_path: Path, store: Store
) -> None:
    store.remember_swarm([], [NOBODY], NOW_S)
    swarm = join_swarm(settings(tmp_path), store, CHECK)
    try:
        assert await swarm.peers() == []
    finally:
        swarm.close()


@pytest.mark.swarm
def test_configured_peers_that_do_not_answer_are_an_error(tmp_path: Path, store: Store) -> None:
    with pytest.raises(PeerUnreachable):
        join_swarm(settings(tmp_path, **{"matcher.peers": NOBODY}), store, CHECK)


def test_settings_become_rules(tmp_path: Path) -> None:
    given = {
        "matcher.settle": "5s",
        "matcher.min_machines": 3,
        "matcher.ack_grace": "1m",
        "matcher.replan_interval": "2s",
        "matcher.queue": "45s",
        "matcher.routing": "iwrr",
        "network.deploy_block": 7,
    }
    rules = rules_of(settings(tmp_path, **given))
    assert (rules.planning.settle_ms, rules.planning.min_machines) == (5000, 3)
    assert (rules.patience.ack_grace_s, rules.replan_every_ms, rules.start_block) == (60, 2000, 7)
    assert rules.queue_s == 45 and rules.by_turns and not rules.planning.partial
    assert not rules_of(settings(tmp_path)).by_turns


@pytest.mark.parametrize(
    ("placement", "method"),
    [
        ("auto", "utility"),
        ("simulated", "simulated"),
        ("parallax", "regions"),
        ("helix", "helix"),
        ("memory", "memory"),
    ],
)
def test_every_placement_is_one_of_the_planners_methods(
    tmp_path: Path, placement: str, method: str
) -> None:
    given = settings(tmp_path, **{"matcher.placement": placement})
    planning = rules_of(given).planning
    assert (planning.method, planning.partial) == (method, placement == "helix")
    assert method in METHODS


@pytest.mark.parametrize(
    "flags", [{"matcher.placement": "best"}, {"matcher.routing": "best"}, {"matcher.fee_bps": 501}]
)
def test_what_this_matcher_cannot_do_is_refused_at_the_start(
    tmp_path: Path, flags: dict[str, object]
) -> None:
    with pytest.raises(ConfigError):
        rules_of(settings(tmp_path, **flags))


def test_audits_are_paid_only_where_auditors_are_named(tmp_path: Path) -> None:
    named, fee = key(60).address, {"matcher.audit_fee": "0.02usd"}
    paid = {"matcher.paid_auditors": named, "matcher.audit_rate_bps": 500, **fee}
    assert rules_of(settings(tmp_path, **paid)).pays == Pays((named,), 500, 20_000, 10**6, 6 * 3600)
    assert rules_of(settings(tmp_path, **fee)).pays == Pays()
    elsewhere = settings(tmp_path, **{"network.token_symbol": "eur"})
    assert rules_of(elsewhere).pays == Pays(), "defaults in usd keep no other network from starting"


@pytest.mark.parametrize(
    "money", [{"audit_fee": "0usd"}, {"audit_fee": "2usd"}, {"audit_cap": "0usd"}]
)
def test_auditors_who_would_never_be_paid_are_refused_at_the_start(
    tmp_path: Path, money: dict[str, str]
) -> None:
    flags = {f"matcher.{name}": amount for name, amount in money.items()}
    with pytest.raises(ConfigError, match="never be paid"):
        rules_of(settings(tmp_path, **{"matcher.paid_auditors": key(60).address}, **flags))


def test_a_network_without_contracts_is_refused(tmp_path: Path) -> None:
    flags = {"network.chain_id": 31337, "network.rpc_url": "http://127.0.0.1:1"}
    with pytest.raises(ConfigError, match="has no address of"):
        chain_of(settings(tmp_path, **flags))


def test_the_database_lies_in_the_state_folder_unless_named(tmp_path: Path) -> None:
    assert database_url(settings(tmp_path)).endswith("state/matcher-devnet.sqlite")
    assert database_url(settings(tmp_path, **{"matcher.db_url": "sqlite://"})) == "sqlite://"
