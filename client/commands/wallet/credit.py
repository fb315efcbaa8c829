"""`auditor withdraw`: what disputes and jobs owe this wallet, and how it takes it."""

from __future__ import annotations

import msgspec

from client.context import open_context
from client.wallet import DEBTORS, dispute_credits, dues
from core.chain.chain import Chain
from core.dispute.game.game_log import GAME
from core.protocol.errors import ContractRefused, UsageError
from core.protocol.signing import DigestSigner
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result

#: Contract with credits of disputes → field of `CollectedCredit`.
FIELDS = dict(zip(DEBTORS, ("game", "jury", "registry"), strict=True))


class CollectedCredit(Result, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """`withdraw` and `disputes claim`: all that was owed, and each part of it.

    Of disputes by contract, of jobs the pay of this wallet's miner and its fees as a matcher.
    """

    withdrawn: str
    game: str | msgspec.UnsetType = msgspec.field(name=GAME, default=msgspec.UNSET)
    jury: str | msgspec.UnsetType = msgspec.field(name="JuryArbitrator", default=msgspec.UNSET)
    registry: str | msgspec.UnsetType = msgspec.field(name="MinerRegistry", default=msgspec.UNSET)
    pay: str | msgspec.UnsetType = msgspec.UNSET
    fees: str | msgspec.UnsetType = msgspec.UNSET
    to: str


async def withdraw_credits(run: Run) -> CollectedCredit:
    """Everything that is owed, to the wallet. Raises UsageError when nothing is.

    Raises ContractRefused where the token does not send what jobs owe: it stays owed.
    """
    signer, show = run.unlock(), run.settings.show_token
    async with open_context(run.settings) as context:
        chain = context.chain
        owed = await dispute_credits(chain, signer.address)
        of_jobs = await dues(chain.read, signer.address)
        owed |= {"pay": sum(of_jobs.pay.values()), "fees": of_jobs.fees}
        due = {debtor: units for debtor, units in owed.items() if units}
        if not due:
            raise UsageError(
                "there is nothing to withdraw",
                f"neither disputes nor jobs owe {signer.address} anything",
                next_step="auditor disputes ls",
            )
        named = {debtor: show(units) for debtor, units in due.items()}
        run.confirm("Withdraw it?", named | {"to": f"wallet {signer.address}"})
        for debtor in due:
            if debtor == "pay":
                due[debtor] = await _collect(chain, signer, "collect", *of_jobs.pay)
            elif debtor == "fees":
                due[debtor] = await _collect(chain, signer, "collectFees", signer.address)
            else:
                await chain.transact(signer, debtor, "withdrawCredit")
        return CollectedCredit(
            withdrawn=show(sum(due.values())),
            to=signer.address,
            **{FIELDS.get(debtor, debtor): show(units) for debtor, units in due.items()},
        )


async def _collect(chain: Chain, signer: DigestSigner, function: str, *payees: str) -> int:
    """What the payees' collection brought the wallet. Raises ContractRefused for nothing."""
    sent = await chain.transact(signer, "Escrow", function, list(payees))
    events = await chain.events(sent.block_number, sent.block_number)
    units = sum(
        int(event.args["amount"])
        for event in events
        if (event.tx_hash, event.name) == (sent.tx_hash, "Collected")
        and event.args["to"] == signer.address
    )
    if not units:
        raise ContractRefused(
            f"Escrow.{function} sent nothing to {signer.address}",
            error="no payment was logged",
            state=f"{', '.join(payees)} is still owed it by the escrow, unless somebody "
            "collected it meanwhile",
        )
    return units
