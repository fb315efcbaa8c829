"""Both sets of parameters pass every check that the contracts' constructors make."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from devnet.deploy import USD, Parameters, deploy
from tests.conftest import CHAIN_ID, start_anvil

pytestmark = pytest.mark.chain

#: For a chain with real money; why turns are that long: `docs/trust.md` §3. Twelve days of
#: unbonding outlast job, window and dispute.
PRODUCTION = Parameters(
    min_stake=500 * USD,
    unbond_s=12 * 86_400,
    jail_s=86_400,
    max_job_s=3 * 86_400,
    max_window_s=3 * 86_400,
    max_dispute_s=5 * 86_400,
    withdraw_delay_s=86_400,
    close_delay_s=3600,
    commit_s=12 * 3600,
    reveal_s=12 * 3600,
    appeal_s=20 * 3600,
    payout_delay_s=3600,
    maturity_s=7 * 86_400,
    panel=7,
    juror_unbond_s=12 * 86_400,
    turn_s=4 * 3600,
)


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    anvil = start_anvil()
    yield anvil.rpc_url
    anvil.stop()


@pytest.mark.parametrize("parameters", [Parameters(), PRODUCTION], ids=["devnet", "production"])
async def test_parameters_fit_each_other(
    node: str, signers: list[Signer], parameters: Parameters
) -> None:
    chain = RpcChain(node, CHAIN_ID, {})
    try:
        await deploy(chain, signers[0], signers[1].address, parameters)
        longest = await chain.read("ToleranceGame", "maxDisputeSeconds")
        turns = await chain.read("ToleranceGame", "MAX_TURNS")
        assert longest == turns * parameters.turn_s + parameters.payout_delay_s
        assert longest <= await chain.read("MinerRegistry", "maxDisputeSeconds")
        assert await chain.read("JuryArbitrator", "fee") == parameters.jury_fee
    finally:
        await chain.close()
