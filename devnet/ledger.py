"""Who holds what, in every book of every contract, and what a job must have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from core.chain.chain import Chain
from core.protocol.types import ZERO_ADDRESS
from core.protocol.units import NANO

#: Burned money stays where it was staked, as the credit of this account, which has no key.
BURNED = "0x000000000000000000000000000000000000dEaD"


@dataclass(frozen=True)
class Holdings:
    """One account's money, in nano base units of the token."""

    wallet: int = 0
    prepaid: int = 0  # in the escrow, spendable or on its way out
    credit: int = 0  # earned, to be collected from escrow, registry, jury or game
    stake: int = 0  # as a miner or juror, leaving or not

    @property
    def total(self) -> int:
        return self.wallet + self.prepaid + self.credit + self.stake

    def __sub__(self, other: Holdings) -> Holdings:
        return Holdings(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Holdings)))


async def holdings(chain: Chain, account: str) -> Holdings:
    """Read one account from every contract that may owe it something.

    Of pay, that of all its miner's operators; the protocol's fees are not among it.
    """
    thaw = await chain.read("Escrow", "thawOf", account)
    miner = await chain.read("MinerRegistry", "minerOf", account)
    juror = await chain.read("JuryArbitrator", "jurorOf", account)
    escrow = await chain.read("Escrow", "nanoOf", account)
    operators = await chain.read("MinerRegistry", "operatorsOf", account)
    pay = [(await chain.read("Escrow", "nanoOf", one))["earned"] for one in operators]
    credits_ = [
        await chain.read(contract, "creditOf", account)
        for contract in ("MinerRegistry", "JuryArbitrator", "ToleranceGame")
        if contract in chain.addresses
    ]
    stakes = miner["stake"] + miner["leaving"] + juror["stake"] + juror["leaving"]
    return Holdings(
        wallet=await chain.read("TestUSD", "balanceOf", account) * NANO,
        prepaid=escrow["balance"] + thaw["amount"] * NANO,
        credit=sum(pay) + escrow["matcherFees"] + sum(credits_) * NANO,
        stake=stakes * NANO,
    )


async def snapshot(chain: Chain, accounts: Mapping[str, str]) -> dict[str, Holdings]:
    """Holdings by account, with what was burned, and the protocol's fees with their recipient's."""
    found = {name: await holdings(chain, a) for name, a in {**accounts, "burned": BURNED}.items()}
    recipient = (await chain.read("TaskRegistry", "params"))["feeRecipient"]
    matchers = {*accounts.values(), ZERO_ADDRESS}
    fees = [(await chain.read("Escrow", "nanoOf", m))["protocolFees"] for m in matchers]
    for name, account in accounts.items():
        if account.lower() == recipient.lower():
            found[name] = replace(found[name], credit=found[name].credit + sum(fees))
    return found


def changes(before: Mapping[str, Holdings], after: Mapping[str, Holdings]) -> dict[str, int]:
    """Difference in what each account owns altogether, in nano units; unchanged ones left out."""
    found = {name: after[name].total - before[name].total for name in after}
    return {name: change for name, change in found.items() if change}
