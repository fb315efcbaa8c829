"""Where does an accused point, by its own trace, and at an accused token? (`docs/trust.md` §5)

Its own trace is the only right one. The first hash that differs leads to the first value that does;
everything before it is equal, so that value's operands are right and it is not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from core.dispute.referee import LeafKind
from core.dispute.trace.derive import Choice, How, delta_of
from core.dispute.trace.held import HeldTrace
from core.dispute.trace.layout import VALUE_BYTES, Place, TraceLayout


def verdict_of(layout: TraceLayout) -> Place:
    """Where to point if nothing differs: what an honest trace says of an honest stage convicts nobody."""
    last = len(layout.section_types) - 1
    return Place(last, len(layout.section(last).ops) - 1)


def differing(own: Sequence[bytes], shown: Sequence[bytes]) -> int | None:
    """Number of the first hash that is not one's own; None if all are."""
    pairs = zip(own, shown, strict=True)
    return next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), None)


def place_in(own: HeldTrace, chunk: int, shown: bytes) -> Place:
    """Where to point in or after the first chunk that differs, by one's own trace.

    A stabiliser below the largest score is one of the scores and stands by itself: what falls is the exponential of a larger one.
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


def place_among(own: HeldTrace, first: int, shown: Sequence[bytes]) -> Place:
    """`place_in` the first of these chunks, from number `first` on, that is not one's own."""
    for number, data in enumerate(shown, first):
        if data != b"".join(struct.pack("<d", own[place]) for place in own.layout.places(number)):
            return place_in(own, number, data)
    raise ValueError(f"none of {len(shown)} chunks from {first} on differs")


def wrong_part(own: bytes, stated: bytes) -> int:
    """Number of the first stated partial sum that is not one's own; that of all where they cannot add up.

    If all are one's own, the value that they are stated for is not their sum. If there are more or fewer
    than the value has, nothing can be proven of it.
    """
    parts = len(stated) // VALUE_BYTES
    if len(own) != len(stated):
        return parts
    cuts = (slice(at, at + VALUE_BYTES) for at in range(0, len(own), VALUE_BYTES))
    return next((i for i, cut in enumerate(cuts) if own[cut] != stated[cut]), parts)


def point_of_token(
    layout: TraceLayout, choice: Choice, logits: Sequence[float], tokens: bytes = b""
) -> tuple[Place, bytes]:
    """Where the last stage points if all logits are right, and with which list: what speaks most for the token that it served.

    `tokens` is the list that the accuser of a token outside top-k posted. The list that is returned is empty if there is none.
    """
    verdict, tau = verdict_of(layout), choice.temperature_micro
    if choice.how == How.OUTSIDE_TOP_K:
        ids = to_ids(tokens)
        least = min(range(len(ids)), key=lambda i: logits[ids[i]], default=0)
        return verdict._replace(item=least), b""
    if choice.how == How.OUTSIDE_MIN_P or tau == 0:
        return verdict, b""
    if choice.min_p_micro:
        verdict = verdict._replace(item=max(range(len(logits)), key=logits.__getitem__))
    if not choice.top_k:
        return verdict, b""
    delta = delta_of(layout.program.delta_micro, tau)
    near = [
        i
        for i, logit in enumerate(logits)
        if i != choice.preferred and (logits[choice.preferred] - logit) * 10**12 < delta * tau
    ]
    best = sorted(sorted(near, key=lambda i: -logits[i])[: choice.top_k])
    return verdict, to_tokens(best) if len(best) == choice.top_k else b""


def token_behind(tokens: bytes, logits: Sequence[float]) -> int:
    """Which of the accused's list its accuser names: the one that is furthest behind. Any, if the list loses by itself."""
    ids = to_ids(tokens)
    if not ids or max(ids) >= len(logits):
        return 0
    return min(range(len(ids)), key=lambda i: logits[ids[i]])


def to_tokens(ids: Sequence[int]) -> bytes:
    """A list of tokens as both sides post it: ascending, each as u32be."""
    return b"".join(i.to_bytes(4, "big") for i in ids)


def to_ids(tokens: bytes) -> list[int]:
    return [int.from_bytes(tokens[at : at + 4], "big") for at in range(0, len(tokens), 4)]


def _larger(own: HeldTrace, place: Place) -> Place:
    """The exponential of the largest score that this stabiliser stands for."""
    section = own.layout.section(place.section)
    scores = section.ops[place.op].a
    keys = range(own.layout.positions)
    largest = max(
        keys, key=lambda key: own[Place(place.section, scores, place.row, place.item, key)]
    )
    exponential = next(
        i for i, op in enumerate(section.ops) if op.kind == LeafKind.EXP and op.a == place.op
    )
    return Place(place.section, exponential, place.row, place.item, largest)
