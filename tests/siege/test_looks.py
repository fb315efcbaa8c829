"""Questions of strangers that would have the chain looked at, and how often it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from core.dispute.game.game_log import GAME
from core.protocol import wire
from core.runtime.network.channel import Peers, StreamIdentity
from miner.defence.defence import Defence
from miner.records.store import MinerStore
from miner.serving.job_table import Refused
from tests.clocks import ManualClock
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import greedy
from tests.town.orders import DOMAIN, key
from tests.town.requester import Requester

ASKED = 200


class CountedChain(FakeChain):
    """Counts how often it is asked for its newest block."""

    looks = 0

    async def block_number(self) -> int:
        self.looks += 1
        return await super().block_number()


async def test_traces_of_no_dispute_have_the_chain_looked_at_once_a_second(tmp_path: Path) -> None:
    clock = ManualClock()
    chain = CountedChain(clock)
    chain.addresses = {**chain.addresses, GAME: "0x" + "9a" * 20}
    store = MinerStore(tmp_path / "miner.sqlite")
    defence = Defence(chain, key(1), key(2).address, store, tmp_path, clock, first_block=0)

    async def ask(number: int) -> None:
        shown = wire.ShowNode("0x" + f"{number:064x}", 1, 0)
        with pytest.raises(Refused, match="accuses us of nothing"):
            await defence.shown(key(50 + number % 4).address, shown, b"")

    await asyncio.gather(*map(ask, range(ASKED)))
    assert chain.looks == 1
    await clock.advance(0.5)
    later = asyncio.gather(*map(ask, range(ASKED)))
    while not clock.sleepers:
        await asyncio.sleep(0)
    await clock.advance(0.5)
    await later
    assert chain.looks == 2
    await defence.close()
    store.close()


async def test_strangers_who_want_rows_have_the_panel_looked_up_seldom(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 4))
    requester = Requester(key(50), chain, machines)
    requester.order([([5, 6, 7], greedy(6))])
    await requester.run_all(key(40))
    dispute = "0x" + "d1" * 32
    machines[0].store.put_dispute(dispute, requester.job_id, 0)
    chain.panels[dispute] = [key(71).address]
    looked = list[str]()
    panel = machines[0].table.chain.panel

    async def counted(of: str) -> list[str]:
        looked.append(of)
        return await panel(of)

    machines[0].table.chain.panel = counted  # type: ignore[method-assign]
    rows = wire.FetchRows(order_hash=requester.order_hash, request=0, side="in", start=0, count=9)
    peers = Peers(StreamIdentity(key(99), DOMAIN))
    channel = await peers.get(machines[0].signer.address, machines[0].endpoint)
    answers = await asyncio.gather(*(channel.call(rows) for _ in range(8)))
    assert all(isinstance(answer.message, wire.Failed) for answer in answers)
    assert len(looked) <= 2
    await peers.close()
    await requester.close()
