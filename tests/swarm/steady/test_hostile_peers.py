"""What can a stranger do at a running miner's data port? Be counted, and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from core.keys.signer import Signer
from core.protocol import signing, wire
from core.runtime.network.channel import MAGIC, Channel, StreamIdentity, connect
from devnet.accounts import CHAIN_ID
from miner.chain import admission
from miner.serving import answers
from tests.swarm.world import MARKS, WITHIN_S, World, prompt, until

pytestmark = MARKS
VICTIM = "miner-1"
Attack = Callable[[Channel], Awaitable[None]]


async def raw(world: World, data: bytes) -> None:
    """Say this without a handshake, and leave."""
    host, _, port = world.running(VICTIM).endpoint.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def stranger(world: World) -> Channel:
    """A stream whose handshake is right, with a key that nobody knows."""
    identity = StreamIdentity(Signer(os.urandom(32), chain_id=CHAIN_ID), world.chain.domain)
    running = world.running(VICTIM)
    return await connect(running.endpoint, identity, expected=running.operator)


async def unsealed(channel: Channel, data: bytes) -> None:
    """Bytes past the encryption."""
    channel._writer.write(data)
    await channel._writer.drain()


def header(version: int, length: int) -> bytes:
    return bytes([version]) + bytes(8) + length.to_bytes(4, "big")


ATTACKS: dict[str, Attack] = {
    "FrameTooLarge": lambda c: unsealed(c, (2**32 - 1).to_bytes(4, "big")),
    "AuthenticationFailed": lambda c: unsealed(c, (64).to_bytes(4, "big") + os.urandom(64)),
    "FrameTruncated": lambda c: c._send_body(header(wire.VERSION, 1000) + b"short"),
    "VersionUnknown": lambda c: c._send_body(header(77, 4) + b"what"),
    "MalformedMessage": lambda c: c._send_body(header(wire.VERSION, 4) + b"\xc1\xc1\xc1\xc1"),
}


async def faults(world: World) -> Counter[str]:
    return Counter((await world.status_of(VICTIM))["streamFaults"])


async def test_strangers_without_a_handshake_are_counted(world: World) -> None:
    before = await faults(world)
    await raw(world, os.urandom(4096))
    await raw(world, b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n" + bytes(100))
    await raw(world, MAGIC + os.urandom(20))  # cut short
    await raw(world, MAGIC + os.urandom(68) + os.urandom(65))  # a signature of nobody

    async def counted() -> bool:
        now = await faults(world) - before
        return now["AuthenticationFailed"] >= 3 and now["IncompleteReadError"] >= 1

    await until(counted, within_s=WITHIN_S, what="bad handshakes are counted")


@pytest.mark.parametrize("fault", ATTACKS)
async def test_a_bad_frame_is_counted_by_its_reason(world: World, fault: str) -> None:
    before = await faults(world)
    channel = await stranger(world)
    try:
        await ATTACKS[fault](channel)

        async def counted() -> bool:
            return (await faults(world))[fault] == before[fault] + 1

        await until(counted, within_s=WITHIN_S, what=f"{fault} is counted")
    finally:
        await channel.close()


async def test_an_unauthorised_stranger_gets_no_acceptance_and_no_rows_and_work_goes_on(
    world: World,
) -> None:
    done, _ = await world.submit(world.requests("private", [prompt("q", "My secret.", 6)]))
    (job,) = await world.jobs_of(done.result)
    order_hash = signing.order_hash(job.order)
    stage = next(
        i
        for i, s in enumerate(job.plan)
        if s.operator.lower() == world.running(VICTIM).operator.lower()
    )
    before = Counter((await world.status_of(VICTIM))["counts"])
    channel = await stranger(world)
    try:
        signed = wire.t.SignedOrder(job.order, job.open_call["requesterSig"])
        endpoints = [world.running(VICTIM).endpoint] * len(job.plan)
        asks: list[tuple[str, wire.AnyMessage]] = [
            (admission.MATCHER, wire.Propose(signed, list(job.plan), endpoints, stage)),
            (answers.UNAUTHORISED, wire.FetchReceipts(order_hash)),
            (answers.UNAUTHORISED, wire.FetchRows(order_hash, 0, "in", 0, 100)),
            (answers.UNAUTHORISED, wire.FetchOpening(order_hash, 0)),
            (answers.UNAUTHORISED, wire.CloseJob(order_hash, [0])),
            (answers.UNAUTHORISED, wire.Progress(order_hash)),
        ]
        for code, ask in asks:
            answer = (await channel.call(ask)).message
            assert isinstance(answer, wire.Failed), ask
            assert answer.code == code, (ask, answer)
    finally:
        await channel.close()
    now = Counter((await world.status_of(VICTIM))["counts"]) - before
    assert now[admission.MATCHER] == 1
    assert now[answers.UNAUTHORISED] == len(asks) - 1

    again, _ = await world.submit(world.requests("after", [prompt("q", "Still there?", 6)]))
    assert again.result["finished"] == 1
    status = await world.status_of(VICTIM)
    assert status["state"] == "SERVING"
    assert "HandlerBug" not in status["streamFaults"]
