"""What does a stream between two stages cost, for an encrypted step and for large frames?"""

from __future__ import annotations

import asyncio
import time
from statistics import median

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.engine.rig.chain import DOMAIN, MATCHER_KEY, signer
from benchmarks.engine.rig.child import Child
from benchmarks.table import Row
from core.protocol import types as t
from core.protocol import wire
from core.runtime.network.channel import Answer, Channel, StreamIdentity, connect

STEP_BYTES, STEPS = 2560, 400
LARGE_BYTES, LARGE_FRAMES = 16 * 10**6, 24
REACH_MS, REACH_MB_S = 0.3, 300.0
QUICK = {"STEPS": 4, "LARGE_BYTES": 10**6, "LARGE_FRAMES": 2}


def rows() -> list[Row]:
    """Two processes, one stream with the product's handshake, framing and encryption."""
    return asyncio.run(_rows())


async def _rows() -> list[Row]:
    far = await Child.start("benchmarks.engine.rig.echo_process", {})
    came: asyncio.Queue[wire.AnyMessage] = asyncio.Queue()

    async def handle(channel: Channel, frame: wire.Frame) -> Answer:
        came.put_nowait(frame.message)
        return None

    try:
        channel = await connect(
            far.ready["endpoint"],
            StreamIdentity(signer(MATCHER_KEY), DOMAIN),
            expected=far.ready["operator"],
            handler=handle,
        )
        try:
            return [await _step_row(channel, came), await _large_row(channel, came)]
        finally:
            await channel.close()
    finally:
        await far.stop()


def _activations(rows: int = 1) -> wire.Activations:
    return wire.Activations(order_hash=t.ZERO_HASH, request=0, start=0, rows=rows)


async def _step_row(channel: Channel, came: asyncio.Queue[wire.AnyMessage]) -> Row:
    payload, taken = bytes(STEP_BYTES), []
    plain_ms = await _plain_round_trip_ms()
    for _ in range(STEPS):
        started = time.perf_counter()
        await channel.send(_activations(), payload)
        await came.get()
        taken.append((time.perf_counter() - started) * 1000 / 2)
    taken.sort()
    one_way_ms, p90_ms = taken[len(taken) // 2], taken[len(taken) * 9 // 10]
    return Row(
        f"a hop of {STEP_BYTES / 1000:.1f} KB with encryption, one way",
        f"≤ {REACH_MS} ms",
        f"{one_way_ms:.2f} ms (p90 {p90_ms:.2f})",
        "hivemind 0.44 ms",
        f"{plain_ms / 2:.2f} ms (bare asyncio streams in this run)",
        one_way_ms <= REACH_MS,
    )


async def _large_row(channel: Channel, came: asyncio.Queue[wire.AnyMessage]) -> Row:
    payload = bytes(LARGE_BYTES)
    started = time.perf_counter()

    async def hear() -> None:
        for _ in range(LARGE_FRAMES):
            await came.get()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(hear())
        for _ in range(LARGE_FRAMES):
            await channel.send(_activations(2), payload)
    rate = LARGE_BYTES * LARGE_FRAMES / (time.perf_counter() - started) / 1e6
    return Row(
        f"frames of {LARGE_BYTES / 1e6:.0f} MB with encryption",
        f"≥ {REACH_MB_S:.0f} MB/s",
        f"{rate:.0f} MB/s",
        "hivemind stream 120–300 MB/s",
        f"{_cipher_mb_s(payload):.0f} MB/s (the cipher alone)",
        rate >= REACH_MB_S,
    )


def _cipher_mb_s(payload: bytes) -> float:
    cipher, taken = AESGCM(bytes(32)), []
    for number in range(8):
        nonce = number.to_bytes(12, "big")
        started = time.perf_counter()
        cipher.encrypt(nonce, payload, None)
        taken.append(time.perf_counter() - started)
    return len(payload) / median(taken) / 1e6


async def _plain_round_trip_ms() -> float:
    """The same bytes there and back through asyncio's own streams, both ends in this process."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    taken = []
    for _ in range(STEPS):
        started = time.perf_counter()
        writer.write(bytes(STEP_BYTES))
        await reader.readexactly(STEP_BYTES)
        taken.append((time.perf_counter() - started) * 1000)
    writer.close()
    server.close()
    return median(taken)
