"""Is a stage of many layers judged by its spans, each as shallow as any?

Here every layer is a span, and the stage in the middle has two of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client.audit.rerun import ShardSource, StageFinding, audit_stage
from client.disputes.charge import accusation, charge_of, inquest_of, would_convict
from client.disputes.inquest import proven_leaf
from client.disputes.prosecution import Accusation, open_game
from core.dispute.game.dispute import Phase, Verdict
from core.dispute.game.game_log import case_of
from core.dispute.judging.numerics import profile_of
from core.dispute.play.players import Accuser, with_trace
from core.dispute.play.prepare import traced
from core.dispute.trace import families
from core.dispute.trace.calls import claim_tuple
from core.dispute.trace.derive import Boundary
from core.dispute.trace.judge import Claim
from core.keys.signer import Signer
from core.protocol import commit, wire
from core.protocol.errors import ContractRefused
from core.protocol.types import LayerRange
from devnet.faults import corrupt_layer
from miner.records.store import MinerStore
from tests.game.test_dispute_of_a_real_model import GREEDY, SPANS, operators, play, prompts
from tests.game.test_withheld import Holders, ask
from tests.game.world import Work, World

pytestmark = [pytest.mark.chain, pytest.mark.timeout(900)]
STAGE = 1
DEEP_END = ((0, 1), (1, 2), (2, 4))


@pytest.fixture
async def deep(
    node: str, signers: list[Signer], model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(families, "SPAN_LAYERS", 1)
    made = await World.make(node, signers, model_dir)
    yield made
    await made.chain.close()


async def source_of(work: Work) -> ShardSource:
    ours = await operators(work)
    assert ours.program.span_layers == 1
    return ShardSource(work.world.model_dir, profile_of(ours.program), ours.program)


async def audited(work: Work, *withheld: wire.Side, stage: int = STAGE) -> StageFinding:
    source, signed = await source_of(work), work.receipts[stage]
    root = source.shard_root(work.job.plan[stage])
    holders = Holders(work, *withheld)
    return await audit_stage(holders, source, stage, signed.leaves, root, precheck=True)


@pytest.mark.parametrize(
    ("plan", "liar", "layer"),
    [(SPANS, 1, 1), (SPANS, 1, 2), (DEEP_END, 2, 2), (DEEP_END, 2, 3)],
    ids=["first of a middle stage", "second", "first of a last stage", "second of it"],
)
async def test_a_lie_in_one_span_costs_the_stake(
    deep: World, tmp_path: Path, plan: tuple[tuple[int, int], ...], liar: int, layer: int
) -> None:
    def spoil(stage: int, shard: Any) -> None:
        if stage == liar:
            corrupt_layer(shard, layer)

    work = await deep.work(plan, prompts(GREEDY), spoil=spoil)
    finding = await audited(work, stage=liar)
    assert finding.at_fault and finding.worst is not None
    assert finding.worst.layers == (layer, layer + 1), "and the other span is honest"
    assert finding.why.startswith(f"in layers {layer}-{layer}: ")
    source, signed = await source_of(work), work.receipts[liar]
    charge = await charge_of(Holders(work), source, signed, finding)
    assert (charge.claim.layer_from, charge.claim.layer_to) == (layer, layer + 1)
    assert await would_convict(source, charge)
    opened = await open_game(deep.chain, deep.requester, work.job, signed)
    brought = await accusation(deep.chain, source, opened, charge)
    verdict, moves, answers = await play(work, liar, brought, opened, tmp_path, is_guilty=True)
    assert (verdict, answers) == (Verdict.FAULT, [])
    assert [move.function for move in moves] == ["accuse", "timeout", "execute"]
    assert await deep.stake(liar) == 0


async def test_an_honest_stage_is_cleared_and_a_false_accusation_pays_it(
    deep: World, tmp_path: Path
) -> None:
    work = await deep.work(SPANS, prompts(GREEDY))
    finding = await audited(work)
    assert not finding.at_fault and not finding.why
    ours, signed = await operators(work), work.receipts[STAGE]
    leaf, inner = signed.leaves[0], signed.inner[0]
    claim = Claim(leaf.span(inner, 1), 2, 3, 20, 4, 3, b"")  # the second span, rows 4 to 19
    opened = await open_game(deep.chain, deep.requester, work.job, signed)
    case = await case_of(deep.chain, opened, claim)
    rows = work.rows[STAGE, "inner-0", 0], work.rows[STAGE, "out", 0]
    trace, sources = traced(case, ours.trace_model(deep.model_dir), *rows)
    player = Accuser(with_trace(case, trace), trace, sources)
    brought = Accusation(signed, player, inner=tuple(map(commit.unhex, inner)))
    verdict, _, answers = await play(work, STAGE, brought, opened, tmp_path)
    assert (verdict, answers[0]) == (Verdict.NO_FAULT, "point")
    won = await deep.chain.read("ToleranceGame", "creditOf", deep.owners[STAGE].address)
    assert won == opened.bond


async def test_an_accusation_of_other_rows_inside_is_refused(deep: World) -> None:
    """Neither another span's rows nor the whole stage's under a span's layers."""
    work = await deep.work(SPANS, prompts(GREEDY))
    signed = work.receipts[STAGE]
    leaf, inner = signed.leaves[0], signed.inner[0]
    opened = await open_game(deep.chain, deep.requester, work.job, signed)
    proven = proven_leaf(signed, leaf, tuple(map(commit.unhex, inner)))
    others = (leaf.span(inner, 0), (2, 3)), (leaf, (2, 3)), (leaf.span(inner, 1), (1, 3))
    for span, layers in others:
        claim = claim_tuple(Claim(span, *layers, 20, 4, 3, bytes(32)))
        args = opened.dispute, opened.model, signed.receipt, claim, proven, []
        with pytest.raises(ContractRefused) as refused:
            await deep.chain.transact(deep.requester, "ToleranceGame", "accuse", *args)
        assert refused.value.error == "SpanUnproven"


@pytest.mark.parametrize("holds", [False, True], ids=["nothing", "the roots"])
async def test_roots_inside_that_nobody_shows_are_asked_for(
    deep: World, tmp_path: Path, holds: bool
) -> None:
    work = await deep.work(SPANS, prompts(GREEDY))
    finding = await audited(work, "inner")
    assert finding.withheld and finding.at_fault
    source, signed = await source_of(work), work.receipts[STAGE]
    brought = await inquest_of(Holders(work, "inner"), source, signed, finding)
    assert brought is not None and brought.missing == [Boundary.INNER]
    opened = await open_game(deep.chain, deep.requester, work.job, signed)
    store = work.keep(STAGE, MinerStore(tmp_path / "miner.sqlite")) if holds else None
    silent = Phase.OPENED if holds else Phase.ASKED
    verdict, moves, answers = await ask(work, brought, opened, store, silent)
    if holds:
        assert (verdict, moves[:1], answers[:1]) == (Verdict.NO_FAULT, ["ask"], ["reveal"])
    else:
        assert (verdict, moves) == (Verdict.FAULT, ["ask", "timeout", "execute"])
    if store is not None:
        store.close()


@pytest.mark.parametrize("hidden", ["inner", "inner-0"])
async def test_who_hides_what_is_inside_is_judged_as_a_whole(
    deep: World, tmp_path: Path, hidden: str
) -> None:
    """By the rows that its neighbours have, as far as there is a tolerance for all its layers."""

    def spoil(stage: int, shard: Any) -> None:
        if stage == STAGE:
            corrupt_layer(shard, 2)

    work = await deep.work(SPANS, prompts(GREEDY), spoil=spoil)
    finding = await audited(work, hidden)
    assert finding.at_fault and not finding.withheld and finding.worst is not None
    assert finding.worst.layers is None
    source, signed = await source_of(work), work.receipts[STAGE]
    charge = await charge_of(Holders(work, hidden), source, signed, finding)
    assert (charge.claim.layer_from, charge.claim.layer_to, charge.inner) == (1, 3, ())
    assert await would_convict(source, charge)
    opened = await open_game(deep.chain, deep.requester, work.job, signed)
    brought = await accusation(deep.chain, source, opened, charge)
    verdict, *_ = await play(work, STAGE, brought, opened, tmp_path, is_guilty=True)
    assert verdict == Verdict.FAULT


async def test_a_row_inside_that_is_no_number_convicts_by_itself(deep: World) -> None:
    def inside(stage: int, request: int, first: int, x: Any) -> Any:
        if first <= 25 < first + len(x):
            x = x.clone()
            x[25 - first, 3] = float("nan")
        return x

    work = await deep.work(SPANS, prompts(GREEDY), inside=inside)
    source, signed = await source_of(work), work.receipts[STAGE]
    finding = StageFinding(STAGE, work.job.plan[STAGE].operator, SPANS[STAGE], withheld="rows")
    brought = await inquest_of(Holders(work), source, signed, finding)
    assert brought is not None and "row 25 " in brought.describe()
    assert brought.doubted.layers == LayerRange(1, 2), "of the first span"
    opened = await open_game(deep.chain, deep.requester, work.job, signed)
    verdict, moves, _ = await ask(work, brought, opened, None)
    assert (verdict, moves) == (Verdict.FAULT, ["proveMalformed", "execute"])
    assert await deep.stake(STAGE) == 0
