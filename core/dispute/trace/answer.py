"""Where does an accused point, by its own trace? And lists of tokens, as both sides post them.

Its own trace is the only right one. The first hash that differs leads to the first value that does;
everything before it is equal, so that value's operands are right and it is not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from heapq import nlargest

from core.dispute.referee import LeafKind
from core.dispute.trace.layout import VALUE_BYTES, Place
from core.dispute.trace.operands import Trace, largest_key


def differing(own: Sequence[bytes], shown: Sequence[bytes]) -> int | None:
    """Number of the first hash that is not one's own; None if all are."""
    pairs = zip(own, shown, strict=True)
    return next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), None)


def place_in(own: Trace, chunk: int, shown: bytes) -> Place:
    """Where to point in or after the first chunk that differs, by one's own trace.

    A stabiliser below the largest score is one of the scores and stands by itself: what falls is
    the exponential of a larger one.
    """
    places = own.layout.places(chunk)
    if len(shown) != 8 * len(places):
        return places[0]  # of another length than the layout has, nothing of it can be proven
    for number, place in enumerate(places):
        theirs = shown[8 * number : 8 * number + 8]
        if theirs == struct.pack("<d", own[place]):
            continue
        (value,) = struct.unpack("<d", theirs)
        op = own.layout.op(place.section, place.op)
        if op.kind == LeafKind.STABILISER and math.isfinite(value) and value < own[place]:
            return _larger(own, place)
        return place
    raise ValueError(f"chunk {chunk} does not differ")


def place_among(own: Trace, first: int, shown: Sequence[bytes]) -> Place:
    """`place_in` the first of these chunks, from number `first` on, that is not one's own."""
    for number, data in enumerate(shown, first):
        places = own.layout.places(number)
        if data != struct.pack(f"<{len(places)}d", *(own[place] for place in places)):
            return place_in(own, number, data)
    raise ValueError(f"none of {len(shown)} chunks from {first} on differs")


def wrong_part(own: bytes, stated: bytes) -> int:
    """Number of the first stated partial sum that is not one's own.

    That of all where they cannot add up. If all are one's own, the value that they are stated for
    is not their sum. If there are more or fewer than the value has, nothing can be proven of it.
    """
    parts = len(stated) // VALUE_BYTES
    if len(own) != len(stated):
        return parts
    cuts = (slice(at, at + VALUE_BYTES) for at in range(0, len(own), VALUE_BYTES))
    return next((i for i, cut in enumerate(cuts) if own[cut] != stated[cut]), parts)


def to_tokens(ids: Sequence[int]) -> bytes:
    """A list of tokens as both sides post it: ascending, each as u32be."""
    return b"".join(i.to_bytes(4, "big") for i in ids)


def to_ids(tokens: bytes) -> list[int]:
    return [int.from_bytes(tokens[at : at + 4], "big") for at in range(0, len(tokens), 4)]


def likeliest(logits: Sequence[float], but: int, count: int) -> list[int]:
    """The `count` likeliest tokens by logits [V], `but` left out, in ascending order.

    The empty list if there are fewer.
    """
    others = (token for token in range(len(logits)) if token != but)
    found = sorted(nlargest(count, others, key=logits.__getitem__))
    return found if len(found) == count else []


def _larger(own: Trace, place: Place) -> Place:
    """The exponential of the largest score that this stabiliser stands for."""
    ops = own.layout.section(place.section).ops
    exponential = next(
        i for i, op in enumerate(ops) if op.kind == LeafKind.EXP and op.a == place.op
    )
    return Place(place.section, exponential, place.row, place.item, largest_key(own, place))
