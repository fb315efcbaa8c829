"""`client wallet allow`: who else may spend the prepaid balance, and how much?"""

from __future__ import annotations

from client.context import open_context
from core.keys.keystore import Keystore
from core.protocol import ids
from core.protocol.errors import UsageError
from core.protocol.units import covering_units, format_duration, parse_duration
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result


class Allowed(Result, frozen=True):
    """`wallet allow`."""

    account: str
    spender: str
    limit: str
    used: str
    expires_at: int
    tx: str
    next: str


async def allow_spender(run: Run, spender: str, limit: str, valid: str) -> Allowed:
    """Let another key sign orders against the prepaid balance, up to a limit; it can withdraw
    nothing.

    `spender` is a wallet's name or an address. A limit of zero takes the permission back. Raises
    UsageError for the wallet itself.
    """
    settings, show = run.settings, run.settings.show_token
    units, valid_s = settings.token(limit), parse_duration(valid)
    who = spender_address(run, spender)
    signer = run.unlock()
    if who.lower() == signer.address.lower():
        raise UsageError(
            "a wallet needs no permission of its own",
            f"{who} is the wallet itself",
            next_step="name another wallet; `client wallet new NAME` makes one",
        )
    async with open_context(settings) as context:
        chain = context.chain
        expiry = await chain.now() + valid_s
        before = await chain.read("Escrow", "spenderOf", signer.address, who)
        used = covering_units(before["usedNano"])
        await chain.simulate(signer.address, "Escrow", "setSpender", who, units, expiry)
        run.confirm(
            "Allow it?" if units else "Take the permission back?",
            {
                "account": f"{signer.address}, whose prepaid balance is spent",
                "spender": f"{who} may open and pay jobs, and withdraw nothing",
                "limit": f"{show(units)} in all, {show(used)} of it used",
                "until": f"in {format_duration(valid_s)}",
            },
        )
        sent = await chain.transact(signer, "Escrow", "setSpender", who, units, expiry)
        now = await chain.read("Escrow", "spenderOf", signer.address, who)
    return Allowed(
        account=signer.address,
        spender=who,
        limit=show(now["limit"]),
        used=show(covering_units(now["usedNano"])),
        expires_at=now["expiry"],
        tx=sent.tx_hash,
        next=f"on the spender's machine: client config set client.account {signer.address}",
    )


def spender_address(run: Run, typed: str) -> str:
    """An address, or that of a wallet here. Raises IdInvalid, UsageError if its file has none."""
    if typed.startswith("0x"):
        return ids.address(typed)
    keystore = Keystore(run.settings.wallet.keystore_dir)
    keystore.path(typed)
    found = next(w for w in keystore.ls() if w.name == typed)
    if found.address is None:
        raise UsageError(
            f"the file of '{typed}' does not say its address",
            "Foundry writes none",
            next_step=f"type the address; `cast wallet address --account {typed}` tells it",
        )
    return str(found.address)
