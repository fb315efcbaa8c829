"""A juror's stake: put in, look at, take out."""

from __future__ import annotations

from client.commands.wallet.wallets import wallet_address
from client.context import open_context
from core.chain.chain import Chain
from core.dispute.game.dispute import JURY
from core.protocol.errors import DeadlinePassed, StakeTooLow, TokenShort, UsageError
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result


class Juror(Result, frozen=True):
    """`jury stake`, `jury status` and `jury withdraw`."""

    juror: str
    stake: str
    on_roll: bool
    matures_in_s: int
    leaving: str
    open_disputes: int
    credit: str


async def stake_juror(run: Run, amount: str) -> Juror:
    """Lock stake. Raises TokenShort, or StakeTooLow when the sum would be below the minimum."""
    units, show = run.settings.token(amount), run.settings.show_token
    signer = run.unlock()
    async with open_context(run.settings) as context:
        chain = context.chain
        have = await chain.read("TestUSD", "balanceOf", signer.address)
        juror = await chain.read(JURY, "jurorOf", signer.address)
        least = await chain.read(JURY, "minJurorStake")
        payer = {"address": signer.address, "show": show, "chain_id": chain.chain_id}
        if juror["stake"] + units < least:
            raise StakeTooLow(
                "the stake is below the jury's minimum",
                have=juror["stake"] + units,
                need=least,
                fix=f"auditor jury stake {show(least - juror['stake'])}",
                **payer,
            )
        if have < units:
            raise TokenShort(
                "the stake cannot be paid",
                have=have,
                need=units,
                fix=f"send {show(units - have)} to {signer.address}",
                **payer,
            )
        run.confirm(
            "Lock it?",
            {
                "juror": signer.address,
                "stake": show(units),
                "at risk": "a fifth of the minimum for a vote not revealed, a tenth for one in "
                "the minority",
                "drawn": "once it is mature: `auditor jury serve` enrols it",
                "back": "`auditor jury withdraw`, after the unbonding time",
            },
        )
        await chain.transact(signer, "TestUSD", "approve", chain.addresses[JURY], units)
        await chain.transact(signer, JURY, "stakeJuror", units)
        return await _status(run, chain, signer.address)


async def juror_status(run: Run) -> Juror:
    """What this wallet has at the jury."""
    address = wallet_address(run)
    async with open_context(run.settings) as context:
        return await _status(run, context.chain, address)


async def _status(run: Run, chain: Chain, address: str) -> Juror:
    juror = await chain.read(JURY, "jurorOf", address)
    show = run.settings.show_token
    return Juror(
        juror=address,
        stake=show(juror["stake"]),
        on_roll=bool(juror["place"]),
        matures_in_s=0 if juror["place"] else max(0, juror["maturesAt"] - await chain.now()),
        leaving=show(juror["leaving"]),
        open_disputes=juror["openDisputes"],
        credit=show(await chain.read(JURY, "creditOf", address)),
    )


def _taken(run: Run, what: str, units: int, address: str) -> dict[str, str]:
    return {what: run.settings.show_token(units), "to": f"wallet {address}"}


async def withdraw_juror(run: Run, amount: str | None) -> Juror:
    """Start unbonding an amount; without one, receive what has unbonded, or else the credit."""
    signer = run.unlock()
    async with open_context(run.settings) as context:
        chain = context.chain
        juror = await chain.read(JURY, "jurorOf", signer.address)
        if amount is not None:
            units = run.settings.token(amount)
            run.confirm("Start unbonding?", {"amount": run.settings.show_token(units)})
            await chain.transact(signer, JURY, "requestJurorExit", units)
        elif juror["leaving"]:
            wait_s = juror["leaveAt"] - await chain.now()
            if wait_s > 0:
                left, again = f"{wait_s} s left", "auditor jury withdraw"
                raise DeadlinePassed("the stake is still unbonding", left, resume=again)
            await chain.simulate(signer.address, JURY, "withdrawJuror")
            run.confirm("Take it?", _taken(run, "stake", juror["leaving"], signer.address))
            await chain.transact(signer, JURY, "withdrawJuror")
        elif credit := await chain.read(JURY, "creditOf", signer.address):
            run.confirm("Take it?", _taken(run, "fees earned", credit, signer.address))
            await chain.transact(signer, JURY, "withdrawCredit")
        else:
            how = "name an amount: auditor jury withdraw 100usd"
            raise UsageError("there is nothing to take", next_step=how)
        return await _status(run, chain, signer.address)
