"""An accuser that shows its trace off chain is pointed at in one move."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.disputes.prosecution import Played, Prosecution
from client.disputes.show_trace import Showing
from core.dispute.game.dispute import Verdict
from core.dispute.trace.layout import Place
from core.protocol import wire
from miner.defence.defence import Defence
from miner.records.store import MinerStore
from miner.serving.job_table import Refused
from tests.clocks import Hasty
from tests.frames import encode
from tests.game.test_dispute_of_a_real_model import (
    GREEDY,
    LOOK_S,
    SPANS,
    false_accusation,
    prompts,
)
from tests.game.world import World

pytestmark = [pytest.mark.chain, pytest.mark.timeout(600)]
STAGE = 1


class Line:
    """An accuser and the accused's program, without the stream between them."""

    def __init__(self, defence: Defence, peer: str) -> None:
        self._defence, self._peer, self.said = defence, peer, 0

    async def call(self, message: wire.ShowNode, data: bytes, timeout_s: float) -> wire.Frame:
        self.said += 1
        answer: wire.AnyMessage
        try:
            answer = await self._defence.shown(self._peer, message, data)
        except Refused as refusal:
            answer = wire.Failed(refusal.code, refusal.reason)
        return wire.decode(encode(answer))


async def test_a_trace_that_is_shown_off_chain_is_pointed_at_at_once(
    world: World, tmp_path: Path
) -> None:
    work = await world.work(SPANS, prompts(GREEDY))
    accusation, opened = await false_accusation(work, STAGE, Place(2, 20, 23, 0, 5), -3.0)
    store = work.keep(STAGE, MinerStore(tmp_path / "miner.sqlite"))
    moves, answers = list[Played](), list[str]()
    defence = Defence(
        world.chain,
        world.operators[STAGE],
        world.owners[STAGE].address,
        store,
        world.model_dir,
        Hasty(LOOK_S),
        first_block=opened.block,
        on_move=lambda _, move: answers.append(move),
        patience_s=120.0,
    )
    line = Line(defence, world.requester.address)

    async def connect() -> Line:
        return line

    early = wire.ShowNode(opened.dispute, 1, 0)
    with pytest.raises(Refused, match="opened"):
        await defence.shown(world.requester.address, early, b"")
    with pytest.raises(Refused, match="accuses us of nothing"):
        await defence.shown(world.owners[0].address, early, b"")
    game = Prosecution(
        world.chain,
        world.requester,
        Hasty(LOOK_S),
        opened,
        accusation,
        moves.append,
        Showing(connect),  # type: ignore[arg-type]
    )
    async with asyncio.timeout(500):
        verdict = await game.play()
        await defence.done()
    await defence.close()
    store.close()
    assert verdict == Verdict.NO_FAULT
    assert line.said > 1
    assert answers[0] == "point" and "pick" not in answers
    assert [move.function for move in moves if move.function.startswith("open")] == []
