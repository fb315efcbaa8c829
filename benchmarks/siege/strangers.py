"""How do keys that nobody knows reach a miner? By streams that are theirs, dialled without end."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.siege.actor import Target
from core.keys.signer import Signer
from core.protocol import wire
from core.protocol.errors import HeadraceError
from core.runtime.network.channel import Channel, StreamIdentity, connect

CALL_S = 10.0


def throwaway(target: Target) -> StreamIdentity:
    """An identity of a new key."""
    return StreamIdentity(Signer(os.urandom(32), chain_id=target.domain.chain_id), target.domain)


async def dial(identity: StreamIdentity, miner: tuple[str, str]) -> Channel:
    operator, endpoint = miner
    return await connect(endpoint, identity, expected=operator)


async def again(
    target: Target,
    miner: tuple[str, str],
    done: Counter[str],
    turn: Callable[[Channel], Awaitable[None]],
    identity: StreamIdentity | None = None,
) -> None:
    """Take turns at a stream, of this identity or of a new one each time, dialled when it ends."""
    while True:
        try:
            channel = await dial(identity or throwaway(target), miner)
            done["streams"] += 1
            try:
                while channel.is_open:
                    await turn(channel)
            finally:
                await channel.close()
        except HeadraceError as error:
            done[type(error).__name__] += 1
            await asyncio.sleep(0.05)


async def call_all(
    channel: Channel, asks: Sequence[tuple[wire.AnyMessage, bytes]], done: Counter[str]
) -> None:
    """Ask all of these at once, and wait for what becomes of it."""
    calls = (channel.call(message, payload, timeout_s=CALL_S) for message, payload in asks)
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, wire.Frame):
            done["answers"] += 1
        elif isinstance(answer, HeadraceError):
            done["unanswered"] += 1
        elif isinstance(answer, BaseException):
            raise answer
