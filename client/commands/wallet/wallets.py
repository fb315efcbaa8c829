"""Making and taking in wallets from the command line, without a key ever being on it."""

from __future__ import annotations

import sys
from pathlib import Path

from core.keys.keystore import Keystore
from core.keys.passwords import read_password
from core.keys.signer import DEVNET_CHAIN_IDS
from core.protocol.errors import PasswordMissing, UsageError
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result


class WalletFile(Result, frozen=True):
    """`wallet new`, `import` and `ls`; the address is null where the file does not say it."""

    name: str
    address: str | None
    file: str


def list_wallets(run: Run) -> list[WalletFile]:
    """Every wallet in the keystore folder."""
    found = Keystore(run.settings.wallet.keystore_dir).ls()
    return [WalletFile(w.name, w.address, str(w.path)) for w in found]


def _keystore(run: Run) -> tuple[Keystore, int]:
    chain_id = run.settings.network.chain_id or 0
    return Keystore(run.settings.wallet.keystore_dir, light=chain_id in DEVNET_CHAIN_IDS), chain_id


def wallet_address(run: Run) -> str:
    """The configured wallet's address; asks its password only if the file does not say it."""
    settings = run.settings
    if settings.wallet.name:
        keystore = Keystore(settings.wallet.keystore_dir)
        path = keystore.path(settings.wallet.name)
        found = next((w.address for w in keystore.ls() if w.path == path), None)
        if found is not None:
            return found
    return run.unlock().address


def new_password(run: Run, name: str) -> str:
    """The password for a new wallet: from the password file, else typed twice."""
    file = run.settings.wallet.password_file
    if file or not run.can_ask:
        return read_password(name, file=file)
    first = run.ask_secret(f"New password for wallet '{name}'")
    if not first:
        raise PasswordMissing("an empty password is not accepted")
    if run.ask_secret("Again") != first:
        raise UsageError("the two passwords differ", next_step="try again")
    return first


def create_wallet(run: Run, name: str, *, with_phrase: bool) -> WalletFile:
    """A new wallet; with a phrase, it is shown once and two of its words are asked back."""
    run.rehearse("make a wallet", {"name": name})
    keystore, chain_id = _keystore(run)
    if with_phrase and not run.can_ask:
        raise UsageError("a phrase is shown only on a terminal", next_step="leave --phrase away")
    password = new_password(run, name)
    if with_phrase:
        signer, phrase = keystore.create_with_phrase(name, password, chain_id=chain_id)
        run.err.print(f"Write these words down; they are shown once:\n  {phrase}")
        _ask_back(run, phrase.split())
    else:
        signer = keystore.create(name, password, chain_id=chain_id)
    return WalletFile(name, signer.address, str(keystore.path(name)))


def _ask_back(run: Run, words: list[str]) -> None:
    import secrets

    for index in sorted(secrets.SystemRandom().sample(range(len(words)), 2)):
        while run.ask(f"Word {index + 1}", flag="--phrase") != words[index]:
            run.err.print("that is not the word; look at what you wrote down")


def import_wallet(run: Run, name: str, *, keystore: Path | None, stdin: bool) -> WalletFile:
    """Store a key from a keystore file, stdin or a hidden prompt under a new name."""
    run.rehearse("take in a wallet", {"name": name})
    store, chain_id = _keystore(run)
    if keystore is not None:
        if run.can_ask:
            old = run.ask_secret(f"Password of {keystore.name}")
        else:
            old = read_password(keystore.name, file=run.settings.wallet.password_file)
        new = new_password(run, name)
        signer = store.import_file(name, keystore, old, new, chain_id=chain_id)
    else:
        secret = sys.stdin.readline() if stdin else run.ask_secret("Private key or phrase")
        take = store.import_phrase if " " in secret.strip() else store.import_key
        signer = take(name, secret.strip(), new_password(run, name), chain_id=chain_id)
    return WalletFile(name, signer.address, str(store.path(name)))
