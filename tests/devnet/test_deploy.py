"""Every preset of parameters makes a network whose clocks fit each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.networks.parameters import PRESETS
from core.protocol.network_file import Parameters
from devnet.deploy import deploy
from tests.conftest import CHAIN_ID, start_anvil

pytestmark = pytest.mark.chain


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    anvil = start_anvil()
    yield anvil.rpc_url
    anvil.stop()


@pytest.mark.parametrize("parameters", PRESETS.values(), ids=PRESETS)
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
