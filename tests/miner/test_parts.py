"""Requests enter and leave a shard at any layer: same answers, and memory, receipts and pay for the
layers that ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from core.engine.weights.load_shard import load_shard
from core.money import pricing
from core.protocol import signing, wire
from core.protocol import types as t
from core.protocol.types import LayerRange
from miner.chain import admission
from miner.compute.compute import Compute, RequestSpec
from miner.compute.memory import Promises
from tests.miner.conftest import Start
from tests.miner.test_pipeline import check_receipts
from tests.town.chain import FakeChain
from tests.town.machines import Machine, greedy, reference
from tests.town.orders import key
from tests.town.requester import Requester

MATCHER = key(40)
PROMPT = list(range(60, 90))
SAMPLED = t.SamplingParams(temperature_micro=900_000, max_new_tokens=14, seed=3, ignore_eos=True)


def asker(
    chain: FakeChain, number: int, places: Sequence[tuple[Machine, tuple[int, int]]]
) -> Requester:
    """A requester whose plan says which layers of which machine run."""
    found = Requester(key(50 + number), chain, [machine for machine, _ in places])
    chain.prepaid[found.signer.address] = 10**6
    prompts = [(PROMPT[number:], greedy(12)), (PROMPT[: 9 + number], SAMPLED)]
    found.order(prompts, nonce=number + 1)
    found.plan = [
        t.Stage(operator=machine.signer.address, layer_from=start, layer_to=end)
        for machine, (start, end) in places
    ]
    found.plan_hash = signing.plan_hash(found.plan)
    return found


async def test_plans_with_other_cuts_share_the_same_machines(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    low, high, whole = await start((0, 3), (1, 4), (0, 4))
    plans = [
        [(low, (0, 3)), (high, (3, 4))],
        [(low, (0, 1)), (high, (1, 4))],
        [(low, (0, 2)), (whole, (2, 3)), (high, (3, 4))],
        [(whole, (0, 2)), (high, (2, 4))],
        [(whole, (0, 4))],
    ]
    askers = [asker(chain, number, plan) for number, plan in enumerate(plans)]
    await asyncio.gather(*(one.run_all(MATCHER) for one in askers))
    spec = low.terms.spec
    for one in askers:
        for index, prompt in enumerate(one.batch.prompts):
            expected = reference(model_dir, prompt.ids, prompt.sampling, index)
            assert one.tokens[index] == expected
        check_receipts(model_dir, one, [0, 1])
        paid = 0
        for number, stage in enumerate(one.plan):
            receipt = one.receipts[0][number].receipt
            assert (receipt.layer_from, receipt.layer_to) == (stage.layer_from, stage.layer_to)
            job = one.machines[number].table.jobs[one.order_hash]
            units = pricing.stage_units(stage, spec)
            paid += units
            assert job.cost(spec, 10**6, 10**6) == pricing.cost(units, 10**6, 10**6, 100, 200)
        assert paid == spec.layer_units
    for machine in (low, high, whole):
        assert machine.compute.kv_tokens == 0
    for one in askers:
        await one.close()


async def test_memory_is_promised_for_the_layers_that_run(model_dir: Path) -> None:
    compute = Compute()
    try:
        await compute.load(lambda: load_shard(model_dir, LayerRange(0, 4)), kv_bytes=2**18)
        engine = compute._engine
        assert engine is not None
        alone = Promises(engine, 1)
        most = alone.longest(10_000)
        assert not alone.expect("whole", most + 16)
        assert alone.expect("half", most + 16, LayerRange(1, 3))
        assert alone.try_admit("half")
        left = alone.free_tokens
        alone.release("half")
        assert alone.expect("whole", most)
        assert alone.try_admit("whole")
        assert alone.free_tokens < left
        # Rows leave and enter in the middle, one request beside the other.
        rows = await compute.rows(
            RequestSpec(("a", 0), layers=LayerRange(0, 2), most_rows=8), [5, 6, 7]
        )
        again = await compute.rows(
            RequestSpec(("b", 0), layers=LayerRange(2, 3), most_rows=8), rows
        )
        straight = await compute.rows(
            RequestSpec(("c", 0), layers=LayerRange(0, 3), most_rows=8), [5, 6, 7]
        )
        assert again == straight
        for name in ("a", "b", "c"):
            await compute.drop((name, 0))
        assert compute.kv_tokens == 0
    finally:
        compute.close()


@pytest.mark.parametrize(("place", "code"), [((0, 2), ""), ((1, 4), "E-ADMIT-PLACE")])
async def test_layers_that_are_not_here_are_refused(
    place: tuple[int, int], code: str, start: Start, chain: FakeChain
) -> None:
    low, high = await start((0, 3), (0, 4))
    rest = (high, (place[1], 4)) if place[1] < 4 else (high, (0, place[0]))
    places = [(low, place), rest] if place[0] == 0 else [rest, (low, place)]
    one = asker(chain, 0, places)
    answer = (await one.propose(MATCHER))[places.index((low, place))]
    if code:
        assert isinstance(answer, wire.Failed) and answer.code == code
    else:
        assert isinstance(answer, wire.Accepted)


async def test_a_machine_without_roots_of_parts_serves_whole_shards(
    start: Start, chain: FakeChain
) -> None:
    low, high = await start((0, 3), (1, 4))
    assert low.table.serving is not None
    low.table.serving = replace(low.table.serving, root_of=None)
    one = asker(chain, 0, [(low, (0, 2)), (high, (2, 4))])
    refused, accepted = await one.propose(MATCHER)
    assert isinstance(refused, wire.Failed) and refused.code == admission.PLACE
    assert isinstance(accepted, wire.Accepted)
