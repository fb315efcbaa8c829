"""Who may dispute a job, what does the jury cost, and which transaction opens a dispute?"""

from __future__ import annotations

from dataclasses import dataclass

from client.audit.evidence import AuditCase, Delegation
from client.wallet import require_tokens
from core.chain.chain import Chain, Sent
from core.protocol.errors import UsageError
from core.protocol.signing import DigestSigner
from core.protocol.types import ZERO_ADDRESS, ZERO_HASH, AuditorDelegation, SignedReceipt

EMPTY_SIGNATURE = "0x"


@dataclass(frozen=True)
class Cost:
    """What the challenger pays in, base units. The bond returns with a verdict of fault."""

    bond: int
    fee: int  # the jury's

    @property
    def total(self) -> int:
        return self.bond + self.fee


async def challenge_cost(chain: Chain) -> Cost:
    """The jury's current bond and fee. Raises ChainUnreachable."""
    return Cost(
        bond=await chain.read("JuryArbitrator", "bond"),
        fee=await chain.read("JuryArbitrator", "fee"),
    )


def check_standing(case: AuditCase, challenger: str, delegation: Delegation | None) -> None:
    """Raise UsageError unless this account is one that the contract lets dispute the job."""
    allowed = {case.order.requester.lower(), case.order.auditor.lower()} - {ZERO_ADDRESS}
    if delegation is not None and delegation.delegation.order_hash == case.order_hash:
        allowed.add(delegation.delegation.auditor.lower())
    if challenger.lower() not in allowed:
        raise UsageError(
            f"{challenger} may not dispute this job",
            f"only the requester {case.order.requester}, the order's auditor or a delegate of the "
            "requester may",
            next_step="ask the requester for a delegation: `client receipts delegate JOB ADDRESS`",
        )


async def open_dispute(
    chain: Chain,
    signer: DigestSigner,
    case: AuditCase,
    accused: SignedReceipt,
    delegation: Delegation | None = None,
) -> Sent:
    """Dispute before the jury the stage that signed `accused`: raises as `pay_and_dispute`."""
    units = (await challenge_cost(chain)).total
    return await pay_and_dispute(chain, signer, "JuryArbitrator", units, case, accused, delegation)


async def pay_and_dispute(
    chain: Chain,
    signer: DigestSigner,
    arbitrator: str,
    units: int,
    case: AuditCase,
    accused: SignedReceipt,
    delegation: Delegation | None,
) -> Sent:
    """Let the arbitrator's contract take `units`, and dispute the stage that signed `accused`.

    Raises TokenShort before anything is sent, or ContractRefused.
    """
    await require_tokens(chain, signer.address, units, "the dispute cannot be opened")
    await chain.transact(signer, "TestUSD", "approve", chain.addresses[arbitrator], units)
    none = Delegation(AuditorDelegation(ZERO_HASH, ZERO_ADDRESS, 0), EMPTY_SIGNATURE)
    permission = delegation or none
    return await chain.transact(
        signer,
        "TaskRegistry",
        "dispute",
        case.order,
        list(case.plan),
        accused.receipt,
        accused.signature,
        permission.delegation,
        permission.signature,
    )
