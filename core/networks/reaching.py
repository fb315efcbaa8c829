"""How do the network commands reach a file and its chain, and what is asked before it is kept?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from core.chain.rpc import RpcChain
from core.networks.checking import require_true
from core.networks.joining import NetworkJoined, keep, place_of_network, read_source
from core.protocol.errors import UsageError
from core.protocol.network_file import NetworkFile, NetworkName
from core.runtime.commands.console import Run


async def load_source(run: Run, source: str) -> NetworkFile:
    """A network file from a path or a URL. Raises ConfigError, UsageError, Unreachable."""
    is_allowed = run.settings.network.private_addresses is True
    return await asyncio.to_thread(read_source, source, are_private_allowed=is_allowed)


@asynccontextmanager
async def open_node(run: Run, found: NetworkFile) -> AsyncIterator[RpcChain]:
    """The chain of a network, through the reader's node, without its contracts.

    Raises ConfigError where no node is named.
    """
    flags = {"network.name": found.name, "network.chain_id": found.chain_id}
    chain_id, rpc_url = run.load(flags).require_network()
    chain = RpcChain(rpc_url, chain_id, {})
    try:
        yield chain
    finally:
        await chain.close()


async def join_network(run: Run, source: str, name: str | None) -> NetworkJoined:
    """Keep a network that the chain agrees with, once the person has seen whose it is.

    Raises CheckFailed, ConfigError, UsageError, Unreachable.
    """
    found = await load_source(run, source)
    kept_as = _name(name or found.name)
    path = place_of_network(run.folders, kept_as, found)
    async with open_node(run, found) as chain:
        rows = await require_true(chain, found)
        rpc_url = chain.rpc_url
    digest = "0x" + found.digest.hex()
    fingerprint = {
        "network": f"{found.name}, revision {found.revision}, kept as '{kept_as}'",
        "chain": f"{found.chain_id}, through {rpc_url}",
        "owner": f"{found.owner}, signed by {found.signer}",
        "digest": f"{digest}; compare it with what its owner publishes elsewhere",
        "token": f"{found.token.symbol} at {found.token.address}",
        "matchers": ", ".join(matcher.url for matcher in found.matchers) or "none",
        "agreed": f"the chain agrees with all {len(rows)} points",
    }
    run.confirm("Join it?", fingerprint)
    keep(path, found, rpc_url)
    run.note(
        f"use it: --network {kept_as}, or for good: {run.program} config set network {kept_as}"
    )
    return NetworkJoined(
        network=kept_as,
        chain_id=found.chain_id,
        owner=found.owner,
        revision=found.revision,
        digest=digest,
        points=len(rows),
        file=str(path),
    )


def _name(text: str) -> str:
    try:
        return msgspec.convert(text, NetworkName)
    except msgspec.ValidationError:
        raise UsageError(
            f"'{text[:60]}' is no name of a network",
            why="it has up to 40 small letters, digits and hyphens",
        ) from None
