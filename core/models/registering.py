"""How does a publication come onto the chain? Program, specification, name: each unless there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.chain.rpc import RpcChain
from core.models.names import NO_MODEL
from core.models.publication import Publication
from core.protocol.errors import NameTaken
from core.protocol.signing import DigestSigner

if TYPE_CHECKING:
    from core.dispute.registration.search import SearchEffort


async def register(
    chain: RpcChain,
    signer: DigestSigner,
    publication: Publication,
    effort: SearchEffort | None = None,
) -> str:
    """Store the program and register the model unless they are; returns the model's id.

    Before anything is sent it is measured whether honest machines keep the program's T on these
    weights; `effort` is that of the search for rows. Raises ModelUnsupported where they do not.
    """
    from core.dispute.registration.weigh import REGISTERING, check_weights

    program, spec, model_id = publication.program, publication.spec, publication.model_id
    is_there = await chain.read("ModelRegistry", "exists", model_id)
    if program and not is_there:
        await asyncio.to_thread(check_weights, publication.folder, program, effort or REGISTERING)
    if program and not await chain.read("ProgramStore", "has", spec.numerics_profile):
        await chain.transact(signer, "ProgramStore", "store", program.program.to_bytes())
    if not is_there:
        roots = ["0x" + root.hex() for root in publication.roots]
        await chain.transact(signer, "ModelRegistry", "register", spec, roots)
    return model_id


async def give_name(
    chain: RpcChain, signer: DigestSigner, model_id: str, name: str, places: Sequence[str]
) -> None:
    """From now on `signer`/`name` is this registered model, and its files are at these places.

    Raises NameTaken for a name that means another model.
    """
    named = await chain.read("ModelRegistry", "idOf", signer.address, name)
    if named.lower() not in (NO_MODEL, model_id.lower()):
        raise NameTaken(
            f"{signer.address}/{name} is another model",
            why=f"it was published as {named}, and a name means one model for ever",
            next_step=f"give it another name, such as {name}-2",
        )
    await chain.transact(signer, "ModelRegistry", "publish", model_id, name, list(places))
