"""`auditor withdraw`: what disputes owe this wallet (bonds, rewards, fees), and how it takes it."""

from __future__ import annotations

import msgspec

from client.context import open_context
from core.dispute.game.game_log import GAME
from core.protocol.errors import UsageError
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result

#: Contract with credits of disputes → field of `CollectedCredit`: bonds and fees lie with game and
#: jury, rewards with the registry, refunds with the escrow.
DEBTORS = {GAME: "game", "JuryArbitrator": "jury", "MinerRegistry": "registry", "Escrow": "escrow"}


class CollectedCredit(Result, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """`withdraw` and `disputes claim`: all that disputes owed, and each contract's part."""

    withdrawn: str
    game: str | msgspec.UnsetType = msgspec.field(name=GAME, default=msgspec.UNSET)
    jury: str | msgspec.UnsetType = msgspec.field(name="JuryArbitrator", default=msgspec.UNSET)
    registry: str | msgspec.UnsetType = msgspec.field(name="MinerRegistry", default=msgspec.UNSET)
    escrow: str | msgspec.UnsetType = msgspec.field(name="Escrow", default=msgspec.UNSET)
    to: str


async def withdraw_credits(run: Run) -> CollectedCredit:
    """Everything that is owed, to the wallet. Raises UsageError when nothing is."""
    signer, show = run.unlock(), run.settings.show_token
    async with open_context(run.settings) as context:
        chain = context.chain
        owed = {
            contract: int(await chain.read(contract, "creditOf", signer.address))
            for contract in DEBTORS
            if contract in chain.addresses
        }
        due = {contract: units for contract, units in owed.items() if units}
        if not due:
            raise UsageError(
                "there is nothing to withdraw",
                f"no dispute owes {signer.address} anything",
                next_step="auditor disputes ls",
            )
        named = {contract: show(units) for contract, units in due.items()}
        run.confirm("Withdraw it?", named | {"to": f"wallet {signer.address}"})
        for contract in due:
            await chain.transact(signer, contract, "withdrawCredit")
        return CollectedCredit(
            withdrawn=show(sum(due.values())),
            to=signer.address,
            **{DEBTORS[contract]: amount for contract, amount in named.items()},
        )
