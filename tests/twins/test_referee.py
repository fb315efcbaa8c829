"""Python and Solidity rule alike on every leaf, and compute the same bits behind the rulings.

A few hundred leaves of each kind here; `python -m tests.twins.referee_vectors` compares 100 000 of each.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.dispute.referee import Kind, Ruling
from core.dispute.referee.exact import VALUES
from tests.conftest import start_anvil
from tests.twins.referee_chain import ANVIL_OPTIONS, REVERTS, ChainReferee
from tests.twins.referee_vectors import RAW, compare_exact, compare_kind

pytestmark = pytest.mark.chain

LEAVES = 200
NUMBERS = 400


@pytest.fixture(scope="module")
def chain() -> Iterator[ChainReferee]:
    node = start_anvil(*ANVIL_OPTIONS)
    yield ChainReferee(node.rpc_url)
    node.stop()


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_both_twins_rule_alike(chain: ChainReferee, kind: Kind) -> None:
    found = compare_kind(chain, kind, LEAVES, seed=20_260 + kind)
    assert found[Ruling.HOLDS] > 0
    assert found[Ruling.FAILS] > 0
    assert found[REVERTS] > 0


@pytest.fixture(scope="module")
def exact(chain: ChainReferee) -> ChainReferee:
    return ChainReferee(chain.url, "ExactReferee")


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.name)
def test_both_twins_know_the_same_canonical_bits(exact: ChainReferee, kind: Kind) -> None:
    found = compare_exact(exact, kind, 3 * LEAVES, seed=30_260 + kind)
    assert found[Ruling.HOLDS] > 0
    assert found[Ruling.FAILS] > 0
    assert found[REVERTS] > 0


@pytest.mark.parametrize("name", RAW)
def test_both_twins_compute_the_same_bits(chain: ChainReferee, name: str) -> None:
    assert RAW[name](chain, NUMBERS, 7).total() > 0
