"""How are a trace's chunks committed, opened in runs, and descended to? (`docs/trust.md` §2)

leaf = H(0x00 ‖ chunk), node = H(0x01 ‖ left ‖ right), an unpaired last node moves up unchanged. The
root has no count: the layout gives it. Twin: contracts/src/trace/Chunks.sol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import sha256

#: Levels that one opening goes down: 32 hashes.
STEP_LEVELS = 5


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def height(count: int) -> int:
    """Levels from the leaves to the root."""
    return (count - 1).bit_length()


def width(count: int, level: int) -> int:
    """Nodes at `level`, the leaves being level 0."""
    return -(-count // (1 << level))


def parents(hashes: Sequence[bytes]) -> list[bytes]:
    pairs = [node(hashes[i], hashes[i + 1]) for i in range(0, len(hashes) - 1, 2)]
    return [*pairs, hashes[-1]] if len(hashes) % 2 else pairs


def fold(hashes: Sequence[bytes], levels: int) -> bytes:
    """The one node `levels` above these nodes, which are all below it."""
    found = list(hashes)
    for _ in range(levels):
        found = parents(found)
    (top,) = found
    return top


def climb(
    hashes: Sequence[bytes], first: int, count: int, levels: int, proof: Sequence[bytes]
) -> bytes | None:
    """The node `levels` above the run of nodes from `first` on a level of `count`.

    None unless `proof` fits exactly.
    """
    found, siblings = list(hashes), list(proof)
    for _ in range(levels):
        if first % 2:
            if not siblings:
                return None
            found.insert(0, siblings.pop(0))
        end = first - first % 2 + len(found)
        if end % 2 and end < count:
            if not siblings:
                return None
            found.append(siblings.pop(0))
        found, first, count = parents(found), first // 2, -(-count // 2)
    return found[0] if len(found) == 1 and not siblings else None


class HashTree(ABC):
    """A tree over `count` leaves that knows, or can find, each of its nodes."""

    def __init__(self, count: int) -> None:
        if not count:
            raise ValueError("a trace of no chunks")
        self.count = count

    @abstractmethod
    def node(self, level: int, index: int) -> bytes:
        """Node `index` of `level`, the leaves being level 0."""

    @property
    def height(self) -> int:
        return height(self.count)

    def below(self, level: int, index: int) -> list[bytes]:
        """Up to 32 nodes five levels (or what is left) below node `index` of `level`."""
        step = min(STEP_LEVELS, level)
        last = min((index + 1) << step, width(self.count, level - step))
        return [self.node(level - step, i) for i in range(index << step, last)]

    def proof(
        self, first: int, last: int, level: int = 0, levels: int | None = None
    ) -> list[bytes]:
        """Siblings for `climb` from nodes [first, last) of `level` up `levels`, or to the root."""
        top = self.height if levels is None else level + levels
        found = []
        for here in range(level, top):
            if first % 2:
                found.append(self.node(here, first - 1))
            if last % 2 and last < width(self.count, here):
                found.append(self.node(here, last))
            first, last = first // 2, -(-last // 2)
        return found


class ChunkTree(HashTree):
    """All nodes of one trace's tree, from the hashes of its chunks."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        super().__init__(len(leaves))
        self._levels = [list(leaves)]
        while len(self._levels[-1]) > 1:
            self._levels.append(parents(self._levels[-1]))

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def node(self, level: int, index: int) -> bytes:
        return self._levels[level][index]
