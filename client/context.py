"""What every client and auditor command needs: the chain, the matcher, the model, the wallet's records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from client.matcher_api import MatcherApi
from client.store import ClientStore
from core.engine.store import resolve_model
from core.protocol.chain import Chain
from core.protocol.errors import ModelMissing, ModelUnknown
from core.protocol.types import ModelSpec
from core.runtime.settings import Settings


@dataclass(frozen=True)
class Model:
    """A model as people, the chain and this machine know it."""

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

    async def model(self, name: str) -> Model:
        """A model by name or id. Raises ModelUnknown, listing the known names."""
        known = self.settings.network.models
        model_id = known.get(name, name)
        if not (model_id.startswith("0x") and len(model_id) == 66):
            raise ModelUnknown(
                f"no model '{name}' on network {self.settings.network.name}",
                f"known: {', '.join(sorted(known)) or 'none'}",
                next_step="list them: `client models`",
            )
        if not await self.chain.read("ModelRegistry", "exists", model_id):
            raise ModelUnknown(
                f"model {model_id} is not registered", f"on chain {self.chain.chain_id}"
            )
        spec = msgspec.convert(
            await self.chain.read("ModelRegistry", "specOf", model_id), ModelSpec
        )
        title = next((n for n, i in known.items() if i == model_id), name)
        return Model(title, model_id, spec)


@asynccontextmanager
async def open_context(settings: Settings) -> AsyncIterator[Context]:
    """Connect to the configured chain and check that it is the right one."""
    chain_id, rpc_url = settings.require_network()
    chain = Chain(rpc_url, chain_id, dict(settings.network.contracts))
    try:
        await chain.check()
        yield Context(settings, chain)
    finally:
        await chain.close()
