"""`auditor withdraw`: what disputes owe this wallet (bonds, rewards, fees), and how it takes it."""

from __future__ import annotations

from typing import Any

from client.context import open_context
from core.dispute.game.game_log import GAME
from core.protocol.errors import UsageError
from core.runtime.commands.console import Run

#: Whoever keeps credits that a dispute may leave: the game and the jury bonds and fees, the registry rewards, the escrow refunds.
DEBTORS = (GAME, "JuryArbitrator", "MinerRegistry", "Escrow")


async def withdraw_credits(run: Run) -> dict[str, Any]:
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
        return {"withdrawn": show(sum(due.values())), **named, "to": signer.address}
