"""Taking prepaid money back: ask, wait, receive."""

from __future__ import annotations

from core.chain.chain import Chain
from core.protocol.errors import DeadlinePassed, DepositShort, UsageError
from core.protocol.signing import DigestSigner
from core.protocol.units import format_duration
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result


class Thawing(Result, frozen=True):
    """`wallet withdraw AMOUNT`."""

    leaving: str
    ready_in_s: int
    next: str


class Withdrawn(Result, frozen=True):
    """`wallet withdraw`, once the delay is over."""

    withdrawn: str


async def request_withdrawal(run: Run, chain: Chain, signer: DigestSigner, units: int) -> Thawing:
    """Start the delay for `units`. Raises DepositShort when less is prepaid."""
    show = run.settings.show_token
    prepaid = await chain.read("Escrow", "balanceOf", signer.address)
    if prepaid < units:
        raise DepositShort(
            "so much is not prepaid",
            have=prepaid,
            need=units,
            address=signer.address,
            fix=f"ask for at most {show(prepaid)}",
            show=show,
            chain_id=chain.chain_id,
        )
    delay_s = await chain.read("Escrow", "withdrawDelaySeconds")
    run.confirm(
        "Ask for it?",
        {
            "amount": show(units),
            "to": f"wallet {signer.address}",
            "after": f"{format_duration(delay_s)}; until then no order can spend it",
        },
    )
    await chain.transact(signer, "Escrow", "requestWithdraw", units)
    thaw = await chain.read("Escrow", "thawOf", signer.address)
    wait_s = max(0, thaw["readyAt"] - await chain.now())
    return Thawing(show(thaw["amount"]), wait_s, next="client wallet withdraw")


async def take_withdrawal(run: Run, chain: Chain, signer: DigestSigner) -> Withdrawn:
    """Receive what has thawed. Raises UsageError where nothing has to, DeadlinePassed before."""
    show = run.settings.show_token
    thaw = await chain.read("Escrow", "thawOf", signer.address)
    if not thaw["amount"]:
        first = "ask first: `client wallet withdraw AMOUNT`"
        raise UsageError("nothing is on its way out", next_step=first)
    wait_s = thaw["readyAt"] - await chain.now()
    if wait_s > 0:
        raise DeadlinePassed(
            "the delay is not over",
            f"{show(thaw['amount'])} can be taken in {wait_s} s",
            resume="client wallet withdraw",
        )
    await chain.simulate(signer.address, "Escrow", "withdraw")
    run.confirm("Take it?", {"amount": show(thaw["amount"]), "to": f"wallet {signer.address}"})
    await chain.transact(signer, "Escrow", "withdraw")
    return Withdrawn(show(thaw["amount"]))
