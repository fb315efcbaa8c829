"""What prompts of one requester have in common is computed once, and nobody can tell by the
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.batching.chunks import CHUNK_TOKENS
from core.engine.memory.sizing import Offload
from core.engine.sampling.sampling import Sampler
from core.engine.weights.load_shard import load_shard
from core.protocol import signing
from core.protocol import types as t
from core.protocol.types import LayerRange
from miner.compute.compute import Compute, RequestSpec
from tests.miner.conftest import Start
from tests.miner.test_open_orders import Asker
from tests.miner.test_pipeline import check_receipts
from tests.town.chain import FakeChain
from tests.town.machines import greedy, reference
from tests.town.orders import key
from tests.town.requester import Requester

Make = Callable[..., Awaitable[Compute]]
LAYERS = 4
PAGE_BYTES = 2 * 16 * 2 * 16 * 4  # of the tiny model: keys and values, 2 heads of 16, float32
PROMPT = [(7 * at + at // 31) % 250 for at in range(300)]
ME, OTHER = "0xAB", "0xCD"


@pytest.fixture
async def make(model_dir: Path) -> AsyncIterator[Make]:
    made: list[Compute] = []

    async def run(layers: tuple[int, int] = (0, LAYERS), **options: Any) -> Compute:
        compute = Compute()
        made.append(compute)
        await compute.load(lambda: load_shard(model_dir, LayerRange(*layers)), **options)
        return compute

    yield run
    for compute in made:
        compute.close()


async def prefill(
    stages: Sequence[Compute], name: object, prompt: Sequence[int], owner: str = ME, **how: Any
) -> tuple[list[bytes], int]:
    """Feed a prompt as runs do; the rows that left all stages but the last, and the first token."""
    key, head, tail = ("job", name), stages[:-1], stages[-1]
    sampler, seen = Sampler(greedy(4), 0, prompt), list[bytes]()
    how = {"owner": owner, "most_rows": len(prompt) + 8} | how
    for start in range(0, len(prompt), CHUNK_TOKENS):
        x: Any = prompt[start : start + CHUNK_TOKENS]
        for stage in head:
            x = await stage.rows(RequestSpec(key, **how), x, first=start)
            seen.append(x)
        if start + CHUNK_TOKENS < len(prompt):
            await tail.feed(RequestSpec(key, **how), x, first=start)
    return seen, (await tail.token(RequestSpec(key, **how), x, sampler, first=start)).choice.token


async def drop(stages: Sequence[Compute], *names: object) -> None:
    for stage in stages:
        for name in names:
            await stage.drop(("job", name))


def computed(stages: Sequence[Compute]) -> list[int]:
    return [stage.stepped_rows for stage in stages]


def kept_bytes(stage: Compute) -> int:
    return stage.metrics().kv_bytes["kept"]


async def test_the_second_prompt_computes_only_what_is_new_with_the_same_bits(make: Make) -> None:
    stages = await make((0, 2)), await make((2, 4))
    plain = await make((0, 2), prefix_share=0), await make((2, 4), prefix_share=0)
    branch = [*PROMPT[:200], *PROMPT[:60]]
    whole = PROMPT[:256]  # the last chunk is whole, and a token is drawn from it
    plan = [
        (PROMPT, ME, [300, 300]),
        (PROMPT, ME.lower(), [44, 44]),
        (PROMPT, OTHER, [300, 300]),
        (PROMPT, "", [300, 300]),
        (branch, ME, [132, 132]),
        (whole, ME, [0, 128]),
        (PROMPT[1:], ME, [299, 299]),
    ]
    for number, (prompt, owner, rows) in enumerate(plan):
        before = computed(stages)
        found = await prefill(stages, number, prompt, owner)
        assert [now - then for now, then in zip(computed(stages), before, strict=True)] == rows
        assert found == await prefill(plain, number, prompt, owner)
    saved = [256 + 128 + 256, 256 + 128 + 128]
    assert [stage.metrics().prefix_tokens for stage in stages] == saved
    assert [stage.metrics().prefix_tokens for stage in plain] == [0, 0]
    for some in (stages, plain):
        await drop(some, *range(len(plan)))
    for stage in stages:
        assert (stage.kv_tokens, stage.kv_free_tokens) == (0, stage.kv_capacity_tokens)
        assert kept_bytes(stage) > 0
        assert sum(stage.metrics().kv_bytes.values()) == kept_bytes(stage)
    assert [kept_bytes(stage) for stage in plain] == [0, 0]


async def test_of_the_same_prompts_at_once_one_is_computed(make: Make) -> None:
    stages = await make((0, 2)), await make((2, 4))
    found = await asyncio.gather(*(prefill(stages, n, PROMPT) for n in range(5)))
    assert computed(stages) == [256 + 5 * 44] * 2
    assert all(one == found[0] for one in found)
    await drop(stages, *range(5))
    assert [stage.kv_tokens for stage in stages] == [0, 0]


async def test_chunks_that_wait_together_are_taken_one_after_the_other(make: Make) -> None:
    head = await make((0, 2))
    how = {"owner": ME, "most_rows": 300}

    async def all_at_once(name: int) -> list[bytes]:
        chunks = [PROMPT[:128], PROMPT[128:256], PROMPT[256:]]
        return await asyncio.gather(
            *(head.rows(RequestSpec(("job", name), **how), c) for c in chunks)
        )

    first = await all_at_once(0)
    assert await all_at_once(1) == first
    assert head.stepped_rows == 300 + 44


async def test_kept_prompts_take_no_room_from_requests(make: Make) -> None:
    """Of 48 blocks twelve may be kept; three requests of 16 blocks need them all."""
    compute = await make(kv_bytes=(48 * LAYERS + 1) * PAGE_BYTES)
    assert compute.kv_capacity_tokens == 48 * 16
    fresh = [[(3 * n + at) % 250 for at in range(240)] for n in range(6)]
    for n in range(3):
        await prefill([compute], n, fresh[n])
        await drop([compute], n)
    assert 0 < kept_bytes(compute) <= 12 * LAYERS * PAGE_BYTES
    waiting = [asyncio.create_task(prefill([compute], n, fresh[n])) for n in range(3, 6)]
    found = await asyncio.gather(*waiting)
    assert compute.kv_free_tokens == 0 and kept_bytes(compute) == 0, "all of it is in use"
    await drop([compute], 3, 4, 5)
    assert (compute.kv_tokens, compute.kv_free_tokens) == (0, 48 * 16)
    roomy = await make(prefix_share=0)
    assert found == [await prefill([roomy], n, fresh[n]) for n in range(3, 6)]


async def test_a_cancelled_request_spoils_nothing_that_it_shared(make: Make) -> None:
    stages = await make((0, 2)), await make((2, 4))
    expected = await prefill(stages, 0, PROMPT)
    running = [asyncio.create_task(prefill(stages, n, PROMPT)) for n in range(1, 5)]
    await asyncio.sleep(0)
    for n, task in zip(range(1, 4), running[:3], strict=True):
        await drop(stages, n)
        task.cancel()
    assert await running[3] == expected
    await drop(stages, 0, 4)
    assert await prefill(stages, 9, PROMPT) == expected
    await drop(stages, 9)
    assert [stage.kv_tokens for stage in stages] == [0, 0]


async def test_what_is_cut_back_and_fed_anew_shares_only_what_is_the_same(make: Make) -> None:
    head = await make((0, 2))
    await prefill([head, await make((2, 4))], 0, PROMPT)
    how = {"owner": ME, "most_rows": 400, "ring": "again"}
    other = [(at * at) % 250 for at in range(300)]
    rows = [
        await head.rows(RequestSpec(("job", 1), **how), PROMPT[at : at + 128]) for at in (0, 128)
    ]
    assert await head.carry(("job", 1), ("job", 2), 128 + 50, ring="again") == 178
    await head.rows(RequestSpec(("job", 2), **how), other[178:256], first=178)
    await head.rows(
        RequestSpec(("job", 2), **how), other[128:256], first=256
    )  # not after whole chunks
    assert await head.carry(("job", 2), ("job", 2), 128) == 128
    assert await head.rows(RequestSpec(("job", 2), **how), PROMPT[128:256], first=128) == rows[1]
    assert head.metrics().prefix_tokens == 3 * 128
    await drop([head], 0, 2)
    fresh = await prefill([head, await make((2, 4))], 5, PROMPT)
    assert fresh[0][:2] == rows, "what was cut back was shared, and has stayed as it was"


async def test_single_steps_are_neither_kept_nor_taken_for_a_chunk(make: Make) -> None:
    """What a continued answer feeds again has other bits than a chunk over the same tokens may
    have.
    """
    head = await make((0, 2))
    how = {"owner": ME, "most_rows": 200}
    single = await head.rows(RequestSpec(("job", 0), **how), PROMPT[:128], as_decodes=True)
    chunk = await head.rows(RequestSpec(("job", 1), **how), PROMPT[:128])
    assert await head.rows(RequestSpec(("job", 2), **how), PROMPT[:128], as_decodes=True) == single
    assert head.metrics().prefix_tokens == 0
    assert await head.rows(RequestSpec(("job", 3), **how), PROMPT[:128]) == chunk
    assert head.metrics().prefix_tokens == 128


async def test_parts_of_a_shard_are_kept_apart(make: Make) -> None:
    whole = await make()
    how = {"owner": ME, "most_rows": 200}
    rows = {
        layers: await whole.rows(
            RequestSpec(("job", layers), layers=LayerRange(*layers), **how), PROMPT[:128]
        )
        for layers in [(0, 2), (0, 3)]
    }
    assert rows[0, 2] != rows[0, 3] and whole.metrics().prefix_tokens == 0
    for layers, expected in rows.items():
        again = await whole.rows(
            RequestSpec(("b", layers), layers=LayerRange(*layers), **how), PROMPT[:128]
        )
        assert again == expected
    middle = {"layers": LayerRange(2, 3), **how}
    entered = await whole.rows(RequestSpec(("c", 0), **middle), rows[0, 2])
    assert entered == rows[0, 3] == await whole.rows(RequestSpec(("d", 0), **middle), rows[0, 2])
    assert whole.metrics().prefix_tokens == 3 * 128


async def test_prompts_are_shared_beside_a_second_tier(make: Make) -> None:
    """Three groups, each with room for two of these prompts, one of them in hot memory."""
    hot = Offload(3, 0.2), (400 + 1) * PAGE_BYTES
    roomy = await make(prefix_share=0)
    tight = await make(kv_bytes=hot[1], second=hot[0], prefix_share=0.9)
    expected = await prefill([roomy], 0, PROMPT)

    async def answer(compute: Compute, n: int) -> tuple[Any, list[int]]:
        found = await prefill([compute], n, PROMPT, most_rows=308)
        sampler, fed, tokens = Sampler(greedy(8), 0, PROMPT), found[1], list[int]()
        sampler.take(fed)
        for _ in range(6):
            choice = (await compute.token(RequestSpec(("job", n)), [fed], sampler)).choice
            sampler.take(fed := choice.token)
            tokens.append(fed)
        await compute.drop(("job", n))
        return found, tokens

    await drop([roomy], 0)
    alone = await answer(roomy, 1)
    assert alone[0] == expected
    found = await asyncio.gather(*(answer(tight, n) for n in range(10)))
    assert all(one == alone for one in found)
    metrics = tight.metrics()
    assert metrics.swapped_bytes > 0 and metrics.prefix_tokens >= 4 * 128
    assert (tight.kv_tokens, tight.kv_free_tokens) == (0, tight.kv_capacity_tokens)


async def test_a_session_pays_and_signs_for_remembered_prompts_as_for_others(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4))
    asker = Asker(key(50), chain, machines)
    asker.open_order(tokens_in=2000)
    await asker.begin()
    rows, new = [], 0
    for index in range(2):
        before = computed([machine.compute for machine in machines])
        await asker.acknowledge(300 * (index + 1), new * index)  # no credit holds this prompt
        await asker.ask(index, ids=tuple(PROMPT), new=5)
        await asker.finished([index])
        after = computed([machine.compute for machine in machines])
        rows.append([now - then for now, then in zip(after, before, strict=True)])
        assert asker.tokens[index] == reference(model_dir, PROMPT, greedy(5), 0)
        new = len(asker.tokens[index])
        await asker.acknowledge(300 * (index + 1), new * (index + 1))
    assert rows == [[300 + new - 1] * 2, [44 + new - 1] * 2]
    leaves = [
        [signed.leaves[0] for _, signed in sorted(asker.receipts[index].items())]
        for index in range(2)
    ]
    for first, second in zip(*leaves, strict=True):
        assert (first.in_root, first.out_root) == (second.in_root, second.out_root)
        assert (second.tokens_in, second.tokens_out) == (300, new), "and it is paid like the first"
    await asker.until(lambda: all(m.compute.kv_tokens == 0 for m in machines))
    for machine in machines:
        assert machine.compute.kv_free_tokens == machine.compute.kv_capacity_tokens
    await asker.close()


async def test_receipts_of_prompts_that_others_sent_before_hold(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    """The same machines in the same places and in others: nothing of it can be told from what is
    signed.
    """
    low, high = await start((0, 3), (1, 4))
    roots: list[Any] = []
    for number, cut in enumerate([2, 2, 1]):
        asker = Requester(key(50), chain, [low, high])
        asker.order([(PROMPT, greedy(4)), (PROMPT, greedy(4))], nonce=number + 1)
        asker.plan = [
            t.Stage(low.signer.address, 0, cut),
            t.Stage(high.signer.address, cut, 4),
        ]
        asker.plan_hash = signing.plan_hash(asker.plan)
        await asker.run_all(key(40))
        check_receipts(model_dir, asker, [0, 1])
        assert asker.tokens[0] == asker.tokens[1] == reference(model_dir, PROMPT, greedy(4), 0)
        roots.append([asker.receipts[0][s].leaves[0].out_root for s in (0, 1)])
        await asker.close()
    assert roots[0] == roots[1] and roots[0][1] == roots[2][1]
    assert low.compute.metrics().prefix_tokens == 256 + 512 + 256
    await asker.until(lambda: low.compute.kv_tokens == high.compute.kv_tokens == 0)
