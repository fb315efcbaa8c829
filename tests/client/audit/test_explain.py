"""Layer by layer: honest work lies on the line of its own noise, a lie stands out at the stage that
told it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from client.audit.explain import bar, explain_stage, rows_of
from client.audit.programs import local_program
from client.audit.rerun import ShardSource
from core.dispute.judging.numerics import profile_of
from core.dispute.play.program import model_program
from core.dispute.trace.families import FP32_TOLERANCES
from core.protocol.errors import CheckFailed
from core.runtime.commands.results import plain
from devnet.faults import corrupt_layer
from devnet.models.tiny_models import write_tiny_model
from tests.client.keepers import Keepers
from tests.client.pipeline_of_tiny_model import run_pipeline

Work = Callable[..., Awaitable[Keepers]]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=6)


@pytest.fixture
def source(model_dir: Path) -> ShardSource:
    program = model_program(model_dir, FP32_TOLERANCES).program
    return ShardSource(model_dir, profile_of(program), program)


@pytest.fixture
async def work(model_dir: Path) -> AsyncIterator[Work]:
    running: list[Keepers] = []

    async def start(**options: Any) -> Keepers:
        keepers = await asyncio.to_thread(run_pipeline, model_dir, **options)
        running.append(keepers)
        return await keepers.start()

    yield start
    for keepers in running:
        await keepers.close()


async def test_a_lie_stands_out_of_the_line_of_noise(work: Work, source: ShardSource) -> None:
    def spoil(stage: int, shard: Any) -> None:
        if stage == 1:
            corrupt_layer(shard, 3)

    keepers = await work(spoil=spoil)
    for stage, is_guilty in ((0, False), (1, True), (2, False)):
        leaf = keepers.receipts[stage][0].leaves[0]
        found = await explain_stage(keepers.evidence(), source, stage, leaf)
        span = keepers.plan[stage]
        assert [line.layer for line in found.lines] == list(range(span.layer_from, span.layer_to))
        assert all(line.served is None for line in found.lines[:-1]), "only the boundary is signed"
        last = found.lines[-1]
        assert last.served is not None and last.tolerance is not None
        assert all(line.honest < line.tolerance / 10 for line in found.lines if line.tolerance)
        assert (last.served > last.tolerance) == is_guilty
        assert found.standing == ("suspicious" if is_guilty else "clean")
        table = plain(rows_of(found))
        assert len(table) == len(found.lines)
        assert table[-1]["studentised"].endswith(found.standing)


def test_the_scale_is_logarithmic() -> None:
    lengths = [len(bar(10.0**power)) for power in range(-9, 1)]
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(bar(3.0)) == len(bar(float("inf"))) == 36
    assert bar(0.0) == ""


def test_files_that_make_another_program_are_not_used(model_dir: Path, tmp_path: Path) -> None:
    registered = model_program(model_dir, FP32_TOLERANCES).program
    assert local_program(model_dir, registered).program == registered
    other = write_tiny_model(tmp_path / "other", "llama", layers=6, seed=1)
    with pytest.raises(CheckFailed, match="another operator program"):
        local_program(other, registered)
