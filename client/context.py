"""What does every client and auditor command need: chain, matcher, model, records?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from client.orders.matcher_api import MatcherApi
from client.records.store import ClientStore
from core.chain.chain import Chain
from core.chain.rpc import RpcChain
from core.engine.weights.store import resolve_model
from core.protocol import ids
from core.protocol.errors import IdInvalid, ModelMissing, ModelUnknown
from core.protocol.types import ModelSpec
from core.runtime.commands.debug import record_transaction
from core.runtime.settings import Settings

#: The contracts that a requester, an auditor or a juror reads or calls.
CONTRACTS = (
    "TestUSD",
    "MinerRegistry",
    "ModelRegistry",
    "Escrow",
    "TaskRegistry",
    "JuryArbitrator",
)
#: Those of the tolerance game, on networks that have it.
GAME_CONTRACTS = ("ProgramStore", "TraceJudge", "ToleranceGame", "Evidence")


@dataclass(frozen=True)
class Model:
    """A model by its name, its id on chain (0x hex) and its specification."""

    name: str
    model_id: str
    spec: ModelSpec

    def folder(self, settings: Settings) -> Path:
        """Its files here. Raises ModelMissing."""
        return model_folder(self.name, settings)


def model_folder(name: str, settings: Settings) -> Path:
    """Where a named model's files are: the configured cache, then the user's."""
    try:
        return resolve_model(name, settings.folders.cache)
    except ModelMissing:
        return resolve_model(name)


def open_store(settings: Settings) -> ClientStore:
    """The requester's records, apart per network."""
    return ClientStore(settings.folders.state / f"client-{settings.network.name}.sqlite")


@dataclass(frozen=True)
class Context:
    """Open connections of one command."""

    settings: Settings
    chain: Chain

    def matcher(self) -> MatcherApi:
        """The network's matcher. Raises ConfigError when none is configured."""
        return MatcherApi(self.settings.require_matcher_url())

    def store(self) -> ClientStore:
        """The requester's records."""
        return open_store(self.settings)

    async def model(self, typed: str) -> Model:
        """A model by name or id. Raises ModelUnknown, listing the known names."""
        known = self.settings.network.models
        model_id = known.get(typed) or _model_id(typed, known.values())
        if model_id is None:
            raise ModelUnknown(
                f"no model '{typed}' on network {self.settings.network.name}",
                f"known: {', '.join(sorted(known)) or 'none'}",
                next_step="list them: `client models`",
            )
        if not await self.chain.read("ModelRegistry", "exists", model_id):
            where = f"on chain {self.chain.chain_id}"
            raise ModelUnknown(f"model {model_id} is not registered", where)
        found = await self.chain.read("ModelRegistry", "specOf", model_id)
        spec = msgspec.convert(found, ModelSpec)
        return Model(model_name(model_id, self.settings) or typed, model_id, spec)


def model_name(model_id: str, settings: Settings) -> str | None:
    """A model's name in the network file."""
    names = settings.network.models.items()
    return next((name for name, known in names if known.lower() == model_id.lower()), None)


def _model_id(typed: str, known: Iterable[str]) -> str | None:
    """A whole 0x id, or the known one that a printed form or a prefix of it means."""
    try:
        if typed.startswith("0x"):
            return "0x" + ids.raw_id(typed).hex()
        if typed.startswith(f"{ids.Kind.MODEL.value}_"):
            return ids.find(ids.Kind.MODEL, typed, known, lambda model_id: model_id)
    except IdInvalid:
        pass
    return None


@asynccontextmanager
async def open_context(settings: Settings) -> AsyncIterator[Context]:
    """Connect to the configured chain, check which it is, and keep a journal of what is sent.

    Raises ConfigError or ChainUnreachable.
    """
    chain_id, rpc_url = settings.require_network()
    addresses = {name: settings.network.contract(name) for name in CONTRACTS}
    known = settings.network.contracts
    addresses |= {name: known[name] for name in GAME_CONTRACTS if name in known}
    journal = partial(record_transaction, settings.folders)
    chain = RpcChain(rpc_url, chain_id, addresses, journal=journal)
    try:
        await chain.check()
        yield Context(settings, chain)
    finally:
        await chain.close()
