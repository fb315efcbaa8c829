"""The accounts that every local chain of ours pays."""

from __future__ import annotations

from core.keys.signer import DEVNET_PHRASE, Signer, secret_from_phrase


def devnet_accounts(count: int = 10, *, chain_id: int = 31337) -> list[Signer]:
    """The first accounts of Anvil's public phrase. Raises DevKeyOffDevnet off a local chain."""
    return [
        Signer(secret_from_phrase(DEVNET_PHRASE, index), chain_id=chain_id)
        for index in range(count)
    ]
