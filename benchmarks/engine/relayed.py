"""What does a hop through a relay cost beside a direct one?

Between network namespaces of one machine, so what counts are processors alone. The relay is a peer
of the swarm as the product starts it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.engine.rig.chain import DOMAIN, FIRST_STAGE_KEY, MATCHER_KEY, signer
from benchmarks.table import Row
from core.protocol import wire
from core.runtime.network.channel import Answer, Channel, Listener, StreamIdentity, connect
from core.runtime.network.circuits import Circuits
from core.runtime.network.transport import Swarm
from tests import netns

STEP_BYTES, STEPS = 2560, 1000
LARGE_BYTES, LARGE_FRAMES = 10**6, 60
PORT = 4001
REACH_MS, REACH_MB_S = 1.0, 20.0
QUICK = {"STEPS": 10, "LARGE_FRAMES": 2}

Figures = tuple[float, float, float]
"""One way in ms: median and nine tenths; MB/s."""


def rows() -> list[Row]:
    """Needs root, for the namespaces."""
    try:
        with (
            netns.network("near", "far") as made,
            tempfile.TemporaryDirectory() as folder,
        ):
            direct, relayed = _measure(made, Path(folder))
    except netns.Unavailable as error:
        reach = f"≤ {REACH_MS} ms more"
        return [Row("a hop through a relay", reach, "not measured", "-", str(error), True)]
    more_ms = relayed[0] - direct[0]
    return [
        Row(
            f"a hop of {STEP_BYTES / 1000:.1f} KB through a relay, one way",
            f"≤ {REACH_MS} ms more than direct",
            f"{relayed[0]:.2f} ms (p90 {relayed[1]:.2f})",
            "-",
            f"{direct[0]:.2f} ms (p90 {direct[1]:.2f}) direct",
            more_ms <= REACH_MS,
        ),
        Row(
            f"frames of {LARGE_BYTES / 1e6:.0f} MB through a relay",
            f"≥ {REACH_MB_S:.0f} MB/s",
            f"{relayed[2]:.0f} MB/s",
            "-",
            f"{direct[2]:.0f} MB/s direct",
            relayed[2] >= REACH_MB_S,
        ),
    ]


def _measure(made: netns.Network, folder: Path) -> tuple[Figures, Figures]:
    fork, running = multiprocessing.get_context("fork"), []

    def start(where: str, run: Callable[..., None], *given: Any) -> Connection:
        ours, theirs = multiprocessing.Pipe()

        def inside() -> None:
            tempfile.tempdir = str(folder)  # of daemons that end by force
            netns.enter(made.namespaces[where])
            run(theirs, *given)

        process = fork.Process(target=inside)
        process.start()
        theirs.close()
        running.append(process)
        return ours

    try:
        relays = start(netns.HUB, _be_public, netns.HUB_ADDRESS).recv()
        plain = start(netns.HUB, _echo, netns.HUB_ADDRESS, [], folder / "unused").recv()
        hidden = start("far", _echo, made.address("far"), relays, folder / "key").recv()
        return start("near", _ask, plain).recv(), start("near", _ask, hidden).recv()
    finally:
        for process in running:
            process.kill()
            process.join()


def _be_public(said: Connection, host: str) -> None:
    swarm = Swarm.start(host, PORT, [], is_relay=True)
    said.send(swarm.addresses())
    said.poll(None)


def _echo(said: Connection, host: str, relays: list[str], key: Path) -> None:
    async def handle(channel: Channel, frame: wire.Frame) -> Answer:
        return wire.Pong(), frame.payload if len(frame.payload) == STEP_BYTES else b""

    async def run() -> None:
        listener = Listener(StreamIdentity(signer(FIRST_STAGE_KEY), DOMAIN), handle)
        await listener.start(host, 0)
        endpoint = f"{host}:{listener.port}"
        if relays:
            ours = Circuits(relays, key, listener.accept)
            await ours.start()
            endpoint = ours.address
        said.send(endpoint)
        await asyncio.to_thread(said.poll, None)

    asyncio.run(run())


def _ask(said: Connection, endpoint: str) -> None:
    async def run() -> Figures:
        stream = await _open(endpoint)
        taken = []
        for _ in range(STEPS):
            at = time.perf_counter()
            await stream.call(wire.Ping(), bytes(STEP_BYTES))
            taken.append((time.perf_counter() - at) * 1e3 / 2)
        taken.sort()
        at = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(LARGE_FRAMES):
                group.create_task(stream.call(wire.Ping(), bytes(LARGE_BYTES), timeout_s=60))
        rate = LARGE_BYTES * LARGE_FRAMES / (time.perf_counter() - at) / 1e6
        await stream.close()
        return taken[len(taken) // 2], taken[len(taken) * 9 // 10], rate

    said.send(asyncio.run(run()))


async def _open(endpoint: str) -> Channel:
    expected = signer(FIRST_STAGE_KEY).address
    return await connect(endpoint, StreamIdentity(signer(MATCHER_KEY), DOMAIN), expected=expected)
