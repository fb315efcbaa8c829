"""What exactly does a command print with --json? A JSON Schema per command, made from the types of its results."""

from __future__ import annotations

import importlib
from typing import Any, Final

from core.runtime.commands.results import RESULTS as SHARED
from core.runtime.commands.results import Failure, Rehearsed

Schema = dict[str, Any]
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: Program → where its types are.
MODULES: Final = {
    "miner": "miner.results",
    "client": "client.results",
    "matcher": "matcher.results",
    "auditor": "client.auditor_results",
    "devnet": "devnet.results",
}
#: What prints no result of its own.
SILENT: Final = {
    "miner start": "a daemon",
    "auditor jury serve": "a daemon",
    "auditor watch": "a daemon; `auditor audits ls` prints what it found",
    "devnet logs": "prints a file",
    "devnet demo": "tells a story",
}


def results_of(program: str) -> dict[str, tuple[Any, ...]]:
    """Command → types of its result, the shared commands included."""
    own: dict[str, tuple[Any, ...]] = importlib.import_module(MODULES[program]).RESULTS
    return {**SHARED, **own}


def name_of(program: str, command: str) -> str:
    """What the documents of a command call themselves: ``headrace.miner.status/1``."""
    return f"headrace.{'.'.join([program, *command.split()])}/1"


def schema_of(program: str, command: str, kinds: tuple[Any, ...]) -> Schema:
    """The schema of one command's documents: `schema`, `ok` and the `result`."""
    import msgspec

    components: Schema = {}
    shapes, components = msgspec.json.schema_components(
        [*kinds, Rehearsed], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": DIALECT,
        "$id": name_of(program, command),
        "title": f"{program} {command} --json",
        "type": "object",
        "required": ["schema", "ok", "result"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": name_of(program, command)},
            "ok": {"const": True},
            "result": {"anyOf": list(shapes)},
        },
        "$defs": components,
    }


def error_schema() -> Schema:
    """The schema of what any program prints when it fails."""
    import msgspec

    (shape,), components = msgspec.json.schema_components([Failure], ref_template="#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "$id": "headrace.error/1",
        "title": "any program's failure with --json",
        "type": "object",
        "required": ["schema", "ok", "error"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": "headrace.error/1"},
            "ok": {"const": False},
            "error": shape,
        },
        "$defs": components,
    }


def schemas_of(program: str) -> dict[str, Schema]:
    """Name of the document → its schema, for every command of a program."""
    return {
        name_of(program, command): schema_of(program, command, kinds)
        for command, kinds in sorted(results_of(program).items())
    }


def every_schema() -> dict[str, Schema]:
    """Of all five programs, and of failures. All of them must be installed."""
    found = {"headrace.error/1": error_schema()}
    for program in MODULES:
        found |= schemas_of(program)
    return found


def file_name(name: str) -> str:
    """``headrace.miner.status/1`` → ``headrace.miner.status.1.json``."""
    return f"{name.replace('/', '.')}.json"
