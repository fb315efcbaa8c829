"""A home with wallets of Anvil's accounts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from core.keys.keystore import Keystore
from core.keys.passwords import write_secret_file
from core.keys.signer import DEVNET_PASSWORD, DEVNET_PHRASE
from devnet.anvil import CHAIN_ID


def make_home(home: Path, accounts: Mapping[str, int]) -> None:
    """Keystores by name, with accounts of Anvil's phrase, and a configuration that opens them."""
    (home / "config").mkdir(parents=True)
    password, keys = home / "password", home / "keys"
    write_secret_file(password, f"{DEVNET_PASSWORD}\n".encode())
    for name, index in accounts.items():
        Keystore(keys, light=True).import_phrase(
            name, DEVNET_PHRASE, DEVNET_PASSWORD, chain_id=CHAIN_ID, index=index
        )
    lines = ["[wallet]", f'keystore_dir = "{keys}"', f'password_file = "{password}"']
    (home / "config" / "config.toml").write_text("\n".join(lines) + "\n")
