"""`client models publish`: from a folder or a hub to a name that strangers can buy by."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.context import open_context
from core.chain.rpc import RpcChain
from core.engine.weights.contents import contents_of
from core.engine.weights.formats import FORMATS
from core.engine.weights.shape import describe_model
from core.engine.weights.store import is_name
from core.models.places import place_of
from core.models.publication import (
    JUDGED_NUMERICS,
    Publication,
    program_to_publish,
    publication_of,
    refuse_own_code,
    write_manifest,
)
from core.models.registering import give_name, register
from core.protocol.errors import (
    ModelGated,
    ModelMissing,
    ModelUnsupported,
    Unreachable,
    UsageError,
)
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result

if TYPE_CHECKING:
    from core.dispute.play.program import ModelProgram

_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_MIB = 2**20
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_SMALL = ("*.json", "*.jinja", "*.model", "merges.txt", "LICENSE*", "NOTICE", "README.md")
#: Gas, about: of registering (a model of 30 layers takes 1,010,466), of storing a program as code,
#: and of a name with its places.
_GAS_REGISTER, _GAS_ROOT, _GAS_PROGRAM_BYTE, _GAS_NAME = 240_000, 25_000, 230, 90_000


class PublishedModel(Result, frozen=True):
    """`models publish`."""

    model: str
    id: str
    manifest: str
    size_bytes: int
    layers: int
    numerics: str
    licence: str
    judged_by: str
    places: list[str]
    seconds: float
    next: str


@dataclass(frozen=True)
class Wanted:
    """What a publisher asks for."""

    source: str
    name: str = ""
    revision: str = "main"
    licence: str = ""
    numerics: str = "float32"
    places: tuple[str, ...] = ()
    by_jury: bool = False


async def publish(run: Run, wanted: Wanted) -> PublishedModel:
    """Hash a model, write its manifest, register and name it; each step again costs nothing.

    With --dry-run everything is measured and nothing is sent or written but the hashes beside the
    model. Raises UsageError, ModelError, Unreachable for a hub that does not answer, NameTaken for
    a name that means another model.
    """
    began = time.monotonic()
    _refuse_early(wanted)
    is_folder = await asyncio.to_thread(Path(wanted.source).is_dir)
    folder, places = await _source(run, wanted, is_folder=is_folder)
    refuse_own_code(folder)
    sizes = describe_model(folder, wanted.numerics)
    with run.stage(1, 4, "hashing", unit="MiB") as stage:

        def show(done: int, total: int) -> None:
            stage.set(done // _MIB, total=total // _MIB)

        await asyncio.to_thread(contents_of, folder, show)
    with run.stage(2, 4, "operator program and its scales"):
        program, jurys = await asyncio.to_thread(_program, wanted, folder)
    made = await asyncio.to_thread(
        publication_of,
        folder,
        licence=wanted.licence,
        numerics=wanted.numerics,
        program=program,
    )
    name = wanted.name or _plain_name(folder if is_folder else wanted.source)
    size = sum(file.size_bytes for file in made.manifest.files.values())
    async with open_context(run.settings) as context:
        chain = context.chain
        assert isinstance(chain, RpcChain)
        signer = run.unlock()
        is_there = await chain.read("ModelRegistry", "exists", made.model_id)
        gas = await _gas(chain, made, is_there=is_there)
        run.confirm(
            "Publish it?",
            {
                "model": f"{signer.address}/{name}",
                "id": made.model_id,
                "from": str(folder),
                "size": f"{size / _MIB:,.0f} MiB in {len(made.manifest.files)} files, "
                f"{sizes.layers} layers, {sizes.parameters / 1e6:,.0f} M parameters",
                "licence": made.manifest.licence or "none stated: say it with --licence",
                "numerics": wanted.numerics,
                "judged by": jurys or "the tolerance game, and juries",
                "fetched from": ", ".join(places)
                or "nowhere yet: name places with --at, or run `client models share`",
                "took so far": f"{time.monotonic() - began:.0f} s; next its tolerances are tried",
                "gas": f"about {gas:,} in {1 + 2 * (not is_there)} transactions",
                "back": "a registered model stays; its name means it for ever",
            },
        )
        written = write_manifest(made)
        with run.stage(3, 4, "tolerances on these weights, and registering"):
            await register(chain, signer, made)
        with run.stage(4, 4, "naming"):
            await give_name(chain, signer, made.model_id, name, places)
    return PublishedModel(
        model=f"{signer.address}/{name}",
        id=made.model_id,
        manifest=str(written),
        size_bytes=size,
        layers=sizes.layers,
        numerics=wanted.numerics,
        licence=made.manifest.licence,
        judged_by="jury" if jurys else "game",
        places=places,
        seconds=round(time.monotonic() - began, 1),
        next=f"miner start --model {signer.address}/{name}"
        if places
        else f"client models share {folder} --listen HOST:PORT, then publish again with --at",
    )


def _refuse_early(wanted: Wanted) -> None:
    """Raise UsageError before anything is fetched or hashed."""
    if wanted.name and not is_name(wanted.name):
        raise UsageError(
            f"'{wanted.name[:80]}' is no name of a model",
            why="names are up to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first",
        )
    if wanted.numerics not in FORMATS:
        raise UsageError(
            f"cannot publish in {wanted.numerics}", why="known numerics are " + ", ".join(FORMATS)
        )
    for uri in wanted.places:
        place_of(uri)


async def _source(run: Run, wanted: Wanted, *, is_folder: bool) -> tuple[Path, list[str]]:
    """The folder with the files, and where others find them."""
    if is_folder:
        return await asyncio.to_thread(Path(wanted.source).resolve), list(wanted.places)
    if not _HUB_ID.fullmatch(wanted.source):
        raise ModelMissing(
            f"there is no folder {wanted.source}",
            why="and it is no id of a model hub, which is PUBLISHER/REPOSITORY",
            next_step="give a folder with config.json and safetensors, or such an id",
        )
    with run.stage(0, 4, f"fetching {wanted.source}"):
        return await asyncio.to_thread(_from_hub, wanted)


def _from_hub(wanted: Wanted) -> tuple[Path, list[str]]:
    """A repository in the hub's own cache, and its place: of this very commit."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def again(error: Exception, kind: Any, what: str) -> Any:
        return kind(what, why=str(error).strip().splitlines()[0])

    try:
        folder = Path(
            snapshot_download(
                wanted.source,
                revision=wanted.revision,
                allow_patterns=[*_WEIGHTS, *_SMALL],
            )
        )
    except GatedRepoError as error:
        raise again(error, ModelGated, f"{wanted.source} is not shown to just anybody") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        what = f"the hub has no {wanted.source} at {wanted.revision}"
        raise again(error, ModelMissing, what) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError) as error:
        raise again(error, Unreachable, f"cannot fetch {wanted.source}") from error
    except OSError as error:
        raise again(error, Unreachable, f"cannot fetch {wanted.source}") from error
    return folder, [f"hf://{wanted.source}@{folder.name}", *wanted.places]


def _program(wanted: Wanted, folder: Path) -> tuple[ModelProgram | None, str]:
    """The operator program, or why juries alone judge the model."""
    if wanted.by_jury:
        return None, "juries alone, as you asked"
    if wanted.numerics not in JUDGED_NUMERICS:
        raise ModelUnsupported(
            f"nobody could judge a model in {wanted.numerics}",
            why="operator programs are written in " + " and ".join(JUDGED_NUMERICS),
            next_step="publish it in one of them, or with --jury for juries alone",
        )
    program = program_to_publish(folder, wanted.numerics)
    if program is None:
        architecture = describe_model(folder).architecture
        return None, f"juries alone: no operator program describes {architecture}"
    if not program.program.tolerances:
        return program, "the game for tokens; no tolerance was measured for its rows"
    return program, ""


async def _gas(chain: RpcChain, made: Publication, *, is_there: bool) -> int:
    """About what the transactions take that are not on the chain yet."""
    gas = _GAS_NAME
    if not is_there:
        gas += _GAS_REGISTER + _GAS_ROOT * len(made.roots)
    profile = made.spec.numerics_profile
    if made.program and not await chain.read("ProgramStore", "has", profile):
        gas += _GAS_PROGRAM_BYTE * len(made.manifest.program)
    return gas


def _plain_name(source: Path | str) -> str:
    """A name from that of a folder or repository."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", Path(source).name.lower()).strip("._-")
    return re.sub(r"\.\.+", ".", plain)[:64] or "model"
