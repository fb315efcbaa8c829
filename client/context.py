"""What does every client and auditor command need: chain, matcher, model, records?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from client.orders.matcher_api import MatcherApi
from client.orders.matchers import Matchers
from client.records.store import ClientStore
from core.chain.chain import Chain
from core.chain.rpc import RpcChain
from core.engine.weights.store import find_model
from core.models.having import ModelHere, have_model
from core.models.names import local_id, model_id_of, spec_of
from core.protocol.errors import ModelMissing
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


def matchers_of(settings: Settings) -> Matchers:
    """The network's matchers. Raises ConfigError when none is configured, or none can be asked."""
    places = settings.require_matchers()
    return Matchers([(MatcherApi(url), address) for url, address in places])


def model_folder(name: str, settings: Settings, model_id: str | None = None) -> Path:
    """Where a model's files are, all or some of them. Raises ModelMissing."""
    found = find_model(name, model_id or local_id(name, settings), settings.folders.cache)
    if found is None:
        raise ModelMissing(
            f"nothing of model '{name}' is on this machine",
            why="neither its own files nor the tokenizer are here",
            next_step=f"fetch what is needed: `models pull {name}`",
        )
    return found


def open_store(settings: Settings) -> ClientStore:
    """The requester's records, apart per network."""
    return ClientStore(settings.folders.state / f"client-{settings.network.name}.sqlite")


@dataclass(frozen=True)
class Context:
    """Open connections of one command."""

    settings: Settings
    chain: Chain

    def matcher(self) -> Matchers:
        """The network's matchers. Raises ConfigError when none is configured."""
        return matchers_of(self.settings)

    def store(self) -> ClientStore:
        """The requester's records."""
        return open_store(self.settings)

    async def model(self, typed: str) -> Model:
        """A model by a short name, PUBLISHER/NAME or id. Raises ModelUnknown."""
        model_id = await model_id_of(self.chain, typed, self.settings)
        spec = await spec_of(self.chain, model_id)
        return Model(model_name(model_id, self.settings) or typed, model_id, spec)

    async def files_of(self, model: Model, *, with_weights: bool = False) -> ModelHere:
        """A model's small files, fetched if they are not here, and if asked where its weights are.

        Raises ModelMissing where no place is known, CheckFailed where none has what was published,
        or what the last place raised.
        """
        return await have_model(
            self.chain, self.settings, model.name, model.model_id, with_weights=with_weights
        )


def model_name(model_id: str, settings: Settings) -> str | None:
    """A model's name in the network file."""
    names = settings.network.models.items()
    return next((name for name, known in names if known.lower() == model_id.lower()), None)


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
    state = settings.folders.state
    chain = RpcChain(rpc_url, chain_id, addresses, journal=journal, state=state)
    try:
        await chain.check()
        yield Context(settings, chain)
    finally:
        await chain.close()
