"""Which draw do an order's sampling bytes prescribe? (`docs/protocol.md` §5)

An accuser of a token chooses which request, which token and which other should have come;
everything else is read from bytes that the requester signed before the work, and from rows that the
stage signed after it. Twin: contracts/src/trace/RowJudge.sol.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from core.dispute.trace.derive import Choice

_VERSION = 2
_HEAD_BYTES = 58
_OWN_INDEX = 2**32 - 1
#: (offset, bytes, value that leaves logits and candidates alone): anything else is for an audit and
#: a jury.
_PLAIN = (
    (25, 4, 10**6),  # top-p
    (37, 4, 10**6),  # repetition penalty
    (41, 4, 0),  # frequency penalty
    (45, 4, 0),  # presence penalty
    (55, 2, 0),  # biases
)
_FEWEST_AT = 49


class DrawError(Exception):
    """A token that the referee is not asked about; `name` is the contract's error."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def prescribed(sampling: bytes, request_index: int, produced: int, choice: Choice) -> Choice:
    """`choice` with step, temperature, key and filters as sampling bytes have them.

    `produced` is the number of the token in the request's answer. Raises DrawError for parameters
    that the referee does not judge.
    """

    def word(at: int, size: int = 4) -> int:
        return int.from_bytes(sampling[at : at + size], "big")

    if len(sampling) < _HEAD_BYTES or sampling[0] != _VERSION:
        raise DrawError("SamplingUnjudged")
    step = word(33) + produced
    if any(word(at, size) != plain for at, size, plain in _PLAIN) or step < word(_FEWEST_AT):
        raise DrawError("SamplingUnjudged")
    index = word(29) if word(29) != _OWN_INDEX else request_index
    digest = sha256(word(17, 8).to_bytes(8, "big") + index.to_bytes(4, "big")).digest()
    key = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
    return replace(
        choice,
        step=step,
        temperature_micro=word(1),
        key=key,
        top_k=word(5),
        min_p_micro=word(9),
    )
