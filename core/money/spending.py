"""Who may sign for a requester: itself, or a spender that the Escrow lets spend for it?"""

from __future__ import annotations

from typing import Any, Protocol

from core.protocol import signing
from core.protocol.types import SignedOrder


class Reads(Protocol):
    """The part of `Chain` that is needed."""

    async def read(
        self, contract: str, function: str, *args: Any, block: int | None = None
    ) -> Any: ...


async def may_sign_for(chain: Reads, requester: str, signer: str | None) -> bool:
    """Whether this key's signature counts as the requester's now. Raises ChainUnreachable."""
    if signer is None or signer.lower() == requester.lower():
        return signer is not None
    return bool(await chain.read("Escrow", "isSpender", requester, signer))


def payers(signed: SignedOrder, domain: signing.Domain) -> frozenset[str]:
    """Lower-case addresses that speak for the requester of an opened order: it and the signer.

    Opening the order has shown that its signer may.
    """
    signer = signing.recover(domain, signed.order, signed.signature)
    return frozenset(who.lower() for who in (signed.order.requester, signer) if who is not None)
