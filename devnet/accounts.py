"""Who takes part in a devnet: named wallets from Anvil's public phrase, each in its own home."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.keys.keystore import Keystore
from core.keys.passwords import write_secret_file
from core.keys.signer import DEVNET_PASSWORD, DEVNET_PHRASE, Signer, secret_from_phrase
from devnet.anvil import CHAIN_ID
from devnet.layout import DevnetFolders

#: Index in the phrase: Anvil gives each of its accounts ETH for gas.
PARTIES = {
    "deployer": 0,
    "matcher-1": 1,
    "requester-1": 2,
    "auditor-1": 3,
    "miner-1": 4,
    "miner-2": 5,
    "miner-3": 6,
    "juror-1": 7,
    "juror-2": 8,
    "juror-3": 9,
}
#: A further machine and matcher, for a devnet that wants them.
SPARE_PARTIES = {"miner-4": 10, "matcher-2": 11}
_INDEX = PARTIES | SPARE_PARTIES


def signer_of(party: str) -> Signer:
    """The party's key, straight from the phrase."""
    return Signer(secret_from_phrase(DEVNET_PHRASE, _INDEX[party]), chain_id=CHAIN_ID)


def make_wallets(layout: DevnetFolders, parties: Sequence[str] = tuple(PARTIES)) -> dict[str, str]:
    """An encrypted keystore per party (password `devnet`), unless it exists; their addresses."""
    layout.root.mkdir(parents=True, exist_ok=True)
    if not layout.password_file.exists():
        write_secret_file(layout.password_file, DEVNET_PASSWORD.encode() + b"\n")
    store = Keystore(layout.keystores, light=True)
    known = {info.name: info.address for info in store.ls()}
    addresses = {}
    for party in parties:
        if known.get(party) is None:
            store.import_phrase(
                party, DEVNET_PHRASE, DEVNET_PASSWORD, chain_id=CHAIN_ID, index=_INDEX[party]
            )
        addresses[party] = signer_of(party).address
    return addresses


def write_home(layout: DevnetFolders, party: str, sections: dict[str, dict[str, object]]) -> Path:
    """A party's configuration: wallet, network file and what its role needs. Returns its home."""
    import tomlkit

    home = layout.home(party)
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "networks").mkdir(exist_ok=True)
    link = home / "networks" / "devnet.json"
    if not link.is_symlink():
        link.symlink_to(layout.network_file)
    document = tomlkit.document()
    document["network"] = "devnet"
    document["wallet"] = {
        "name": party,
        "keystore_dir": str(layout.keystores),
        "password_file": str(layout.password_file),
    }
    for section, values in sections.items():
        document[section] = values
    (home / "config" / "config.toml").write_text(tomlkit.dumps(document))
    return home


def environ_of(layout: DevnetFolders, party: str) -> dict[str, str]:
    """The environment in which a party's programs run."""
    return {
        "HEADRACE_HOME": str(layout.home(party)),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
