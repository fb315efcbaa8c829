"""An auditor claims that another token is ahead, or that a filter leaves the served one out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from eth_utils.crypto import keccak

from core.dispute.play.claims import deviation_claim, token_claim
from core.dispute.trace.answer import likeliest, to_tokens
from core.dispute.trace.derive import How
from core.protocol.types import RequestLeaf, SamplingParams
from tests.twins.game import toy

PROGRAM = toy.Toy.make(toy.LLAMA).program
LEAF = RequestLeaf(0, "0x" + "11" * 32, "0x" + "22" * 32, 4, 6)
DRAWN = SamplingParams(temperature_micro=800_000, seed=3, max_new_tokens=6, ignore_eos=True)
LOGITS = np.linspace(3.0, -3.0, PROGRAM.vocab)  # token i is the (i+1)th likeliest


def claimed(served: int, **filters: int) -> object:
    sampling = msgspec.structs.replace(DRAWN, **filters)
    claim = token_claim(PROGRAM, LEAF, (0, 1), sampling, [1, served], 1, 0, LOGITS)
    assert claim.choice is not None
    return claim.choice


@pytest.mark.parametrize(
    ("served", "filters", "how"),
    [
        (5, {}, How.AHEAD),
        (5, {"top_k": 4}, How.OUTSIDE_TOP_K),
        (4, {"top_k": 4}, How.OUTSIDE_TOP_K),
        (3, {"top_k": 4}, How.AHEAD),
        (15, {"min_p_micro": 500_000}, How.OUTSIDE_MIN_P),
        (0, {"min_p_micro": 500_000}, How.AHEAD),
        (15, {"min_p_micro": 500_000, "top_k": 4}, How.OUTSIDE_MIN_P),
    ],
)
def test_a_token_that_a_filter_surely_leaves_out_is_accused_of_that(
    served: int, filters: dict[str, int], how: How
) -> None:
    choice = claimed(served, **filters)
    assert choice.how == how  # type: ignore[attr-defined]
    if how == How.OUTSIDE_TOP_K:
        ahead = likeliest(LOGITS, choice.served, choice.top_k)
        assert ahead == list(range(4))
        assert choice.listed == keccak(to_tokens(ahead))  # type: ignore[attr-defined]


def test_greedy_knows_no_filters() -> None:
    sampling = SamplingParams(max_new_tokens=6, top_k=4, ignore_eos=True)
    claim = token_claim(PROGRAM, LEAF, (0, 1), sampling, [1, 9], 1, 0, LOGITS)
    assert claim.choice is not None and claim.choice.how == How.AHEAD


def test_a_near_tie_at_a_filters_edge_is_left_to_the_draw() -> None:
    flat = np.zeros(PROGRAM.vocab)
    sampling = msgspec.structs.replace(DRAWN, top_k=4, min_p_micro=1_000_000)
    claim = token_claim(PROGRAM, LEAF, (0, 1), sampling, [1, 9], 1, 0, flat)
    assert claim.choice is not None and claim.choice.how == How.AHEAD


def test_the_window_is_the_first_that_is_clear() -> None:
    """Both sides compute a trace up to its end, so an early window costs less."""
    hidden, rows = PROGRAM.hidden, 40
    reference = np.ones((rows, hidden))
    largest, least = (
        pick(t.parts_per_trillion for t in PROGRAM.tolerances if t.min_rows <= rows) / 10**12
        for pick in (max, min)
    )
    served = reference * (1 + 3 * largest)
    served[-1] *= 1 + 100 * largest
    found = deviation_claim(PROGRAM, LEAF, (0, 1), served, reference, np.ones(hidden))
    assert found is not None and found.ratio >= 2 * found.tolerance
    assert found.claim.window_from == 0
    shortest = min(t.min_rows for t in PROGRAM.tolerances if t.min_rows <= rows)
    assert found.claim.positions == shortest
    barely = reference * (1 + 1.5 * least)
    found = deviation_claim(PROGRAM, LEAF, (0, 1), barely, reference, np.ones(hidden))
    assert found is not None and found.tolerance < found.ratio < 2 * found.tolerance
    assert deviation_claim(PROGRAM, LEAF, (0, 1), reference, reference, np.ones(hidden)) is None
