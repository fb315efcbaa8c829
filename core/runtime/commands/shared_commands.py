"""Which commands does every program have?

``config show|set|path``, ``schema``, ``debug save`` and ``backup save|restore``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from core.runtime.commands.console import Run

if TYPE_CHECKING:
    from core.runtime.commands.results import Results


class ProgramFrame(Protocol):
    """A program as far as commands are added to it; `cli.App` is one."""

    program: str

    def command(self, name: str) -> Callable[[Callable[..., None]], Any]:
        """Add a command."""

    def group(self, name: str, help: str) -> ProgramFrame:
        """Add a sub-command that has commands of its own."""

    def printed(self) -> Results:
        """Command → types of what it prints with --json."""


def mount(app: ProgramFrame) -> None:
    """Add the shared commands to a program."""
    config = app.group("config", help="Show and change settings.")
    config.command("show")(show)
    config.command("set")(set_)
    config.command("path")(path)
    app.command("schema")(_schema_of(app))
    debug = app.group("debug", help="Gather what a helper needs to see.")
    debug.command("save")(save)
    backup = app.group("backup", help="Keep a copy of what your programs know, and put it back.")
    backup.command("save")(backup_save)
    backup.command("restore")(backup_restore)


def show(
    run: Run,
    key: Annotated[str | None, typer.Argument(help="Only this setting, or this section.")] = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value comes from.")
    ] = False,
) -> None:
    """Print the effective settings; secrets are masked."""
    from core.runtime.commands.results import Setting
    from core.runtime.settings import SHORT_SECTIONS, Settings, check_key

    rows = [
        Setting(name, value, source)
        for name, value, source in run.settings.effective()
        if key is None or name == key or name.startswith(f"{key}.")
    ]
    if not rows and key is not None and key not in {*SHORT_SECTIONS, *Settings.model_fields}:
        check_key(key)
    run.emit(rows, columns=("key", "value", "origin") if origin else ("key", "value"))


def set_(
    run: Run,
    key: Annotated[str, typer.Argument(help="Such as miner.price_out.")],
    value: Annotated[str, typer.Argument(help="Lists are separated by commas.")],
) -> None:
    """Change one setting in the user's configuration file; comments stay."""
    from core.runtime.commands.config_file import set_value
    from core.runtime.commands.results import Changed

    run.rehearse("change a setting", {"key": key, "value": value})
    full_key, written = set_value(key, value, run.folders)
    file = run.folders.config_file
    run.emit(Changed(full_key, written, str(file)), human=f"{full_key} = {written}   ({file})")


def path(run: Run) -> None:
    """Print where configuration, state, cache and networks are kept."""
    from core.runtime.commands.results import Places

    folders = run.folders
    places = folders.config_file, folders.state, folders.cache, folders.networks
    run.emit(Places(*map(str, places)))


def _schema_of(app: ProgramFrame) -> Callable[..., None]:
    """The command ``schema`` of a program: it knows which types the program's commands print."""

    def schema(
        run: Run,
        command: Annotated[
            list[str] | None, typer.Argument(help="Such as jobs ls; the names of all if not said.")
        ] = None,
    ) -> None:
        """Print the JSON Schema of what a command prints with --json."""
        import json

        from core.protocol.errors import UsageError
        from core.runtime.commands.console import name_of
        from core.runtime.commands.schemas import ERROR, error_schema, schemas_of

        known = schemas_of(app.program, app.printed())
        name = name_of(run.program, " ".join(command or []))
        if command is None:
            run.emit([*known, ERROR])
        elif command == ["error"]:
            print(json.dumps(error_schema(), indent=2))
        elif name in known:
            print(json.dumps(known[name], indent=2))
        else:
            raise UsageError(
                f"no schema of '{' '.join(command)}'",
                f"{run.program} has {len(known)} commands that print one",
                next_step=f"{run.program} schema",
            )

    return schema


def save(run: Run, file: Annotated[Path, typer.Argument(help="Zip file to write.")]) -> None:
    """Bundle logs, settings and versions, without secrets, into a file to send to a helper."""
    from core.protocol.errors import HeadraceError
    from core.runtime.commands.debug import save_bundle
    from core.runtime.commands.results import DebugBundle

    try:
        config = [
            {"key": name, "value": value, "origin": source}
            for name, value, source in run.settings.effective()
        ]
    except HeadraceError as error:  # a broken configuration is worth a bundle too
        config = [error.to_dict()]
    names = save_bundle(file, run.folders, config, run.program)
    run.emit(DebugBundle(str(file), names), human=f"wrote {file}: {', '.join(names)}")


def backup_save(run: Run, file: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Copy configuration, networks, keystores and records into a file, while programs run."""
    from core.runtime.backup import save_backup
    from core.runtime.commands.results import BackedUp

    settings = run.settings
    run.rehearse("write a backup", {"file": str(file)})
    made = save_backup(file, run.folders, settings.wallet.keystore_dir)
    urls = {
        "matcher.db_url": settings.matcher.db_url,
        "gateway.db_url": settings.gateway.db_url,
    }
    left = [f"the database of {key}" for key, url in urls.items() if url]
    left += ["passwords"]
    run.emit(
        BackedUp(str(file), made.at_s, made.files, made.size_bytes, left),
        human=f"wrote {file}: {made.files} files; not in it: {', '.join(left)}",
    )


def backup_restore(
    run: Run, file: Annotated[Path, typer.Argument(help="What `backup save` wrote.")]
) -> None:
    """Put a backup back where nothing is yet. Never while the programs that it is of still run."""
    from core.runtime.backup import restore_backup
    from core.runtime.commands.results import BackedUp

    run.rehearse("restore a backup", {"file": str(file)})
    made = restore_backup(file, run.folders, run.settings.wallet.keystore_dir)
    run.emit(
        BackedUp(str(file), made.at_s, made.files, made.size_bytes, ["passwords"]),
        human=f"restored {made.files} files from {file}; a miner signs nothing more for the "
        "orders in them, and what programs did since is not known here",
    )
