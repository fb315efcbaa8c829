"""Which grammar must an answer follow, as a request's fields ask for it?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from client.orders.answer_formats import grammar_asked
from client.orders.sampling import sampling_of
from core.engine.sampling.grammar import grammar_of
from core.engine.weights.tokenizer import Tokenizer
from core.protocol.types import SamplingParams
from devnet.models.tiny_models import write_tiny_tokenizer

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}


@pytest.mark.parametrize(
    ("said", "grammar"),
    [
        ({}, ""),
        ({"response_format": {"type": "text"}}, ""),
        ({"response_format": {"type": "json_object"}}, '{"type":"object"}'),
        ({"response_format": schema_format(SCHEMA)}, json.dumps(SCHEMA, ensure_ascii=False)),
        ({"structured_outputs": {"json": SCHEMA}}, json.dumps(SCHEMA, ensure_ascii=False)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, json.dumps(SCHEMA)),
        ({"structured_outputs": {"choice": ["ja", 'n"ein']}}, 'start: "ja" | "n\\"ein"'),
        ({"structured_outputs": {"grammar": 'start: "a"', "regex": None}}, 'start: "a"'),
        (
            {"response_format": {"type": "text"}, "structured_outputs": {"grammar": "start: A"}},
            "start: A",
        ),
    ],
)
def test_a_format_becomes_the_grammar_that_is_signed(said: dict[str, Any], grammar: str) -> None:
    found = grammar_asked(said)
    if grammar.startswith("{"):
        assert json.loads(found) == json.loads(grammar)
    else:
        assert found == grammar


@pytest.mark.parametrize(
    ("said", "answers", "others"),
    [
        ({"structured_outputs": {"choice": ["yes", "no/\n"]}}, ["yes", "no/\n"], ["ye", "n"]),
        ({"structured_outputs": {"regex": r"[ab]/\d+"}}, ["a/1", "b/22"], ["c", "a/", "/1"]),
        ({"response_format": {"type": "json_object"}}, ['{"a": [1, null]}'], ["[1]", "{} "]),
        ({"response_format": schema_format(SCHEMA)}, ['{"größe": 3}'], ['{"größe": "3"}']),
    ],
)
def test_it_lets_those_answers_come_and_no_others(
    tmp_path_factory: pytest.TempPathFactory,
    said: dict[str, Any],
    answers: list[str],
    others: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    write_tiny_tokenizer(folder)
    tokenizer = Tokenizer(folder)
    for text in (*answers, *others):
        grammar = grammar_of(sampling_of(said, SamplingParams()), (), tokenizer)
        assert grammar is not None
        for token in tokenizer.encode(text):
            grammar.take(token)
        assert grammar.is_complete == (text in answers)


@pytest.mark.parametrize(
    ("said", "field", "why"),
    [
        ({"response_format": "json"}, "response_format", "type text, json_object"),
        ({"response_format": {"type": "xml"}}, "response_format", "type text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "a schema"),
        ({"response_format": schema_format(True)}, "response_format.json_schema", "a schema"),
        ({"structured_outputs": {}}, "structured_outputs", "one of json, regex"),
        ({"structured_outputs": []}, "structured_outputs", "one of json, regex"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            "one of json, regex",
        ),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "a JSON schema"),
        ({"structured_outputs": {"json": [1]}}, "structured_outputs.json", "a JSON schema"),
        ({"structured_outputs": {"choice": "ab"}}, "structured_outputs.choice", "list of texts"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice", "of texts"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex", "a text"),
        ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "a text"),
        (
            {
                "response_format": {"type": "json_object"},
                "structured_outputs": {"regex": "a"},
            },
            "structured_outputs",
            "left out beside a response_format",
        ),
    ],
)
def test_what_cannot_be_is_named(said: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        grammar_asked(said)
    assert caught.value.args[0] == field
