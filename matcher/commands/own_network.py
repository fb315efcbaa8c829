"""`matcher network deploy` and `sign`: how does an owner make a network, and vouch for its file?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from core.chain.rpc import RpcChain
from core.networks.checking import require_true, speaks_for
from core.networks.deploying import (
    begun,
    create,
    creations,
    write_journal,
)
from core.networks.joining import read_here
from core.networks.plan import (
    Deployment,
    WantedNetwork,
    network_of,
    parameters_of,
    read_wanted,
    require_apart,
)
from core.networks.token import TokenReport, examine_token
from core.protocol import units
from core.protocol.errors import CheckFailed, ConfigError
from core.protocol.ids import address
from core.protocol.network_file import TOKEN, TokenFacts
from core.protocol.types import ZERO_ADDRESS
from core.protocol.whole_file import write_whole
from core.runtime.commands.console import Run
from core.runtime.commands.debug import record_transaction
from core.runtime.commands.results import Result
from core.runtime.folders import alone_in

NEW_TOKEN = "new"
#: Of a whole deployment with a token of its own, rounded up.
GAS = 39_000_000


class NetworkDeployed(Result, frozen=True):
    """`network deploy`: what was created, and the files that say so."""

    network: str
    chain_id: int
    owner: str
    digest: str
    signed: bool
    file: str
    explorer_file: str
    contracts: dict[str, str]


class NetworkSigned(Result, frozen=True):
    """`network sign`: the file as its owner vouches for it."""

    network: str
    revision: int
    digest: str
    signer: str
    file: str


async def deploy_network(run: Run, file: Path, token: str, holder: str) -> NetworkDeployed:
    """Create the network that a parameters file describes, or go on with it.

    Raises ConfigError, CheckFailed, GasShort, ContractRefused, ChainUnreachable; whatever it
    raises, the same command goes on from there.
    """
    wanted = read_wanted(file)
    run.load({"network.name": wanted.name, "network.chain_id": wanted.chain_id})
    signer = run.unlock()
    require_apart(signer.address, wanted)
    folder = run.folders.state / "deployments" / wanted.name
    async with chain_of(run) as chain:
        report = await _token(chain, wanted, token, holder or signer.address)
        parameters = parameters_of(wanted, report.facts.decimals)
        deployment = Deployment(
            chain_id=wanted.chain_id,
            deployer=signer.address,
            first_nonce=0,
            first_block=0,
            token=None if token == NEW_TOKEN else report.facts.address,
            owner=address(wanted.owner),
            guardian=address(wanted.guardian),
            fee_recipient=address(wanted.fee_recipient),
            parameters=parameters,
        )
        price_wei = int.from_bytes(await chain.raw("eth_gasPrice"))
        has_wei = await chain.balance_wei(signer.address)
        summary = _summary(wanted, deployment, report, chain.rpc_url)
        summary["gas"] = (
            f"about {units.show_eth(GAS * price_wei)} now; the deployer has "
            f"{units.show_eth(has_wei)}"
        )
        run.confirm("Deploy it?", summary)
        deployment = msgspec.structs.replace(  # a person may have taken long to answer
            deployment,
            first_nonce=await chain.nonce(signer.address),
            first_block=await chain.block_number(),
        )
        with (
            alone_in(folder, f"a deployment of {wanted.name}", "wait until it has ended"),
            run.stage(1, 1, "contracts", total=len(deployment.created)) as stage,
        ):
            journal = JournalWriter(folder / "journal.json", deployment)
            deployment = journal.now.deployment
            await create(
                chain, signer, deployment, journal.add, lambda name: stage.advance(note=name)
            )
        made = await creations(chain, journal.now)
        facts = msgspec.structs.replace(report.facts, address=deployment.at[TOKEN])
        network = network_of(wanted, deployment, made, facts)
        if address(wanted.owner) == signer.address:
            network = network.signed_with(signer)
        await require_true(chain, network, is_signed=bool(network.signature))
        rpc_url = chain.rpc_url
        arguments = {name: chain.creation_code(name, *deployment.arguments[name]) for name in made}
    written, explorer = folder / f"{wanted.name}.json", folder / "creation-code.json"
    if not written.exists():  # else the owner may have signed it by now
        write_whole(written, network.as_json(), synced=True)
    network = read_here(written)
    content = msgspec.json.format(msgspec.json.encode(arguments), indent=1)
    write_whole(explorer, content, synced=True)
    if not network.signature:
        run.note(
            f"the owner signs the file now: matcher network sign {written} --wallet OWNER "
            f"--rpc-url {rpc_url}"
        )
    return NetworkDeployed(
        network=network.name,
        chain_id=network.chain_id,
        owner=network.owner,
        digest="0x" + network.digest.hex(),
        signed=bool(network.signature),
        file=str(written),
        explorer_file=str(explorer),
        contracts=network.contracts,
    )


class JournalWriter:
    """The journal of a deployment, on the disk before anything that it tells of happens."""

    def __init__(self, path: Path, wanted: Deployment) -> None:
        """Raises ConfigError where the file is of another deployment."""
        self.path, self.now = path, begun(path, wanted)

    def add(self, name: str, tx_hash: str) -> None:
        """One more transaction was signed."""
        self.now = self.now.with_signed(name, tx_hash)
        write_journal(self.path, self.now)


async def sign_network(run: Run, path: Path, *, is_new: bool) -> NetworkSigned:
    """Sign a network file with the owner's wallet, as the next revision if `is_new`.

    Raises CheckFailed where the chain contradicts the file or knows another owner, ConfigError.
    """
    network = read_here(path)
    if is_new:
        network = msgspec.structs.replace(network, revision=network.revision + 1)
    run.load({"network.name": str(path)})
    signer = run.unlock()
    async with chain_of(run) as chain:
        await require_true(chain, network, is_signed=False)
        if not await speaks_for(chain, network.owner, signer.address):
            raise CheckFailed(
                f"{signer.address} does not speak for this network",
                why=f"its owner is {network.owner}",
                next_step="choose the owner's wallet: --wallet NAME",
            )
    digest = "0x" + network.digest.hex()
    said = {
        "network": f"{network.name}, revision {network.revision}, chain {network.chain_id}",
        "digest": digest,
        "means": "whoever joins by this file trusts its addresses, peers and models",
    }
    run.confirm("Sign it?", said)
    write_whole(path, network.signed_with(signer).as_json(), synced=True)
    return NetworkSigned(network.name, network.revision, digest, signer.address, str(path))


@asynccontextmanager
async def chain_of(run: Run) -> AsyncIterator[RpcChain]:
    """The configured chain without any contract, checked to be that chain.

    Raises ConfigError, ChainUnreachable.
    """
    chain_id, rpc_url = run.settings.require_network()
    journal = partial(record_transaction, run.folders)
    chain = RpcChain(rpc_url, chain_id, {}, journal=journal)
    try:
        await chain.check()
        yield chain
    finally:
        await chain.close()


async def _token(chain: RpcChain, wanted: WantedNetwork, token: str, holder: str) -> TokenReport:
    if token != NEW_TOKEN:
        return await examine_token(chain, address(token), address(holder))
    if wanted.preset == "production":
        raise ConfigError(
            "a production network has no token of its own",
            why="its owner could mint as much as it likes",
            next_step="name an ERC-20 that others hold: --token ADDRESS",
        )
    facts = TokenFacts(ZERO_ADDRESS, units.TOKEN_SYMBOL, units.TOKEN_DECIMALS)
    return TokenReport(facts, ("its owner mints it: it is worth nothing",))


def _summary(
    wanted: WantedNetwork, deployment: Deployment, report: TokenReport, rpc_url: str
) -> dict[str, str]:
    token = deployment.token or "a new one"
    return {
        "network": f"{wanted.name} on chain {wanted.chain_id} through {rpc_url}",
        "deployer": f"{deployment.deployer}, which pays the gas and holds no power afterwards",
        "owner": f"{deployment.owner}, from the first block on: there is nothing to hand over",
        "guardian": deployment.guardian,
        "fees to": f"{deployment.fee_recipient}, {deployment.parameters.protocol_fee_bps} bps",
        "token": f"{report.facts.symbol}, {report.facts.decimals} decimals, {token}",
        **{f"warning {number}": text for number, text in enumerate(report.warnings, 1)},
        "parameters": f"preset {wanted.preset}, {len(wanted.parameters)} of its own",
        "transactions": f"{len(deployment.created)}, at most; each is written down before",
    }
