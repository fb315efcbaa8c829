"""What exactly does a command print with --json? Its JSON Schema, made from the types it prints."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from core.runtime.commands.console import name_of
from core.runtime.commands.results import Failure, Rehearsed, Results

Schema = dict[str, Any]
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ERROR: Final = "headrace.error/1"


def schemas_of(program: str, printed: Results) -> dict[str, Schema]:
    """Name of the document → its schema, for every command of a program."""
    found = {}
    for command, kinds in sorted(printed.items()):
        name, title = name_of(program, command), f"{program} {command} --json"
        shapes, parts = _shapes([*kinds, Rehearsed])
        found[name] = _document(name, title, True, {"result": {"anyOf": shapes}}, parts)
    return found


def error_schema() -> Schema:
    """The schema of what any program prints when it fails."""
    (shape,), parts = _shapes([Failure])
    return _document(ERROR, "any program's failure with --json", False, {"error": shape}, parts)


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
