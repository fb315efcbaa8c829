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


async def bond_due(chain: Chain, arbitrator: str, operator: str) -> int:
    """What the contract `arbitrator` takes now for accusing a stage of `operator`, base units.

    A share of the owner's stake, and no less than a base. Raises ChainUnreachable.
    """
    least = int(await chain.read(arbitrator, "bond"))
    bps = int(await chain.read(arbitrator, "bondBps"))
    owner = await chain.read("MinerRegistry", "ownerOf", operator)
    miner = await chain.read("MinerRegistry", "minerOf", owner)
    return max(least, (int(miner["stake"]) + int(miner["leaving"])) * bps // 10_000)


async def challenge_cost(chain: Chain, operator: str) -> Cost:
    """The jury's bond for accusing this operator, and its fee. Raises ChainUnreachable."""
    return Cost(
        bond=await bond_due(chain, "JuryArbitrator", operator),
        fee=await chain.read("JuryArbitrator", "fee"),
    )


def right_of(case: AuditCase, challenger: str) -> int:
    """By which right the contract lets this account dispute: `IArbitrator.Right`."""
    return int(challenger.lower() != case.order.requester.lower())


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
    units = (await challenge_cost(chain, case.plan[accused.receipt.stage].operator)).total
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

    It may take twice as much: an accused that adds to its stake first, which raises the bond, would
    have to double it to have the dispute refused. Raises TokenShort before anything is sent, or
    ContractRefused.
    """
    await require_tokens(chain, signer.address, units, "the dispute cannot be opened")
    await chain.transact(signer, "TestUSD", "approve", chain.addresses[arbitrator], 2 * units)
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
