"""When is a juror's stake put on the roll, from which panels are drawn?"""

from __future__ import annotations

from typing import Any

from core.chain.chain import Chain
from core.dispute.game.dispute import JURY
from core.protocol.errors import ContractRefused
from core.protocol.signing import DigestSigner
from core.runtime.logs import get_logger

log = get_logger(__name__)


async def enrol_if_due(
    chain: Chain, signer: DigestSigner, juror: dict[str, Any], wall_s: int
) -> bool:
    """Enrol our own stake once it is mature; whether it is still off the roll.

    `juror` is what the contract's `jurorOf` says of us. A chain without transactions may make no
    blocks, so the wall clock counts as well. Raises HeadraceError where the chain does not answer.
    """
    if juror["place"] or juror["stake"] < await chain.read(JURY, "minJurorStake"):
        return False
    if max(await chain.now(), wall_s) < juror["maturesAt"]:
        return True
    try:
        await chain.transact(signer, JURY, "enrol", signer.address)
    except ContractRefused as refused:
        log.info("not enrolled yet", why=refused.why)
        return refused.error != "AlreadyEnrolled"
    log.info("enrolled: this juror can be drawn")
    return False
