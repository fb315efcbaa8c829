"""Which stream makes room for a new one, when a listener has as many as it may?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar


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


def _idlest(streams: list[Stream]) -> Stream:
    return min(streams, key=lambda stream: stream.heard_at)
