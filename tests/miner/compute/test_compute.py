"""Many requests share the thread's passes, and each gets the answer that it would have got
alone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.batching.chunks import CHUNK_TOKENS
from core.engine.model.blocks import ModelShard
from core.engine.sampling.sampling import Sampler
from core.engine.weights.load_shard import load_shard
from core.protocol.errors import CheckFailed, HeadraceError, UsageError
from core.protocol.types import LayerRange, SamplingParams
from miner.compute.compute import Compute, Key, RequestSpec
from miner.compute.stepper import Stepped
from tests.town.machines import all_free

Make = Callable[..., Awaitable[Compute]]
HIDDEN, LAYERS = 64, 4


class Steps:
    """What `on_step` heard: (decode steps, prompt steps) of each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def __call__(self, done: Stepped, prompts: int) -> None:
        self.batches.append((len(done.ran) - prompts, prompts))


@pytest.fixture
async def make(model_dir: Path) -> AsyncIterator[Make]:
    made: list[Compute] = []

    async def run(layers: tuple[int, int] = (0, LAYERS), **options: Any) -> Compute:
        steps = Steps()
        compute = Compute(on_step=steps)
        made.append(compute)
        compute.steps_seen = steps  # type: ignore[attr-defined]
        model = options.pop("model", model_dir)
        await compute.load(lambda: load_shard(model, LayerRange(*layers)), **options)
        return compute

    yield run
    for compute in made:
        compute.close()


def seen(compute: Compute) -> Steps:
    return compute.steps_seen  # type: ignore[attr-defined,no-any-return]


def prompt_of(number: int) -> list[int]:
    return [(number * 7 + at) % 250 for at in range(3 + number % 5)]


async def answer(
    compute: Compute,
    key: Key,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    ring: str = "",
) -> list[int]:
    """A whole request of a whole model, as a run feeds it."""
    sampler = Sampler(params, key[1], prompt)
    tokens: list[int] = []
    for start in range(0, len(prompt), CHUNK_TOKENS):
        fed = list(prompt[start : start + CHUNK_TOKENS])
        if start + CHUNK_TOKENS < len(prompt):
            await compute.feed(RequestSpec(key, most_rows=len(prompt) + params.max_new_tokens), fed)
    while len(tokens) < params.max_new_tokens:
        most = len(prompt) + params.max_new_tokens
        token = (
            await compute.token(RequestSpec(key, most_rows=most, ring=ring), fed, sampler)
        ).choice.token
        compute.heard(key, None, is_last=len(tokens) + 1 == params.max_new_tokens)
        sampler.take(token)
        tokens.append(token)
        fed = [token]
    await compute.drop(key)
    return tokens


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count)


def sampled(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature_micro=900_000, top_k=40, seed=11)


async def test_requests_that_share_steps_get_the_answers_they_get_alone(make: Make) -> None:
    compute = await make()
    params = [greedy(12) if number % 2 else sampled(12) for number in range(24)]
    jobs = [
        answer(compute, (f"job{n % 3}", n), prompt_of(n), params[n], ring="here") for n in range(24)
    ]
    together = await asyncio.gather(*jobs)
    sizes = [decodes for decodes, _ in seen(compute).batches]
    assert max(sizes) == 24, "all of them in one pass"
    assert sum(sizes) == 24 * 11
    for n in range(24):
        assert together[n] == await answer(compute, ("alone", n), prompt_of(n), params[n])
    assert compute.kv_tokens == 0


async def test_a_long_prompt_does_not_hold_back_those_who_decode(make: Make) -> None:
    compute = await make()
    short = asyncio.create_task(answer(compute, ("a", 0), [1, 2, 3], greedy(24)))
    while not seen(compute).batches:
        await asyncio.sleep(0.001)
    long_prompt = [(5 * at) % 250 for at in range(480)]
    long = asyncio.create_task(answer(compute, ("b", 1), long_prompt, greedy(2)))
    await asyncio.gather(short, long)
    batches = seen(compute).batches[1:]
    chunks = [at for at, (_, prompts) in enumerate(batches) if prompts]
    assert len(chunks) == 4
    for before, after in pairwise(chunks):
        assert any(decodes for decodes, _ in batches[before + 1 : after + 1]), batches
    assert await short == await answer(compute, ("c", 0), [1, 2, 3], greedy(24))


async def test_stages_in_a_row_give_the_whole_models_answer(make: Make) -> None:
    whole, head, tail = await make(), await make((0, 2)), await make((2, 4))

    async def piped(n: int) -> list[int]:
        prompt, sampler, tokens = prompt_of(n), Sampler(greedy(8), n), []
        fed = prompt
        for step in range(8):
            trace: list[int] = []
            rows = await head.rows(RequestSpec(("job", n), ring="ring"), fed, trace=trace)
            if trace:
                assert trace[0] > 0
            behind = list(trace)
            token = (
                await tail.token(RequestSpec(("job", n)), rows, sampler, trace=behind)
            ).choice.token
            assert len(behind) == 2 * len(trace)
            head.heard(("job", n), behind, is_last=step == 7)
            sampler.take(token)
            tokens.append(token)
            fed = [token]
        await asyncio.gather(head.drop(("job", n)), tail.drop(("job", n)))
        return tokens

    found = await asyncio.gather(*(piped(n) for n in range(12)))
    for n in range(12):
        assert found[n] == await answer(whole, ("w", n), prompt_of(n), greedy(8))
    (choice, latency_s) = head.pace.rings()["ring"]
    assert choice.tickets >= 1
    assert latency_s > 0, "traces came home"
    metrics = head.metrics()
    assert metrics.microbatches == choice.tickets
    assert 0 < metrics.bubble_share < 1


async def test_a_first_stage_keeps_no_more_tickets_under_way_than_chosen(make: Make) -> None:
    head = await make((0, 2))
    for n in range(8):
        await head.rows(RequestSpec(("job", n), ring="ring"), prompt_of(n))
    waiting = [
        asyncio.create_task(head.rows(RequestSpec(("job", n), ring="ring"), [5])) for n in range(8)
    ]
    while sum(task.done() for task in waiting) < 8:
        await asyncio.sleep(0.005)
        if seen(head).batches[-2:] == [(4, 0), (4, 0)]:
            break
    assert seen(head).batches[-2:] == [(4, 0), (4, 0)], "two tickets while nothing is measured"
    more = [
        asyncio.create_task(head.rows(RequestSpec(("job", n), ring="ring"), [5])) for n in range(4)
    ]
    await asyncio.gather(*more)
    assert seen(head).batches[-1] == (4, 0)


async def test_without_room_requests_wait_and_nobody_fails(make: Make) -> None:
    compute = await make(kv_bytes=160_000)
    fits = compute.kv_capacity_tokens // 48
    assert 1 <= fits <= 6
    waited = 0

    async def watch() -> None:
        nonlocal waited
        while True:
            waited = max(waited, compute.waiting_requests)
            assert compute.kv_tokens <= compute.kv_capacity_tokens
            await asyncio.sleep(0.001)

    watcher = asyncio.create_task(watch())
    count = 4 * fits
    answers = await asyncio.gather(
        *(answer(compute, (f"job{n % 2}", n), prompt_of(n), greedy(40)) for n in range(count))
    )
    watcher.cancel()
    assert waited >= count - fits - 1
    assert max(decodes for decodes, _ in seen(compute).batches) <= fits
    assert answers[0] == await answer(compute, ("alone", 0), prompt_of(0), greedy(40))
    assert (compute.kv_tokens, compute.kv_free_tokens) == (0, compute.kv_capacity_tokens)


async def test_a_request_that_can_never_fit_is_refused_at_once(make: Make) -> None:
    compute = await make(kv_bytes=160_000)
    longest = compute.longest_request(512)
    assert 0 < longest < 512
    with pytest.raises(UsageError, match="does not fit"):
        await compute.feed(RequestSpec(("job", 0), most_rows=longest + 16), [1, 2, 3])
    await compute.drop(("job", 0))
    await compute.feed(RequestSpec(("job", 1), most_rows=longest), [1, 2, 3])
    with pytest.raises(CheckFailed, match="more rows than were announced"):
        await compute.feed(
            RequestSpec(("job", 1), most_rows=longest), [1] * 100, first=longest - 50
        )
    await compute.drop(("job", 1))


async def test_jobs_share_what_little_room_there_is(make: Make) -> None:
    compute = await make(kv_bytes=160_000)
    order: list[str] = []

    async def one(job: str, n: int) -> None:
        await answer(compute, (job, n), prompt_of(n), greedy(40))
        order.append(job)

    many = [one("many", n) for n in range(16)]
    few = [one("few", n) for n in range(2)]
    await asyncio.gather(*many, *few)
    last_of_few = max(at for at, job in enumerate(order) if job == "few")
    assert last_of_few < 9, "the small job was not left until the large one was done"


async def test_a_storm_of_cancellations_leaves_every_page_free(make: Make) -> None:
    compute = await make(kv_bytes=400_000)
    chance = random.Random(5)

    async def one(n: int) -> None:
        task = asyncio.create_task(answer(compute, ("job", n), prompt_of(n), greedy(30)))
        await asyncio.sleep(chance.random() * 0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await compute.drop(("job", n))
        assert not compute.is_waiting(("job", n))

    for _ in range(4):
        await asyncio.gather(*(one(n) for n in range(60)))
        await all_free(compute)
        assert (compute.kv_tokens, compute.waiting_requests) == (0, 0)
        assert compute.kv_free_tokens == compute.kv_capacity_tokens
    assert await answer(compute, ("after", 1), prompt_of(1), greedy(5))


async def test_a_drop_frees_pages_within_the_running_step(make: Make) -> None:
    compute = await make()
    await compute.feed(RequestSpec(("job", 0)), list(range(100)))
    step = asyncio.create_task(compute.feed(RequestSpec(("job", 0)), list(range(100))))
    await asyncio.sleep(0)
    await compute.drop(("job", 0))
    assert compute.kv_tokens == 0
    with pytest.raises(asyncio.CancelledError):
        await step


async def test_bad_rows_of_one_request_spoil_no_other(make: Make) -> None:
    tail = await make((2, 4))
    good = np.random.default_rng(1).standard_normal((3, HIDDEN)).astype("<f4").tobytes()
    bad = np.full((3, HIDDEN), np.nan, "<f4").tobytes()
    huge = np.full((3, HIDDEN), 1e30, "<f4").tobytes()
    sampler = Sampler(greedy(4), 0)
    results = await asyncio.gather(
        tail.token(RequestSpec(("job", 0)), good, sampler),
        tail.token(RequestSpec(("job", 1)), bad, sampler),
        tail.token(RequestSpec(("job", 2)), huge, sampler),
        tail.token(RequestSpec(("job", 3)), good, sampler),
        return_exceptions=True,
    )
    assert seen(tail).batches == [(0, 4)] or len(seen(tail).batches) == 1
    assert results[0] == results[3]
    for wrong in results[1:3]:
        assert isinstance(wrong, CheckFailed)
        assert "activations are refused" in str(wrong)
    with pytest.raises(CheckFailed, match="not whole rows"):
        await tail.feed(RequestSpec(("job", 0)), good[:-1])
    with pytest.raises(CheckFailed, match="rows is refused"):
        await tail.feed(RequestSpec(("job", 0)), good * 200)


async def test_a_library_that_breaks_fails_the_batch_and_not_the_thread(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = await make()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a kernel is missing")

    assert compute._engine is not None
    monkeypatch.setattr(compute._engine, "step", broken)
    with pytest.raises(RuntimeError, match="a kernel is missing"):
        await compute.feed(RequestSpec(("job", 0)), [1, 2])
    monkeypatch.undo()
    await compute.drop(("job", 0))
    assert await answer(compute, ("job", 1), [1, 2], greedy(2))


async def test_a_continued_request_gets_the_bits_it_would_have_had(make: Make) -> None:
    head = await make((0, 2))
    prompt, decoded = prompt_of(3), [9, 8, 7, 6]
    first = await head.rows(RequestSpec(("old", 0)), prompt)
    later = [await head.rows(RequestSpec(("old", 0)), [token]) for token in decoded]
    assert await head.carry(("unknown", 0), ("x", 0), 4) == 0
    kept = await head.carry(("old", 0), ("new", 5), len(prompt) + 2)
    assert kept == len(prompt) + 2
    again = await head.rows(RequestSpec(("new", 5)), decoded[2:], first=kept, as_decodes=True)
    assert again == b"".join(later[2:])
    assert await head.carry(("new", 5), ("new", 5), 0) == 0
    assert await head.rows(RequestSpec(("new", 5)), prompt, first=0) == first
    redone = await head.rows(RequestSpec(("new", 5)), decoded, as_decodes=True)
    assert redone == b"".join(later)
    await head.drop(("old", 0))
    assert head.kv_tokens > 0, "the old name is nobody's now"
    await head.drop(("new", 5))
    assert head.kv_tokens == 0


async def test_unloading_frees_everything_and_a_new_shard_serves(
    make: Make, model_dir: Path
) -> None:
    compute = await make()
    await compute.feed(RequestSpec(("job", 0)), [1, 2])
    await compute.unload()
    assert (compute.kv_tokens, compute.kv_capacity_tokens, compute.tau_ms_per_layer) == (0, 0, 0.0)
    await compute.drop(("job", 0))
    await compute.load(lambda: load_shard(model_dir, LayerRange(0, 2)))
    assert len(await compute.rows(RequestSpec(("job", 0)), [1, 2])) == 2 * HIDDEN * 4

    def refuse(_: Any) -> int:
        raise UsageError("no room")

    with pytest.raises(UsageError):
        await compute.load(lambda: load_shard(model_dir, LayerRange(0, 2)), kv_bytes=refuse)


async def test_measuring_fills_the_curve_and_leaves_nothing(make: Make) -> None:
    compute = await make((1, 3))
    tau_ms = await compute.measure()
    assert tau_ms > 0
    assert set(compute.metrics().tau_ms_by_rows) == {1, 4, 16}
    assert compute.kv_tokens == 0
    teraflops, gigabytes_s = await compute.benchmark()
    assert teraflops > 0
    assert gigabytes_s > 0


async def test_layers_that_share_no_pages_serve_all_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.engine.batch.compat import CompatEngine
    from core.engine.model import attention

    true = attention.chunk_rows
    monkeypatch.setattr("core.engine.batch.learned_layout.chunk_rows", lambda *a: true(*a) * 1.5)
    compute = await make(kv_bytes=2**22)
    assert isinstance(compute._engine, CompatEngine)
    together = await asyncio.gather(
        *(answer(compute, ("job", n), prompt_of(n), greedy(6)) for n in range(5))
    )
    assert together[3] == await answer(compute, ("alone", 3), prompt_of(3), greedy(6))
    assert compute.kv_tokens == 0
    assert compute.kv_free_tokens == compute.kv_capacity_tokens > 0


async def test_who_brings_more_than_can_be_run_is_asked_to_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miner.compute.compute.MAX_WAITING_ROWS", 600)
    compute = await make()
    work = [
        asyncio.create_task(compute.feed(RequestSpec(("job", n)), [1] * 100)) for n in range(40)
    ]
    await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    room = asyncio.create_task(compute.wait_for_room())
    await asyncio.sleep(0)
    assert not room.done()
    await asyncio.wait_for(room, 20)
    await asyncio.gather(*work)


async def test_memory_stays_flat_over_thousands_of_requests(make: Make) -> None:
    compute = await make((0, 1))

    async def some(start: int, count: int) -> None:
        async def one(n: int) -> None:
            key = (f"job{n % 7}", n)
            for fed in ([1, 2, 3], [4], [5]):
                await compute.rows(RequestSpec(key, ring="r", most_rows=8), fed)
                compute.heard(key, None)
            await compute.drop(key)

        for at in range(start, start + count, 50):
            await asyncio.gather(*(one(n) for n in range(at, at + 50)))

    # What leaks does so every time; caches, and what other tests of this process left behind, come
    # and go.
    grown_objects, grown_bytes = [], []
    await some(0, 500)
    for start in (500, 1200, 1900, 2600):
        seen(compute).batches.clear()
        gc.collect()
        objects, held = len(gc.get_objects()), _resident_bytes()
        await some(start, 700)
        seen(compute).batches.clear()
        gc.collect()
        grown_objects.append(len(gc.get_objects()) - objects)
        grown_bytes.append(_resident_bytes() - held)
    assert min(grown_objects) < 350, "one for every second request"
    assert min(grown_bytes) < 4 * 2**20, "six KB a request"
    assert (compute.kv_tokens, len(compute._requests)) == (0, 0)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_errors_after_the_end_reach_nobody(make: Make) -> None:
    compute = await make()
    task = asyncio.create_task(compute.feed(RequestSpec(("job", 0)), [1, 2]))
    await asyncio.sleep(0)
    await compute.unload()
    with pytest.raises((HeadraceError, asyncio.CancelledError)):
        await asyncio.wait_for(task, 30)


class SumsOtherwise(torch.nn.Module):
    """A product whose last bits follow the number of rows, as those of some libraries do."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (1 + x.shape[-2] * 2**-20)


async def test_whether_other_rows_change_bits_is_tried_with_every_shard(
    model_dir: Path, make: Make
) -> None:
    def uneven() -> ModelShard:
        shard = load_shard(model_dir, LayerRange(0, LAYERS))
        mlp = shard.decoder_layers[-1].mlp
        mlp.down_proj = SumsOtherwise(mlp.down_proj)
        return shard

    compute = await make()
    assert compute.same_bits is True
    await compute.load(uneven)
    assert compute.same_bits is False
    assert len(await answer(compute, ("job", 0), prompt_of(1), greedy(3))) == 3, "it serves"
    await compute.unload()
    assert compute.same_bits is None
    await compute.load(lambda: load_shard(model_dir, LayerRange(0, LAYERS)), kv_bytes=9 * 2**12)
    assert compute.same_bits is False, "six requests never come together there"
