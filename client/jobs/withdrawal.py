"""What of an order that came to nothing: may it still be opened, and who ends that?

Its matcher has the signed order and may open it until its deadline. The next order for the same
requests has the same nonce, so the chain opens one of them at most, whoever wakes up late. Where
nothing follows, the requester revokes the nonce. No machine is asked for the answers of an order
that came to nothing, so nothing is paid twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from client.pipeline.on_chain import is_nonce_used
from core.protocol import signing
from core.protocol.errors import ChainUnreachable, ContractRefused, HeadraceError
from core.protocol.types import SignedOrder
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.records.store import ClientStore
    from core.chain.chain import Chain

log = get_logger(__name__)


@dataclass
class Unopened:
    """Orders for the same requests that came to nothing: all have one nonce."""

    chain: Chain
    signer: signing.DigestSigner
    store: ClientStore
    orders: list[SignedOrder] = field(default_factory=list)
    is_silent: bool = False  # nobody answered one of them, so it may be opened yet

    def next_nonce(self, account: str) -> int:
        """The nonce of these, if there are any; else one that the account has not used."""
        return self.orders[0].order.nonce if self.orders else self.store.next_nonce(account)

    def came_to_nothing(self, signed: SignedOrder, *, is_silent: bool) -> None:
        """Nobody takes this one up, whatever becomes of it."""
        self.store.leave_order(signing.job_id(self.chain.domain, signed.order))
        self.orders.append(signed)
        self.is_silent |= is_silent

    def was_one_opened(self, error: HeadraceError) -> bool:
        """Whether the chain refuses the next order because one of these was opened after all.

        It stays in the records: what it locks returns after its deadline. The next nonce is new.
        """
        is_used = isinstance(error, ContractRefused) and error.error == "NonceUsedAlready"
        if not (is_used and self.orders):
            return False
        log.warning("an order that nobody answered was opened", nonce=self.orders[0].order.nonce)
        self.orders, self.is_silent = [], False
        return True

    def another_is_open(self) -> None:
        """The chain shows an order that followed these: they are void."""
        for signed in self.orders:
            self.store.forget_order(signing.job_id(self.chain.domain, signed.order))
        self.orders, self.is_silent = [], False

    async def void(self) -> bool:
        """Nothing follows: revoke the nonce, unless all were refused. False: one may be opened."""
        orders, self.orders = self.orders, []
        is_silent, self.is_silent = self.is_silent, False
        return not is_silent or await withdraw(self.chain, self.signer, self.store, orders)


async def withdraw(
    chain: Chain, signer: signing.DigestSigner, store: ClientStore, orders: Sequence[SignedOrder]
) -> bool:
    """Revoke the nonce of orders that share it; whether none of them can be opened from now on.

    Then they are void, or a matcher was faster: it opened one, which the records keep. Else the
    chain or a lack of gas was in the way, or `signer` is a spender, which revokes nothing.
    """
    order = orders[0].order
    name = signing.job_id(chain.domain, order)[:10]
    try:
        if order.requester.lower() == signer.address.lower():
            await chain.transact(signer, "TaskRegistry", "revokeNonce", order.nonce)
            for signed in orders:
                store.forget_order(signing.job_id(chain.domain, signed.order))
            log.info("an unanswered order is void", job=name, nonce=order.nonce)
            return True
    except HeadraceError as error:
        log.warning("an unanswered order is not revoked", job=name, why=str(error))
    try:
        return await is_nonce_used(chain, order)
    except ChainUnreachable:
        return False
