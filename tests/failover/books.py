"""What must everybody have been paid, to the unit?"""

from __future__ import annotations

from collections import Counter

from client.jobs.batch import BatchResult
from client.pipeline.verify import Bought, RegisteredShards, RequestAnswer, check_part
from core.engine.weights.weights import weight_roots
from core.money import pricing
from core.protocol import commit
from core.protocol.units import NANO
from tests.town.chain import PREPAID
from tests.town.orders import DOMAIN, MATCHER
from tests.town.town import Town, Watch


def check_money(town: Town, result: BatchResult, watch: Watch) -> None:
    """Every token of every answer is paid once, every stage of a plan for all tokens that this plan
    gave; nothing vanishes.
    """
    assert not watch.unpaid
    unpaid = {m.job_id for m in town.matches if m.job_id not in town.acks}
    assert set(town.chain.locked) == unpaid, "what gave nothing comes back at its deadline"
    given = sum(len(tokens) for tokens in watch.tokens.values())
    assert sum(ack.tokens_out for ack in town.acks.values()) == given
    expected, fees = Counter[str](), 0
    spent = 0
    for match in town.matches:
        ack = town.acks.get(match.job_id)
        if ack is None:
            continue
        split = pricing.split(
            match.signed.order, match.plan, town.spec, ack.tokens_in, ack.tokens_out
        )
        fees += split.matcher_fee
        for stage, pay in zip(match.plan, split.pays, strict=True):
            assert pay > 0, "who served positions is paid, also when it died"
            expected[stage.operator] += pay
        spent += split.locked - split.refund
    assert town.chain.earned == expected
    assert town.chain.fees[MATCHER.address] == fees
    assert town.prepaid == PREPAID * NANO - spent - sum(town.chain.locked.values())
    assert sum(expected.values()) + fees == spent


def check_receipts(town: Town, dead: set[str] | None = None) -> None:
    """Whoever lives signed for exactly the positions it did in each order, and its rows open what
    it signed.
    """
    weights = weight_roots(town.model_dir)
    for match in town.matches:
        by_request: dict[int, dict[int, object]] = {}
        for row, signed in town.store.receipts(match.job_id):
            if row.request_index >= 0:
                by_request.setdefault(row.request_index, {})[row.stage] = signed
        alive = {
            stage
            for stage, place in enumerate(match.plan)
            if not dead or place.operator not in dead
        }
        for stored in town.store.requests(match.job_id):
            tokens = tuple(int(x) for x in stored.tokens.strip("[]").split(",") if x)
            if not tokens:
                continue
            receipts = by_request.get(stored.request_index, {})
            assert alive <= set(receipts), f"request {stored.request_index}: {set(receipts)}"
            prompt = tuple(int(x) for x in stored.prompt_ids.strip("[]").split(","))
            bought = Bought(
                DOMAIN,
                match.signed.order,
                match.plan,
                RegisteredShards(lambda a, b: commit.to_hex(weights.shard_root(a, b))),
            )
            answer = RequestAnswer(prompt, tokens)
            check_part(receipts, bought, stored.request_index, answer)  # type: ignore[arg-type]
            for stage in alive:
                _rows_open_it(town, match.plan[stage].operator, receipts[stage])


def _rows_open_it(town: Town, operator: str, signed: object) -> None:
    receipt, leaf = signed.receipt, signed.leaves[0]  # type: ignore[attr-defined]
    store = town.machine(operator).store
    is_last = bool(signed.states)  # type: ignore[attr-defined]
    roots = {}
    for side in ("in", "out", *(("states",) if is_last else ())):
        found = store.rows(
            receipt.order_hash, receipt.plan_hash, leaf.request_index, side, 0, 2**20
        )
        assert found is not None
        roots[side] = commit.rows_root(found[0], found[1])
    out_root = commit.answer_root(roots["out"], roots["states"]) if is_last else roots["out"]
    assert commit.to_hex(roots["in"]) == leaf.in_root
    assert commit.to_hex(out_root) == leaf.out_root
