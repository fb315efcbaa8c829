"""Which stream makes room for a new one, and whose handshake waits, where there are many?"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from core.runtime.network.pace import FramePace

#: Handshakes of one address in a second, at once after a pause, and how many wait for their turn:
#: one takes 1.6 ms of a core.
HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE, HANDSHAKES_WAITING = 32.0, 128, 32
_MOST_ADDRESSES = 4096


class Kept(Protocol):
    """What counts of a stream: whose it is, and when it was last heard, in seconds."""

    peer: str
    heard_at: float


@dataclass(frozen=True)
class StreamLimits:
    """How many streams are kept in all, of one key, and of keys without standing."""

    most: int = 256
    of_a_key: int = 32

    @property
    def of_strangers(self) -> int:
        return max(1, self.most * 3 // 4)


class NoPlace(Exception):
    """Every place is taken, by those who have standing."""


Stream = TypeVar("Stream", bound=Kept)


def to_drop(
    held: Iterable[Stream], newcomer: str, standing: Set[str], limits: StreamLimits = StreamLimits()
) -> Stream | None:
    """The stream that ends so that the newcomer's may begin; None where there is room.

    A key's own idlest makes room beyond its share. Else the idlest of the stranger that has most of
    them: a key is a stranger's that is not in `standing` (lower case), so who comes with any number
    of throwaway keys keeps nobody out. Raises NoPlace where no stranger has a place.
    """
    all_held = list(held)
    own = [stream for stream in all_held if stream.peer == newcomer]
    if len(own) >= limits.of_a_key:
        return _idlest(own)
    strangers = [stream for stream in all_held if stream.peer.lower() not in standing]
    is_strange = newcomer.lower() not in standing
    if len(all_held) < limits.most and not (is_strange and len(strangers) >= limits.of_strangers):
        return None
    if not strangers:
        raise NoPlace
    counts = Counter(stream.peer for stream in strangers)
    most = max(counts.values())
    return _idlest([stream for stream in strangers if counts[stream.peer] == most])


class HandshakePace:
    """Handshakes come no faster from one address than a busy honest one needs.

    Throwaway keys cost nothing, addresses do. This machine itself is not held up.
    """

    def __init__(self) -> None:
        self._paces: dict[str, FramePace] = {}  # the latest to come last
        self._waiting = Counter[str]()

    async def turn(self, address: str) -> None:
        """Wait for one of this address. Raises NoPlace where too many wait."""
        if not address:
            return
        if self._waiting[address] >= HANDSHAKES_WAITING:
            raise NoPlace
        pace = self._paces.pop(address, None) or FramePace(HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE)
        self._paces[address] = pace
        if len(self._paces) > _MOST_ADDRESSES:
            del self._paces[next(iter(self._paces))]
        self._waiting[address] += 1
        try:
            await pace.turn()
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]


def address_of(peer: Any) -> str:
    """Who counts as one: an address, of IPv6 its network of 64 bits; "" for this machine itself.

    `peer` is a transport's `peername`.
    """
    try:
        found = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):  # no peer of the internet
        return ""
    found = getattr(found, "ipv4_mapped", None) or found
    if str(found) in ("127.0.0.1", "::1"):
        return ""
    return str(found) if found.version == 4 else str(int(found) >> 64)


def _idlest(streams: list[Stream]) -> Stream:
    return min(streams, key=lambda stream: stream.heard_at)
