"""Which model does a person mean: by a short name, a publisher's name, or an id?

A network file pins short names. PUBLISHER/NAME, the publisher's address first, is one model's for
ever and for everybody; what it means is asked of the chain once and kept beside the models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from core.chain.chain import BLOCKS_PER_CALL, Chain, ChainEvent
from core.engine.weights.formats import FORMATS
from core.engine.weights.store import models_dir
from core.protocol import ids, signing
from core.protocol.errors import IdInvalid, ModelUnknown, UsageError
from core.protocol.foreign import read_json_file
from core.protocol.types import ModelSpec
from core.protocol.whole_file import write_whole
from core.runtime.settings import Settings

_PUBLISHED = re.compile(r"(0x[0-9a-fA-F]{40})/([a-z0-9][a-z0-9._-]{0,63})", re.ASCII)
_NAMES_FILE = "published-names.json"
_MOST_BYTES = 16 * 2**20
NO_MODEL = "0x" + "00" * 32


class RegistryEvent(Protocol):
    """An event of the registry, however it is kept."""

    @property
    def name(self) -> str: ...

    @property
    def args(self) -> Mapping[str, Any]: ...


def local_id(typed: str, settings: Settings) -> str | None:
    """The id, 0x-hex, that a name or an id means as far as this machine knows by itself."""
    pinned = settings.network.models
    return (
        pinned.get(typed)
        or _by_id(typed, pinned.values())
        or _kept(settings).get(_key(typed, settings))
    )


def refuse_no_name(typed: str, settings: Settings) -> None:
    """Raise UsageError for what can be no model on this network, without asking anybody."""
    is_folder = len(Path(typed).parts) > 1 and (Path(typed) / "config.json").is_file()
    if is_folder or _PUBLISHED.fullmatch(typed) or local_id(typed, settings):
        return
    if "/" in typed:
        raise UsageError(
            f"'{typed[:100]}' is no published model",
            why="a published one is named PUBLISHER/NAME, the publisher's address first; an id of "
            "a model hub says nothing of what its weights compute",
            next_step=f"publish it: `client models publish {typed[:100]}`; or choose one of "
            "`client models ls`",
        )
    if pinned := sorted(settings.network.models):
        raise UsageError(
            f"no model '{typed[:100]}' on network {settings.network.name}",
            why=f"known: {', '.join(pinned)}",
            next_step="choose one of them, or PUBLISHER/NAME: `client models ls` lists both",
        )


async def model_id_of(chain: Chain, typed: str, settings: Settings) -> str:
    """The id, 0x-hex, of a registered model. Raises ModelUnknown, listing what is known."""
    found = local_id(typed, settings)
    published = _PUBLISHED.fullmatch(typed)
    if found is None and published:
        publisher = ids.address(published[1].lower())
        named = await chain.read("ModelRegistry", "idOf", publisher, published[2])
        if named != NO_MODEL:
            found = named
            _keep(settings, _key(typed, settings), named)
    if found is None:
        known = sorted(settings.network.models)
        raise ModelUnknown(
            f"no model '{typed}' on network {settings.network.name}",
            f"known: {', '.join(known) or 'none'}",
            next_step="list them: `client models`; name others as PUBLISHER/NAME",
            known=known,
        )
    return found


async def spec_of(chain: Chain, model_id: str) -> ModelSpec:
    """What the chain says of a model. Raises ModelUnknown."""
    if not await chain.read("ModelRegistry", "exists", model_id):
        raise ModelUnknown(f"model {model_id} is not registered", f"on chain {chain.chain_id}")
    return msgspec.convert(await chain.read("ModelRegistry", "specOf", model_id), ModelSpec)


def numerics_of(spec: ModelSpec) -> str:
    """The name of what a model's machines compute in; its hash where no format here has it."""
    return next((n for n in FORMATS if signing.name_hash(n) == spec.dtype), spec.dtype)


async def registry_events(chain: Chain, first_block: int) -> list[ChainEvent]:
    """Every event of the registry from a block on, in chain order."""
    head, found = await chain.block_number(), list[ChainEvent]()
    for start in range(first_block, head + 1, BLOCKS_PER_CALL):
        end = min(head, start + BLOCKS_PER_CALL - 1)
        found += await chain.events(start, end, contract="ModelRegistry")
    return found


async def published_places(chain: Chain, model_id: str, first_block: int) -> list[str]:
    """Where its publishers say that a model's files are: URIs, the newest first, none twice."""
    return list(publications_of(model_id, await registry_events(chain, first_block)).places)


class Publications(NamedTuple):
    """What publishers say of one model."""

    names: tuple[str, ...]  # PUBLISHER/NAME, the oldest first
    places: tuple[str, ...]  # URIs, the newest first, none twice


def publications_of(model_id: str, events: Iterable[RegistryEvent]) -> Publications:
    """Of events in chain order: what they say of a model. Of each name its newest places count."""
    newest: dict[str, list[str]] = {}
    names = dict[str, None]()
    for event in events:
        if event.name == "ModelPublished" and event.args["id"].lower() == model_id.lower():
            name = f"{event.args['publisher']}/{event.args['name']}"
            names[name] = None
            newest.pop(name, None)
            newest[name] = list(event.args["places"])
    places = [uri for stated in reversed(newest.values()) for uri in stated]
    return Publications(tuple(names), tuple(dict.fromkeys(places)))


def _by_id(typed: str, known: Iterable[str]) -> str | None:
    """A whole 0x id, or the known one that a printed form or a prefix of it means."""
    try:
        if re.fullmatch(r"0x[0-9a-fA-F]{64}", typed):
            return "0x" + ids.raw_id(typed).hex()
        if typed.startswith(f"{ids.Kind.MODEL.value}_"):
            return ids.find(ids.Kind.MODEL, typed, known, lambda model_id: model_id)
    except IdInvalid:
        pass
    return None


def _key(typed: str, settings: Settings) -> str:
    return f"{settings.network.chain_id} {typed.lower()}"


def _file(settings: Settings) -> Path:
    return models_dir(settings.folders.cache) / _NAMES_FILE


def _kept(settings: Settings) -> dict[str, str]:
    try:
        return msgspec.convert(
            read_json_file(_file(settings), most_bytes=_MOST_BYTES), dict[str, str]
        )
    except (OSError, ValueError):  # not there, or not ours: the chain is asked again
        return {}


def _keep(settings: Settings, key: str, model_id: str) -> None:
    path = _file(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(_kept(settings) | {key: model_id}, indent=1).encode())
