"""In which words does the chain keep what is on trial? Twins: Places.sol and ToleranceGame.sol."""

from __future__ import annotations

from eth_utils.crypto import keccak

from core.dispute.trace.calls import claim_tuple
from core.dispute.trace.evidence import GROUP_BYTES, RunOpening, group_hashes
from core.dispute.trace.judge import Claim
from core.dispute.trace.layout import VALUE_BYTES, Place


def binding(model: bytes, claim: Claim) -> bytes:
    """The hash of a model's id and a claim's words."""
    leaf, *others = claim_tuple(claim)
    words = (model, *leaf, *others)
    return keccak(
        b"".join(w if isinstance(w, bytes) else int(w).to_bytes(32, "big") for w in words)
    )


def packed_place(place: Place, tokens: bytes = b"") -> bytes:
    """A place in one word: its 15 bytes, then 17 of the hash of the list that it was named with."""
    widths = (2, 1, 4, 4, 4)
    front = b"".join(n.to_bytes(w, "big") for n, w in zip(place, widths, strict=True))
    return front + (keccak(tokens)[:17] if tokens else bytes(17))


def statement(place: bytes, stated: bytes) -> bytes:
    """The hash of what is stated of a packed place: partial sums, sixteen a group."""
    return keccak(place + b"".join(group_hashes(stated)))


def shown_statement(place: bytes, part: int, shown: RunOpening) -> bytes | None:
    """The statement that the shown group belongs to, if partial sum `part` is in it.

    None where there is no such group.
    """
    number, others = part * VALUE_BYTES // GROUP_BYTES, shown.siblings
    if number > len(others):
        return None
    return keccak(place + b"".join((*others[:number], keccak(shown.data), *others[number:])))
