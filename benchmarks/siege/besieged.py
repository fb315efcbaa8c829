"""Who is attacked? Three miners, a matcher and a gateway, started once for all parts."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.siege.actor import Target
from core.protocol.network_file import USD
from devnet.accounts import signer_of
from devnet.network import FUNDS
from tests.core.runtime.network.test_transport import stat_of
from tests.swarm.conftest import devnet_of, fill_cache
from tests.swarm.front.conftest import ROOMY
from tests.swarm.world import World

CLIENTS = 4
#: Wallets with money that attack.
ATTACKERS = ("juror-1", "juror-2", "juror-3")
#: One that is honest and comes meanwhile.
NEWCOMER = "auditor-1"
GATEWAY, MATCHER, MINER = "gateway", "matcher-1", "miner-1"
MINERS = tuple(ROOMY)
#: For sessions of half an hour, each of which locks more than it spends.
PAYER_UNITS = 1000 * USD


class Besieged:
    """The running devnet, and the loop in which it is asked."""

    def __init__(self, world: World, keys: Sequence[str], loop: asyncio.Runner) -> None:
        self.world, self.keys, self.loop = world, tuple(keys), loop

    async def target(self, name: str, *options: str) -> Target:
        """What strangers are told, with a new key of the gateway made with these options."""
        net = self.world.net
        running = [self.world.running(party) for party in MINERS]
        return Target(
            gateway_url=net.gateway_url,
            key=await net.new_key(name, *options),
            matcher_url=net.matcher_url,
            model_id=net.model_id,
            bootstrap=net.bootstrap,
            domain=self.world.chain.domain,
            miners=[(miner.operator, miner.endpoint) for miner in running],
            homes={party: str(net.layout.home(party)) for party in (*ATTACKERS, NEWCOMER)},
        )

    def resident_bytes(self, programs: Iterable[str]) -> dict[str, int]:
        """Resident memory of programs, each with all that it started; pages that several of them
        map, such as a library's, count once.
        """
        leaders = {self.world.net.processes.get(name).pid: name for name in programs}
        parents, found = _parents(), dict.fromkeys(leaders.values(), 0)
        for pid in parents:
            if (leader := _ancestor(pid, parents, leaders)) is not None:
                found[leaders[leader]] += _resident_bytes(pid)
        return found


_running: list[Besieged] = []


@contextmanager
def besieged() -> Iterator[Besieged]:
    """The devnet of this process: the outermost `with` starts it and ends it."""
    if _running:
        yield _running[0]
        return
    with (
        tempfile.TemporaryDirectory(prefix="headrace-siege-") as scratch,
        asyncio.Runner() as loop,
    ):
        stack = AsyncExitStack()
        try:
            _running.append(loop.run(_start(stack, Path(scratch), loop)))
            yield _running[0]
        finally:
            _running.clear()
            loop.run(stack.aclose())


async def _start(stack: AsyncExitStack, scratch: Path, loop: asyncio.Runner) -> Besieged:
    folder, cache = scratch / "net", scratch / "cache"
    folder.mkdir()
    world = await stack.enter_async_context(devnet_of(folder, fill_cache(cache), ROOMY))
    assert {*ATTACKERS, NEWCOMER} <= set(FUNDS), "they have money"
    payer = world.net.addresses["requester-1"]
    await world.chain.transact(signer_of("deployer"), "TestUSD", "mint", payer, PAYER_UNITS)
    await world.net.start_gateway()
    keys = [await world.net.new_key(f"honest-{number}") for number in range(CLIENTS)]
    return Besieged(world, keys, loop)


def others_s() -> float:
    """Processor seconds so far of all processes that neither are this one nor descend from it."""
    parents, ours = _parents(), 0
    for pid in parents:
        if _ancestor(pid, parents, (os.getpid(),)) is not None:
            with suppress(OSError):
                ours += sum(map(int, stat_of(pid)[11:13]))
    fields = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    user, nice, system, _, _, *others = map(int, fields)
    return (user + nice + system + sum(others) - ours) / os.sysconf("SC_CLK_TCK")


def _parents() -> dict[int, int]:
    """Of every process, which one started it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = int(stat_of(int(entry.name))[1])
    return found


def _ancestor(pid: int, parents: Mapping[int, int], among: Container[int]) -> int | None:
    """The nearest of some processes that started this one, or is it."""
    while pid in parents and pid not in among:
        pid = parents[pid]
    return pid if pid in among else None


def _resident_bytes(pid: int) -> int:
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
