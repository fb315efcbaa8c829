"""By how much is a value of a plea's second pass changed? (`docs/trust.md` §4)

By signs that follow from the accused's seed and the value's place: one of its own, and one each
that it shares with its 16, 256 and 4,096 neighbours, since the roundings of a sum's partial sums
are a random walk over its terms. Twin: contracts/src/trace/Shake.sol.
"""

from __future__ import annotations

import struct
from hashlib import sha256

from core.dispute.referee.exact import SHAKE_BITS
from core.dispute.trace.layout import Place

#: Neighbours that share a sign, and what it counts in 2^-24; in segments twice as long or longer.
SHARED = ((16, 1), (256, 4), (4096, 16))
BLOCK = 256  # signs of one hash
_SIGNS = struct.Struct(">BHHBIII")


def own_step(own_bits: int) -> int:
    """What a value's own sign counts, in 2^-24."""
    return 1 << (SHAKE_BITS - own_bits)


def levels(own_bits: int, length: int) -> list[tuple[int, int]]:
    """Neighbours that share a sign, and what it counts in 2^-24, in segments of this length."""
    shared = [(wide, step) for wide, step in SHARED if 2 * wide <= length]
    return [(1, own_step(own_bits)), *shared]


def signs(seed: int, wide: int, place: Place, block: int) -> bytes:
    """SHA-256 whose bit j, the lowest first, is the sign of group 256·block + j of `wide`.

    1 stands for plus. `place` names the segment; its item is not looked at.
    """
    return sha256(message(seed, wide, place, block)).digest()


def message(seed: int, wide: int, place: Place, block: int) -> bytes:
    """What `signs` hashes."""
    section, op, row, segment, _ = place
    return _SIGNS.pack(seed, wide, section, op, row, segment, block)


def shake_at(seed: int, own_bits: int, place: Place, length: int) -> int:
    """The change of the value at `place`, in 2^-24 of itself; its segment has `length` numbers."""
    total = 0
    for wide, step in levels(own_bits, length):
        block, bit = divmod(place.item // wide, BLOCK)
        word = int.from_bytes(signs(seed, wide, place, block), "big")
        total += step if word >> bit & 1 else -step
    return total
