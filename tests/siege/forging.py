"""How does a stranger fill a swarm with records? With hivemind alone, and keys without stake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from core.keys.signer import Signer
from core.protocol import records
from core.protocol.signing import Domain
from tests.core.runtime.network.test_transport import sealed

FORGED_A_SECOND = 10_000 / 60
_AHEAD_S = 347 * 86_400


def forged(number: int, network: Domain) -> tuple[str, str, bytes]:
    """(topic, key, record) of a throwaway key, signed and dated a year ahead."""
    signer = Signer(number.to_bytes(4, "big") * 8, chain_id=network.chain_id)
    key = signer.address.lower()
    ahead_ms = int((time.time() + _AHEAD_S) * 1000)
    data = sealed(signer, network, sent_at_ms=ahead_ms, ttl_ms=records.MOST_TTL_MS)
    return records.miners_topic(network, key), key, data


async def forge_records(
    bootstrap: list[str],
    network: Domain,
    began: Callable[[], object],
    stored: Callable[[int], object] = lambda count: None,
) -> None:
    """Store a hundred forged records again and again; `began` is called after the first time."""
    from hivemind.dht.node import DHTNode

    node = await DHTNode.create(initial_peers=bootstrap)
    batch = [forged(number, network) for number in range(1000, 1100)]
    expiry_s, sent, since = time.time() + _AHEAD_S, 0, None
    while True:
        expiry_s += 1.0
        topics, keys, values = zip(*batch, strict=True)
        await node.store_many(topics, values, expiry_s, subkeys=keys)
        stored(len(batch))
        if since is None:
            since = time.monotonic()
            began()
        sent += len(batch)
        await asyncio.sleep(max(0.0, since + sent / FORGED_A_SECOND - time.monotonic()))
