"""Keys and values that are swapped let more requests run at once, and change nobody's answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.memory.sizing import Offload
from core.engine.sampling.sampling import Sampler
from core.engine.weights.load_shard import load_shard
from core.protocol import types as t
from core.protocol.types import LayerRange, SamplingParams
from miner.compute.compute import Compute, Key, RequestSpec
from miner.compute.memory import Promises
from miner.compute.tiers import SecondTier
from tests.miner.conftest import SPAN_LAYERS
from tests.miner.test_pipeline import MATCHER, REQUESTER, check_receipts
from tests.town.chain import FakeChain
from tests.town.machines import Machine, all_free, greedy, reference
from tests.town.orders import key
from tests.town.requester import Requester

Make = Callable[..., Awaitable[Compute]]
PAGE_BYTES = 2 * 16 * 2 * 16 * 4  # of the tiny model: keys and values, 2 heads of 16, float32
GROUPS, EACH = 6, 16  # pages of one layer: two requests of 32 positions and four layers
HOT_BYTES = (2 * EACH + 1) * PAGE_BYTES
SWAPPED = Offload(GROUPS, 0.5)


@pytest.fixture
async def make(model_dir: Path) -> AsyncIterator[Make]:
    made: list[Compute] = []

    async def run(layers: tuple[int, int] = (0, 4), **options: Any) -> Compute:
        compute = Compute()
        made.append(compute)
        await compute.load(lambda: load_shard(model_dir, LayerRange(*layers)), **options)
        return compute

    yield run
    for compute in made:
        compute.close()


def prompt_of(number: int) -> list[int]:
    return [(number * 7 + at) % 250 for at in range(3 + number % 5)]


async def answer(compute: Compute, key: Key, params: SamplingParams) -> list[int]:
    """A whole request of a whole model, as a run feeds it; at most 32 positions."""
    fed = prompt_of(key[1])
    sampler, tokens = Sampler(params, key[1], fed), list[int]()
    while len(tokens) < params.max_new_tokens:
        choice = (await compute.token(RequestSpec(key, most_rows=32, ring=""), fed, sampler)).choice
        sampler.take(choice.token)
        tokens.append(choice.token)
        compute.heard(key, None, is_last=len(tokens) == params.max_new_tokens)
        fed = [choice.token]
    await compute.drop(key)
    return tokens


class Pages:
    """An engine of two pools as far as promises look at it.

    A request holds a page of each for 16 tokens.
    """

    def __init__(self, groups: int, pages: list[int]) -> None:
        self.groups, self.pages_of_group, self.used_pages = groups, pages, [0, 0]

    def pages_for(
        self, tokens: int, layers: LayerRange | None = None, chunk_tokens: int = 1
    ) -> list[int]:
        return [-(-tokens // 16), min(4, -(-tokens // 16))]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_promises_are_kept_in_one_group_and_never_more_than_it_has(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 4))
    promises = Promises(Pages(groups, [12, 7]), 1)
    expected: dict[int, list[int]] = {}
    held: dict[int, list[int]] = {}
    for request in range(data.draw(st.integers(1, 40))):
        tokens = data.draw(st.integers(1, 16 * 13))
        pages = promises.engine.pages_for(tokens)
        before = data.draw(st.none() | st.integers(0, 9))
        assert promises.expect(request, tokens, None, before) == (pages[0] <= 12)
        if pages[0] > 12:
            continue
        expected[request] = pages
        room = {
            g
            for g in range(groups)
            for free in [[12, 7]]
            if all(
                n + sum(h[i] for r, h in held.items() if promises.group_of(r) == g) <= free[i]
                for i, n in enumerate(pages)
            )
        }
        assert promises.try_admit(request) == bool(room)
        if room:
            held[request] = expected.pop(request)
            group = promises.group_of(request)
            assert group in room
            assert before is None or before % groups not in room or group == before % groups
        for gone in data.draw(st.lists(st.sampled_from(sorted(expected | held)), unique=True)):
            promises.release(gone)
            expected.pop(gone, None)
            held.pop(gone, None)
        for g in range(groups):
            mine = [h for r, h in held.items() if promises.group_of(r) == g]
            assert all(sum(h[i] for h in mine) <= [12, 7][i] for i in range(2))
        assert promises.free_tokens <= promises.capacity_tokens
    for request in expected | held:
        promises.release(request)
    assert promises.free_tokens == promises.capacity_tokens == groups * 7 * 16


async def test_three_times_as_many_run_at_once_with_the_same_answers(make: Make) -> None:
    roomy, short = await make(), await make(kv_bytes=HOT_BYTES)
    tight = await make(kv_bytes=HOT_BYTES, second=SWAPPED)
    assert tight.kv_capacity_tokens == 3 * short.kv_capacity_tokens
    sampled = SamplingParams(temperature_micro=900_000, top_k=40, max_new_tokens=20, seed=3)
    promised = 0

    async def watch() -> None:
        nonlocal promised
        while True:
            promised = max(promised, tight.kv_capacity_tokens - tight.kv_free_tokens)
            await asyncio.sleep(0.001)

    watcher = asyncio.create_task(watch())
    params = [greedy(20) if n % 2 else sampled for n in range(14)]
    found = await asyncio.gather(*(answer(tight, ("job", n), params[n]) for n in range(14)))
    watcher.cancel()
    assert promised == 12 * 32, "two in each group"
    for n in range(14):
        assert found[n] == await answer(roomy, ("alone", n), params[n])
    metrics = tight.metrics()
    assert metrics.swapped_bytes > 0, "nothing was swapped"
    assert set(metrics.kv_bytes) == {"device", "host", "files", "kept"}
    assert (tight.kv_tokens, tight.kv_free_tokens) == (0, tight.kv_capacity_tokens)


async def test_rows_of_two_stages_are_equal_to_the_bit_and_stay_in_their_groups(
    make: Make, tmp_path: Path
) -> None:
    """The first stage swaps to memory and the second to files.

    Each is compared with one that does not swap.
    """
    files = Offload(GROUPS, 0.5, tmp_path)
    head = await make((0, 2), kv_bytes=HOT_BYTES, second=SWAPPED)
    tail = await make((2, 4), kv_bytes=HOT_BYTES, second=files)
    came_in: dict[int, set[int | None]] = {}

    async def piped(n: int, head: Compute, tail: Compute) -> list[Any]:
        fed, sampler, seen, how = prompt_of(n), Sampler(greedy(8), n), [], {"most_rows": 40}
        for step in range(8):
            rows = await head.rows(RequestSpec(("job", n), ring="ring", **how), fed)
            group = head.group(("job", n))
            drawn = await tail.token(
                RequestSpec(("job", n), ring="ring", group_before=group, **how), rows, sampler
            )
            if group is not None:
                came_in.setdefault(group, set()).add(tail.group(("job", n)))
            head.heard(("job", n), None, is_last=step == 7)
            sampler.take(drawn.choice.token)
            fed = [drawn.choice.token]
            seen.append((rows, drawn))
        await asyncio.gather(head.drop(("job", n)), tail.drop(("job", n)))
        return seen

    found = await asyncio.gather(*(piped(n, head, tail) for n in range(12)))
    assert came_in == {group: {group} for group in came_in} and len(came_in) >= 4
    assert all(compute.kv_tokens == 0 for compute in (head, tail))
    assert all(compute.metrics().swapped_bytes > 0 for compute in (head, tail))
    roomy = await make((0, 2)), await make((2, 4))
    for n in range(12):
        assert found[n] == await piped(n, *roomy)


async def test_requests_that_end_while_they_are_cold_leave_every_page_free(make: Make) -> None:
    tight = await make(kv_bytes=HOT_BYTES, second=SWAPPED)
    expected = await answer(tight, ("before", 11), greedy(12))
    running = [asyncio.create_task(answer(tight, ("job", n), greedy(24))) for n in range(12)]
    while tight.metrics().swapped_bytes == 0:
        await asyncio.sleep(0.001)
    for n, task in enumerate(running):
        task.cancel()
        await tight.drop(("job", n))
        if n % 4 == 0:  # others go on meanwhile, on pages that were given back
            assert await answer(tight, ("new", 11), greedy(12)) == expected
    await all_free(tight)
    assert (tight.kv_tokens, tight.kv_free_tokens) == (0, tight.kv_capacity_tokens)
    assert sum(tight.metrics().kv_bytes.values()) == 0
    await tight.unload()
    assert tight.metrics().swapped_bytes > 0, "counted for good"


async def test_what_is_remembered_of_a_broken_session_goes_on_from_where_it_lies(
    make: Make,
) -> None:
    roomy, tight = await make(), await make(kv_bytes=HOT_BYTES, second=SWAPPED)
    found = []
    for compute in (roomy, tight):
        sampler = Sampler(greedy(9), 0)
        for n in range(10):  # ten others, so that the first one is cold at the end
            await compute.token(
                RequestSpec(("job", n), most_rows=32, ring=n), prompt_of(n), sampler
            )
            await compute.token(RequestSpec(("job", n), most_rows=32, ring=n), [n], sampler)
        rows = len(prompt_of(0)) + 1
        assert await compute.carry(("job", 0), ("again", 0), rows + 5, ring="new") == rows
        again = [
            await compute.token(
                RequestSpec(("again", 0), ring="new"), [7], sampler, first=rows + at
            )
            for at in range(3)
        ]
        found.append([drawn.choice.token for drawn in again])
        for n in range(10):
            await compute.drop(("job", n))
        await compute.drop(("again", 0))
        assert compute.kv_tokens == 0
    assert found[0] == found[1]


async def test_prompts_in_chunks_take_turns_with_others(make: Make) -> None:
    """Each group holds one long request, whose chunks run between those of the others."""
    pages = 4 * 14
    tight = await make(kv_bytes=(2 * pages + 1) * PAGE_BYTES, second=Offload(4, 0.5))
    roomy = await make()

    async def long(compute: Compute, n: int) -> list[int]:
        key, prompt = ("job", n), [(n + 3 * at) % 250 for at in range(200)]
        sampler = Sampler(greedy(6), n, prompt)
        await compute.feed(RequestSpec(key, most_rows=206, ring=""), prompt[:128])
        fed, tokens = prompt[128:], list[int]()
        for _ in range(6):
            choice = (await compute.token(RequestSpec(key, ring=""), fed, sampler)).choice
            sampler.take(choice.token)
            tokens.append(choice.token)
            fed = [choice.token]
        await compute.drop(key)
        return tokens

    found = await asyncio.gather(*(long(tight, n) for n in range(6)))
    assert tight.metrics().swapped_bytes > 0 and tight.kv_tokens == 0
    for n in range(6):
        assert found[n] == await long(roomy, n)


async def test_the_miner_measures_how_much_it_may_swap(make: Make, tmp_path: Path) -> None:
    hot = {"kv_bytes": HOT_BYTES}
    short = await make(**hot)
    most = short.kv_capacity_tokens
    files = SecondTier(GROUPS * EACH * PAGE_BYTES, tmp_path / "cold", longest_tokens=32)
    swapping = await make(**hot, second=files)
    assert most * 1.2 < swapping.kv_capacity_tokens <= most + GROUPS * EACH // 4 * 16
    assert swapping.longest_request(10**4) >= 32
    assert await answer(swapping, ("job", 1), greedy(9)) == await answer(short, ("a", 1), greedy(9))
    for none in (
        SecondTier(GROUPS * EACH * PAGE_BYTES),  # the context would not fit into a part
        SecondTier(10 * PAGE_BYTES, longest_tokens=32),
        SecondTier(GROUPS * EACH * PAGE_BYTES, longest_tokens=32, most_requests=2),
    ):
        same = await make(**hot, second=none)
        assert (same.kv_capacity_tokens, same.longest_request(10**4)) == (
            most,
            short.longest_request(10**4),
        )


@pytest.mark.parametrize("cuts", [[(0, 4)], [(0, 2), (2, 4)]], ids=["one", "two"])
async def test_receipts_of_stages_that_swap_are_those_of_stages_that_do_not(
    cuts: list[tuple[int, int]], chain: FakeChain, model_dir: Path, tmp_path: Path
) -> None:
    leaves, swapped = [], []
    for number, options in enumerate(({}, {"second": SWAPPED})):
        machines: list[Machine] = []
        for at, (a, b) in enumerate(cuts):
            machines.append(Machine(key(200 + 10 * number + at), tmp_path, model_dir, chain))
            machines[-1].span_layers = SPAN_LAYERS
            if options:  # one request in a group, so that others wait as well
                options = options | {"kv_bytes": (EACH * (b - a) // 4 + 1) * PAGE_BYTES}
            await machines[-1].start(LayerRange(a, b), **options)
        requester = Requester(REQUESTER, chain, machines)
        sampled = t.SamplingParams(temperature_micro=800_000, top_k=50, max_new_tokens=20, seed=7)
        prompts = [(prompt_of(n), sampled if n % 3 == 2 else greedy(20)) for n in range(12)]
        requester.order([*prompts, (list(range(60, 85)), greedy(6))], nonce=number + 1)
        await requester.run_all(MATCHER)
        for index, prompt in enumerate(requester.batch.prompts):
            expected = reference(model_dir, prompt.ids, prompt.sampling, index)
            assert requester.tokens[index] == expected
        check_receipts(model_dir, requester, list(range(13)))
        leaves.append(
            [
                [signed.leaves[0] for _, signed in sorted(requester.receipts[index].items())]
                for index in range(13)
            ]
        )
        await requester.until(lambda here=machines: all(m.compute.kv_tokens == 0 for m in here))
        swapped.append([m.compute.metrics().swapped_bytes for m in machines])
        await requester.close()
        for machine in machines:
            await machine.stop()
    assert leaves[0] == leaves[1], "roots over all rows and all tokens"
    assert not any(swapped[0]) and all(swapped[1])
