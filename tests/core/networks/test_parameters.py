"""What `faults` refuses a constructor reverts on, and the other way round."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from core.chain.artifacts import predict_address
from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.networks.parameters import (
    AMOUNTS,
    PRESETS,
    faults,
    last_panel,
    longest_game_s,
    longest_jury_s,
    preset,
)
from core.networks.plan import Deployment, require_sound
from core.protocol.errors import ConfigError, ContractRefused
from core.protocol.network_file import Parameters
from core.protocol.types import ZERO_ADDRESS
from tests.conftest import CHAIN_ID, Anvil

#: Each is refused by one check alone.
ONE_FAULT = {
    "unbond_s": {"unbond_s": 3639},
    "arbitrator_delay_s": {"arbitrator_delay_s": 8999},
    "the longest jury": {"max_dispute_s": 614, "turn_s": 1},
    "29 times turn_s": {"turn_s": 31},
    "juror_unbond_s": {"juror_unbond_s": 614},
    "protocol_fee_bps": {"protocol_fee_bps": 101},
    "bond_bps": {"bond_bps": 10_001},
    "slash_bps is 10001": {"slash_bps": 10_001},
    "draw_delay_blocks is 201": {
        "draw_delay_blocks": 201,
        "max_dispute_s": 20_000,
        "unbond_s": 30_000,
        "juror_unbond_s": 20_000,
    },
    "its last one": {"panel": 8},
    **{
        f"{name} is 0": {name: 0}
        for name in (
            *("close_delay_s", "min_juror_stake", "maturity_s", "draw_delay_blocks", "panel"),
            *("slash_bps", "commit_s", "reveal_s", "appeal_s", "bond_s", "turn_s"),
        )
    },
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_sound_for_every_token(name: str) -> None:
    for decimals in (6, 8, 12):
        found = preset(name, decimals)
        assert faults(found) == []
        for amount in AMOUNTS:
            whole = getattr(PRESETS[name], amount) / 10**6
            assert getattr(found, amount) == whole * 10**decimals


@pytest.mark.parametrize("fault", ONE_FAULT)
def test_each_fault_is_named_with_both_numbers(fault: str) -> None:
    p = msgspec.structs.replace(Parameters(), **ONE_FAULT[fault])
    (said,) = faults(p)
    assert fault in said
    assert sum(word.strip(",:").isdigit() for word in said.split()) >= 2
    with pytest.raises(ConfigError) as refused:
        require_sound(p)
    assert said in refused.value.why


class Constructors:
    """All constructors that check something, on a real chain, from one account."""

    def __init__(self, chain: RpcChain, signer: Signer) -> None:
        self.chain, self.signer = chain, signer

    async def refuse(self, p: Parameters) -> bool:
        """Whether one of them reverts on these parameters."""
        chain, signer = self.chain, self.signer
        nonce = await chain.nonce(signer.address)
        last = len(self._deployment(p, 0).created) - 1
        deployment = self._deployment(p, nonce + 2 - last)  # TaskRegistry comes third here
        arguments = deployment.arguments
        assert deployment.at["TaskRegistry"] == predict_address(signer.address, nonce + 2)
        try:
            miners = await chain.deploy(signer, "MinerRegistry", *arguments["MinerRegistry"])
            escrow = await chain.deploy(signer, "Escrow", *arguments["Escrow"])
            _, _, models, *rest = arguments["TaskRegistry"]
            await self._simulate("TaskRegistry", escrow, miners, models, *rest)
            for name in ("JuryArbitrator", "ToleranceGame"):
                token, tasks, _, *rest = arguments[name]
                await self._simulate(name, token, tasks, miners, *rest)
        except ContractRefused:
            return True
        return False

    def _deployment(self, p: Parameters, first_nonce: int) -> Deployment:
        who = self.signer.address
        return Deployment(
            CHAIN_ID, who, max(0, first_nonce), 0, who, who, ZERO_ADDRESS, who, parameters=p
        )

    async def _simulate(self, name: str, *arguments: object) -> None:
        await self.chain.simulate_creation(self.signer.address, name, *arguments)


@pytest.fixture
async def constructors(anvil: Anvil, signers: list[Signer]) -> AsyncIterator[Constructors]:
    chain = RpcChain(anvil.rpc_url, CHAIN_ID, {})
    while await chain.nonce(signers[7].address) < 10:
        await chain.send_eth(signers[7], signers[8].address, 1)
    yield Constructors(chain, signers[7])
    await chain.close()


@pytest.mark.chain
async def test_the_constructors_take_presets_and_refuse_each_single_fault(
    constructors: Constructors,
) -> None:
    for name in PRESETS:
        assert not await constructors.refuse(preset(name, 6)), name
    for fault, changed in ONE_FAULT.items():
        assert await constructors.refuse(msgspec.structs.replace(Parameters(), **changed)), fault


@pytest.mark.chain
async def test_the_constructors_agree_on_random_parameters(constructors: Constructors) -> None:
    """Most values lie at a limit or next to it; an even share of examples is sound."""
    rng = random.Random(27)
    refused = 0
    for _ in range(80):
        p = near_the_limits(rng)
        is_refused = await constructors.refuse(p)
        assert is_refused == bool(faults(p)), (p, faults(p))
        refused += is_refused
    assert 15 <= refused <= 65


def near_the_limits(rng: random.Random) -> Parameters:
    """Parameters whose sums miss their limits by one at most, about half of them sound."""

    def near(value: int) -> int:
        return max(0, value + rng.choice([0, 0, 0, 0, 1, 1, 1, -1]))

    def small(most: int) -> int:
        return rng.choice([most, rng.randint(1, most), rng.randint(1, most)])

    p = Parameters(
        max_job_s=rng.randrange(4000),
        max_window_s=rng.randrange(4000),
        close_delay_s=rng.randint(1, 100),
        protocol_fee_bps=near(small(99)),
        bond_bps=near(small(9999)),
        slash_bps=near(small(9999)),
        draw_delay_blocks=near(small(199)),
        panel=near(rng.randint(2, 7)),
        commit_s=near(rng.randint(1, 90)),
        reveal_s=rng.randint(1, 90),
        appeal_s=rng.randint(1, 90),
        payout_delay_s=rng.randrange(50),
        turn_s=rng.randint(1, 60),
        maturity_s=near(1),
        bond_s=near(1),
        min_stake=rng.randrange(10**9),
    )
    dispute_s = near(max(longest_game_s(p), longest_jury_s(p)))
    p = msgspec.structs.replace(
        p, max_dispute_s=dispute_s, juror_unbond_s=near(max(1, longest_jury_s(p)))
    )
    held_s = p.max_job_s + p.max_window_s + p.max_dispute_s + p.close_delay_s
    p = msgspec.structs.replace(p, unbond_s=near(held_s))
    assert last_panel(p) == 4 * p.panel + 3
    return msgspec.structs.replace(p, arbitrator_delay_s=near(p.unbond_s + p.max_job_s))
