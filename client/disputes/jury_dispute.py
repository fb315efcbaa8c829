"""Opening a dispute: who may, what it costs, and the transaction that names the guilty stage."""

from __future__ import annotations

from dataclasses import dataclass

from client.audit.evidence import AuditCase, Delegation
from core.chain.chain import Chain, Sent
from core.protocol.errors import TokenShort, UsageError
from core.protocol.signing import DigestSigner
from core.protocol.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    AuditorDelegation,
    SignedReceipt,
)
from core.protocol.units import format_token

EMPTY_SIGNATURE = "0x"


@dataclass(frozen=True)
class Cost:
    """What the challenger pays in, base units. The bond returns with a fault verdict; the fee is the jury's."""

    bond: int
    fee: int

    @property
    def total(self) -> int:
        return self.bond + self.fee


async def challenge_cost(chain: Chain) -> Cost:
    """The jury's current bond and fee."""
    return Cost(
        bond=await chain.read("JuryArbitrator", "bond"),
        fee=await chain.read("JuryArbitrator", "fee"),
    )


def check_standing(case: AuditCase, challenger: str, delegation: Delegation | None) -> None:
    """Raise UsageError unless this account is one that the contract lets dispute the job."""
    allowed = {case.order.requester.lower(), case.order.auditor.lower()} - {ZERO_ADDRESS}
    if delegation is not None and delegation.delegation.order_hash == case.order_hash:
        allowed.add(delegation.delegation.auditor.lower())
    if challenger.lower() in allowed:
        return
    raise UsageError(
        f"{challenger} may not dispute this job",
        f"only the requester {case.order.requester}, the order's auditor or somebody the requester delegated may",
        next_step="ask the requester for a delegation: `client receipts delegate JOB ADDRESS`",
    )


async def open_dispute(
    chain: Chain,
    signer: DigestSigner,
    case: AuditCase,
    accused: SignedReceipt,
    delegation: Delegation | None = None,
) -> Sent:
    """Pay bond and fee and dispute the stage that signed `accused`. Raises TokenShort or ContractRefused."""
    cost = await challenge_cost(chain)
    have = await chain.read("TestUSD", "balanceOf", signer.address)
    if have < cost.total:
        raise TokenShort(
            "the dispute cannot be opened",
            have=have,
            need=cost.total,
            address=signer.address,
            fix=f"send {format_token(cost.total - have)} to {signer.address}",
            show=format_token,
            chain_id=chain.chain_id,
        )
    jury = chain.addresses["JuryArbitrator"]
    await chain.transact(signer, "TestUSD", "approve", jury, cost.total)
    none = AuditorDelegation(ZERO_HASH, ZERO_ADDRESS, 0)
    return await chain.transact(
        signer,
        "TaskRegistry",
        "dispute",
        case.order,
        list(case.plan),
        accused.receipt,
        accused.signature,
        delegation.delegation if delegation else none,
        delegation.signature if delegation else EMPTY_SIGNATURE,
    )
