"""A network deployed on a test's chain, with its file as its owner signed it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.networks.deploying import Journal, create, creations
from core.networks.plan import Deployment, WantedNetwork, network_of
from core.protocol.network_file import NetworkFile, Parameters, TokenFacts
from tests.conftest import CHAIN_ID

DEPLOYER, OWNER, GUARDIAN, FEES = 0, 1, 2, 3  # of Anvil's accounts


@dataclass
class Remembered:
    """A journal in memory."""

    journal: Journal

    def add(self, name: str, tx_hash: str) -> None:
        self.journal = self.journal.with_signed(name, tx_hash)


async def deployment_by(chain: RpcChain, signers: list[Signer], **changed: object) -> Deployment:
    """One that begins at the deployer's next nonce."""
    deployer = signers[DEPLOYER].address
    wanted: dict[str, object] = {
        "chain_id": CHAIN_ID,
        "deployer": deployer,
        "first_nonce": await chain.nonce(deployer),
        "first_block": await chain.block_number(),
        "token": None,
        "owner": signers[OWNER].address,
        "guardian": signers[GUARDIAN].address,
        "fee_recipient": signers[FEES].address,
        "parameters": Parameters(),
    }
    return Deployment(**(wanted | changed))  # type: ignore[arg-type]


def wanted_of(deployment: Deployment) -> WantedNetwork:
    return WantedNetwork(
        name="riverside",
        chain_id=CHAIN_ID,
        preset="devnet",
        owner=deployment.owner,
        guardian=deployment.guardian,
        fee_recipient=deployment.fee_recipient,
    )


async def file_of(chain: RpcChain, journal: Journal, owner: Signer) -> NetworkFile:
    """The file of a finished deployment, signed."""
    deployment = journal.deployment
    token = TokenFacts(deployment.at["TestUSD"], "usd", 6)
    made = await creations(chain, journal)
    return network_of(wanted_of(deployment), deployment, made, token).signed_with(owner)


def deploy_riverside(rpc_url: str, signers: list[Signer]) -> NetworkFile:
    """The whole of it."""

    async def work() -> NetworkFile:
        chain = RpcChain(rpc_url, CHAIN_ID, {})
        try:
            kept = Remembered(Journal(await deployment_by(chain, signers)))
            await create(chain, signers[DEPLOYER], kept.journal.deployment, kept.add)
            return await file_of(chain, kept.journal, signers[OWNER])
        finally:
            await chain.close()

    return asyncio.run(work())
