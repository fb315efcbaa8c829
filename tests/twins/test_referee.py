"""Python and Solidity rule alike on every leaf, and compute the same bits behind the rulings.

10,000 leaves of each kind of value here, and fewer of the verdicts, which take longer to draw;
`python -m tests.twins.referee_vectors` compares as many as asked.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.dispute.referee import LeafKind, Ruling
from core.dispute.referee.exact import VALUES
from tests.conftest import start_anvil
from tests.twins.referee_chain import ANVIL_OPTIONS, REVERTS, ChainReferee
from tests.twins.referee_vectors import RAW, compare_kind

pytestmark = pytest.mark.chain

LEAVES, VERDICTS = 10_000, 1_000
NUMBERS = 400


@pytest.fixture(scope="module")
def chain() -> Iterator[ChainReferee]:
    node = start_anvil(*ANVIL_OPTIONS)
    yield ChainReferee(node.rpc_url)
    node.stop()


@pytest.mark.parametrize("kind", LeafKind, ids=lambda kind: kind.name)
def test_both_twins_rule_alike(chain: ChainReferee, kind: LeafKind) -> None:
    count = LEAVES if kind in VALUES else VERDICTS
    found = compare_kind(chain, kind, count, seed=20_260 + kind)
    assert found[Ruling.HOLDS] > 0
    assert found[Ruling.FAILS] > 0
    assert found[REVERTS] > 0


@pytest.mark.parametrize("name", RAW)
def test_both_twins_compute_the_same_bits(chain: ChainReferee, name: str) -> None:
    assert RAW[name](chain, NUMBERS, 7).total() > 0
