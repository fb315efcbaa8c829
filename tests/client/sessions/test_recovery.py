"""What a dead program's session pays is what its requests are charged, to the unit."""

from __future__ import annotations

from client.orders.orders import PromptBatch
from client.pipeline.verify import RequestAnswer
from client.sessions.recovery import charges_left
from core.money import pricing
from core.protocol.units import whole_units
from tests.town.orders import SPEC, prompts, signed_order
from tests.town.stages import Stages


def test_all_charges_of_a_session_are_what_it_pays() -> None:
    order, ids = signed_order(PromptBatch.of(asked := prompts(3))), [one.ids for one in asked]
    job = Stages().match(PromptBatch.of(asked), order)
    answers = {i: RequestAnswer(ids[i], (7,) * (i + 1)) for i in range(3)}
    totals = sum(len(one) for one in ids), 6

    def due(tokens_in: int, tokens_out: int) -> int:
        return whole_units(
            pricing.split(job.signed.order, job.plan, SPEC, tokens_in, tokens_out).paid
        )

    for known in ({}, {1: due(len(ids[1]), 2)}):
        found = charges_left(job, SPEC, totals, answers, [], known)
        assert not found.keys() & known.keys()
        assert sum(found.values()) + sum(known.values()) == due(*totals)
    more = charges_left(job, SPEC, (totals[0] + 9, totals[1]), answers, [5], {})
    assert sum(more.values()) == due(totals[0] + 9, totals[1]) and more[5] > 0
    assert charges_left(job, SPEC, (0, 0), {}, [1, 2], {}) == {}
