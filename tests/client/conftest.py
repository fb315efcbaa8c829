"""Scripted stages that are stopped when the test ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.town.stages import Stages

MakeStages = Callable[..., Awaitable[Stages]]


@pytest.fixture
async def make_stages() -> AsyncIterator[MakeStages]:
    """`await make_stages(first_key)` starts three stages of a pipeline."""
    running: list[Stages] = []

    async def make(first_key: int = 100) -> Stages:
        stages = await Stages(first_key).start()
        running.append(stages)
        return stages

    yield make
    for stages in running:
        await stages.close()


@pytest.fixture
async def stages(make_stages: MakeStages) -> Stages:
    return await make_stages()
