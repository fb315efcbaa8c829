"""Do two stages, their links and the peer answer alike, and is what they did recorded?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.engine.rig.rates import token_s
from benchmarks.engine.rig.rig import Load, Rig
from devnet.models.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), layers=4)


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with Rig(folder, [2], kv_bytes=2**24) as made:
        yield made


async def test_a_rig_answers_as_generate_does_records_its_steps_and_forgets_settled_jobs(
    rig: Rig,
) -> None:
    reference = await rig.generate(3, 8)
    ran = await rig.run(Load(2, requests=3, new_tokens=8))
    assert ran.tokens == reference.tokens * 2
    assert all(times == sorted(times) and len(times) == 8 for times in ran.times)
    rows = 2 * 3 * (18 + 7)  # the prompts, and every token but the last
    assert [sum(step.rows for step in steps) for steps in ran.steps] == [rows, rows]
    assert all(step.took_s > 0 and step.job.startswith("0x") for s in ran.steps for step in s)
    assert all({"hashing rows", "signing"} <= set(spent) for spent in ran.spent)

    far = await rig.run(Load(1, new_tokens=6), latency_ms=30)
    assert far.tokens == [reference.tokens[0][:6]]
    assert token_s(far.times[0]) >= 2 * 0.03

    client = await rig.client(Load(1, requests=2, new_tokens=4), rig.endpoints(None))
    outcome = await client.job.run()
    assert len(outcome.finished) == 2
    for stage in rig.stages:
        async with asyncio.timeout(30):  # the others' jobs go with their clients, at the next tick
            while (await stage.ask("memory"))["jobs"] != 1:
                await asyncio.sleep(0.05)
        await stage.ask("settle", jobs=[client.job_id])
        memory = await stage.ask("memory")
        assert memory["jobs"] == 0
        assert memory["kv_tokens"] == memory["active"] == 0 and memory["VmRSS"] > 0
        assert (await stage.ask("empty", within_s=1))["kv_tokens"] == 0
    await client.job.close()


async def test_a_rig_that_cannot_start_leaves_nothing_behind(folder: Path) -> None:
    rig = Rig(folder, [3], max_requests="many")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Expected `int`"):
        await rig.__aenter__()
    assert rig.stages == []
    assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
