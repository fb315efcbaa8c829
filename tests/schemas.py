"""Does a document that a command printed follow the schema of that command?"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Any

import jsonschema_rs

from core.runtime.commands.cli import App
from core.runtime.commands.schemas import ERROR, error_schema, schemas_of

PROGRAMS = {
    "miner": "miner.cli",
    "client": "client.cli",
    "matcher": "matcher.cli",
    "auditor": "client.auditor_cli",
    "devnet": "devnet.cli",
}
#: Programs of tests, not of the product.
STRANGERS = ("headrace.prog.",)


def app_of(program: str) -> App:
    """The frame of one of the five programs."""
    app: App = import_module(PROGRAMS[program]).app
    return app


def schemas_of_program(program: str) -> dict[str, Any]:
    """Name → schema, for every command of one of the five programs."""
    return schemas_of(program, app_of(program).printed())


def every_schema() -> dict[str, Any]:
    """Name → schema, for every command of the five programs and for failures."""
    found = {ERROR: error_schema()}
    for program in PROGRAMS:
        found |= schemas_of_program(program)
    return found


@cache
def _validator(name: str) -> Any:
    program = name.split(".")[1]
    known = {ERROR: error_schema()} if name == ERROR else schemas_of_program(program)
    assert name in known, f"{program} does not say what {name} is"
    return jsonschema_rs.validator_for(known[name])


def check_document(document: dict[str, Any]) -> None:
    """Fail unless it is exactly what its schema says."""
    name = str(document["schema"])
    if name.startswith(STRANGERS):
        return
    plain = json.loads(json.dumps(document, default=str))
    for error in _validator(name).iter_errors(plain):
        raise AssertionError(f"{name}: {error.message} at {list(error.instance_path)}: {plain}")
