"""Was the accused token served, and is it judged as it was ordered? (`docs/protocol.md` §5)

Twin: contracts/src/trace/RowJudge.sol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eth_utils.crypto import keccak

from core.dispute.trace.derive import How
from core.dispute.trace.draw import DrawError, prescribed
from core.dispute.trace.evidence import TOKEN_BYTES, EvidenceError, RowOpening, open_row
from core.dispute.trace.judge import Claim
from core.protocol import commit
from core.protocol.types import RequestOpening


@dataclass(frozen=True)
class Drawn:
    """How a token was ordered and served.

    The request's sampling bytes, their place in the order, and the served token's row. `opening` is
    there for open orders, whose two roots are zero, and `is_signed` says whether its signature is
    good.
    """

    sampling: bytes
    sampling_root: bytes
    requests: int
    proof: Sequence[bytes]
    served: RowOpening
    opening: RequestOpening | None = None
    is_signed: bool = False
    tokens: bytes = b""  # that are ahead of one outside top-k: the accused must know them


def check_drawn(claim: Claim, order_hash: str, drawn: Drawn) -> None:
    """Raises DrawError or EvidenceError unless the token was served and ordered so."""
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
    root, half = commit.unhex(leaf.out_root), commit.Half.TOKENS
    width = TOKEN_BYTES
    row = open_row(root, leaf.tokens_out, produced, width, 0, width, drawn.served, half)
    if int.from_bytes(row, "little") != choice.served:
        raise DrawError("DrawMismatch")
