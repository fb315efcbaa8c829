"""The same work on disjoint machines: all are paid, and answers that differ are found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client.jobs.batch import Policy, Requester
from client.jobs.replicas import (
    AllowedMiners,
    AnswerDifference,
    Apart,
    Replica,
    describe,
    first_difference,
    quotes,
    run_replicas,
    suspicion,
)
from client.orders.matcher_api import Quote
from client.orders.matchers import Matchers
from client.orders.orders import OrderTerms
from client.pipeline.pipeline import PipelinePatience
from client.pipeline.verify import RequestAnswer
from core.protocol import ids
from core.protocol import types as t
from core.protocol.errors import NoCapacity
from tests.client.conftest import MakeStages
from tests.client.jobs.test_batch import Bench, Watch, remember_batches
from tests.town.orders import MODEL_ID, REQUESTER, SPEC, answer_of, key, terms
from tests.town.stages import Stages, serve

__all__ = ["remember_batches"]  # a fixture


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.store.close()


def quote_over(stages: Stages) -> Quote:
    return _quote([signer.address for signer in stages.operators])


def _quote(operators: list[str]) -> Quote:
    class Shown:
        def __init__(self, operator: str) -> None:
            self.operator, self.layer_from, self.layer_to = operator, 0, 1

    return Quote(1, 2, [Shown(o) for o in operators], key(40).address, 0, 0)  # type: ignore[misc]


async def buy(
    bench: Bench, *pipelines: Stages, then: Sequence[Stages] = (), **policy: Any
) -> tuple[list[Replica], list[AnswerDifference], list[Watch]]:
    """One replica for each pipeline; `then` are those that orders after the first ones get."""
    bench.matcher.offers = [*pipelines, *then]
    matchers = Matchers([(bench.matcher, None)])  # type: ignore[list-item]
    fakes: Any = (bench.chain, matchers, REQUESTER, bench.store, bench.clock)
    requester = Requester(*fakes, MODEL_ID, SPEC)
    limits = PipelinePatience(in_flight=2, connect_s=5.0, silence_s=5.0)
    apart = Apart(AllowedMiners(limits.in_flight), [quote_over(stages) for stages in pipelines])

    def policy_of(number: int) -> Policy:
        def terms_of(now: int) -> OrderTerms:
            return replace(terms(deadline=now + 600), demands=apart.demands(number))

        return Policy(terms_of=terms_of, **({"limits": limits} | policy))

    watchers = [Watch() for _ in pipelines]
    async with asyncio.timeout(30):
        replicas, differing = await run_replicas(
            requester,
            bench.prompts,
            [policy_of(number) for number in range(len(pipelines))],
            watchers,
            apart,
            "sub",
        )
    return replicas, differing, watchers


def another(stages: Stages, custom_id: str, step: int) -> None:
    """A pipeline that says something else in this answer from this step on, and signs for it."""
    honest = stages.answer

    def answer(index: int) -> RequestAnswer:
        whole = honest(index)
        assert stages.batch is not None
        if stages.batch.prompts[index].custom_id != custom_id:
            return whole
        return replace(whole, tokens=(*whole.tokens[:step], *(9,) * (len(whole.tokens) - step)))

    stages.answer = answer  # type: ignore[method-assign]


async def test_answers_that_agree_are_all_paid_and_each_order_avoids_the_others_machines(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second = await make_stages(100), await make_stages(200)
    replicas, differing, watchers = await buy(bench, first, second)
    assert differing == []
    for replica in replicas:
        assert replica.result is not None
        told = {name: tuple(d.state.tokens) for name, d in replica.result.finished.items()}
        assert told == {p.custom_id: answer_of(p).tokens for p in bench.prompts}
    assert len(bench.matcher.acks) == 2
    assert bench.states() == ["acknowledged", "acknowledged"]
    assert all(watch.paid for watch in watchers)
    one, two = bench.matcher.orders
    assert one.order.input_root != two.order.input_root, "nobody can tell that it is the same work"
    for order, others in ((one, second), (two, first)):
        assert order.terms is not None
        assert set(order.terms.avoided) == {signer.address for signer in others.operators}


async def test_answers_that_differ_are_named_with_both_receipts_and_their_jobs_are_held(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second = await make_stages(100), await make_stages(200)
    another(second, "p2", 1)
    replicas, differing, _ = await buy(bench, first, second)
    (found,) = differing
    assert (found.custom_id, found.step) == ("p2", 1)
    assert bench.matcher.acks == [], "what differs may be disputed before it is paid"
    assert bench.states() == ["unacknowledged", "unacknowledged"]

    class Words:
        def answer_text(self, tokens: Any) -> str:
            return " ".join(map(str, tokens))

    line = describe(found, bench.store, Words())  # type: ignore[arg-type]
    receipts = {row.receipt_id: s for row, s in bench.store.receipts()}
    for said, stages in zip(line["answers"], (first, second), strict=True):
        assert said["token"] == stages.answer(2).tokens[1]
        name = ids.find(ids.Kind.RECEIPT, said["receipt"], receipts, lambda receipt: receipt)
        signed = receipts[name]
        assert (signed.receipt.stage, [leaf.request_index for leaf in signed.leaves]) == (2, [2])
        assert said["dispute"] == f"client dispute {said['job']}"
    assert line["answers"][0]["job"] != line["answers"][1]["job"]
    error = suspicion(differing, "differences.jsonl")
    assert error.exit_code == 9
    assert "'p2', from token 1 on" in error.why
    assert replicas[0].result is not None


async def test_a_replica_that_cannot_be_had_ends_no_other_one(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second = await make_stages(100), await make_stages(200)
    whole = bench.matcher.open_job
    opened = 0

    async def open_job(*args: Any) -> Any:
        nonlocal opened
        opened += 1
        if opened == 2:
            raise NoCapacity("nobody is left", "they are gone")
        return await whole(*args)

    bench.matcher.open_job = open_job  # type: ignore[method-assign]
    replicas, differing, _ = await buy(bench, first, second)
    assert [replica.error and replica.error.code for replica in replicas] == [None, "E-MATCH-01"]
    assert differing == []
    assert len(bench.matcher.acks) == 1


async def test_a_pipeline_that_breaks_goes_on_on_machines_that_no_other_replica_has(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second, third = [await make_stages(at) for at in (100, 200, 300)]

    async def breaks(s: Stages, index: int) -> None:
        if index:
            await s.tokens(index, 1)
            await s.die(1)
        else:
            await serve(s, index)

    first.script = breaks
    replicas, differing, _ = await buy(bench, first, second, then=[third])
    assert differing == []
    assert all(r.result is not None and len(r.result.finished) == 4 for r in replicas)
    *_, again = bench.matcher.orders
    assert again.terms is not None
    avoided = set(again.terms.avoided)
    assert {signer.address for signer in second.operators} <= avoided
    assert not {signer.address for signer in third.operators} & avoided
    assert len(bench.matcher.acks) == 3, "the broken job too is paid for what it gave"


@pytest.mark.parametrize(
    ("answers", "step"),
    [
        ([(1, 2), (1, 2)], None),
        ([(1, 2), (1, 3)], 1),
        ([(1, 2), (1, 2, 3)], 2),
        ([(1,), (1,), (2,)], 0),
        ([(), (1,)], 0),
    ],
)
def test_the_first_token_that_is_not_the_same_is_found(answers: Any, step: int | None) -> None:
    assert first_difference(answers) == step


async def test_quotes_share_no_machine_and_say_how_many_there_are() -> None:
    one, two = [key(1).address, key(2).address], [key(3).address]

    class Api:
        async def quote(self, *args: Any) -> Quote:
            demands: t.Terms | None = args[-1]
            free = [o for o in (one, two) if demands is None or all(map(demands.allows, o))]
            if not free:
                raise NoCapacity("no pipeline", "nobody is left")
            return _quote(free[0])

    wanted = AllowedMiners(4, avoided=frozenset({key(9).address}))
    found = await quotes(Api(), MODEL_ID, (1, 2), wanted, 2)  # type: ignore[arg-type]
    assert [[s.operator for s in quote.route] for quote in found] == [one, two]
    with pytest.raises(NoCapacity, match="machines for 2 of 3 replicas"):
        await quotes(Api(), MODEL_ID, (1, 2), wanted, 3)  # type: ignore[arg-type]
