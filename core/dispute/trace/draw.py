"""Which draw do an order's sampling bytes prescribe, and was the accused token served? (`docs/protocol.md` §5)

An accuser of a token chooses which request, which token and which other should have come; everything else is read from bytes
that the requester signed before the work, and from rows that the stage signed after it. Twin: contracts/src/trace/RowJudge.sol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from eth_utils.crypto import keccak

from core.dispute.trace.derive import Choice, How
from core.dispute.trace.evidence import EvidenceError, RowOpening, open_row
from core.dispute.trace.judge import Claim
from core.dispute.trace.rows import TOKEN_BYTES
from core.protocol import commit
from core.protocol.types import RequestOpening

_VERSION = 2
_HEAD_BYTES = 58
_OWN_INDEX = 2**32 - 1
#: (offset, bytes, value that leaves logits and candidates alone): anything else is for an audit and a jury.
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


@dataclass(frozen=True)
class Drawn:
    """How a token was ordered and served: the request's sampling bytes, their place in the order, and the served token's row.

    `opening` is there for open orders, whose two roots are zero, and `is_signed` says whether its signature is good.
    """

    sampling: bytes
    sampling_root: bytes
    requests: int
    proof: Sequence[bytes]
    served: RowOpening
    opening: RequestOpening | None = None
    is_signed: bool = False
    tokens: bytes = b""  # that are ahead of one outside top-k: the accused must know them


def prescribed(sampling: bytes, request_index: int, produced: int, choice: Choice) -> Choice:
    """`choice` with step, temperature, key and filters as these bytes have them for token number `produced` of the request.

    Raises DrawError for parameters that the referee does not judge.
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


def check_drawn(claim: Claim, order_hash: str, drawn: Drawn) -> None:
    """Raises DrawError or EvidenceError unless the claim's token was served, and is judged as it was ordered."""
    choice, leaf = claim.choice, claim.leaf
    assert choice is not None
    produced = claim.positions - leaf.tokens_in
    sampling_leaf = commit.leaf_hash(leaf.request_index.to_bytes(4, "big") + drawn.sampling)
    if drawn.sampling_root != bytes(32):
        if not commit.verify_proof(
            drawn.sampling_root, drawn.requests, leaf.request_index, sampling_leaf, drawn.proof
        ):
            raise DrawError("SamplingUnproven")
    elif drawn.opening is None or (
        drawn.opening.order_hash,
        drawn.opening.request_index,
        commit.unhex(drawn.opening.sampling_leaf),
    ) != (order_hash, leaf.request_index, sampling_leaf):
        raise DrawError("SamplingUnproven")
    elif not drawn.is_signed:
        raise DrawError("OpeningUnsigned")
    if prescribed(drawn.sampling, leaf.request_index, produced, choice) != choice:
        raise DrawError("DrawMismatch")
    if choice.how == How.OUTSIDE_TOP_K and keccak(drawn.tokens) != choice.listed:
        raise DrawError("DrawMismatch")
    if produced >= leaf.tokens_out:
        raise EvidenceError("a token that was not served")
    served = open_row(
        commit.unhex(leaf.out_root), leaf.tokens_out, produced, TOKEN_BYTES, 0, TOKEN_BYTES, drawn.served,
        commit.Half.TOKENS,
    )  # fmt: skip
    if int.from_bytes(served, "little") != choice.served:
        raise DrawError("DrawMismatch")
