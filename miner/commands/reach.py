"""How do others reach this machine, and how does it find the swarm, where its owner did not say?"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from core.protocol.errors import MatcherUnreachable, PeerUnreachable
from core.runtime.network.channel import dials_private
from core.runtime.network.targets import is_public
from core.runtime.settings import Settings
from miner.commands.market import ask

LOOPBACK: Final = "127.0.0.1"
#: Of addresses that a matcher names.
MOST_PEERS: Final = 16


def placed(settings: Settings) -> Settings:
    """The settings with a host to listen at and a way to be reached. Looks names up; may block.

    Where no `miner.listen_host` is set, the machine listens at the address from which it reaches
    its network. With `miner.reach = "auto"` peers dial it, unless that address is private and the
    network is reached at a public one, or dials no private ones: then it is behind a router, and
    uses a relay. Who sets a host, or one to announce, is dialled there.
    """
    miner = settings.miner
    host, is_dialled = miner.listen_host, True
    if not host:
        host, is_dialled = _address(settings)
    reach = miner.reach
    if reach == "auto":
        reach = "direct" if is_dialled or miner.announce_host else "relay"
    found = miner.model_copy(update={"listen_host": host, "reach": reach})
    return settings.model_copy(update={"miner": found})


async def with_peers(settings: Settings) -> Settings:
    """The settings with peers to join the swarm through: those configured, else what a matcher
    names.

    Where no peer and no matcher is configured, the machine is alone, until others join through it.
    Raises PeerUnreachable where no matcher answers, or names one.
    """
    network = settings.network
    if network.bootstrap_peers or settings.miner.peers or not network.matcher_places:
        return settings
    next_step = "start with --peers, or try again when the matcher runs"
    try:
        named = (await ask(settings, "/v1/status")).get("swarm")
    except MatcherUnreachable as error:
        why = f"no peer of the swarm is configured, and {error.what}: {error.why}"
        raise PeerUnreachable("the swarm cannot be joined", why, next_step=next_step) from None
    peers = tuple(map(str, named[:MOST_PEERS])) if isinstance(named, list) else ()
    if not peers:
        raise PeerUnreachable(
            "the swarm cannot be joined", "the matcher names no peer of it", next_step=next_step
        )
    joined = network.model_copy(update={"bootstrap_peers": peers})
    return settings.model_copy(update={"network": joined})


def _address(settings: Settings) -> tuple[str, bool]:
    """Of this machine towards its network, and whether peers can dial it as far as that shows."""
    network = settings.network
    is_private_dialled = dials_private(network.chain_id or 0, network.private_addresses)
    found = LOOPBACK
    for ours, theirs in _routes(settings):
        found = ours
        if ipaddress.ip_address(ours).is_loopback:
            continue
        return ours, is_public(ours) or (is_private_dialled and not is_public(theirs))
    return found, is_private_dialled


def _routes(settings: Settings) -> Iterator[tuple[str, str]]:
    """From which address to which the kernel would send to each matcher, then to each node."""
    network = settings.network
    matchers = [url for url, _ in network.matcher_places]
    for url in [*matchers, *(network.rpc_url or "").split(",")]:
        host = urlsplit(url.strip()).hostname
        if not host:
            continue
        try:
            places = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)
        except OSError:
            continue  # a name that stands for nothing here: the next one may
        for family, kind, *_, place in places:
            with socket.socket(family, kind) as probe:
                try:
                    probe.connect(place)  # sends nothing: it chooses a route
                except OSError:
                    continue
                yield probe.getsockname()[0].partition("%")[0], str(place[0]).partition("%")[0]
