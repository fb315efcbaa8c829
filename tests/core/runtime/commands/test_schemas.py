"""Is there one published schema for every command, and is it the one that its types make?"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import typer

from core.runtime.commands.schemas import MODULES, SILENT, every_schema, name_of, results_of
from devnet.schemas import FOLDER, publish, published
from tests.schemas import check_document

PROGRAMS = {
    "miner": "miner.cli",
    "client": "client.cli",
    "matcher": "matcher.cli",
    "auditor": "client.auditor_cli",
    "devnet": "devnet.cli",
}


def commands(program: str) -> Iterator[tuple[str, Any]]:
    """(name, click command) of every command that does something."""
    root = typer.main.get_command(importlib.import_module(PROGRAMS[program]).app.typer)

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
    typed = set(results_of(program))
    assert names - typed - silent == set(), "commands without a type of result"
    assert typed - names == set(), "types of commands that do not exist"
    assert not typed & silent


def test_every_program_is_listed() -> None:
    assert set(MODULES) == set(PROGRAMS)


def test_the_published_folder_is_what_the_types_make() -> None:
    there = {file.name: file.read_text() for file in FOLDER.glob("*.json")}
    stale = sorted(
        {*there, *published()} - {n for n, c in published().items() if there.get(n) == c}
    )
    assert not stale, "run: python -m devnet.schemas"


def test_publishing_writes_takes_away_and_then_changes_nothing(tmp_path: Any) -> None:
    (tmp_path / "headrace.gone.1.json").write_text("{}")
    assert "headrace.gone.1.json" in publish(tmp_path)
    assert publish(tmp_path) == []


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
