"""Endpoints of strangers that name private places, in every spelling."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from core.keys.signer import Signer
from core.protocol import wire
from core.protocol.errors import PeerUnreachable
from core.protocol.signing import Domain
from core.runtime.network.channel import (
    Channel,
    Listener,
    Peers,
    StreamIdentity,
)
from core.runtime.network.targets import is_public, public_route

OURS, THEIRS = (Signer(bytes([number]) * 32, chain_id=1) for number in (1, 2))
DEVELOPMENT = Domain(31337, "0x" + "11" * 20)
LIVE = Domain(1, "0x" + "11" * 20)
NOT_PUBLIC = [
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "2002:7f00:1::",
    "fe80::1",
    "fc00::1",
    "ff02::1",
]
PEER = "12D3KooWPvbPU6DLkFaYUHpv4nJTtXQwJWwuEQyTTBoisjGgN1y8"


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_what_is_not_of_the_internet_is_not_dialled(address: str) -> None:
    assert not is_public(address)
    host, kind = (f"[{address}]", "ip6") if ":" in address else (address, "ip4")
    for route in (f"{host}:80", f"/{kind}/{address}/tcp/80/p2p/{PEER}/p2p-circuit/p2p/{PEER}"):
        with pytest.raises((ValueError, OSError)):
            await public_route(route)


@pytest.mark.parametrize(
    "route",
    ["", ":", "8.8.8.8", "8.8.8.8:http", "/ip4/p2p-circuit/p2p/", f"/p2p-circuit/p2p/{PEER}"],
)
async def test_what_is_no_route_is_no_place(route: str) -> None:
    with pytest.raises((ValueError, OSError)):
        await public_route(route)


async def test_a_name_is_looked_up_once_and_what_it_stood_for_is_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {"good.example": ["10.0.0.1", "9.9.9.9"], "bad.example": ["127.0.0.1", "::1"]}
    asked = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        places = named.get(host, [host])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in places]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await public_route("good.example:443") == "9.9.9.9:443"
    assert await public_route("[2600::1]:443") == "[2600::1]:443"
    relayed = f"/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}"
    assert await public_route(f"/dns4/good.example{relayed}") == f"/ip4/9.9.9.9{relayed}"
    assert asked.count("good.example") == 2
    for route in ("bad.example:443", f"/dns/bad.example{relayed}"):
        with pytest.raises(ValueError, match="no public address"):
            await public_route(route)


async def test_a_stream_to_a_private_place_is_for_networks_that_say_so() -> None:
    async def answer(channel: Channel, frame: wire.Frame) -> wire.AnyMessage:
        return wire.Pong()

    for domain, private, is_dialled in (
        (DEVELOPMENT, None, True),
        (DEVELOPMENT, False, False),
        (LIVE, None, False),
        (LIVE, True, True),
    ):
        listener = Listener(StreamIdentity(THEIRS, domain), answer)
        await listener.start("127.0.0.1", 0)
        peers = Peers(StreamIdentity(OURS, domain, private_addresses=private))
        endpoint = f"127.0.0.1:{listener.port}"
        if is_dialled:
            stream = await peers.get(THEIRS.address, endpoint)
            assert (await stream.call(wire.Ping())).message == wire.Pong()
        else:
            with pytest.raises(PeerUnreachable, match=r"network\.private_addresses"):
                await peers.get(THEIRS.address, endpoint)
            assert not listener.stats.counts, "nothing was heard of us"
        await peers.close()
        await listener.close()
