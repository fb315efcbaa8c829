"""What of which models is on this machine, is it what was published, and how is it removed?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from core.chain.chain import Chain
from core.chain.rpc import RpcChain
from core.engine.weights.contents import CONTENTS_FILE
from core.engine.weights.manifest import MANIFEST_FILE, ModelManifest, read_manifest
from core.engine.weights.pulled import PulledFolder
from core.engine.weights.shape import model_parts
from core.engine.weights.store import find_model
from core.engine.weights.tensors import TensorFolder
from core.engine.weights.weights import known_contents, weight_roots
from core.models.having import fetch_manifest, have_model, places_of
from core.models.names import (
    local_id,
    model_id_of,
    numerics_of,
    published_places,
    registry_events,
    spec_of,
)
from core.models.places import ModelPlace
from core.models.pull import file_sha256, unproven
from core.models.using import unused
from core.protocol import ids
from core.protocol.errors import CheckFailed, HeadraceError, ModelMissing
from core.protocol.types import LayerRange, ModelSpec
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result
from core.runtime.settings import Settings

_CONTRACTS = ("ModelRegistry", "ProgramStore")
_MIB = 2**20


class KnownModel(Result, frozen=True):
    """`models ls`: a registered model."""

    model: str
    id: str
    layers: int
    numerics: str
    judged_by: str
    names: list[str]
    here: str


class ShownModel(Result, frozen=True):
    """`models show`: what the chain and the manifest say of a model."""

    model: str
    id: str
    registrar: str
    names: list[str]
    places: list[str]
    layers: int
    context: int
    numerics: str
    judged_by: str
    licence: str | None
    size_bytes: int | None
    files: int | None
    manifest: str
    here: str
    folder: str | None


class PulledModel(Result, frozen=True):
    """`models pull`."""

    model: str
    id: str
    folder: str
    layers: str
    fetched_bytes: int
    here: str


class VerifiedModel(Result, frozen=True):
    """`models verify`: everything that is here is what was published."""

    model: str
    id: str
    folder: str
    files: int
    tensors: int
    here: str


class RemovedModel(Result, frozen=True):
    """`models rm-local`."""

    model: str
    folder: str
    freed_bytes: int


@asynccontextmanager
async def open_registry(settings: Settings) -> AsyncIterator[RpcChain]:
    """The chain as far as it says what models are. Raises ConfigError or ChainUnreachable."""
    chain_id, rpc_url = settings.require_network()
    known = settings.network.contracts
    addresses = {"ModelRegistry": settings.network.contract("ModelRegistry")}
    addresses |= {name: known[name] for name in _CONTRACTS if name in known}
    chain = RpcChain(rpc_url, chain_id, addresses)
    try:
        await chain.check()
        yield chain
    finally:
        await chain.close()


async def list_models(settings: Settings) -> list[KnownModel]:
    """Every registered model, the newest first, and what of it is here."""
    async with open_registry(settings) as chain:
        events = await registry_events(chain, settings.network.deploy_block)
        registered = [e.args["id"] for e in events if e.name == "ModelRegistered"]
        names: dict[str, list[str]] = {}
        for event in events:
            if event.name == "ModelPublished":
                given = names.setdefault(event.args["id"], [])
                if (name := f"{event.args['publisher']}/{event.args['name']}") not in given:
                    given.append(name)
        found = []
        for model_id in reversed(registered):
            spec = await spec_of(chain, model_id)
            shown = _short_name(model_id, names.get(model_id, []), settings)
            found.append(
                KnownModel(
                    model=shown,
                    id=ids.short(ids.Kind.MODEL, model_id),
                    layers=spec.layers,
                    numerics=numerics_of(spec),
                    judged_by=await judged_by(chain, spec),
                    names=names.get(model_id, []),
                    here=here(find_model(shown, model_id, settings.folders.cache)),
                )
            )
        return found


async def show_model(settings: Settings, typed: str) -> ShownModel:
    """What is known of a model. Where its manifest is not here, its places are asked for it.

    Raises ModelUnknown.
    """
    async with open_registry(settings) as chain:
        model_id = await model_id_of(chain, typed, settings)
        spec = await spec_of(chain, model_id)
        first = settings.network.deploy_block
        events = await registry_events(chain, first)
        names = [
            f"{e.args['publisher']}/{e.args['name']}"
            for e in events
            if e.name == "ModelPublished" and e.args["id"] == model_id
        ]
        places = await published_places(chain, model_id, first)
        name = _short_name(model_id, names, settings)
        folder = find_model(name, model_id, settings.folders.cache)
        known = places_of(settings, (), places)
        manifest, said = await asyncio.to_thread(_manifest_of, name, spec, folder, known)
        return ShownModel(
            model=name,
            id=model_id,
            registrar=await chain.read("ModelRegistry", "registrarOf", model_id),
            names=list(dict.fromkeys(names)),
            places=places,
            layers=spec.layers,
            context=spec.context,
            numerics=numerics_of(spec),
            judged_by=await judged_by(chain, spec),
            licence=(manifest.licence or "not stated") if manifest else None,
            size_bytes=sum(f.size_bytes for f in manifest.files.values()) if manifest else None,
            files=len(manifest.files) if manifest else None,
            manifest=said,
            here=here(folder),
            folder=str(folder) if folder else None,
        )


async def pull_model(
    run: Run, typed: str, layers: LayerRange | None, places: Sequence[str]
) -> PulledModel:
    """Fetch some layers of a model, or all of it. Raises what `ModelHere.fetch` does."""
    settings = run.settings
    async with open_registry(settings) as chain:
        model_id = await model_id_of(chain, typed, settings)
        run.rehearse("fetch the model", {"model": typed, "layers": str(layers or "all")})
        with run.stage(1, 2, "manifest and tokenizer"):
            found = await have_model(chain, settings, typed, model_id, places=places)
        with run.stage(2, 2, "weights", unit="MiB") as stage:

            def show(done: int, total: int) -> None:
                stage.set(done // _MIB, total=total // _MIB)

            fetched = await asyncio.to_thread(found.fetch, layers, show)
    return PulledModel(
        model=typed,
        id=model_id,
        folder=str(found.folder),
        layers=str(layers) if layers else "all",
        fetched_bytes=fetched,
        here=here(found.folder),
    )


async def verify_model(run: Run, typed: str) -> VerifiedModel:
    """Hash again all that is here of a model.

    Raises CheckFailed for what is not as it was published: such tensors of a pulled model count as
    not here from then on, so that they are fetched again. Raises ModelMissing where none is here.
    """
    settings = run.settings
    async with open_registry(settings) as chain:
        model_id = await model_id_of(chain, typed, settings)
        spec = await spec_of(chain, model_id)
    folder = _require_here(typed, model_id, settings)
    with run.stage(1, 1, "hashing"):
        files, tensors = await asyncio.to_thread(_verify, typed, folder, spec)
    return VerifiedModel(
        model=typed,
        id=model_id,
        folder=str(folder),
        files=files,
        tensors=tensors,
        here=here(folder),
    )


def remove_model(run: Run, typed: str) -> RemovedModel:
    """Delete what is here of a model, after a question. Raises ModelMissing or ModelInUse."""
    folder = _require_here(typed, local_id(typed, run.settings), run.settings)
    with unused(folder, typed):
        pass  # nobody is asked about what cannot be done
    size = sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())
    run.confirm(
        "Delete it from this machine?",
        {
            "folder": str(folder),
            "frees": f"{size / _MIB:,.0f} MiB",
            "back": "`models pull`",
        },
    )
    with unused(folder, typed):
        shutil.rmtree(folder)
    return RemovedModel(typed, str(folder), size)


async def judged_by(chain: Chain, spec: ModelSpec) -> str:
    """Who settles a dispute about a model's numbers."""
    has_program = "ProgramStore" in chain.addresses and await chain.read(
        "ProgramStore", "has", spec.numerics_profile
    )
    return "game" if has_program else "jury"


def here(folder: Path | None) -> str:
    """Which layers of a model a folder holds, such as `0:3 12:30`, `all` or `-`."""
    if folder is None:
        return "-"
    pulled = PulledFolder.find(folder)
    if pulled is None or len(pulled.here) == len(pulled.manifest.tensors):
        return "all"
    try:
        parts = model_parts(folder, TensorFolder(folder))
    except ModelMissing:
        return "-"
    whole = [set(layer.values()) <= pulled.here for layer in parts.layers]
    spans, start = [], None
    for number, is_here in enumerate([*whole, False]):
        if is_here and start is None:
            start = number
        elif not is_here and start is not None:
            spans.append(f"{start}:{number}")
            start = None
    return " ".join(spans) or "no layers"


def _manifest_of(
    name: str, spec: ModelSpec, folder: Path | None, places: Sequence[ModelPlace]
) -> tuple[ModelManifest | None, str]:
    """A model's manifest, and where it is from or why there is none."""
    try:
        if folder and (folder / MANIFEST_FILE).is_file():
            data = (folder / MANIFEST_FILE).read_bytes()
            return read_manifest(data, spec.manifest_hash), "here, as the chain has it"
        return fetch_manifest(name, spec, places), "as the chain has it"
    except HeadraceError as error:
        return None, f"not found: {error.what}"


def _short_name(model_id: str, names: Sequence[str], settings: Settings) -> str:
    """The network file's name, else the first publisher's, else the id."""
    pinned: Mapping[str, str] = settings.network.models
    own = next((name for name, known in pinned.items() if known.lower() == model_id.lower()), None)
    return own or (names[0] if names else model_id)


def _require_here(typed: str, model_id: str | None, settings: Settings) -> Path:
    folder = find_model(typed, model_id, settings.folders.cache)
    if folder is None:
        raise ModelMissing(
            f"nothing of {typed} is on this machine", next_step=f"`models pull {typed}` fetches it"
        )
    return folder


def _verify(name: str, folder: Path, spec: ModelSpec) -> tuple[int, int]:
    """How many files and tensors are as published. Raises CheckFailed."""
    pulled = PulledFolder.find(folder)
    if pulled is None:
        (folder / CONTENTS_FILE).unlink(missing_ok=True)  # what was hashed before counts as nothing
        found = weight_roots(folder).weights_root
        if found.lower() != spec.weights_root.lower():
            raise CheckFailed(
                f"the files of {name} are not the registered model",
                f"their weights root is {found}, the registry says {spec.weights_root}",
                state="the folder was not changed",
                next_step=f"`models rm-local {name}`, then `models pull {name}`",
            )
        contents = known_contents(folder)
        return len(contents.files), len(contents.tensors)
    manifest = read_manifest((folder / MANIFEST_FILE).read_bytes(), spec.manifest_hash)
    weights = {tensor.file for tensor in manifest.tensors.values()}
    small = [n for n in manifest.files if n not in weights and (folder / n).is_file()]
    bad_files = [n for n in small if file_sha256(folder / n) != manifest.files[n].sha256]
    bad = unproven(pulled, sorted(pulled.here))
    pulled.forget(bad)
    for file in bad_files:
        (folder / file).unlink()
    if bad or bad_files:
        wrong = [*bad_files, *bad]
        raise CheckFailed(
            f"{len(wrong)} parts of {name} are not as published",
            ", ".join(wrong[:5]) + (" and more" if len(wrong) > 5 else ""),
            state="they count as not here from now on; everything else is right",
            next_step=f"`models pull {name}` fetches them again",
            wrong=wrong[:100],
        )
    return len(small), len(pulled.here)
