"""Some hundred random calls to the model and the contracts; `lockstep` makes as many as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec import structs

from tests.attacks.lockstep import CLOCKS, OPTIONS, Difference, Lockstep, prepared
from tests.conftest import Anvil

pytestmark = pytest.mark.chain

CALLS, SEED = 800, 1
#: Every function that the model knows, by contract.
FUNCTIONS = {
    "Escrow": {"collect", "collectFees", "deposit", "requestWithdraw", "setSpender", "withdraw"},
    "MinerRegistry": {
        "addStake",
        "cancelExit",
        "closeDispute",
        "register",
        "requestExit",
        "rotateOperator",
        "serve",
        "unjail",
        "withdraw",
        "withdrawCredit",
    },
    "TaskRegistry": {
        "cancel",
        "convict",
        "deliver",
        "dispute",
        "expire",
        "finalize",
        "matchJob",
        "open",
        "openMatched",
        "requestClose",
        "resolve",
        "revokeNonce",
        "settleAck",
    },
}


@pytest.fixture
def run(own_anvil: Callable[..., Anvil]) -> Iterator[Lockstep]:
    made = prepared(own_anvil(*OPTIONS).rpc_url, SEED)
    yield made
    made.node.close()


def test_the_contracts_answer_as_the_document_says(run: Lockstep) -> None:
    run.run(CALLS)
    for contract, functions in FUNCTIONS.items():
        for function in functions:
            ends = {end for name, end in run.seen if name == f"{contract}.{function}"}
            assert "accepted" in ends, (contract, function, ends)
    refused = sum(n for (_, end), n in run.seen.items() if end != "accepted")
    assert refused > CALLS // 4


def test_a_unit_and_a_second_are_differences(run: Lockstep) -> None:
    run.run(20)
    requester = run.calls.who["requester"][0]
    run.model.balance[requester] += 1
    with pytest.raises(Difference, match="nano"):
        run.compare(run.calls.everything(), "a unit more")
    run.model.balance[requester] -= 1
    run.compare(run.calls.everything(), "as before")
    run.model.clocks = structs.replace(CLOCKS, close_delay_s=CLOCKS.close_delay_s + 1)
    with pytest.raises(Difference, match=r"expire|deliver"):
        run.run(CALLS)
