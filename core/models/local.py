"""What of which models is on this machine, is it what was published, and how is it removed?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from core.chain.chain import Chain, ChainEvent
from core.chain.rpc import RpcChain
from core.engine.weights.contents import CONTENTS_FILE
from core.engine.weights.manifest import MANIFEST_FILE, ModelManifest, read_manifest
from core.engine.weights.pulled import PulledFolder
from core.engine.weights.shape import model_parts
from core.engine.weights.store import find_model, pulled_path
from core.engine.weights.tensors import TensorFolder
from core.engine.weights.weights import known_contents, weight_roots
from core.models.having import fetch_manifest, have_model, places_of
from core.models.names import (
    Publications,
    local_id,
    model_id_of,
    numerics_of,
    publications_of,
    registry_events,
    spec_of,
)
from core.models.places import ModelPlace
from core.models.programs import judge_of
from core.models.pull import file_sha256, unproven
from core.models.using import unused
from core.protocol import ids
from core.protocol.errors import CheckFailed, HeadraceError, ModelMissing, ModelUnsupported
from core.protocol.types import LayerRange, ModelSpec
from core.protocol.whole_file import write_whole
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


class ShownTolerance(Result, frozen=True):
    """T for stages or spans of up to `layers` layers, in windows of at least `rows` rows."""

    layers: int
    rows: int
    t: float


class ShownModel(Result, frozen=True):
    """`models show`: what the chain and the manifest say of a model.

    `span_layers` is how many layers lie between two boundaries that a stage signs and that are
    judged on their own, 0 where a stage is judged as one.
    """

    model: str
    id: str
    registrar: str
    names: list[str]
    places: list[str]
    layers: int
    context: int
    numerics: str
    judged_by: str
    span_layers: int
    tolerances: list[ShownTolerance]
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
        published: dict[str, list[ChainEvent]] = {}
        for event in events:
            if event.name == "ModelPublished":
                published.setdefault(event.args["id"], []).append(event)
        found = []
        for model_id in reversed(registered):
            spec = await spec_of(chain, model_id)
            names = publications_of(model_id, published.get(model_id, ())).names
            shown = _short_name(model_id, names, settings)
            found.append(
                KnownModel(
                    model=shown,
                    id=ids.short(ids.Kind.MODEL, model_id),
                    layers=spec.layers,
                    numerics=numerics_of(spec),
                    judged_by=(await judge_of(chain, spec.numerics_profile)).by,
                    names=list(names),
                    here=here(find_model(shown, model_id, settings.folders.cache)),
                )
            )
        return found


async def show_model(settings: Settings, typed: str) -> ShownModel:
    """What is known of a model. A manifest that is not here is fetched from its places, and kept.

    Raises ModelUnknown.
    """
    async with open_registry(settings) as chain:
        model_id = await model_id_of(chain, typed, settings)
        events = await registry_events(chain, settings.network.deploy_block)
        published = publications_of(model_id, events)
        return await shown_model(chain, settings, model_id, published, are_places_asked=True)


async def shown_model(
    chain: Chain,
    settings: Settings,
    model_id: str,
    published: Publications,
    *,
    are_places_asked: bool,
) -> ShownModel:
    """What is known of a registered model, by its id and what its publishers say of it.

    Raises ModelUnknown or ChainUnreachable. Without asking places nobody but the chain is asked.
    """
    spec = await spec_of(chain, model_id)
    judge = await judge_of(chain, spec.numerics_profile)
    registrar = await chain.read("ModelRegistry", "registrarOf", model_id)
    name = _short_name(model_id, published.names, settings)
    folder = find_model(name, model_id, settings.folders.cache)
    kept = pulled_path(model_id, settings.folders.cache)
    manifest = await asyncio.to_thread(_manifest_here, spec, [folder, kept] if folder else [kept])
    said = "here, as the chain has it"
    if manifest is None:
        said = f"not here: `models show {name}` asks its places for it"
        if are_places_asked:
            places = places_of(settings, (), published.places)
            manifest, said = await asyncio.to_thread(_fetched, name, spec, places, kept)
    return ShownModel(
        model=name,
        id=model_id,
        registrar=registrar,
        names=list(published.names),
        places=list(published.places),
        layers=spec.layers,
        context=spec.context,
        numerics=numerics_of(spec),
        judged_by=judge.by,
        span_layers=judge.span_layers,
        tolerances=[
            ShownTolerance(one.max_depth, one.min_rows, one.parts_per_trillion / 10**12)
            for one in judge.tolerances
        ],
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


def _manifest_here(spec: ModelSpec, folders: Sequence[Path]) -> ModelManifest | None:
    """The registered manifest from one of these folders; what else lies there is of another."""
    for folder in folders:
        try:
            data = (folder / MANIFEST_FILE).read_bytes()
            return read_manifest(data, spec.manifest_hash)
        except (FileNotFoundError, CheckFailed, ModelUnsupported):
            continue
    return None


def _fetched(
    name: str, spec: ModelSpec, places: Sequence[ModelPlace], into: Path
) -> tuple[ModelManifest | None, str]:
    """A model's manifest from its places, kept, and that it is, or why there is none."""
    try:
        manifest = fetch_manifest(name, spec, places)
    except HeadraceError as error:
        return None, f"not found: {error.what}"
    into.mkdir(parents=True, exist_ok=True)
    write_whole(into / MANIFEST_FILE, manifest.to_json())
    return manifest, "here, as the chain has it"


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
