"""The other end of a stream, for its cost alone: small frames come back, large ones are counted.

`python -m benchmarks.engine.rig.echo_process {}` says where it listens, by the first stage's key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from benchmarks.engine.rig.chain import DOMAIN, FIRST_STAGE_KEY, signer
from benchmarks.engine.rig.child import keep_stdout, obey, say
from core.protocol import wire
from core.runtime.network.channel import Answer, Channel, Listener, StreamIdentity

SMALL_BYTES = 1 << 16


async def _serve() -> None:
    received = 0

    async def handle(channel: Channel, frame: wire.Frame) -> Answer:
        nonlocal received
        if len(frame.payload) < SMALL_BYTES:
            await channel.send(frame.message, frame.payload)
        else:
            received += len(frame.payload)
            await channel.send(wire.Pong(step_ms=received >> 20))
        return None

    async def perform(request: dict[str, Any]) -> Mapping[str, Any]:
        raise ValueError(f"an echo cannot {request['do']}")

    identity = StreamIdentity(signer(FIRST_STAGE_KEY), DOMAIN)
    listener = Listener(identity, handle)
    await listener.start("127.0.0.1", 0)
    say({"endpoint": f"127.0.0.1:{listener.port}", "operator": identity.signer.address})
    await obey(perform)
    await listener.close()


if __name__ == "__main__":
    keep_stdout()
    asyncio.run(_serve())
