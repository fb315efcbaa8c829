"""A lie costs its stage the stake, a false accusation its bond: real shards, a real chain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.audit.programs import local_program
from client.commands.judge import move_dispute
from client.commands.wallet import credit
from client.context import Context
from client.disputes.prosecution import Accusation, OrderedDraw, Played, Prosecution, open_game
from client.orders.orders import Prompt
from core.dispute.game.dispute import Verdict
from core.dispute.game.game_log import case_of, read_game
from core.dispute.play.claims import deviation_claim, token_claim, token_due
from core.dispute.play.players import Accuser, with_trace
from core.dispute.play.prepare import traced
from core.dispute.play.program import ModelProgram
from core.dispute.trace.families import SIGMA
from core.dispute.trace.layout import Place
from core.dispute.trace.sources import CommittedRows
from core.models.programs import registered_program
from core.protocol import commit, ids
from core.protocol.errors import UsageError
from core.protocol.types import SamplingParams
from core.runtime.commands.console import GlobalOptions, Run
from core.runtime.folders import Folders
from core.runtime.settings import load
from devnet.faults import corrupt_layer
from miner.defence.defence import Defence
from miner.records.store import MinerStore
from tests.clocks import Hasty
from tests.core.dispute.play.models import with_value
from tests.game.world import TURN_S, Work, World

pytestmark = [pytest.mark.chain, pytest.mark.timeout(900)]
SPANS = ((0, 1), (1, 3), (3, 4))
LOOK_S = 0.1
GREEDY = SamplingParams(max_new_tokens=6, ignore_eos=True)
SEEDED = SamplingParams(temperature_micro=800_000, max_new_tokens=6, seed=11, ignore_eos=True)


def prompts(*samplings: SamplingParams) -> list[Prompt]:
    return [
        Prompt(
            f"p{i}", tuple(97 + (7 * n + i) % 26 for n in range(24)), sampling, bytes([i + 1]) * 32
        )
        for i, sampling in enumerate(samplings)
    ]


async def operators(work: Work) -> ModelProgram:
    registered = await registered_program(work.world.chain, work.job.order.numerics_profile)
    return local_program(work.world.model_dir, registered)


async def accuse_deviation(work: Work, stage: int, request: int = 0) -> tuple[Accusation, Any]:
    """What an auditor with the stage's rows accuses it of, and the opened game."""
    ours, claim = await deviation(work, stage, request)
    return await accuse(work, stage, request, ours, claim)


async def accusation_of_deviation(work: Work, stage: int, opened: Any) -> Accusation:
    """The same in a game that is open already."""
    ours, claim = await deviation(work, stage, 0)
    return await accusation_in(work, stage, 0, ours, claim, opened)


async def deviation(work: Work, stage: int, request: int) -> tuple[ModelProgram, Any]:
    """The claim that the stage's rows support."""
    import torch

    from core.dispute.judging.numerics import reexecute
    from core.engine.weights.load_shard import load_shard

    ours = await operators(work)
    place = work.job.plan[stage]
    side = work.sides(stage)[-1]  # its state rows, of a last stage
    served = np.frombuffer(work.rows[stage, side, request], "<f4").reshape(-1, ours.program.hidden)
    raw = work.rows[stage, "in", request]
    inputs = (
        np.frombuffer(raw, "<u4").astype(np.int64)
        if stage == 0
        else (np.frombuffer(raw, "<f4").reshape(-1, ours.program.hidden).astype(np.float64))
    )
    shard = load_shard(work.world.model_dir, place.layers, dtype=torch.float64)
    first = len(inputs) - len(served)
    made = reexecute(
        shard, torch.from_numpy(inputs.copy()), logit_rows=range(first, len(inputs)), states=True
    )
    reference = (made.rows if shard.is_last else made).numpy()
    layers = (place.layer_from, place.layer_to)
    leaf = work.leaf(stage, request)
    sigma = ours.tables[SIGMA][place.layer_to]
    excess = deviation_claim(ours.program, leaf, layers, served, reference, sigma, first)
    assert excess is not None, "the stage is not off by more than T"
    return ours, excess.claim


async def accuse(
    work: Work, stage: int, request: int, ours: ModelProgram, claim: Any, drawn: Any = None
) -> tuple[Accusation, Any]:
    world = work.world
    opened = await open_game(world.chain, world.requester, work.job, work.receipts[stage])
    return await accusation_in(work, stage, request, ours, claim, opened, drawn), opened


async def accusation_in(
    work: Work,
    stage: int,
    request: int,
    ours: ModelProgram,
    claim: Any,
    opened: Any,
    drawn: Any = None,
) -> Accusation:
    world = work.world
    case = await case_of(world.chain, opened, claim)
    rows = [work.rows[stage, side, request] for side in work.sides(stage)]
    trace, sources = traced(case, ours.trace_model(world.model_dir), *rows)
    player = Accuser(with_trace(case, trace), trace, sources)
    return Accusation(work.receipts[stage], player, drawn)


async def play(
    work: Work,
    stage: int,
    accusation: Accusation,
    opened: Any,
    tmp_path: Path,
    *,
    is_guilty: bool = False,
) -> tuple[Verdict, list[Played], list[str]]:
    """The accuser's program against the miner's.

    A guilty one has nothing to say, and its turn is skipped over.
    """
    world, moves, answers, clock = work.world, [], [], Hasty(LOOK_S)
    store = work.keep(stage, MinerStore(tmp_path / "miner.sqlite"))
    defence = Defence(
        world.chain,
        world.operators[stage],
        world.owners[stage].address,
        store,
        world.model_dir,
        clock,
        first_block=opened.block,
        folder=tmp_path / "traces",
        on_move=lambda _, move: answers.append(move),
    )
    await defence.look()
    game = Prosecution(
        world.chain, world.requester, Hasty(LOOK_S), opened, accusation, moves.append
    )
    playing, skipped = asyncio.create_task(game.play()), 0
    async with asyncio.timeout(800):
        while is_guilty and not playing.done():
            await asyncio.sleep(LOOK_S)
            if len(moves) > skipped and not answers:
                skipped = len(moves)
                await had_a_look(clock, playing)
                await world.skip(TURN_S + 1)
        verdict = await playing
        await defence.done()
    await defence.close()
    store.close()
    return verdict, moves, answers


async def had_a_look(clock: Hasty, playing: asyncio.Task[Any]) -> None:
    """Wait until the program with this clock has looked twice, or all is over."""
    before = clock.pauses
    while clock.pauses < before + 2 and not playing.done():
        await asyncio.sleep(LOOK_S / 2)


async def honest_stake(work: Work) -> list[int]:
    return [await work.world.stake(stage) for stage in range(3)]


@pytest.mark.parametrize(("liar", "layer"), [(1, 2), (2, 3)], ids=["middle", "last"])
async def test_int8_weights_in_one_layer_cost_the_stake(
    world: World, tmp_path: Path, liar: int, layer: int
) -> None:
    """Of a last stage too, whose tokens they do not change: its state rows show it."""

    def spoil(stage: int, shard: Any) -> None:
        if stage == liar:
            corrupt_layer(shard, layer)

    work = await world.work(SPANS, prompts(GREEDY), spoil=spoil)
    before = await honest_stake(work)
    accusation, opened = await accuse_deviation(work, liar)
    assert accusation.player.is_convicting()
    verdict, moves, answers = await play(work, liar, accusation, opened, tmp_path, is_guilty=True)
    assert verdict == Verdict.FAULT
    assert answers == [], "nothing is wrong with a true accusation, and nothing is said against it"
    after = await honest_stake(work)
    assert after == [0 if stage == liar else units for stage, units in enumerate(before)]
    assert [move.function for move in moves] == ["accuse", "timeout", "execute"]


async def test_a_silent_stage_is_convicted_and_its_stake_claimed_by_hand(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def spoil(stage: int, shard: Any) -> None:
        if stage == 1:
            corrupt_layer(shard, 2)

    work = await world.work(SPANS, prompts(GREEDY), spoil=spoil)
    accusation, opened = await accuse_deviation(work, 1)
    game = Prosecution(world.chain, world.requester, Hasty(LOOK_S), opened, accusation)
    assert await game.step(await read_game(world.chain, opened)), "the accusation"

    @asynccontextmanager
    async def open_context(settings: Any) -> AsyncIterator[Context]:
        yield Context(settings, world.chain)

    for module in (move_dispute, credit):
        monkeypatch.setattr(module, "open_context", open_context)
    run = Run(
        "auditor",
        "disputes resolve",
        GlobalOptions(yes=True, json=True),
        folders=Folders.at(tmp_path),
    )
    run._settings = load(environ={}, folders=run.folders)
    run.unlock = lambda *_, **__: world.requester  # type: ignore[method-assign, assignment]
    name = ids.short(ids.Kind.DISPUTE, opened.dispute)
    with pytest.raises(UsageError, match="still runs"):
        await move_dispute.resolve(run, name)
    with pytest.raises(UsageError, match="owes nothing yet"):
        await move_dispute.claim(run, name)
    await world.skip(TURN_S + 1)
    for _ in ("timeout", "execute"):
        await move_dispute.resolve(run, name)
    with pytest.raises(UsageError, match="is over"):
        await move_dispute.resolve(run, name)
    assert await world.stake(1) == 0
    run.command = "disputes claim"
    await move_dispute.claim(run, name)
    *_, timeout, execute, claimed = map(json.loads, capsys.readouterr().out.splitlines())
    assert (timeout["result"]["done"], timeout["result"]["phase"]) == ("timeout", "ruled")
    assert (execute["result"]["done"], execute["result"]["verdict"]) == ("execute", "fault")
    assert claimed["result"]["ToleranceGame"] == run.settings.show_token(opened.bond)
    assert await world.chain.read("ToleranceGame", "creditOf", world.requester.address) == 0


async def test_one_perturbed_row_costs_the_stake(world: World, tmp_path: Path) -> None:
    def bend(stage: int, request: int, first: int, x: Any) -> Any:
        if stage == 0 and first <= 20 < first + len(x):
            x = x.clone()
            x[20 - first] *= 1.001
        return x

    work = await world.work(SPANS, prompts(GREEDY, SEEDED), bend=bend)
    accusation, opened = await accuse_deviation(work, 0, 1)
    claim = accusation.player.case.claim
    assert claim.window_from <= 20 < claim.positions
    verdict, _, _ = await play(work, 0, accusation, opened, tmp_path, is_guilty=True)
    assert verdict == Verdict.FAULT


@pytest.mark.parametrize("request_index", [0, 1], ids=["greedy", "seeded"])
async def test_a_wrong_token_costs_the_stake(
    world: World, tmp_path: Path, request_index: int
) -> None:
    def swap(request: int, step: int, token: int) -> int:
        return (token + 7) % 250 if (request, step) == (request_index, 3) else token

    work = await world.work(SPANS, prompts(GREEDY, SEEDED), swap=swap)
    accusation, opened = await accuse_token(work, request_index, 3)
    assert accusation.player.is_convicting()
    verdict, moves, _ = await play(work, 2, accusation, opened, tmp_path, is_guilty=True)
    assert verdict == Verdict.FAULT
    assert moves[0].function == "accuseToken"


async def accuse_token(work: Work, request: int, produced: int) -> tuple[Accusation, Any]:
    import torch

    from core.engine.batch.whole import head_logits
    from core.engine.weights.load_shard import load_shard

    ours, place = await operators(work), work.job.plan[2]
    raw = np.frombuffer(work.rows[2, "states", request], "<f4").reshape(-1, ours.program.hidden)
    shard = load_shard(work.world.model_dir, place.layers, dtype=torch.float64)
    leaf, prompt = work.leaf(2, request), work.batch.prompts[request]
    state = torch.from_numpy(raw[produced : produced + 1].astype(np.float64))
    logits = head_logits(shard, state).numpy()
    out = work.rows[2, "out", request]
    tokens = [int.from_bytes(out[at : at + 4], "little") for at in range(0, len(out), 4)]
    due = token_due(logits[0], prompt.sampling, request, tokens[:produced], prompt=prompt.ids)
    layers = (place.layer_from, place.layer_to)
    claim = token_claim(ours.program, leaf, layers, prompt.sampling, tokens, produced, due)
    leaves = [
        commit.leaf_hash(commit.sampling_leaf(i, p.sampling))
        for i, p in enumerate(work.batch.prompts)
    ]
    ids = [out[at : at + 4] for at in range(0, len(out), 4)]
    served = CommittedRows(ids, work.states_root(2, request)).open(produced, 0)
    drawn = OrderedDraw(
        work.job.order, prompt.sampling.canonical(), commit.merkle_proof(leaves, request), served
    )
    return await accuse(work, 2, request, ours, claim, drawn)


async def false_accusation(
    work: Work, stage: int, place: Place, value: float
) -> tuple[Accusation, Any]:
    """Of an honest stage: the canonical trace with one other value, sworn to be canonical."""
    ours, layers = await operators(work), work.job.plan[stage].layers
    number = next(
        i for i, t in enumerate(ours.program.tolerances) if t.min_rows == 16 and t.max_depth > 1
    )
    from core.dispute.trace.judge import Claim

    rows, window = 24, 16
    if stage == 2:  # signs rows of the positions that it drew at alone, here six
        rows, window = 29, 5
        number = next(i for i, t in enumerate(ours.program.tolerances) if t.min_rows == 1)
    claim = Claim(
        work.leaf(stage, 0),
        layers.start,
        layers.end,
        rows,
        rows - window,
        number,
        bytes(32),
    )
    accusation, opened = await accuse(work, stage, 0, ours, claim)
    player = accusation.player
    assert not player.is_convicting(), "the stage is honest"
    forged = with_value(player.trace, place, value)
    player = Accuser(with_trace(player.case, forged), forged, player.sources)
    return Accusation(accusation.accused, player), opened


@pytest.mark.parametrize(
    ("stage", "place", "value"),
    [
        pytest.param(1, Place(3, 4), 1e9, id="the sum of squares"),
        pytest.param(1, Place(1, 4, 11, 0, 17), 0.5, id="one product of a projection"),
        pytest.param(1, Place(2, 20, 23, 0, 5), -3.0, id="one element of a gate"),
        pytest.param(2, Place(2, 4), 1e9, id="the last stage's sum of squares"),
        pytest.param(2, Place(2, 0, 3, 0, 9), 7.0, id="one of its state rows"),
    ],
)
async def test_a_false_accusation_costs_its_bond(
    world: World, tmp_path: Path, stage: int, place: Place, value: float
) -> None:
    work = await world.work(SPANS, prompts(GREEDY))
    before = await honest_stake(work)
    accusation, opened = await false_accusation(work, stage, place, value)
    verdict, moves, answers = await play(work, stage, accusation, opened, tmp_path)
    assert verdict == Verdict.NO_FAULT
    assert answers[0] == "pick"
    assert "point" in answers
    assert await honest_stake(work) == before
    won = await world.chain.read("ToleranceGame", "creditOf", world.owners[stage].address)
    assert won == opened.bond
    assert moves[-1].function in ("prove", "expand", "provePart", "execute")
