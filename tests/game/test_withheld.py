"""Withheld rows are asked for on chain, malformed ones convict, a defence survives a restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from client.audit.evidence import EvidenceCollector, PromptOpening
from client.audit.rerun import ShardSource, StageFinding, audit_stage
from client.disputes.charge import charge_of, inquest_of, would_convict
from client.disputes.inquest import MAX_ASKS, Doubted, Inquest
from client.disputes.prosecution import Played, Prosecution, open_game
from core.dispute.game.dispute import Phase, Verdict
from core.dispute.game.game_log import Opened, read_game
from core.dispute.judging.numerics import profile_of
from core.dispute.trace.derive import Boundary
from core.dispute.trace.judge import Case
from core.dispute.trace.layout import Place
from core.protocol import commit, wire
from core.protocol.errors import RowsWithheld
from core.protocol.types import LayerRange, RequestLeaf, SignedReceipt, StageReceipt
from devnet.faults import corrupt_layer
from miner.defence.defence import Defence
from miner.records.store import BoundaryRows as KeptRows
from miner.records.store import MinerStore
from tests.clocks import Hasty
from tests.game.test_dispute_of_a_real_model import (
    GREEDY,
    LOOK_S,
    SPANS,
    false_accusation,
    had_a_look,
    operators,
    prompts,
)
from tests.game.world import TURN_S, Work, World

pytestmark = [pytest.mark.chain, pytest.mark.timeout(600)]
STAGE, LAST = 1, 2


class Holders(EvidenceCollector):
    """What a job's stages hand over: all that they signed, but for withheld sides."""

    def __init__(self, work: Work, *withheld: wire.Side) -> None:
        self.case, self._work, self._withheld = work.job, work, withheld

    async def inner(self, stage: int, leaf: RequestLeaf, spans: Sequence[LayerRange]) -> list[str]:
        if "inner" in self._withheld:
            raise RowsWithheld("roots are missing", "nobody shows them", stage=stage)
        return self._work.receipts[stage].inner[leaf.request_index]

    async def rows(
        self, stage: int, side: wire.Side, leaf: RequestLeaf, row_bytes: int, *, root: str = ""
    ) -> bytes:
        if side in self._withheld:
            raise RowsWithheld("rows are missing", "both holders are silent", stage=stage)
        return self._work.rows[stage, side, leaf.request_index]

    async def opening(self, request: int) -> PromptOpening:
        prompt, opened = self._work.batch.prompts[request], self._work.batch.opening(request)
        shown = wire.Opening(
            commit.to_hex(prompt.salt), opened.prompt_proof, prompt.sampling, opened.sampling_proof
        )
        return PromptOpening(prompt.ids, prompt.sampling, shown)


async def inquest(work: Work, *withheld: wire.Side, stage: int = STAGE) -> Inquest | None:
    ours, place = await operators(work), work.job.plan[stage]
    source = ShardSource(work.world.model_dir, profile_of(ours.program), ours.program)
    span = (place.layer_from, place.layer_to)
    finding = StageFinding(stage, place.operator, span, withheld="rows are missing")
    return await inquest_of(Holders(work, *withheld), source, work.receipts[stage], finding)


def defence(
    work: Work, store: MinerStore, opened: Opened, answers: list[str], clock: Hasty
) -> Defence:
    world, stage = work.world, opened.stage
    return Defence(
        world.chain,
        world.operators[stage],
        world.owners[stage].address,
        store,
        world.model_dir,
        clock,
        first_block=opened.block,
        on_move=lambda _, move: answers.append(move),
    )


async def ask(
    work: Work, brought: Any, opened: Opened, store: MinerStore | None, silent: Phase | None = None
) -> tuple[Verdict, list[str], list[str]]:
    """The accuser's program against the miner's, if it has a store.

    Whose turn it is in the phase `silent` is skipped over.
    """
    moves, answers = list[Played](), list[str]()
    game = Prosecution(
        work.world.chain, work.world.requester, Hasty(LOOK_S), opened, brought, moves.append
    )
    clock = Hasty(LOOK_S)
    playing = asyncio.create_task(game.play())
    miner = None if store is None else defence(work, store, opened, answers, clock)
    if miner is not None:
        await miner.look()
    async with asyncio.timeout(300):
        while not playing.done():
            await asyncio.sleep(LOOK_S)
            seen = await read_game(work.world.chain, opened)
            asked = seen.moves.count("Asked")
            if seen.phase == silent and (silent != Phase.OPENED or asked == MAX_ASKS):
                if miner is not None:
                    await had_a_look(clock, playing)
                await work.world.skip(TURN_S + 1)
                silent = None
        verdict = await playing
    if miner is not None:
        await miner.close()
    return verdict, [move.function for move in moves], answers


async def opened_game(work: Work, stage: int = STAGE) -> Opened:
    world = work.world
    return await open_game(world.chain, world.requester, work.job, work.receipts[stage])


async def test_a_stage_that_shows_nobody_its_rows_loses_by_its_silence(world: World) -> None:
    work = await world.work(SPANS, prompts(GREEDY))
    brought = await inquest(work, "in", "out")
    assert brought is not None and "in and out" in brought.describe()
    verdict, moves, _ = await ask(work, brought, await opened_game(work), None, Phase.ASKED)
    assert (verdict, moves) == (Verdict.FAULT, ["ask", "timeout", "execute"])
    assert await world.stake(STAGE) == 0


async def test_rows_shown_in_time_and_nothing_to_accuse_of_cost_the_bond(
    world: World, tmp_path: Path
) -> None:
    work = await world.work(SPANS, prompts(GREEDY))
    brought, opened = await inquest(work, "out"), await opened_game(work)
    assert brought is not None
    store = work.keep(STAGE, MinerStore(tmp_path / "miner.sqlite"))
    verdict, moves, answers = await ask(work, brought, opened, store, Phase.OPENED)
    assert (moves[:3], answers[:3]) == (["ask"] * 3, ["reveal"] * 3)
    assert verdict == Verdict.NO_FAULT, "the stage has shown all it was asked for"
    won = await world.chain.read("ToleranceGame", "creditOf", world.owners[STAGE].address)
    assert won == opened.bond
    store.close()


async def test_a_last_stage_shows_the_state_rows_that_it_serves_to_nobody(
    world: World, tmp_path: Path
) -> None:
    work = await world.work(SPANS, prompts(GREEDY))
    brought = await inquest(work, "states", stage=LAST)
    assert brought is not None and "(states)" in brought.describe()
    store, opened = (
        work.keep(LAST, MinerStore(tmp_path / "miner.sqlite")),
        await opened_game(work, LAST),
    )
    verdict, moves, answers = await ask(work, brought, opened, store, Phase.OPENED)
    assert (moves[:3], answers[:3]) == (["ask"] * 3, ["reveal"] * 3)
    assert verdict == Verdict.NO_FAULT
    store.close()


@pytest.mark.parametrize("lies_about", ["rows", "a token"])
async def test_an_audit_of_the_last_stage_ends_in_a_charge_that_convicts(
    world: World, lies_about: str
) -> None:
    """Of its rows where they are off, of a token where only that is."""

    def spoil(stage: int, shard: Any) -> None:
        if stage == LAST and lies_about == "rows":
            corrupt_layer(shard, 3)

    def swap(request: int, step: int, token: int) -> int:
        return (token + 7) % 250 if lies_about == "a token" and step == 3 else token

    work = await world.work(SPANS, prompts(GREEDY), spoil=spoil, swap=swap)
    ours, place = await operators(work), work.job.plan[LAST]
    source = ShardSource(work.world.model_dir, profile_of(ours.program), ours.program)
    leaves, root = work.receipts[LAST].leaves, source.shard_root(place)
    finding = await audit_stage(Holders(work), source, LAST, leaves, root, precheck=True)
    assert finding.at_fault
    charge = await charge_of(Holders(work), source, work.receipts[LAST], finding)
    assert (charge.claim.choice is None) == (lies_about == "rows")
    assert charge.claim.window_from >= (23 if lies_about == "rows" else 0)
    assert await would_convict(source, charge)
    # What it asks of a referee, the referee looks at.
    Case(ours.program, (), charge.claim).check_claim()


async def test_a_state_row_that_is_no_number_convicts_by_itself(world: World) -> None:
    def sign(stage: int, request: int, first: int, x: Any) -> Any:
        return x * float("inf") if (stage, first) == (LAST, 25) else x

    work = await world.work(SPANS, prompts(GREEDY), sign=sign)
    brought = await inquest(work, stage=LAST)
    assert brought is not None and "row 2 " in brought.describe(), "of the third token"
    verdict, moves, _ = await ask(work, brought, await opened_game(work, LAST), None)
    assert (verdict, moves) == (Verdict.FAULT, ["proveMalformed", "execute"])
    assert await world.stake(LAST) == 0


async def test_other_bytes_than_the_signed_ones_are_no_answer(world: World, tmp_path: Path) -> None:
    work = await world.work(SPANS, prompts(GREEDY))
    brought = await inquest(work, "out")
    store = MinerStore(tmp_path / "miner.sqlite")
    width = work.width(STAGE, "out")
    rows = work.rows[STAGE, "in", 0], bytes(len(work.rows[STAGE, "out", 0]))
    kept = [KeptRows(width, data) for data in rows]
    store.put_leaf(work.job.order_hash, work.job.plan_hash, work.leaf(STAGE, 0), kept[0], kept[1])
    verdict, moves, answers = await ask(work, brought, await opened_game(work), store, Phase.ASKED)
    assert (verdict, moves[:2], answers) == (Verdict.FAULT, ["ask", "timeout"], [])
    store.close()


async def test_rows_that_come_after_a_question_are_accused_with(
    world: World, tmp_path: Path
) -> None:
    """The stage lies and withholds.

    Asked, it shows parts, and then hands over its rows: the accusation follows in the same game.
    """
    from client.disputes.prosecution import Accusation
    from tests.game.test_dispute_of_a_real_model import accusation_of_deviation

    def bend(stage: int, request: int, first: int, x: Any) -> Any:
        return x * 1.01 if stage == STAGE else x

    work = await world.work(SPANS, prompts(GREEDY), bend=bend)
    opened = await opened_game(work)

    async def accuse() -> Accusation:
        return await accusation_of_deviation(work, STAGE, opened)

    brought = await inquest(work, "out")
    assert brought is not None
    store = work.keep(STAGE, MinerStore(tmp_path / "miner.sqlite"))
    verdict, moves, answers = await ask(work, brought.then(accuse), opened, store, Phase.PICKING)
    assert (moves[:2], answers) == (["ask", "accuse"], ["reveal"])
    assert verdict == Verdict.FAULT
    store.close()


async def test_a_row_that_is_no_number_convicts_by_itself(world: World) -> None:
    def sign(stage: int, request: int, first: int, x: Any) -> Any:
        if stage == STAGE and first <= 25 < first + len(x):
            x = x.clone()
            x[25 - first, 3] = float("nan")
        return x

    work = await world.work(SPANS, prompts(GREEDY), sign=sign)
    brought = await inquest(work)
    assert brought is not None and "row 25 " in brought.describe()
    verdict, moves, _ = await ask(work, brought, await opened_game(work), None)
    assert (verdict, moves) == (Verdict.FAULT, ["proveMalformed", "execute"])


async def test_rows_that_are_here_and_are_rows_need_no_question(world: World) -> None:
    work = await world.work(SPANS, prompts(GREEDY))
    assert await inquest(work) is None


def test_questions_name_different_parts_of_the_missing_side_alone() -> None:
    from tests.twins.game import toy
    from tests.twins.game.rows import check_asked

    program = toy.Toy.make(toy.LLAMA).program
    leaf = RequestLeaf(0, "0x" + "11" * 32, "0x" + "22" * 32, 5, 3)
    receipt = StageReceipt(
        *["0x" + "00" * 32] * 2,
        0,
        0,
        1,
        *["0x" + "00" * 32] * 4,
        requests=1,
        tokens_in=5,
        tokens_out=3,
        started_at=0,
        signed_at=1,
    )
    doubted = Doubted(SignedReceipt(receipt, "0x", [leaf]), program, leaf, LayerRange(0, 1))
    for seed in range(50):
        spots = doubted.spots([Boundary.OUT], random.Random(seed))
        assert len(set(spots)) == len(spots) <= 6
        check_asked(doubted.rows, spots)
        assert {spot.boundary for spot in spots} == {Boundary.OUT}
        both = doubted.spots([Boundary.IN, Boundary.OUT], random.Random(seed))
        check_asked(doubted.rows, both)


async def test_a_defence_that_is_restarted_goes_on_where_it_was(
    world: World, tmp_path: Path
) -> None:
    """Its rows lie in SQLite and its moves on chain.

    A new process with the same file makes the next move.
    """
    work = await world.work(SPANS, prompts(GREEDY))
    accusation, opened = await false_accusation(work, STAGE, Place(1, 4, 11, 0, 17), 0.5)
    work.keep(STAGE, MinerStore(tmp_path / "miner.sqlite")).close()
    moves, answers = list[Played](), list[str]()
    game = Prosecution(
        world.chain, world.requester, Hasty(LOOK_S), opened, accusation, moves.append
    )
    playing = asyncio.create_task(game.play())
    lives = 0
    async with asyncio.timeout(300):
        while not playing.done():
            lives += 1
            store, moved = MinerStore(tmp_path / "miner.sqlite"), asyncio.Event()
            miner = Defence(
                world.chain,
                world.operators[STAGE],
                world.owners[STAGE].address,
                store,
                world.model_dir,
                Hasty(LOOK_S),
                first_block=opened.block,
                on_move=lambda _, move, moved=moved: (answers.append(move), moved.set()),
            )
            waiting = asyncio.create_task(moved.wait())
            await miner.look()
            # Woken before the next move can be sent, as that reads the chain first.
            await asyncio.wait([waiting, playing], return_when=asyncio.FIRST_COMPLETED)
            await miner.close()
            waiting.cancel()
            store.close()
        verdict = await playing
    seen = await read_game(world.chain, opened)
    assert (verdict, seen.phase) == (Verdict.NO_FAULT, Phase.EXECUTED)
    assert lives >= 3, f"every life makes one move: {answers}"
    assert seen.moves.count("PointedAt") == 1, answers
