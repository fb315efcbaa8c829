"""From a stage's lie to its slash, and from a false accusation to the accuser's bond: real shards, a real chain, nobody to believe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.orders import Prompt
from client.programs import local_program, registered_program
from client.trace_game import Accusation, OrderedDraw, Played, Prosecution, open_game
from core.engine.trace.program import ModelProgram
from core.game.claims import deviation_claim, token_claim, token_due
from core.game.players import Accuser, with_trace
from core.game.prepare import canonical
from core.protocol import commit
from core.protocol.dispute import Verdict
from core.protocol.game_log import case_of
from core.protocol.signer import Signer
from core.protocol.trace.families import SIGMA
from core.protocol.trace.layout import Place
from core.protocol.trace.sources import CommittedRows
from core.protocol.types import SamplingParams
from core.runtime.clock import SystemClock
from devnet.faults import corrupt_layer_int8
from devnet.tiny_models import write_tiny_model
from miner.defence import Defence
from miner.store import Store
from tests.conftest import start_anvil
from tests.game.world import Work, World

pytestmark = pytest.mark.chain
SPANS = ((0, 1), (1, 3), (3, 4))
GREEDY = SamplingParams(max_new_tokens=6, ignore_eos=True)
SEEDED = SamplingParams(temperature_micro=800_000, max_new_tokens=6, seed=11, ignore_eos=True)


def prompts(*samplings: SamplingParams) -> list[Prompt]:
    return [
        Prompt(f"p{i}", tuple(97 + (7 * n + i) % 26 for n in range(24)), sampling, bytes([i + 1]) * 32)
        for i, sampling in enumerate(samplings)
    ]


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    anvil = start_anvil()
    yield anvil.rpc_url
    anvil.stop()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=4)


@pytest.fixture
async def world(node: str, signers: list[Signer], model_dir: Path) -> AsyncIterator[World]:
    made = await World.make(node, signers, model_dir)
    yield made
    await made.chain.close()


async def operators(work: Work) -> ModelProgram:
    registered = await registered_program(work.world.chain, work.job.order.numerics_profile)
    return local_program(work.world.model_dir, registered)


async def accuse_deviation(work: Work, stage: int, request: int = 0) -> tuple[Accusation, Any]:
    """What an auditor with the stage's rows accuses it of, and the opened game."""
    import torch

    from core.engine.model import load_shard
    from core.engine.numerics import reexecute

    ours = await operators(work)
    place = work.job.plan[stage]
    served = np.frombuffer(work.rows[stage, "out", request], "<f4").reshape(-1, ours.program.hidden)
    raw = work.rows[stage, "in", request]
    inputs = np.frombuffer(raw, "<u4").astype(np.int64) if stage == 0 else (
        np.frombuffer(raw, "<f4").reshape(-1, ours.program.hidden).astype(np.float64)
    )
    shard = load_shard(work.world.model_dir, place.layers, dtype=torch.float64)
    reference = reexecute(shard, torch.from_numpy(inputs.copy())).numpy()
    layers = (place.layer_from, place.layer_to)
    leaf = work.leaf(stage, request)
    sigma = ours.tables[SIGMA][place.layer_to]
    excess = deviation_claim(ours.program, leaf, layers, served, reference, sigma)
    assert excess is not None, "the stage is not off by more than T"
    return await accuse(work, stage, request, ours, excess.claim)


async def accuse(
    work: Work, stage: int, request: int, ours: ModelProgram, claim: Any, drawn: Any = None
) -> tuple[Accusation, Any]:
    world = work.world
    opened = await open_game(world.chain, world.requester, work.job, work.receipts[stage])
    case = await case_of(world.chain, opened, claim)
    rows = [work.rows[stage, side, request] for side in ("in", "out")]
    trace, sources = canonical(case, ours.trace_model(world.model_dir), rows[0], rows[1])
    player = Accuser(with_trace(case, trace), trace, sources)
    return Accusation(work.receipts[stage], player, drawn), opened


async def play(
    work: Work, stage: int, accusation: Accusation, opened: Any, tmp_path: Path
) -> tuple[Verdict, list[Played], list[str]]:
    world, moves, answers = work.world, [], []
    store = work.keep(stage, Store(tmp_path / "miner.sqlite"))
    defence = Defence(
        world.chain, world.operators[stage], world.owners[stage].address, store, world.model_dir, SystemClock(),
        first_block=opened.block, folder=tmp_path / "traces", on_move=lambda _, move: answers.append(move),
    )  # fmt: skip
    await defence.look()
    game = Prosecution(world.chain, world.requester, SystemClock(), opened, accusation, moves.append)
    async with asyncio.timeout(150):
        verdict = await game.play()
        await defence.done()
    await defence.close()
    store.close()
    return verdict, moves, answers


async def honest_stake(work: Work) -> list[int]:
    return [await work.world.stake(stage) for stage in range(3)]


async def test_int8_weights_in_one_layer_cost_the_stake(world: World, tmp_path: Path) -> None:
    def spoil(stage: int, shard: Any) -> None:
        if stage == 1:
            corrupt_layer_int8(shard, 2)

    work = await world.work(SPANS, prompts(GREEDY), spoil=spoil)
    before = await honest_stake(work)
    accusation, opened = await accuse_deviation(work, 1)
    assert accusation.player.is_convicting()
    verdict, moves, answers = await play(work, 1, accusation, opened, tmp_path)
    assert verdict == Verdict.FAULT
    assert answers == [], "nothing is wrong with a true accusation, and nothing is said against it"
    after = await honest_stake(work)
    assert after == [before[0], 0, before[2]]
    assert [move.function for move in moves] == ["accuse", "timeout", "execute"]
