"""How does a machine whose owner named no host find where it listens, and the swarm?"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from core.protocol.errors import PeerUnreachable
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from miner.commands import reach
from miner.commands.reach import MOST_PEERS, placed, with_peers
from tests.served import served

OURS, THEIRS = "45.77.2.2", "45.77.1.2"
HOME, NEIGHBOUR = "10.0.0.2", "10.0.0.3"
DEVNET, PUBLIC = 31337, 8453
PEER = "/ip4/45.77.1.2/tcp/4001/p2p/QmPeer"
Load = Callable[..., Settings]


@pytest.fixture
def settings(tmp_path: Path) -> Load:
    def make(chain_id: int = PUBLIC, **flags: Any) -> Settings:
        given = {"network.chain_id": chain_id} | {k.replace("__", "."): v for k, v in flags.items()}
        return load(folders=Folders.at(tmp_path), environ={}, flags=given)

    return make


@pytest.mark.parametrize(
    ("routes", "chain_id", "private", "expected"),
    [
        ([(OURS, THEIRS)], PUBLIC, None, (OURS, "direct")),
        ([(HOME, THEIRS)], PUBLIC, None, (HOME, "relay")),
        ([(HOME, THEIRS)], DEVNET, None, (HOME, "relay")),  # it is behind a router
        ([(HOME, NEIGHBOUR)], DEVNET, None, (HOME, "direct")),  # all are in one house
        ([(HOME, NEIGHBOUR)], PUBLIC, None, (HOME, "relay")),  # others dial no such address
        ([(HOME, NEIGHBOUR)], PUBLIC, True, (HOME, "direct")),
        ([("127.0.0.1", "127.0.0.1"), (OURS, THEIRS)], PUBLIC, None, (OURS, "direct")),
        ([("127.0.0.1", "127.0.0.1")], DEVNET, None, ("127.0.0.1", "direct")),
        ([("127.0.0.1", "127.0.0.1")], PUBLIC, None, ("127.0.0.1", "relay")),
        ([], DEVNET, None, ("127.0.0.1", "direct")),
        ([("2a01:4f8::2", "2a01:4f8::1")], PUBLIC, None, ("2a01:4f8::2", "direct")),
    ],
)
def test_the_address_towards_the_network_is_where_it_listens(
    settings: Load,
    monkeypatch: pytest.MonkeyPatch,
    routes: list[tuple[str, str]],
    chain_id: int,
    private: bool | None,
    expected: tuple[str, str],
) -> None:
    monkeypatch.setattr(reach, "_routes", lambda _: iter(routes))
    found = placed(settings(chain_id, network__private_addresses=private)).miner
    assert (found.listen_host, found.reach) == expected


def test_what_its_owner_says_goes_before(settings: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_routes", lambda _: iter([(HOME, THEIRS)]))
    forwarded = placed(settings(miner__announce_host="house.example")).miner
    assert (forwarded.listen_host, forwarded.reach) == (HOME, "direct")
    named = placed(settings(miner__listen_host="0.0.0.0")).miner
    assert (named.listen_host, named.reach) == ("0.0.0.0", "direct")
    relayed = placed(settings(miner__listen_host="10.0.0.9", miner__reach="relay")).miner
    assert (relayed.listen_host, relayed.reach) == ("10.0.0.9", "relay")
    direct = placed(settings(miner__reach="direct")).miner
    assert (direct.listen_host, direct.reach) == (HOME, "direct")


def test_the_kernel_says_from_which_address_it_would_send(settings: Load) -> None:
    places = "http://no-such-host.invalid, http://127.0.0.1:7100"
    here = settings(network__matchers=places, network__rpc_url="http://[::1]:8545")
    assert ("127.0.0.1", "127.0.0.1") in list(reach._routes(here))


def matcher(folder: Path, answer: Any) -> AbstractContextManager[str]:
    (folder / "v1").mkdir(parents=True)
    (folder / "v1" / "status").write_text(json.dumps(answer))
    return served(folder)


async def test_a_matcher_that_answers_names_the_swarms_peers(
    settings: Load, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        knows = stack.enter_context(matcher(tmp_path / "knows", {"swarm": [PEER] * 40}))
        silent = stack.enter_context(matcher(tmp_path / "silent", {"swarm": []}))
        strange = stack.enter_context(matcher(tmp_path / "strange", {"swarm": "QmPeer"}))
        at = settings(network__matchers=f"http://127.0.0.1:9, {knows}")
        assert (await with_peers(at)).network.bootstrap_peers == (PEER,) * MOST_PEERS
        for other in (silent, strange):
            with pytest.raises(PeerUnreachable, match="no peer"):
                await with_peers(settings(network__matchers=other))


async def test_peers_that_are_configured_are_enough(settings: Load) -> None:
    away = "http://127.0.0.1:9"
    for section in ("network__bootstrap_peers", "miner__peers"):
        known = settings(network__matchers=away, **{section: PEER})
        assert await with_peers(known) is known
    alone = settings()
    assert await with_peers(alone) is alone
    with pytest.raises(PeerUnreachable, match=r"no peer of the swarm is configured.*127.0.0.1:9"):
        await with_peers(settings(network__matchers=away))
