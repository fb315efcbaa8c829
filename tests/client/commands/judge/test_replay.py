"""Honest answers follow from the model alone; one that any stage bent does not, whoever it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from client.audit.rerun import ShardSource
from client.commands.judge.replay import ReplayedRequest, replay
from core.dispute.judging.numerics import FP32
from core.protocol import wire
from core.protocol.errors import CheckFailed
from devnet.models.tiny_models import write_tiny_model
from tests.client.keepers import Keepers
from tests.client.pipeline_of_tiny_model import run_pipeline


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=6)


@pytest.fixture
async def honest(model_dir: Path) -> AsyncIterator[Keepers]:
    keepers = await asyncio.to_thread(run_pipeline, model_dir)
    yield await keepers.start()
    await keepers.close()


async def look(keepers: Keepers, model_dir: Path, **more: Any) -> list[ReplayedRequest]:
    leaves = keepers.receipts[2][0].leaves
    source = ShardSource(model_dir, FP32)
    return await replay(keepers.evidence(), source, leaves, keepers.shard_roots, **more)


async def test_honest_answers_follow_and_need_no_stages_rows(
    honest: Keepers, model_dir: Path
) -> None:
    for stage, side, index in list(honest.rows):
        if (stage, side) not in ((2, "out"), (2, "states")):  # of these the root alone is told
            del honest.rows[stage, side, index]
    seen: list[tuple[int, int]] = []
    found = await look(honest, model_dir, progress=lambda *at: seen.append(at))
    assert [r.request_index for r in found] == [0, 1]
    assert all(r.follows and r.tokens > 1 and r.largest <= r.allowed for r in found)
    assert seen[0] == (0, 6) and seen[-1] == (6, 6)
    asked = [message for _, message in honest.asked if isinstance(message, wire.FetchRows)]
    assert {message.side for message in asked} == {"out"}


async def test_answer_that_a_middle_stage_bent_does_not_follow(model_dir: Path) -> None:
    def spoil(stage: int, shard: Any) -> None:
        if stage == 1:
            with torch.no_grad():
                for parameter in shard.decoder_layers.parameters():
                    parameter.mul_(0.5)

    keepers = await asyncio.to_thread(run_pipeline, model_dir, spoil=spoil)
    await keepers.start()
    try:
        found = await look(keepers, model_dir)
    finally:
        await keepers.close()
    assert not any(r.follows for r in found)
    assert all(r.largest > 10 * r.allowed and r.behind for r in found)


async def test_tokens_that_the_model_has_not_are_no_answer(
    honest: Keepers, model_dir: Path
) -> None:
    data, width = honest.rows[2, "out", 0]
    honest.rows[2, "out", 0] = (data[:4] + b"\xff\xff\x00\x00" + data[8:], width)
    honest.sign_all()
    found = await look(honest, model_dir)
    assert [r.follows for r in found] == [False, True]
    assert found[0].reasons[0].startswith("token 65535 of a vocabulary of") and found[0].at == 1


async def test_our_own_weights_must_be_the_registered_ones(
    honest: Keepers, model_dir: Path
) -> None:
    honest.shard_roots[1] = "0x" + "ee" * 32
    with pytest.raises(CheckFailed, match="our copy of layers"):
        await look(honest, model_dir)
