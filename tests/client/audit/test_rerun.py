"""Honest float32 work is never at fault; a lie is, at the stage that told it, with the reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import client.audit.rerun as audit_module
from client.audit.evidence import tokens_in
from client.audit.investigation import describe_finding
from client.audit.rerun import (
    RequestFinding,
    ShardSource,
    StageFinding,
    audit_job,
    audit_stage,
)
from core.protocol import commit
from core.protocol.errors import CheckFailed
from devnet.faults import corrupt_layer
from devnet.models.tiny_models import write_tiny_model
from tests.client.keepers import Keepers
from tests.client.pipeline_of_tiny_model import (
    GREEDY,
    RICH,
    SAMPLED,
    batch_of_prompts,
    run_pipeline,
    shard_roots,
)
from tests.town.orders import SPANS

Work = Callable[..., Awaitable[Keepers]]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=6)


@pytest.fixture
def source(model_dir: Path) -> ShardSource:
    from core.dispute.judging.numerics import FP32

    return ShardSource(model_dir, FP32)


@pytest.fixture(params=["few", "many"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As where there are few rows, and as where there are so many that weights are laid out."""
    least = {"few": audit_module.PREPARED_FROM_ROWS, "many": 1}
    monkeypatch.setattr(audit_module, "PREPARED_FROM_ROWS", least[request.param])
    return str(request.param)


@pytest.fixture
async def work(model_dir: Path) -> AsyncIterator[Work]:
    """`await work(spoil=…)` runs the pipeline and lets it answer for what it did."""
    running: list[Keepers] = []

    async def start(**options: Any) -> Keepers:
        keepers = await asyncio.to_thread(run_pipeline, model_dir, **options)
        running.append(keepers)
        return await keepers.start()

    yield start
    for keepers in running:
        await keepers.close()


async def audit(keepers: Keepers, source: ShardSource, **more: Any) -> list[StageFinding]:
    leaves = [keepers.receipts[stage][0].leaves for stage in range(3)]
    return await audit_job(keepers.evidence(), source, leaves, keepers.shard_roots, **more)


async def audit_one(keepers: Keepers, source: ShardSource, stage: int) -> StageFinding:
    leaves = keepers.receipts[stage][0].leaves
    root = keepers.shard_roots[stage]
    return await audit_stage(keepers.evidence(), source, stage, leaves, root)


def guilty(findings: list[StageFinding]) -> list[int]:
    return [finding.stage for finding in findings if finding.at_fault]


def reasons(finding: StageFinding) -> str:
    return "; ".join(reason for request in finding.requests for reason in request.reasons)


async def test_honest_work_is_not_at_fault(work: Work, source: ShardSource, rows: str) -> None:
    keepers, seen = await work(), []
    findings = await audit(keepers, source, progress=lambda *at: seen.append(at))
    assert guilty(findings) == []
    for finding in findings:
        assert len(finding.requests) == 2
        assert finding.worst is not None
        assert finding.worst.ratio < finding.worst.limit / 3, "with room to spare"
        assert describe_finding(finding).verdict == "ok"
        assert describe_finding(finding).why == ""
        assert len(finding.digest()) == 32
    assert seen == [(stage, done, 2) for stage in range(3) for done in (0, 1, 2)]


@pytest.mark.parametrize("precheck", [False, True])
@pytest.mark.parametrize(("stage", "layer"), [(0, 0), (1, 3), (2, 5)])
async def test_other_weights_are_found_at_exactly_the_stage_that_has_them(
    work: Work, source: ShardSource, rows: str, stage: int, layer: int, precheck: bool
) -> None:
    """Of the last stage by its state rows: int8 in one layer changes none of these tokens."""

    def spoil(at: int, shard: Any) -> None:
        if at == stage:
            corrupt_layer(shard, layer)

    honest, keepers = await work(), await work(spoil=spoil)
    if stage == 2:
        assert keepers.rows[2, "out", 0] == honest.rows[2, "out", 0]
    findings = await audit(keepers, source, precheck=precheck)
    assert guilty(findings) == [stage]
    described = describe_finding(findings[stage])
    assert described.verdict == "FAULT"
    assert described.why
    assert described.first_divergent_step


async def test_another_prompt_is_the_first_stages_fault(work: Work, source: ShardSource) -> None:
    keepers = await work()
    ids, width = keepers.rows[0, "in", 0]
    keepers.rows[0, "in", 0] = (commit.token_bytes([66]) + ids[4:], width)
    keepers.sign_all()
    findings = await audit(keepers, source)
    assert guilty(findings) == [0]
    assert "ran on another prompt than the order's" in reasons(findings[0])


async def test_token_fed_beyond_the_vocabulary_is_a_fault(work: Work, source: ShardSource) -> None:
    keepers = await work()
    ids, width = keepers.rows[0, "in", 0]
    keepers.rows[0, "in", 0] = (ids[:-4] + commit.token_bytes([4_000_000_000]), width)
    keepers.sign_all()
    assert "fed token 4000000000 of 272" in reasons(await audit_one(keepers, source, 0))


def replace_token(keepers: Keepers, step: int, token: int, index: int = 0) -> None:
    ids, width = keepers.rows[2, "out", index]
    changed = ids[: 4 * step] + commit.token_bytes([token]) + ids[4 * step + 4 :]
    keepers.rows[2, "out", index] = (changed, width)
    keepers.sign_all()


@pytest.mark.parametrize("index", [0, 1], ids=["greedy", "sampled"])
async def test_wrong_token_is_the_last_stages_fault(
    work: Work, source: ShardSource, index: int
) -> None:
    keepers = await work()
    replace_token(keepers, 3, 9, index)
    findings = await audit(keepers, source)
    assert guilty(findings) == [2]
    request = findings[2].requests[index]
    assert request.at_fault
    assert request.first_divergent_step == 3
    assert "nat behind the best" in request.reasons[0]
    assert not findings[2].requests[1 - index].at_fault


async def test_every_parameter_is_followed_by_an_honest_stage_and_missed_in_one_that_leaves_it_out(
    work: Work, source: ShardSource
) -> None:
    honest = await work(samplings=(RICH, msgspec.structs.replace(RICH, temperature_micro=0)))
    assert guilty(await audit(honest, source)) == []
    left_out = {
        "temperature_micro": 1_600_000,
        "key_index": None,
        "first_step": 0,
        "repetition_penalty_micro": 10**6,
        "frequency_penalty_micro": 0,
        "logit_bias": (),
    }
    for name, value in left_out.items():
        sloppy = msgspec.structs.replace(RICH, **{name: value})
        keepers = await work(samplings=(sloppy, sloppy))
        committed = batch_of_prompts((RICH, RICH))
        rows, roots = dict(keepers.rows), keepers.shard_roots
        lying = Keepers(committed, SPANS, shard_roots=roots)
        lying.rows.update(rows)
        lying.sign_all()
        finding = await audit_one(await lying.start(), source, 2)
        await lying.close()
        assert finding.at_fault, name


async def test_an_answer_that_goes_past_a_stop_string_is_a_fault(
    work: Work, source: ShardSource
) -> None:
    plain = await work()
    tokens = tokens_in(plain.rows[2, "out", 0][0])
    text = source.tokenizer.decode(tokens[1:3]).encode()
    stopping = msgspec.structs.replace(GREEDY, stop=(text,))
    honest = await work(samplings=(stopping, SAMPLED))
    assert tokens_in(honest.rows[2, "out", 0][0]) == tokens[:3]
    assert guilty(await audit(honest, source)) == []
    lying = Keepers(batch_of_prompts((stopping, SAMPLED)), SPANS, shard_roots=plain.shard_roots)
    lying.rows.update(plain.rows)
    lying.sign_all()
    finding = await audit_one(await lying.start(), source, 2)
    await lying.close()
    assert "went on after a stop string at step 2" in reasons(finding)


async def test_an_answer_that_leaves_its_grammar_is_a_fault(
    work: Work, source: ShardSource
) -> None:
    schema = '{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 9}'
    plain = msgspec.structs.replace(SAMPLED, max_new_tokens=24)
    formed = msgspec.structs.replace(plain, grammar=schema)
    honest = await work(samplings=(formed, formed))
    answer = tokens_in(honest.rows[2, "out", 0][0])
    assert json.loads(source.tokenizer.decode(answer[:-1])) is not None
    assert guilty(await audit(honest, source)) == []
    lax = await work(samplings=(plain, formed))
    lying = Keepers(batch_of_prompts((formed, formed)), SPANS, shard_roots=lax.shard_roots)
    lying.rows.update(lax.rows)
    lying.sign_all()
    finding = await audit_one(await lying.start(), source, 2)
    await lying.close()
    assert "inf nat behind the best" in reasons(finding)
    assert finding.requests[0].first_divergent_step == 0
    assert not finding.requests[1].at_fault


async def test_token_beyond_the_vocabulary_is_a_fault(work: Work, source: ShardSource) -> None:
    keepers = await work()
    replace_token(keepers, 2, 272)
    finding = await audit_one(keepers, source, 2)
    assert reasons(finding) == "token 272 at step 2, the vocabulary has 272"
    assert finding.requests[0].first_divergent_step == 2


async def test_going_on_after_the_end_of_text_is_a_fault(work: Work, source: ShardSource) -> None:
    keepers = await work()
    second = int.from_bytes(keepers.rows[2, "out", 0][0][4:8], "little")
    source.eos_ids = frozenset({second})  # type: ignore[misc]
    assert "went on after the end-of-text token" in reasons(await audit_one(keepers, source, 2))


async def test_an_answer_that_the_requester_cut_convicts_nobody(
    work: Work, source: ShardSource
) -> None:
    keepers = await work()
    for place, (data, width) in list(keepers.rows.items()):
        if place[2] == 0:
            keepers.rows[place] = (data[: -2 * width], width)  # two tokens fewer
    keepers.sign_all()
    assert guilty(await audit(keepers, source)) == []


@pytest.mark.parametrize("precheck", [False, True])
@pytest.mark.parametrize(("stage", "tolerance"), [(1, 3e-5), (2, 1e-5)])
async def test_work_within_the_tolerance_that_stands_out_of_honest_noise_is_suspicious(
    work: Work, source: ShardSource, rows: str, precheck: bool, stage: int, tolerance: float
) -> None:
    keepers = await work()
    places: list[Any] = [(1, "out", 0), (2, "in", 0)] if stage == 1 else [(2, "states", 0)]
    data, width = keepers.rows[places[0]]
    rows = np.frombuffer(data, "<f4").copy()
    rows *= 1 + 0.7 * tolerance * np.random.default_rng(1).normal(size=rows.shape).astype("<f4")
    for place in places:
        keepers.rows[place] = (rows.tobytes(), width)
    keepers.sign_all()
    findings = await audit(keepers, source, precheck=precheck)
    assert guilty(findings) == []
    assert [bool(finding.suspicion) for finding in findings] == [at == stage for at in range(3)]
    assert "times the noise of an honest machine" in findings[stage].suspicion
    described = describe_finding(findings[stage])
    assert (described.verdict, described.why) == ("suspicious", findings[stage].suspicion)


def blur(shard: Any, layer: int) -> None:
    """Every weight off by a hundredth of itself, at random."""
    import torch

    made = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in shard.decoder_layers[layer - shard.layers.start].parameters():
            noise = torch.randn(parameter.shape, generator=made)
            parameter.mul_((1 + 1e-2 * noise).to(parameter.dtype))


@pytest.mark.parametrize("precheck", [False, True])
@pytest.mark.parametrize("liar", [1, 2])
async def test_in_bfloat16_other_weights_hide_in_the_tolerance_and_not_in_the_noise(
    work: Work, model_dir: Path, rows: str, precheck: bool, liar: int
) -> None:
    """In int8; in the last stage, with one layer and six rows, weights are off by a hundredth."""
    from core.dispute.judging.numerics import BF16

    def spoil(stage: int, shard: Any) -> None:
        for layer in range(shard.layers.start, shard.layers.end) if stage == liar else ():
            (corrupt_layer if liar == 1 else blur)(shard, layer)

    source = ShardSource(model_dir, BF16)
    honest = await audit(await work(numerics="bfloat16"), source, precheck=precheck)
    assert [(f.at_fault, f.suspicion) for f in honest] == [(False, "")] * 3
    findings = await audit(await work(numerics="bfloat16", spoil=spoil), source, precheck=precheck)
    assert guilty(findings) == [], "T must hold for every kind of machine"
    assert [bool(f.suspicion) for f in findings] == [stage == liar for stage in range(3)]


async def test_row_that_is_not_finite_is_its_makers_fault_alone(
    work: Work, source: ShardSource
) -> None:
    keepers = await work()
    data, width = keepers.rows[1, "out", 0]
    rows = np.frombuffer(data, "<f4").reshape(-1, width // 4).copy()
    rows[5, 7] = np.nan
    keepers.rows[1, "out", 0] = keepers.rows[2, "in", 0] = (rows.tobytes(), width)
    keepers.sign_all()
    findings = await audit(keepers, source)
    assert guilty(findings) == [1]
    assert "row 5 is not finite" in reasons(findings[1])
    assert findings[1].requests[0].first_divergent_step == 5


async def test_a_state_row_that_is_not_finite_is_the_last_stages_fault(
    work: Work, source: ShardSource
) -> None:
    keepers = await work()
    data, width = keepers.rows[2, "states", 0]
    rows = np.frombuffer(data, "<f4").reshape(-1, width // 4).copy()
    rows[4, 7] = np.inf
    keepers.rows[2, "states", 0] = (rows.tobytes(), width)
    keepers.sign_all()
    finding = await audit_one(keepers, source, 2)
    assert "row 4 is not finite" in reasons(finding)
    assert finding.requests[0].first_divergent_step == 4
    assert not finding.requests[1].at_fault


async def test_a_last_stage_that_keeps_its_state_rows_to_itself_is_at_fault(
    work: Work, source: ShardSource
) -> None:
    keepers = await work()
    del keepers.rows[2, "states", 1]
    finding = await audit_one(keepers, source, 2)
    assert finding.at_fault
    assert "rows of request 1 at stage 2" in finding.withheld


@pytest.mark.parametrize(
    ("stage", "side", "reason"),
    [
        (1, "in", "28 input rows for 29 positions"),
        (1, "out", "28 output rows for 29 due"),
        (0, "in", "28 input rows for 29 positions"),
        (0, "out", "28 output rows for 29 due"),
        (2, "in", "28 input rows for 29 positions"),
        (2, "states", "5 state rows for 6 due"),
    ],
)
async def test_wrong_number_of_rows_is_a_fault(
    work: Work, source: ShardSource, stage: int, side: str, reason: str
) -> None:
    keepers = await work()
    data, width = keepers.rows[stage, side, 0]
    keepers.rows[stage, side, 0] = (data[:-width], width)
    keepers.sign_all()
    finding = await audit_one(keepers, source, stage)
    assert finding.at_fault
    assert reason in reasons(finding)


@pytest.mark.parametrize(
    ("stage", "changes", "reason"),
    [
        (1, {"tokens_in": 0}, "signed for 0 prompt and 6 produced tokens"),
        (1, {"tokens_out": 0}, "signed for 24 prompt and 0 produced tokens"),
        (1, {"tokens_in": 507}, "507 + 6 tokens exceed the context of 512"),
        (1, {"tokens_in": 2**32 - 1, "tokens_out": 2**32 - 1}, "exceed the context of 512"),
        (0, {"tokens_in": 23, "tokens_out": 7}, "counted 23 prompt tokens, the order has 24"),
        (2, {"tokens_out": 7}, "29 input rows for 30 positions"),
    ],
)
async def test_impossible_counts_are_a_fault(
    work: Work, source: ShardSource, stage: int, changes: dict[str, int], reason: str
) -> None:
    keepers = await work()
    (signed,) = keepers.receipts[stage]
    leaf = msgspec.structs.replace(signed.leaves[0], **changes)
    finding = await audit_stage(
        keepers.evidence(), source, stage, [leaf], keepers.shard_roots[stage]
    )
    assert reason in reasons(finding)
    assert finding.at_fault


async def test_stage_whose_rows_nobody_hands_over_is_at_fault(
    work: Work, source: ShardSource
) -> None:
    keepers = await work()
    keepers.refuse(0, 1, 2)
    finding = await audit_one(keepers, source, 1)
    assert finding.at_fault
    assert "are missing" in finding.withheld
    assert describe_finding(finding).why == finding.withheld


async def test_our_own_weights_must_be_the_registered_ones(work: Work, source: ShardSource) -> None:
    keepers = await work()
    with pytest.raises(CheckFailed, match="our copy of layers 2-4 is not the registered model"):
        await audit_stage(keepers.evidence(), source, 1, [], "0x" + "ee" * 32)


def test_shard_roots_of_the_source_are_the_manifests(model_dir: Path, source: ShardSource) -> None:
    from core.protocol.types import Stage

    place = Stage("0x" + "00" * 20, 2, 5)
    assert source.shard_root(place) == shard_roots(model_dir)[1]
    assert source.eos_ids == {258}


def test_a_fault_outweighs_larger_numbers_in_the_worst_request() -> None:
    loud = RequestFinding(0, False, (), 0.9, 1.0, None)
    fault = RequestFinding(1, True, ("ran on another prompt",), 0.1, 1.0, None)
    finding = StageFinding(0, "0x", (0, 2), (loud, fault))
    assert finding.worst is fault
    assert describe_finding(finding).why == "ran on another prompt"
