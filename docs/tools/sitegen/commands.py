"""What can be typed? The reference of the five programs, from the programs."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

from core.runtime.commands.console import name_of
from core.runtime.commands.schemas import ERROR, error_schema, schemas_of
from sitegen.places import PROGRAMS
from sitegen.text import code, prose, table


@dataclass(frozen=True)
class Listed:
    """One command: what is typed to reach it, typer's object for it, its context for rendering."""

    path: str
    command: Any
    context: Any

    @property
    def anchor(self) -> str:
        return self.path.replace(" ", "-")


def app_of(program: str) -> Any:
    """The program's frame, `core.runtime.commands.cli.App`."""
    return import_module(PROGRAMS[program]).app


def root_of(program: str) -> Any:
    """The program's outermost command."""
    return typer.main.get_command(app_of(program).typer)


def commands_of(program: str) -> list[Listed]:
    """Every command that is not hidden, in the order of `--help`; groups are walked, not listed."""
    root = root_of(program)
    return list(_walk(root, program, root.make_context(program, [], resilient_parsing=True)))


def _walk(command: Any, path: str, context: Any) -> Iterator[Listed]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield Listed(path, command, context)
        return
    for name in command.list_commands(context):
        child = inner[name]
        if not child.hidden:
            made = child.make_context(name, [], parent=context, resilient_parsing=True)
            yield from _walk(child, f"{path} {name}", made)


def schema_files() -> dict[str, str]:
    """`schemas/NAME.json`: a JSON Schema of what each command prints, and of a failure."""
    found = {ERROR: error_schema()}
    for program in PROGRAMS:
        found |= schemas_of(program, app_of(program).printed())
    return {
        f"schemas/{file_name(name)}": json.dumps(schema, indent=1, sort_keys=True) + "\n"
        for name, schema in found.items()
    }


def file_name(name: str) -> str:
    """``headrace.miner.status/1`` → ``headrace.miner.status.1.json``."""
    return f"{name.replace('/', '.')}.json"


def command_pages() -> dict[str, str]:
    """`reference/cli/index.md`, and a page per program."""
    pages = {f"reference/cli/{program}.md": _program(program) for program in PROGRAMS}
    return {"reference/cli/index.md": _index(), **pages}


def _index() -> str:
    from core.runtime.commands.cli import EXIT_CODES

    root = root_of("client")
    context = root.make_context("client", [], resilient_parsing=True)
    programs = [(f"[`{p}`]({p}.md)", prose(root_of(p).help)) for p in PROGRAMS]
    codes = [
        part.strip().rstrip(".") for part in EXIT_CODES.removeprefix("Exit codes: ").split(", ")
    ]
    return "\n".join(
        [
            "# Command line\n",
            "Five programs. Each answers `--help` at every level.\n",
            table(("program", "what it is for"), programs),
            "## Options of every command {#global}\n",
            "They may stand before or after the command.\n",
            _options(root.params, context),
            "## Exit codes {#exit-codes}\n",
            table(
                ("exit code", "meaning"),
                (
                    (
                        f"[{number}](../../errors/index.md#exit-{number})"
                        if number != "0"
                        else "0",
                        meaning,
                    )
                    for number, _, meaning in (part.partition(" ") for part in _joined(codes))
                ),
            ),
            "## Scripts\n",
            "With `--json` a command prints one JSON document on stdout and asks nothing: what "
            "would be a question needs `--yes`, "
            "and a password a file. Messages go to stderr. `--dry-run` stops before anything is "
            "signed and shows what would be. "
            "Amounts always carry a unit, such as `5usd`; times too, such as `30m`. A raw private "
            "key on a command line is "
            "[refused](../../errors/E-KEY-01.md).\n",
            "## Completion\n",
            "```sh\nclient --install-completion\n```\n",
        ]
    )


def _joined(parts: list[str]) -> Iterator[str]:
    """Parts that begin with a number, with those that do not put back behind the one before."""
    whole = ""
    for part in parts:
        if part[:1].isdigit():
            if whole:
                yield whole
            whole = part
        else:
            whole = f"{whole}, {part}"
    yield whole


def _program(program: str) -> str:
    root, printed = root_of(program), app_of(program).printed()
    listed = commands_of(program)
    rows = ((f"[`{c.path}`](#{c.anchor})", prose(_first_paragraph(c.command.help))) for c in listed)
    parts = [
        f"# {program}\n",
        f"{prose(root.help)}\n",
        "[Options of every command and exit codes](index.md#global) are the same for all "
        "programs.\n",
        table(("command", "what it does"), rows),
    ]
    for one in listed:
        parts += [
            f"## {one.path} {{#{one.anchor}}}\n",
            prose(one.command.help or "") + "\n",
            f"```text\n{_usage(one)}\n```\n",
            _arguments(one),
            _options(_own(one.command), one.context),
            _schema(one, program, printed),
        ]
    return "\n".join(part for part in parts if part)


def _schema(one: Listed, program: str, printed: Container[str]) -> str:
    """Where the document that `--json` prints is described; "" for a command that prints none."""
    command = one.path.removeprefix(f"{program} ")
    if command not in printed:
        return ""
    file = file_name(name_of(program, command))
    return f"With `--json`: [{file}](../../schemas/{file})\n"


def _usage(one: Listed) -> str:
    pieces = []
    for param in one.command.params:
        if param.param_type_name == "argument":
            name = param.name.upper()
            pieces.append(name if param.required else f"[{name}]")
    options = ["[OPTIONS]"] if _own(one.command) else []
    return " ".join([one.path, *options, *pieces])


def _own(command: Any) -> list[Any]:
    """The options that are this command's, without those of every command."""
    return [
        p
        for p in command.params
        if p.param_type_name == "option"
        and not p.rich_help_panel
        and not getattr(p, "hidden", False)
    ]


def _arguments(one: Listed) -> str:
    rows = (
        (code(p.name.upper()), "" if p.required else "optional", prose(p.help or ""))
        for p in one.command.params
        if p.param_type_name == "argument"
    )
    return table(("argument", "", "what"), rows)


def _options(params: list[Any], context: Any) -> str:
    rows = []
    for param in params:
        if param.param_type_name != "option" or getattr(param, "hidden", False):
            continue
        names = " / ".join([", ".join(param.opts), *(param.secondary_opts or [])])
        kind = "" if param.is_flag or param.count else _kind(param, context)
        rows.append((code(f"{names} {kind}".strip()), _default(param), prose(param.help or "")))
    return table(("option", "default", "what"), rows)


def _kind(param: Any, context: Any) -> str:
    record = param.get_help_record(context)
    found = re.search(r"(<[^>]*>|[^\s-]\S*)$", record[0] if record else "")
    return found[0] if found else ""


def _default(param: Any) -> str:
    default = param.default
    if default is None or default is False or default == "" or callable(default) or param.count:
        return ""
    if param.is_flag and param.secondary_opts:
        return code(param.opts[0])
    if default is True:
        return "on"
    return code(getattr(default, "value", default))


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().partition("\n\n")[0].split())
