"""What does the requester own in its wallet and in the escrow, and how does money move in?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from core.chain.chain import Chain
from core.chain.earned import earned_by
from core.dispute.game.game_log import GAME
from core.protocol.errors import DepositShort, TokenShort
from core.protocol.signing import DigestSigner
from core.protocol.units import format_token
from core.runtime.commands.results import Result

#: Contracts that may owe an account something of disputes: bonds and fees lie with game and jury,
#: rewards with the registry.
DEBTORS = (GAME, "JuryArbitrator", "MinerRegistry")


class Deposited(Result, frozen=True):
    """`wallet deposit`."""

    deposited: str
    prepaid: str


@dataclass(frozen=True)
class Balances:
    """Base units of the token, except `gas_wei`."""

    gas_wei: int
    wallet: int
    deposited: int
    thawing: int
    thaw_ready_at: int
    credit: int


@dataclass(frozen=True)
class Dues:
    """What jobs paid an account and it has not collected, in whole units of the token."""

    pay: Mapping[str, int]  # by operator of the account's miner, also those rotated away
    fees: int

    @property
    def total(self) -> int:
        return sum(self.pay.values()) + self.fees


async def dues(read: Callable[..., Awaitable[Any]], account: str) -> Dues:
    """The pay of the account's miner's operators and its fees as a matcher, by `Chain.read`.

    Raises ChainUnreachable.
    """
    pay, fees = await earned_by(read, account), await read("Escrow", "feesOf", account)
    return Dues(pay, int(fees["ofMatcher"]))


async def balances(chain: Chain, account: str) -> Balances:
    """What an account owns, read from the chain now. Raises ChainUnreachable."""
    thaw = await chain.read("Escrow", "thawOf", account)
    return Balances(
        gas_wei=await chain.balance_wei(account),
        wallet=await chain.read("TestUSD", "balanceOf", account),
        deposited=await chain.read("Escrow", "balanceOf", account),
        thawing=thaw["amount"],
        thaw_ready_at=thaw["readyAt"],
        credit=(await dues(chain.read, account)).total
        + sum((await dispute_credits(chain, account)).values()),
    )


async def dispute_credits(chain: Chain, account: str) -> dict[str, int]:
    """What bonds, fees and rewards of disputes an account may take, by contract, base units."""
    return {
        contract: int(await chain.read(contract, "creditOf", account))
        for contract in DEBTORS
        if contract in chain.addresses
    }


async def require_tokens(chain: Chain, address: str, units: int, what: str) -> None:
    """Raise TokenShort, which begins with `what`, when the address holds less than `units`."""
    have = await chain.read("TestUSD", "balanceOf", address)
    if have < units:
        raise TokenShort(
            what,
            have=have,
            need=units,
            address=address,
            fix=f"send {format_token(units - have)} to {address}",
            show=format_token,
            chain_id=chain.chain_id,
        )


async def deposit(chain: Chain, signer: DigestSigner, units: int) -> None:
    """Move tokens from the wallet into the prepaid balance, with an allowance of just this amount.

    Raises TokenShort before anything is sent when the wallet holds less.
    """
    await require_tokens(chain, signer.address, units, "the deposit cannot be made")
    await chain.transact(signer, "TestUSD", "approve", chain.addresses["Escrow"], units)
    await chain.transact(signer, "Escrow", "deposit", units)


async def ensure_deposit(
    chain: Chain, signer: DigestSigner, units: int, *, may_deposit: bool, spare: int = 0
) -> int:
    """Make sure that `units` are prepaid; returns what was moved in from the wallet.

    Where a deposit is needed anyway it brings as much of `spare` as the wallet has. Raises
    DepositShort (have, need, short by, fix) when the prepaid balance is short and the wallet cannot
    or may not fill it.
    """
    prepaid: int = await chain.read("Escrow", "balanceOf", signer.address)
    if prepaid >= units:
        return 0
    missing = units - prepaid
    wallet: int = await chain.read("TestUSD", "balanceOf", signer.address)
    if not may_deposit or wallet < missing:
        raise DepositShort(
            "the prepaid balance is too small for this order",
            have=prepaid + (wallet if may_deposit else 0),
            need=units,
            address=signer.address,
            fix=f"send {format_token(missing - wallet)} to {signer.address}"
            if wallet < missing
            else f"client wallet deposit {format_token(missing)}",
            show=format_token,
            chain_id=chain.chain_id,
        )
    moved = missing + min(spare, wallet - missing)
    await deposit(chain, signer, moved)
    return moved
