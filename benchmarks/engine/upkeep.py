"""What do two stages spend beside computing, what do they hold in memory, and what do they give back?"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.engine.models import NAMES, model_folder
from benchmarks.engine.rig.chain import DOMAIN
from benchmarks.engine.rig.rig import MIB, PER_JOB, Client, Load, Rig
from benchmarks.engine.rig.steps import decode_s
from benchmarks.engine.serving import CUTS
from benchmarks.table import Row
from core.protocol import wire
from core.runtime.network.channel import StreamIdentity, connect

CLIENTS, NEW_TOKENS = 16, 96
CANCEL_MS, CANCEL_AFTER_TOKENS, MARGIN_S = 16.0, 6, 0.1
KV_BYTES = 256 * MIB
LIBRARIES_BYTES = 400 * 10**6
REQUESTS, WARM_REQUESTS, PER_ROUND, SOAK_JOBS = 10_000, 2_000, 1_000, 8
#: What an allocator may keep without it being a leak: 0.4 KB for each of the requests between.
FLAT_BYTES = 4 * MIB


def rows() -> list[Row]:
    """Commitments, memory of loading, cancelling, and ten thousand requests."""
    return asyncio.run(_rows())


async def _rows() -> list[Row]:
    found: list[Row] = []
    for name in ("gemma", "smollm", "llama"):
        if not model_folder(name).exists():
            found.append(Row(NAMES[name], "installed", "not installed", "–", "–", False))
            continue
        async with Rig(model_folder(name), [CUTS[name]], peer=False, kv_bytes=KV_BYTES) as rig:
            found.append(await _memory_row(rig, NAMES[name]))
            if name == "llama":
                found.append(await commitments_row(rig, NAMES[name]))
                found.append(await _cancel_row(rig, NAMES[name]))
    found.append(await _flat_row())
    return found


async def _memory_row(rig: Rig, title: str) -> Row:
    """The hungriest stage right after loading; what it keeps ready for keys and values is not counted."""
    worst, said = 0.0, []
    for i, stage in enumerate(rig.stages):
        resident = (await stage.ask("memory"))["VmRSS"] - KV_BYTES
        worst = max(worst, (resident - LIBRARIES_BYTES) / rig.shard_bytes(i))
        said.append(f"{resident / 1e6:.0f} of {rig.shard_bytes(i) / 1e6:.0f} MB weights")
    return Row(
        f"{title}, resident memory of a loaded stage",
        "≤ 1.15 × weights + 400 MB",
        f"{worst:.2f} × weights + 400 MB ({'; '.join(said)})",
        "–",
        "1 × weights",
        worst <= 1.15,
    )


async def commitments_row(rig: Rig, title: str) -> Row:
    """Processor time, so that neighbours on the machine make no difference."""
    await rig.run(Load(CLIENTS, new_tokens=4))
    ran = await rig.run(Load(CLIENTS, new_tokens=NEW_TOKENS))
    shares, said = [], []
    for steps, spent in zip(ran.steps, ran.spent, strict=True):
        computed_s = sum(step.cpu_s for step in steps)
        shares.append(sum(spent.values()) / computed_s)
        said.append(", ".join(f"{what} {100 * s / computed_s:.2f} %" for what, s in spent.items()))
    return Row(
        f"{title}, {CLIENTS} clients, commitments and signatures, of the time that steps take",
        "≤ 1 %",
        f"{100 * max(shares):.2f} % ({said[shares.index(max(shares))]})",
        "–",
        "0 %",
        max(shares) <= 0.01,
    )


async def _cancel_row(rig: Rig, title: str) -> Row:
    """A client gives everything up in mid-answer over links: when is the last page free on every stage?"""
    load = Load(1, PER_JOB, new_tokens=200)
    client = await rig.client(load, rig.endpoints(CANCEL_MS))
    running = asyncio.create_task(client.job.run())
    try:
        async with asyncio.timeout(120):
            while min(map(len, client.times)) < CANCEL_AFTER_TOKENS:
                await asyncio.sleep(0.01)
        held = [(await stage.ask("memory"))["kv_tokens"] for stage in rig.stages]
        ring_s = sum(decode_s(steps) for steps, _ in await rig.take()) + 2 * CANCEL_MS / 1000
        watching = [asyncio.create_task(stage.ask("empty", within_s=30)) for stage in rig.stages]
        await asyncio.sleep(0.05)  # they watch before the word is given
        cancelled_at = await _cancel(rig, client, PER_JOB)
        answers = await asyncio.gather(*watching)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.job.close()
    taken_s = max(answer["at_s"] for answer in answers) - cancelled_at
    left = sum(answer["kv_tokens"] for answer in answers)
    return Row(
        f"{title}, {PER_JOB} requests cancelled in mid-answer, {CANCEL_MS:g} ms one way, all pages free",
        f"≤ ring time + {MARGIN_S * 1000:.0f} ms",
        f"{taken_s * 1000:.0f} ms ({sum(held)} positions held before, {left} after)",
        "–",
        f"{(ring_s + MARGIN_S) * 1000:.0f} ms (ring {ring_s * 1000:.0f} ms)",
        taken_s <= ring_s + MARGIN_S and min(held) > 0 and left == 0,
    )


async def _cancel(rig: Rig, client: Client, requests: int) -> float:
    """Tell every stage, over streams that are open already; returns when the word was given."""
    identity = StreamIdentity(client.key, DOMAIN)
    channels = [
        await connect(stage.ready["endpoint"], identity, expected=stage.ready["operator"])
        for stage in rig.stages
    ]
    try:
        said_at = time.monotonic()
        for channel in channels:
            for index in range(requests):
                await channel.send(wire.Cancel(order_hash=client.order_hash, request=index))
        return said_at
    finally:
        for channel in channels:
            await channel.close()


async def _flat_row() -> Row:
    """A model too small to take time; what is left are requests, streams, signatures and a database."""
    from devnet.models.tiny_models import write_tiny_model

    with tempfile.TemporaryDirectory(prefix="headrace-tiny-") as folder:
        write_tiny_model(Path(folder), "llama", layers=2, hidden=32)
        async with Rig(Path(folder), [1], peer=False, kv_bytes=16 * MIB) as rig:
            held: dict[int, list[int]] = {}
            for done in range(PER_ROUND, REQUESTS + 1, PER_ROUND):
                await _soak(rig)
                for stage in rig.stages:
                    await stage.ask("empty", within_s=10.0)
                memory = [await stage.ask("memory") for stage in rig.stages]
                held[done] = [answer["RssAnon"] for answer in memory]
            left = sum(answer["kv_tokens"] + answer["active"] for answer in memory)
    grown = max(b - a for a, b in zip(held[WARM_REQUESTS], held[REQUESTS], strict=True))
    return Row(
        f"memory of a stage after {REQUESTS} requests, against {WARM_REQUESTS}",
        f"flat (≤ {FLAT_BYTES / MIB:.0f} MiB more)",
        f"{grown / MIB:+.1f} MiB of {max(held[REQUESTS]) / MIB:.0f}, {left} positions or requests left",
        "–",
        "0",
        grown <= FLAT_BYTES and left == 0,
    )


async def _soak(rig: Rig) -> None:
    load = Load(SOAK_JOBS, PER_ROUND // SOAK_JOBS, new_tokens=2, prompt_tokens=4)
    clients = [await rig.client(load, rig.endpoints(None)) for _ in range(load.clients)]
    outcomes = await asyncio.gather(*(client.job.run() for client in clients))
    await asyncio.gather(*(client.job.close() for client in clients))
    for outcome in outcomes:
        for error in outcome.unfinished.values():
            raise error
    for stage in rig.stages:
        await stage.ask("settle", jobs=[client.job_id for client in clients])
    await rig.take()
