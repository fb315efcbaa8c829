"""Is there one schema for every command, and does it refuse other documents?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import typer

from core.runtime.commands.console import name_of
from tests.schemas import PROGRAMS, app_of, check_document, every_schema

#: What prints no result of its own.
SILENT = {
    "miner start": "a daemon",
    "auditor jury serve": "a daemon",
    "auditor watch": "a daemon; `auditor audits ls` prints what it found",
    "devnet demo": "tells a story",
}


def commands(program: str) -> Iterator[tuple[str, Any]]:
    """(name, click command) of every command that does something."""
    root = typer.main.get_command(app_of(program).typer)

    def walk(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name, inner in group.commands.items():
            if hasattr(inner, "commands"):
                yield from walk(inner, (*path, name))
            else:
                yield " ".join((*path, name)), inner

    return walk(root, ())


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_says_what_it_prints_and_nothing_else_does(program: str) -> None:
    names = {name for name, _ in commands(program)}
    silent = {name.partition(" ")[2] for name in SILENT if name.startswith(f"{program} ")}
    typed = set(app_of(program).printed())
    assert names - typed - silent == set(), "commands without a type of result"
    assert typed - names == set(), "types of commands that do not exist"
    assert not typed & silent


def test_every_schema_is_a_schema_and_names_itself() -> None:
    for name, schema in every_schema().items():
        jsonschema_rs.validator_for(schema)
        assert schema["$id"] == schema["properties"]["schema"]["const"] == name


def test_a_document_with_a_missing_or_a_new_field_does_not_pass() -> None:
    good = {"dry_run": True, "question": "Sure?", "summary": {"amount": "5usd"}}
    document = {"schema": name_of("miner", "claim"), "ok": True, "result": good}
    check_document(document)
    for bad in ({**good, "more": 1}, {"dry_run": True}, []):
        with pytest.raises(AssertionError):
            check_document({**document, "result": bad})


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_texts_are_sentences(program: str) -> None:
    for name, command in commands(program):
        said = (command.help or "").strip()
        assert said, f"{program} {name} does not say what it does"
        first = said.splitlines()[0]
        assert first[0].isupper() or first[0] in "`\"'", f"{program} {name}: {first}"
        assert said.rstrip()[-1] in ".:?!`", f"{program} {name}: {said[-40:]}"
        for option in command.params:
            if getattr(option, "help", None):
                assert option.help[-1] in ".?!)`", f"{program} {name} {option.name}: {option.help}"
