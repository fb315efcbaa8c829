"""What of an order that its matcher did not answer: may it still be opened, and who ends that?

The matcher has the signed order and may open it until its deadline. Its requester revokes the
nonce, which costs gas; where the chain does not take that, what the order would lock is held back
until the deadline. No machine is asked for such an order's answers, so nothing of it is paid twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.pipeline.on_chain import is_nonce_used
from core.protocol import signing
from core.protocol.errors import ChainUnreachable, HeadraceError
from core.protocol.types import SignedOrder
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.records.store import ClientStore
    from core.chain.chain import Chain

log = get_logger(__name__)


async def withdraw(
    chain: Chain, signer: signing.DigestSigner, store: ClientStore, signed: SignedOrder
) -> bool:
    """Revoke an order's nonce; whether the balance shows from now on what comes of the order.

    Then it is void, or its matcher was faster: it opened the order, which the records keep. Else
    the chain or a lack of gas was in the way, or `signer` is a spender, which revokes nothing.
    """
    order = signed.order
    job_id = signing.job_id(chain.domain, order)
    try:
        if order.requester.lower() == signer.address.lower():
            await chain.transact(signer, "TaskRegistry", "revokeNonce", order.nonce)
            store.forget_order(job_id)
            log.info("an unanswered order is void", job=job_id[:10], nonce=order.nonce)
            return True
    except HeadraceError as error:
        log.warning("an unanswered order is not revoked", job=job_id[:10], why=str(error))
    try:
        return await is_nonce_used(chain, order)
    except ChainUnreachable:
        return False
