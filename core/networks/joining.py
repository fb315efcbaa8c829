"""How does a person come to a network that somebody names, and which networks are known here?

A file is believed after the chain agreed with every point of it, and kept with the reader's own
node. A later revision replaces an earlier one, never the other way round.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from core.protocol.errors import ConfigError, ModelError, Unreachable, UsageError
from core.protocol.foreign import read_file
from core.protocol.network_file import MAX_NETWORK_BYTES, NetworkFile, read_network
from core.protocol.whole_file import write_whole
from core.runtime.commands.results import Result
from core.runtime.folders import Folders, make_private
from core.runtime.settings import Settings, find_network_file, load


class KnownNetwork(Result, frozen=True):
    """`network ls` and `network show`: a network that this machine knows.

    `owner`, `revision` and `digest` are those of the signed file; empty where nobody signed it.
    """

    network: str
    current: bool
    chain_id: int | None
    rpc_url: str
    contract: str
    owner: str
    revision: int | None
    digest: str
    file: str


class NetworkJoined(Result, frozen=True):
    """`network join`."""

    network: str
    chain_id: int
    owner: str
    revision: int
    digest: str
    points: int
    file: str


def read_source(source: str, *, are_private_allowed: bool) -> NetworkFile:
    """A network file by its path or its https URL, within limits of size and time.

    Raises ConfigError, UsageError, Unreachable.
    """
    if "://" not in source:
        return read_here(Path(source).expanduser())
    parts = urlsplit(source)
    folder, _, name = parts.path.rpartition("/")
    schemes = ("https", "http") if are_private_allowed else ("https",)
    if parts.scheme not in schemes or not parts.hostname or not name or parts.query:
        raise UsageError(
            f"'{source[:80]}' is no place of a network file",
            why="it is neither a path nor such as https://HOST/riverside.json",
        )
    from core.models.places import place_of

    place = place_of(
        f"{parts.scheme}://{parts.netloc}{folder}/", are_private_allowed=are_private_allowed
    )
    try:
        return read_network(place.whole(name, MAX_NETWORK_BYTES))
    except ModelError as error:  # what such a place says of a file that it does not have
        raise Unreachable(f"no network file at {source}", why=error.why) from None


def read_here(path: Path) -> NetworkFile:
    """A network file of this machine. Raises ConfigError."""
    try:
        return read_network(read_file(path, most_bytes=MAX_NETWORK_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=error.strerror or str(error)) from None
    except ValueError as error:
        raise ConfigError(f"{path} is no network file", why=str(error)) from None


def place_of_network(folders: Folders, name: str, found: NetworkFile) -> Path:
    """Where a joined network is kept. Raises ConfigError where it may not take that place."""
    known = find_network_file(name, folders)
    if known is None:
        return folders.networks / f"{name}.json"
    try:
        earlier = read_here(known)
    except ConfigError:
        raise ConfigError(
            f"'{name}' is already the name of a network here",
            why=f"{known} is a file that nobody signed",
            next_step="give this one another name: --as NAME",
        ) from None
    require_newer(earlier, found)
    return known


def keep(path: Path, found: NetworkFile, rpc_url: str) -> None:
    """Write a network down with the node that its reader asks; a file's own node is forgotten."""
    make_private(path.parent)
    write_whole(path, msgspec.structs.replace(found, rpc_url=rpc_url).as_json(), synced=True)


def known_networks(settings: Settings) -> list[KnownNetwork]:
    """Every network of the networks folder and the current one, by name."""
    folders = settings.folders
    files = [p for suffix in ("json", "toml") for p in folders.networks.glob(f"*.{suffix}")]
    names = sorted({path.stem for path in files} | {settings.network.name})
    return [known_network(settings, name) for name in names]


def known_network(settings: Settings, name: str) -> KnownNetwork:
    """What is known of one network, whatever else is configured. Raises ConfigError for none."""
    is_current = name == settings.network.name
    path = find_network_file(name, settings.folders)
    if path is None and not is_current:
        raise ConfigError(
            f"network '{name[:60]}' is not known here",
            why=f"there is no file of it in {settings.folders.networks}",
            next_step="network join FILE, or an https URL; `network ls` shows what is known",
        )
    own = load(flags={"network.name": name}, environ={}, folders=settings.folders)
    network = settings.network if is_current else own.network
    signed: NetworkFile | None = None
    if path is not None:
        try:
            signed = read_here(path)
        except ConfigError:
            signed = None  # a plain file of settings
    return KnownNetwork(
        network=name,
        current=is_current,
        chain_id=network.chain_id,
        rpc_url=network.rpc_url or "",
        contract=network.contracts.get("TaskRegistry", ""),
        owner=signed.owner if signed else "",
        revision=signed.revision if signed else None,
        digest="0x" + signed.digest.hex() if signed else "",
        file=str(path or ""),
    )


def require_newer(known: NetworkFile, found: NetworkFile) -> None:
    """Raises ConfigError where `found` would take a reader back, or to another network."""
    if known.domain != found.domain:
        raise ConfigError(
            f"'{found.name}' is already the name of another network here",
            why=f"that one is on chain {known.chain_id} at {known.contracts['TaskRegistry']}, this "
            f"one on chain {found.chain_id} at {found.contracts['TaskRegistry']}",
            next_step="give it another name: --as NAME",
        )
    if found.revision < known.revision:
        raise ConfigError(
            f"revision {found.revision} of '{found.name}' is old",
            why=f"revision {known.revision} is here",
            next_step="get the newest file from its owner",
        )
    if found.revision == known.revision and found.record != known.record:
        raise ConfigError(
            f"two files say that they are revision {found.revision} of '{found.name}'",
            why="an owner signs each revision once",
            next_step="ask the owner which is right, and who made the other one",
        )
