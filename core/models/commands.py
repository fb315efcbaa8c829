"""Which commands about models has every program that works with them?

``models ls|show|pull|verify|rm-local``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from core.runtime.commands.cli import CommandGroup, Run

if TYPE_CHECKING:
    from core.runtime.commands.results import Results

HELP = "Models: which there are, and what of them is on this machine."
_Model = Annotated[str, typer.Argument(help="Its name, PUBLISHER/NAME, or its id.")]


def mount(group: CommandGroup) -> None:
    """Add the shared commands to a program's group."""
    group.command("ls")(ls)
    group.command("show")(show)
    group.command("pull")(pull)
    group.command("verify")(verify)
    group.command("rm-local")(rm_local)


def printed(prefix: str = "models") -> Results:
    """Command → types of what it prints with --json."""
    from core.models import local

    return {
        f"{prefix} ls": (list[local.KnownModel],),
        f"{prefix} show": (local.ShownModel,),
        f"{prefix} pull": (local.PulledModel,),
        f"{prefix} verify": (local.VerifiedModel,),
        f"{prefix} rm-local": (local.RemovedModel,),
    }


async def ls(run: Run) -> None:
    """Every registered model: its names, who judges it, and which of its layers are here."""
    from core.models.local import list_models

    columns = ("model", "id", "layers", "numerics", "judged_by", "here")
    run.emit(await list_models(run.settings), columns=columns)


async def show(run: Run, model: _Model) -> None:
    """What the chain and the manifest say of a model."""
    from core.models.local import show_model

    run.emit(await show_model(run.settings, model))


async def pull(
    run: Run,
    model: _Model,
    layers: Annotated[str | None, typer.Option(help="A:B for layers A to B-1; else all.")] = None,
    at: Annotated[
        list[str] | None, typer.Option(help="Also fetch from here: hf://, https:// or file://.")
    ] = None,
) -> None:
    """Fetch a model's files, or those of some layers; what is here is not fetched again."""
    from core.models.local import pull_model
    from core.protocol.types import LayerRange

    settings = run.load({"miner.layers": layers})
    fixed = settings.miner.layers if layers else None
    run.emit(await pull_model(run, model, LayerRange(*fixed) if fixed else None, at or []))


async def verify(run: Run, model: _Model) -> None:
    """Hash again all that is here of a model, and hold it to the chain."""
    from core.models.local import verify_model

    run.emit(await verify_model(run, model))


def rm_local(run: Run, model: _Model) -> None:
    """Delete what is here of a model."""
    from core.models.local import remove_model

    run.emit(remove_model(run, model))
