"""Whom an order may be served by and how much of it is audited is read the same way everywhere."""

from __future__ import annotations

import pytest

from client.orders.demands import audit_bps, demanded, names_ids, operators_of
from core.protocol import ids
from core.protocol.errors import HeadraceError, IdInvalid, UsageError
from tests.town.orders import key

OURS, THEIRS = key(1).address, key(2).address


def test_operators_are_named_by_address_or_by_a_prefix_of_a_known_ones_id() -> None:
    named = ids.short(ids.Kind.MINER, THEIRS)
    assert operators_of([OURS.lower(), f" {named} ", ""], [OURS, THEIRS]) == {OURS, THEIRS}
    assert names_ids([named])
    assert not names_ids([OURS])
    with pytest.raises(IdInvalid):
        operators_of([named])
    with pytest.raises(HeadraceError):
        operators_of(["0x12"])
    with pytest.raises(UsageError, match="65 operators"):
        operators_of([key(n).address for n in range(1, 66)])


@pytest.mark.parametrize(
    ("level", "default", "bps"),
    [
        ("none", "full", 0),
        ("full", "none", 10_000),
        ("sample=0.05", "none", 500),
        ("sample", "none", 500),
        ("sample", "sample=0.2", 2000),
    ],
)
def test_a_level_is_a_share_of_the_requests(level: str, default: str, bps: int) -> None:
    assert audit_bps(level, default) == bps


@pytest.mark.parametrize("level", ["", "half", "sample=2", "sample=-1", "sample=nan", "0.5"])
def test_what_is_no_share_is_refused(level: str) -> None:
    with pytest.raises(UsageError):
        audit_bps(level)


def test_an_order_that_insists_on_nothing_has_no_terms() -> None:
    assert demanded(4, (), (), 0) is None
    terms = demanded(4, {OURS}, {THEIRS}, 500)
    assert terms is not None
    assert (terms.trusted, terms.avoided, terms.audit_bps) == ((OURS,), (THEIRS,), 500)
