"""How soon do matchers see a machine come and go in a swarm of many, and what does it take?

Each machine is a peer of the swarm with its own processes, as `miner start` has it, that announces
itself every second and looks at the others as they change. Nothing else of a machine runs. Two
peers look as matchers do. All are on the loopback of a network namespace, whose bytes are those of
the swarm.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from benchmarks.network.people import at
from benchmarks.table import Row
from core.protocol import records
from core.runtime.network.transport import Swarm
from miner.daemon.announce import TTL_S, Announcer, Neighbourhood, neighbours
from tests import netns
from tests.town.fleet import MODEL_ID, machine_key, make_record
from tests.town.orders import DOMAIN

#: As many as 64, where there are processors for them.
MACHINES, MATCHERS = min(64, 8 * (os.cpu_count() or 1)), 2
JOIN_S, LOSS_S, KB_S = 3.0, 12.0, 20.0
ANNOUNCE_S, DISTANCES_S, LOOK_S = 1.0, 3.0, 1.0  # settings' defaults, and the daemons' constants
#: Machines look at all the others often at first.
SETTLE_S, STEADY_S, LIMIT_S = 130.0, 60.0, 60.0
QUICK = {"MACHINES": 4, "SETTLE_S": 0.0, "STEADY_S": 3.0}


def rows() -> list[Row]:
    try:
        with netns.network() as made:
            found = at(made.namespaces[netns.HUB], lambda: asyncio.run(_measure()))
    except netns.Unavailable:
        found = asyncio.run(_measure())  # with whatever else is on the loopback
    joined_s, lost_s, kb_s, missing = found
    item = f"swarm of {MACHINES} live machines"
    return [
        Row(
            f"{item}: a machine that comes is seen by all matchers after",
            f"≤ {JOIN_S:g} s",
            f"{joined_s:.2f} s",
            "-",
            f"a look every {LOOK_S:g} s; {missing} of the others unseen",
            joined_s <= JOIN_S and not missing,
        ),
        Row(
            f"{item}: one that is killed is gone for all matchers after",
            f"≤ {LOSS_S:g} s",
            f"{lost_s:.2f} s",
            "-",
            f"a record lives {TTL_S:g} s",
            lost_s <= LOSS_S,
        ),
        Row(
            f"{item}: bytes of the swarm a machine",
            f"≤ {KB_S:g} kB/s",
            f"{kb_s:.1f} kB/s",
            "-",
            f"over {STEADY_S:g} s",
            kb_s <= KB_S,
        ),
    ]


class Peer:
    """One machine of the swarm."""

    def __init__(self, number: int, bootstrap: list[str], admitted: set[str]) -> None:
        self._number, self.address = number, machine_key(number).address
        self.swarm = _peer(bootstrap)
        self._admitted = admitted
        self._announcer = Announcer(self.swarm, machine_key(number), DOMAIN)
        others = partial(neighbours, self.swarm, DOMAIN, self.address, MODEL_ID, None)
        self._near = Neighbourhood(others)
        self._loops: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        await self.swarm.admit(self._admitted)
        self._loops = [
            asyncio.create_task(_every(ANNOUNCE_S, self._announce)),
            asyncio.create_task(_every(DISTANCES_S, self._near.others)),
        ]

    async def _announce(self) -> None:
        others = (machine_key(number).address for number in range(MACHINES))
        rho_ms = dict.fromkeys(islice(others, records.MAX_NEIGHBOURS), 1.25)
        said = {"sent_at_ms": records.now_ms(), "rho_ms": rho_ms}
        await self._announcer.announce(make_record(self._number, **said))

    def kill(self) -> None:
        """With no word to anybody."""
        for loop in self._loops:
            loop.cancel()
        keeper = self.swarm._keeper.pid
        for pid in (*_children(keeper), keeper):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        self.swarm.close()


class Eye:
    """One matcher's look at the swarm."""

    def __init__(self, bootstrap: list[str]) -> None:
        self.swarm = _peer(bootstrap)
        self.seen: set[str] = set()

    async def look(self) -> None:
        found = await self.swarm.lookup(*records.miners_topics(DOMAIN))
        opened = [records.unseal(data, DOMAIN) for data in found.values()]
        now_ms = records.now_ms()
        self.seen = {one[0].operator for one in opened if one and records.is_fresh(one[0], now_ms)}


async def _measure() -> tuple[float, float, float, int]:
    admitted = {machine_key(number).address.lower() for number in range(MACHINES + 1)}
    eyes = [Eye([])]
    first = eyes[0].swarm.addresses()
    eyes += [Eye(first) for _ in range(MATCHERS - 1)]
    peers = list[Peer]()
    looks = list[asyncio.Task[None]]()
    try:
        for eye in eyes:
            await eye.swarm.admit(admitted)
            looks.append(asyncio.create_task(_every(LOOK_S, eye.look)))
        for number in range(MACHINES):
            peers.append(Peer(number, first, admitted))
            await peers[-1].begin()
        everybody = {peer.address for peer in peers}
        await _until(lambda: all(everybody <= eye.seen for eye in eyes))
        await asyncio.sleep(SETTLE_S)
        bytes_before, began = _loopback_bytes(), time.monotonic()
        await asyncio.sleep(STEADY_S)
        rate = (_loopback_bytes() - bytes_before) / (time.monotonic() - began)

        peers.append(Peer(MACHINES, first, admitted))
        began = time.monotonic()
        await peers[-1].begin()
        await _until(lambda: all(peers[-1].address in eye.seen for eye in eyes))
        joined_s = time.monotonic() - began
        missing = len(everybody - set.intersection(*(eye.seen for eye in eyes)))

        gone, began = peers[-1].address, time.monotonic()
        peers[-1].kill()
        await _until(lambda: all(gone not in eye.seen for eye in eyes))
        return joined_s, time.monotonic() - began, rate / 1000 / MACHINES, missing
    finally:
        for look in looks:
            look.cancel()
        for one in (*peers, *eyes):
            (one.close if isinstance(one, Peer) else one.swarm.close)()


def _peer(bootstrap: list[str]) -> Swarm:
    return Swarm.start("127.0.0.1", 0, bootstrap, check=records.SwarmCheck(DOMAIN))


async def _every(seconds: float, work: Callable[[], object]) -> None:
    while True:
        await work()  # type: ignore[misc]
        await asyncio.sleep(seconds)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.02)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in tasks for child in file.read_text().split()]


def _loopback_bytes() -> int:
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    (own,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(own.partition(":")[2].split()[0])
