"""Deploying a network of one machine, with a token of its own, and registering a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core.chain.rpc import RpcChain
from core.models.publication import program_to_publish, publication_of, write_manifest
from core.models.registering import give_name, register
from core.networks.deploying import create
from core.networks.plan import Deployment
from core.protocol.network_file import Parameters
from core.protocol.signing import DigestSigner

if TYPE_CHECKING:
    from core.dispute.play.program import ModelProgram
    from core.dispute.registration.search import SearchEffort


async def deploy(
    chain: RpcChain, deployer: DigestSigner, fee_recipient: str, p: Parameters
) -> dict[str, str]:
    """Create every contract and a token of their own; returns their addresses.

    One key is deployer, owner and guardian, as on a local chain alone.
    """
    owner = deployer.address
    deployment = Deployment(
        chain_id=chain.chain_id,
        deployer=owner,
        first_nonce=await chain.nonce(owner),
        first_block=await chain.block_number(),
        token=None,
        owner=owner,
        guardian=owner,
        fee_recipient=fee_recipient,
        parameters=p,
    )
    await create(chain, deployer, deployment)
    return dict(chain.addresses)


async def register_model(
    chain: RpcChain,
    signer: DigestSigner,
    model_dir: Path,
    program: ModelProgram | None = None,
    effort: SearchEffort | None = None,
    *,
    name: str = "",
    numerics: str = "float32",
) -> str:
    """Publish a folder as `client models publish` does, with this or its calibrated program.

    Returns the model's id. Raises ModelUnsupported where honest machines cannot keep the program's
    tolerances on these weights.
    """
    program = program or program_to_publish(model_dir, numerics)
    found = publication_of(model_dir, numerics=numerics, program=program)
    model_id = await register(chain, signer, found, effort)
    if name:
        write_manifest(found)
        await give_name(chain, signer, model_id, name, [model_dir.as_uri()])
    return model_id
