"""Which addresses may a stranger's endpoint make us dial?

A machine says itself where it listens. On a network of strangers that may be a router's page, a
cloud's credentials or a neighbour on the same wire, so only public addresses are dialled; names are
looked up once, and what they stood for then is dialled.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from core.runtime.network.circuits import CIRCUIT, is_circuit

_NAMES = ("dns", "dns4", "dns6")


async def public_route(route: str) -> str:
    """A route as it may be dialled: of the same place, by its public address.

    Raises ValueError for private, loopback, link-local and other addresses that are not of the
    internet, and for what is no route; OSError for a name that stands for nothing.
    """
    if not is_circuit(route):
        host, _, port = route.rpartition(":")
        return route_to(await _public(host.strip("[]"), port), port)
    relay, _, peer = route.partition(CIRCUIT)
    empty, kind, host, *rest = relay.split("/")
    if empty or kind not in ("ip4", "ip6", *_NAMES) or len(rest) < 2:
        raise ValueError("it is no address of a relay")
    address = await _public(host, rest[1])
    kind = "ip6" if ":" in address else "ip4"
    return "/".join(["", kind, address, *rest]) + CIRCUIT + peer


def route_to(host: str, port: int | str) -> str:
    """A route to a port of a host: `host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _public(host: str, port: str) -> str:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    addresses = [str(place[0]) for *_, place in found]
    for address in addresses:
        if is_public(address):
            return address
    raise ValueError(
        f"{', '.join(addresses)} is no public address, and network.private_addresses is not set"
    )


def is_public(address: str) -> bool:
    """Whether an IP address is of the internet, and of one machine."""
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found.sixtofour or found
    return found.is_global and not found.is_multicast
