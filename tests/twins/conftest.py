"""What the twins' tests share: a chain with a game, a miner with stake, and an accuser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.keys.signer import Signer
from tests.conftest import start_anvil
from tests.twins.dispute_chain import Bench
from tests.twins.game.players import Accusation
from tests.twins.game.toy import LIE, make_stage


@pytest.fixture(scope="module")
def bench(signers: list[Signer]) -> Iterator[Bench]:
    node = start_anvil()
    yield Bench.make(node.rpc_url, signers)
    node.stop()


@pytest.fixture(scope="module")
def lie() -> Accusation:
    """A true accusation of the toy llama."""
    stage = make_stage("llama")
    outputs = stage.lying_outputs(LIE)
    return Accusation(stage, outputs, stage.evaluate(outputs))
