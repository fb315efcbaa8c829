"""Every reason not to match an order, each with its own error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.protocol.errors import DepositShort, HeadraceError, ModelUnknown, NoCapacity, UsageError
from core.protocol.types import ZERO_ADDRESS
from matcher.matching.orders import MatcherTerms, OrderFacts, check_order
from tests.town.fleet import SPEC, make_order
from tests.town.orders import DOMAIN, MATCHER, NOW_S, key

TERMS = MatcherTerms(MATCHER.address, 200, 0)
FACTS = OrderFacts(
    now_s=NOW_S,
    balance_units=10**9,
    nonce_used=False,
    arbitrator_listed=True,
    max_job_s=1800,
    max_window_s=900,
)


def check(facts: OrderFacts = FACTS, **changes: object) -> HeadraceError | None:
    return check_order(make_order(**changes), SPEC, facts, TERMS, chain_id=DOMAIN.chain_id)


def test_an_order_in_order_passes() -> None:
    assert check() is None
    assert check(deadline=NOW_S + 1800, window=900) is None


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"matcher": key(5).address}, UsageError, "names another matcher"),
        ({"matcher": ZERO_ADDRESS}, UsageError, "names no matcher"),
        ({"matcher_fee_bps": 199}, NoCapacity, "too little"),
        ({"deadline": NOW_S - 1}, UsageError, "too near"),
        ({"deadline": NOW_S + 9}, UsageError, "too near"),
        ({"deadline": NOW_S + 1801}, UsageError, "too far"),
        ({"window": 901}, UsageError, "too long"),
        ({"requests": 0}, UsageError, "asks for nothing"),
        ({"max_tokens_in": 1}, UsageError, "asks for nothing"),
        ({"requests": 4097, "max_tokens_in": 10_000}, UsageError, "too many requests"),
        ({"numerics_profile": "0x" + "01" * 32}, UsageError, "numerics profile"),
        ({"max_tokens_in": 4000, "max_tokens_out": 97}, UsageError, "context"),
    ],
)
def test_what_is_wrong_with_an_order_is_said(
    changes: dict[str, object], kind: type[HeadraceError], words: str
) -> None:
    found = check(**changes)
    assert type(found) is kind
    assert words in found.what
    assert found.next_step


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (replace(FACTS, nonce_used=True), UsageError),
        (replace(FACTS, arbitrator_listed=False), UsageError),
        (replace(FACTS, balance_units=0), DepositShort),
    ],
)
def test_what_the_chain_says_against_it_counts(
    facts: OrderFacts, kind: type[HeadraceError]
) -> None:
    assert type(check(facts)) is kind


def test_an_unknown_model_is_not_found() -> None:
    found = check_order(make_order(), None, FACTS, TERMS, chain_id=DOMAIN.chain_id)
    assert isinstance(found, ModelUnknown)
    assert found.http_status == 404


def test_even_a_matcher_without_a_fee_takes_only_orders_that_name_it() -> None:
    free = MatcherTerms(MATCHER.address, 0, 0)
    order = make_order(matcher=ZERO_ADDRESS, matcher_fee_bps=0)
    found = check_order(order, SPEC, FACTS, free, chain_id=DOMAIN.chain_id)
    assert isinstance(found, UsageError)
    assert MATCHER.address in found.next_step
    named = make_order(matcher_fee_bps=0)
    assert check_order(named, SPEC, FACTS, free, chain_id=DOMAIN.chain_id) is None


def test_an_order_pays_at_least_what_the_matcher_asks_for_opening_it() -> None:
    terms = MatcherTerms(MATCHER.address, 200, 30)

    def found(fee: int) -> HeadraceError | None:
        return check_order(
            make_order(opening_fee=fee), SPEC, FACTS, terms, chain_id=DOMAIN.chain_id
        )

    assert found(30) is None and found(31) is None
    less = found(29)
    assert isinstance(less, NoCapacity)
    assert less.details["opening_fee"] == 30 and "30 base units" in less.next_step


def test_a_used_nonce_is_refused_with_both_ways_in_which_it_was_used() -> None:
    found = check(replace(FACTS, nonce_used=True), nonce=7)
    assert found is not None
    assert "nonce 7" in found.why
    assert "opened" in found.why and "revoked" in found.why
