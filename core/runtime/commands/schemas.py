"""What exactly does a command print with --json? Its JSON Schema, made from the types it prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

from core.runtime.commands.results import Failure, Rehearsed, Results

Schema = dict[str, Any]
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ERROR: Final = "headrace.error/1"


class Printing(Protocol):
    """A program whose commands print results."""

    program: str

    def printed(self) -> Results:
        """Command → types of what it prints with --json."""


def name_of(program: str, command: str) -> str:
    """What the documents of a command call themselves: ``headrace.miner.status/1``."""
    return f"headrace.{'.'.join([program, *command.split()])}/1"


def file_name(name: str) -> str:
    """``headrace.miner.status/1`` → ``headrace.miner.status.1.json``."""
    return f"{name.replace('/', '.')}.json"


def schemas_of(app: Printing) -> dict[str, Schema]:
    """Name of the document → its schema, for every command of a program."""
    found = {}
    for command, kinds in sorted(app.printed().items()):
        name = name_of(app.program, command)
        shapes, parts = _shapes([*kinds, Rehearsed])
        found[name] = _document(
            name, f"{app.program} {command} --json", True, {"result": {"anyOf": shapes}}, parts
        )
    return found


def error_schema() -> Schema:
    """The schema of what any program prints when it fails."""
    (shape,), parts = _shapes([Failure])
    return _document(ERROR, "any program's failure with --json", False, {"error": shape}, parts)


def every_schema(apps: Iterable[Printing]) -> dict[str, Schema]:
    """Name → schema, for every command of these programs and for failures."""
    found = {ERROR: error_schema()}
    for app in apps:
        found |= schemas_of(app)
    return found


def _shapes(kinds: list[Any]) -> tuple[list[Schema], Schema]:
    """The schema of each type, and the named parts to which they refer."""
    shapes, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return list(shapes), parts


def _document(name: str, title: str, ok: bool, body: Schema, parts: Schema) -> Schema:
    """The schema of a document: `schema`, `ok`, and a body of one field."""
    return {
        "$schema": DIALECT,
        "$id": name,
        "title": title,
        "type": "object",
        "required": ["schema", "ok", *body],
        "additionalProperties": False,
        "properties": {"schema": {"const": name}, "ok": {"const": ok}, **body},
        "$defs": parts,
    }
