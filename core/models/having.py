"""How does a program come to have the part of a model that it works with?

A folder of that name that holds the whole model is used as it is. Else the published files are
pulled: manifest and small files first, then the tensors of the layers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from core.chain.chain import Chain
from core.engine.weights.manifest import (
    MANIFEST_FILE,
    MOST_MANIFEST_BYTES,
    ModelManifest,
    read_manifest,
)
from core.engine.weights.pulled import PulledFolder
from core.engine.weights.store import find_model, pulled_path
from core.engine.weights.weights import weight_roots
from core.models.names import published_places, spec_of
from core.models.peers import FindPeers, peers_by_matcher
from core.models.places import ModelPlace, place_of
from core.models.pull import (
    Progress,
    begin,
    layers_of,
    missing_small_files,
    pull,
    pull_small_files,
)
from core.models.using import use
from core.protocol.errors import CheckFailed, HeadraceError, ModelMissing, UsageError
from core.protocol.types import LayerRange, ModelSpec
from core.runtime.network.channel import dials_private
from core.runtime.settings import Settings


@dataclass(frozen=True)
class ModelHere:
    """A model whose small files are here, all of it or in part, and where the rest is.

    Whoever has one uses the folder: `models rm-local` leaves it alone while that process lives.
    """

    folder: Path
    pulled: PulledFolder | None  # None: the folder holds all of it
    places: tuple[ModelPlace, ...]
    #: Machines that serve it, which are asked after those places.
    peers: FindPeers = lambda layers: ()

    def __post_init__(self) -> None:
        use(self.folder)

    def fetch(self, layers: LayerRange | None, progress: Progress | None = None) -> int:
        """Fetch the tensors of these layers unless they are here; returns how many bytes came.

        Raises DiskFull, CheckFailed, or what the last place raised.
        """
        if self.pulled is None:
            return 0
        names = layers_of(self.folder, self.pulled.manifest, layers)
        is_here = PulledFolder(self.folder).here.issuperset(names)
        places = self.places if is_here else (*self.places, *self.peers(layers))
        return pull(self.pulled, names, places, progress=progress)


def whole_here(settings: Settings, name: str, model_id: str | None) -> ModelHere | None:
    """A model of which everything is on this machine, so that no network is needed."""
    folder = find_model(name, model_id, settings.folders.cache)
    return ModelHere(folder, None, ()) if folder and not PulledFolder.find(folder) else None


async def have_model(
    chain: Chain,
    settings: Settings,
    name: str,
    model_id: str,
    *,
    places: Sequence[str] = (),
    peers: FindPeers | None = None,
    with_weights: bool = True,
) -> ModelHere:
    """The model as it is here, with its small files fetched if it is not, from these places first.

    Machines that serve it are asked last: those that `peers` finds, or that the matcher sees.
    Without weights the chain is not asked where they are, unless small files are missing. Raises
    ModelMissing where no place is known, CheckFailed where none has what was published, or what
    the last place raised.
    """
    if whole := whole_here(settings, name, model_id):
        return whole
    folder = find_model(name, model_id, settings.folders.cache)
    pulled = PulledFolder.find(folder) if folder else None
    missing = await asyncio.to_thread(_missing, pulled) if pulled else []
    if pulled and not missing and not with_weights:
        return ModelHere(pulled.model_dir, pulled, ())
    spec = await spec_of(chain, model_id)
    stated = await published_places(chain, model_id, settings.network.deploy_block)
    found = await asyncio.to_thread(places_of, settings, places, stated)
    find = peers or partial(peers_by_matcher, settings, model_id)
    if pulled is None or missing:
        every = (*found, *await asyncio.to_thread(find, None))
        if pulled is None:
            folder = pulled_path(model_id, settings.folders.cache)
            pulled = await asyncio.to_thread(partial(_begin, name, folder, spec, every))
        else:
            fetching = partial(pull_small_files, pulled.manifest, pulled.model_dir, every, missing)
            await asyncio.to_thread(fetching)
    return ModelHere(pulled.model_dir, pulled, found, find)


def _missing(pulled: PulledFolder) -> list[str]:
    return missing_small_files(pulled.manifest, pulled.model_dir)


def places_of(
    settings: Settings, given: Sequence[str], stated: Sequence[str]
) -> tuple[ModelPlace, ...]:
    """Places given by the user, who may name any, then those that strangers have stated.

    Raises UsageError for what the user gave and is none.
    """
    network = settings.network
    is_own = dials_private(network.chain_id or 0, network.private_addresses)
    own = [place_of(uri, are_private_allowed=True) for uri in given]
    for uri in stated:
        try:
            own.append(place_of(uri, are_private_allowed=is_own))
        except UsageError:
            continue  # of a kind that this program does not know
    return tuple(own)


def _begin(name: str, folder: Path, spec: ModelSpec, places: Sequence[ModelPlace]) -> PulledFolder:
    manifest = fetch_manifest(name, spec, places)
    begin(manifest, folder)
    pull_small_files(manifest, folder, places)
    found = weight_roots(folder).weights_root
    if found.lower() != spec.weights_root.lower():
        raise CheckFailed(
            f"the manifest of {name} is not that of its weights",
            f"its tensors make the root {found}, the chain has {spec.weights_root}",
            state="nothing of it is used",
            next_step="its publisher registered it so: choose another model",
        )
    return PulledFolder(folder)


def fetch_manifest(name: str, spec: ModelSpec, places: Sequence[ModelPlace]) -> ModelManifest:
    """A model's manifest from the first place that has the registered one.

    Raises ModelMissing, or what the last place raised.
    """
    last: HeadraceError = ModelMissing(
        f"nobody says where the files of {name} are",
        why="its publisher has stated no place, and none was given",
        next_step="ask the publisher, then `models pull NAME --at URI`",
    )
    for place in places:
        try:
            data = place.whole(MANIFEST_FILE, MOST_MANIFEST_BYTES)
            return read_manifest(data, spec.manifest_hash)
        except HeadraceError as error:
            last = error
    raise last
