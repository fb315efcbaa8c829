"""Which tokens may come next in an answer that must follow a grammar?"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from core.dispute.judging.numerics import TokenMargins
from core.engine.sampling.grammar import (
    MOST_LARK_BYTES,
    MOST_MULTIPLE,
    Grammar,
    grammar_of,
    is_whole,
)
from core.engine.sampling.sampler import Sampler
from core.engine.sampling.sampling import sample_batch
from core.engine.sampling.stops import AnswerEnding
from core.engine.weights.tokenizer import Tokenizer
from core.protocol.errors import CheckFailed, GrammarInvalid, ModelUnsupported
from core.protocol.types import MAX_GRAMMAR_BYTES, SamplingParams
from devnet.models.tiny_models import write_tiny_tokenizer
from tests.core.engine.sampling.schemas import random_schema

Json = dict[str, Any]
PERSON: Json = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WORDS = 'start: "yes" | "no" | "never"'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("bytes")
    write_tiny_tokenizer(path)
    return Tokenizer(path)


def params(grammar: str | Json, **more: Any) -> SamplingParams:
    text = grammar if isinstance(grammar, str) else json.dumps(grammar)
    return SamplingParams(grammar=text, **more)


def opened(tokenizer: Tokenizer, grammar: str | Json, prompt: Sequence[int] = ()) -> Grammar:
    found = grammar_of(params(grammar, first_step=len(prompt)), prompt, tokenizer)
    assert found is not None
    return found


def allowed_after(grammar: Grammar, tokens: Sequence[int]) -> set[int]:
    for token in tokens:
        assert grammar.allows(token)
        grammar.take(token)
    return set(np.flatnonzero(grammar.allowed()).tolist())


def drawn(
    tokenizer: Tokenizer, wanted: SamplingParams, vocab: int, seed: int
) -> tuple[list[int], list[Any]]:
    """An answer of a model that knows nothing, to its end, and the logits of each token."""
    sampler = Sampler(wanted, 0, (), tokenizer.eos_ids, grammar_of(wanted, (), tokenizer))
    ending = AnswerEnding(wanted, tokenizer.eos_ids, tokenizer)
    rng, tokens, rows = np.random.default_rng(seed), list[int](), list[Any]()
    while True:
        rows.append(rng.normal(size=vocab))
        (choice,) = sample_batch(rows[-1][None], [sampler])
        assert not isinstance(choice, CheckFailed)
        sampler.take(choice.token)
        tokens.append(choice.token)
        if ending.push(choice.token):
            return tokens, rows


def margins(
    tokenizer: Tokenizer, wanted: SamplingParams, tokens: list[int], rows: list[Any]
) -> list[float]:
    """What an auditor finds of an answer, by the logits of its model."""
    grammar = grammar_of(wanted, (), tokenizer)
    found = TokenMargins(tokens, wanted, 0, eos_ids=tokenizer.eos_ids, grammar=grammar)
    return found(np.array(rows[: len(tokens)]))


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return tokenizer.decode([token for token in tokens if token not in tokenizer.eos_ids])


# --- what may come ---


def test_an_answer_goes_on_until_it_is_complete_and_then_ends(tokenizer: Tokenizer) -> None:
    grammar = opened(tokenizer, PERSON)
    left = allowed_after(grammar, tokenizer.encode('{"name": "Ann", "age": 31'))
    assert not grammar.is_complete
    assert not left & tokenizer.eos_ids
    assert allowed_after(grammar, tokenizer.encode("}")) == tokenizer.eos_ids
    assert grammar.is_complete
    grammar.take(next(iter(tokenizer.eos_ids)))
    assert grammar.is_complete


def test_a_grammar_in_larks_notation_is_followed(tokenizer: Tokenizer) -> None:
    texts = set()
    for seed in range(30):
        tokens, _ = drawn(tokenizer, params(WORDS, temperature_micro=10**6, seed=seed), 300, seed)
        texts.add(text_of(tokenizer, tokens))
    assert texts == {"yes", "no", "never"}


def test_no_token_of_the_model_that_the_tokenizer_lacks_may_come(tokenizer: Tokenizer) -> None:
    row = np.zeros(tokenizer.vocab_size + 50)
    opened(tokenizer, "start: /(.|\\n)*/").apply(row)
    assert np.isneginf(row[tokenizer.vocab_size :]).all()
    assert not np.isneginf(row).all()


def test_after_a_token_that_may_not_come_only_ends_may(tokenizer: Tokenizer) -> None:
    grammar = opened(tokenizer, WORDS)
    (wrong,) = tokenizer.encode("q")
    assert not grammar.allows(wrong)
    grammar.take(wrong)
    assert allowed_after(grammar, []) == tokenizer.eos_ids
    assert not grammar.is_complete


def test_a_fork_goes_on_by_itself(tokenizer: Tokenizer) -> None:
    grammar = opened(tokenizer, WORDS)
    n, y = tokenizer.encode("n") + tokenizer.encode("y")
    fork = grammar.fork()
    fork.take(y)
    assert grammar.allows(n)
    grammar.take(n)
    assert fork.allows(*tokenizer.encode("e"))
    assert grammar.allows(*tokenizer.encode("o"))
    assert not fork.allows(*tokenizer.encode("o"))


def test_an_answer_that_goes_on_elsewhere_follows_from_where_it_was(tokenizer: Tokenizer) -> None:
    said = tokenizer.encode('{"name": "A')
    there, here = opened(tokenizer, PERSON), opened(tokenizer, PERSON, said)
    assert allowed_after(there, said) == allowed_after(here, [])


def test_masks_do_not_depend_on_who_looked_before(tokenizer: Tokenizer) -> None:
    """A stage that guesses forks, a client only follows: both meet limits at the same token."""
    heavy = {"type": "string", "pattern": "(.*a.{12}){6}"}
    rng, tokens, plain = np.random.default_rng(3), list[int](), opened(tokenizer, heavy)
    for _ in range(40):
        token = int(rng.choice(np.flatnonzero(plain.allowed())))
        if token in tokenizer.eos_ids:
            break
        tokens.append(token)
        plain.take(token)
    follower, forking = opened(tokenizer, heavy), opened(tokenizer, heavy)
    for token in tokens:
        for other in np.flatnonzero(forking.allowed())[:3]:
            forking.fork().take(int(other))
        follower.take(token)
        forking.take(token)
        assert (follower.allowed() == forking.allowed()).all()
    assert (follower.allowed() == plain.allowed()).all()


# --- what is drawn ---


@pytest.mark.parametrize("seed", range(40))
def test_no_answer_violates_its_schema(tokenizer: Tokenizer, seed: int) -> None:
    schema = random_schema(np.random.default_rng(seed))
    wanted = params(schema, temperature_micro=10**6, seed=seed, max_new_tokens=4000)
    tokens, _ = drawn(tokenizer, wanted, tokenizer.vocab_size + 7, seed)
    if tokens[-1] in tokenizer.eos_ids:
        jsonschema_rs.validate(schema, json.loads(text_of(tokenizer, tokens)))


@pytest.mark.parametrize(
    ("text", "is_time"),
    [
        ('"2024-02-29T23:59:59Z"', True),
        ('"2024-01-01t00:00:00.5+01:00"', True),
        ('"2024-01-01T00:00:60Z"', False),
        ('"12:30:60Z"', False),
        ("null", True),
    ],
)
def test_a_time_has_no_leap_second_and_may_be_left_out(
    tokenizer: Tokenizer, text: str, is_time: bool
) -> None:
    kind = "time" if text.startswith('"1') else "date-time"
    grammar = opened(tokenizer, {"type": ["string", "null"], "format": kind})
    for token in tokenizer.encode(text):
        grammar.take(token)
    assert grammar.is_complete == is_time


def test_a_drawn_token_has_no_margin_and_another_is_a_fault(tokenizer: Tokenizer) -> None:
    for more in ({"temperature_micro": 10**6}, {"temperature_micro": 700_000, "top_k": 3}, {}):
        wanted = params(PERSON, max_new_tokens=60, **more)
        tokens, rows = drawn(tokenizer, wanted, tokenizer.vocab_size, 1)
        end, eos = len(tokens) - 1, next(iter(tokenizer.eos_ids))

        def margins(
            said: list[int], rows: list[Any] = rows, wanted: SamplingParams = wanted
        ) -> Any:
            grammar = grammar_of(wanted, (), tokenizer)
            found = TokenMargins(said, wanted, 0, eos_ids=tokenizer.eos_ids, grammar=grammar)
            return found(np.array(rows[: len(said)]))

        assert max(margins(tokens)) == 0
        assert margins([*tokens[: end // 2], eos])[-1] == np.inf  # an end that comes too soon
        assert margins([*tokens[:3], *tokenizer.encode("\n")])[-1] == np.inf


def test_a_client_refuses_a_token_that_may_not_come(tokenizer: Tokenizer) -> None:
    wanted = params(WORDS)
    grammar = grammar_of(wanted, (), tokenizer)
    ending = AnswerEnding(wanted, tokenizer.eos_ids, tokenizer, (), grammar)
    for token in tokenizer.encode("nev"):
        assert ending.push(token) == ""
    with pytest.raises(CheckFailed, match=r"leaves its grammar: at token 3"):
        ending.push(next(iter(tokenizer.eos_ids)))


def test_parameters_with_a_grammar_are_not_drawn_without_it(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="goes with the parameters"):
        Sampler(params(WORDS), 0)
    with pytest.raises(ValueError, match="goes with the parameters"):
        Sampler(SamplingParams(), 0, grammar=opened(tokenizer, WORDS))


# --- strangers' grammars ---


#: The library ends its process over it: it has no absolute value.
DEADLY = json.dumps({"enum": [-(2**63)]})


def test_a_grammar_that_ends_the_process_is_refused_and_others_go_on(tokenizer: Tokenizer) -> None:
    words, person = opened(tokenizer, WORDS), opened(tokenizer, PERSON)
    for token in tokenizer.encode("n"):
        words.take(token)
    fork = words.fork()
    with pytest.raises(GrammarInvalid, match="ends the program"):
        opened(tokenizer, DEADLY)
    assert allowed_after(words, tokenizer.encode("ever")) == tokenizer.eos_ids
    assert allowed_after(fork, tokenizer.encode("o")) == tokenizer.eos_ids
    assert not allowed_after(person, tokenizer.encode('{"name": "')) & tokenizer.eos_ids


def test_a_process_that_is_killed_is_started_anew(tokenizer: Tokenizer) -> None:
    grammar = opened(tokenizer, WORDS)
    for text in ("n", "e", "v"):
        assert grammar.allows(*tokenizer.encode(text))
        process = grammar._process._process
        assert process is not None
        process.kill()
        process.wait()
        grammar.take(*tokenizer.encode(text))
    assert allowed_after(grammar, tokenizer.encode("er")) == tokenizer.eos_ids


def test_whether_tokens_are_an_answer_is_known_without_following_them(
    tokenizer: Tokenizer,
) -> None:
    end = next(iter(tokenizer.eos_ids))
    for text, whole in (("no", True), ("never", True), ("ne", False), ("nope", False)):
        said = [*tokenizer.encode(text), end]
        assert is_whole(params(WORDS), said, tokenizer) == whole
    assert not is_whole(params(DEADLY), [end], tokenizer)


HOSTILE: dict[str, tuple[str, str]] = {
    "brackets": ("start: " + "(" * 1500 + '"a"' + ")" * 1500, "deeply nested"),
    "regex brackets": ("start: /" + "(" * 1500 + "a" + ")" * 1500 + "/", "invalid regex"),
    "deep schema": ('{"items":' * 5000 + "{}" + "}" * 5000, "nested more than"),
    "not JSON": ('{"type": ', "not JSON"),
    "no schema": ('{"type": "banana"}', "banana"),
    "unknown keyword": ('{"type": "array", "uniqueItems": true}', "uniqueItems"),
    "states": (f'{{"type": "integer", "multipleOf": {MOST_MULTIPLE + 1}}}', "multipleOf"),
    "states by factors": (
        json.dumps({"allOf": [{"multipleOf": n} for n in (97, 89, 83, 79)]}),
        "multipleOf",
    ),
    "not a multiple": ('{"type": "number", "multipleOf": 1e999}', "finite"),
    "a truth as a multiple": ('{"type": "number", "multipleOf": true}', "finite"),
    "many alternatives": (
        json.dumps(
            {"allOf": [{"anyOf": [{"pattern": f"a{i}{j}"} for j in range(9)]} for i in range(9)]}
        ),
        "too large",
    ),
    "own rules": ('%llguidance {"no_forcing": false}\nstart: "a"', "%llguidance"),
    "schema within": ('start: %json {"multipleOf": 99999989}', "%json"),
    "long": ("start: " + '"a" ' * MOST_LARK_BYTES, f"{MOST_LARK_BYTES} bytes"),
    "no start": ('begin: "a"', "start"),
    "no rule": ("start: other", "other"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_grammar_that_cannot_be_used_is_refused_with_the_reason(
    tokenizer: Tokenizer, name: str
) -> None:
    grammar, why = HOSTILE[name]
    began = time.perf_counter()
    with pytest.raises(GrammarInvalid, match=why):
        opened(tokenizer, grammar)
    assert time.perf_counter() - began < MOST_READ_S


#: Of a machine that may be busy: alone it is a tenth.
MOST_READ_S = 5.0
HEAVY = {
    "choices without an end": "start: " + " ".join(["a?"] * 1300) + '\na: "x"',
    "choices of choices": "start: " + " ".join(["a*"] * 1300) + '\na: "x" | start | ""',
    "repeats of repeats": "start: /((a{0,100}){0,100}){0,100}/",
    "a window": "start: /(a|b)*a(a|b){1000}/",
    "long strings": json.dumps({"type": "string", "minLength": 10**6, "maxLength": 10**9}),
    "long lists": json.dumps({"type": "array", "minItems": 10**6, "items": {"type": "null"}}),
    "a pattern": json.dumps({"type": "string", "pattern": "(.*a.{20}){20}"}),
    "many patterns": json.dumps({"anyOf": [{"pattern": f".*a{{{i}}}b"} for i in range(1000)]}),
    "many objects": json.dumps(
        {"anyOf": [{"type": "object", "properties": {f"a{i}": {}}} for i in range(1200)]}
    ),
    "many fields": json.dumps(
        {
            "type": "object",
            "properties": {f"a{i}": {"type": ["null", "number"]} for i in range(1200)},
        }
    ),
    "multiples": json.dumps({"type": "number", "multipleOf": MOST_MULTIPLE / 10**5}),
    "itself": '{"$ref": "#"}',
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_grammar_takes_little_time_and_then_only_ends_may_come(
    tokenizer: Tokenizer, name: str
) -> None:
    began, steps = time.perf_counter(), list[float]()
    try:
        grammar = opened(tokenizer, HEAVY[name])
    except GrammarInvalid:
        assert time.perf_counter() - began < MOST_READ_S
        return
    assert time.perf_counter() - began < MOST_READ_S
    rng = np.random.default_rng(0)
    for _ in range(50):
        began = time.perf_counter()
        (found,) = np.nonzero(grammar.allowed())
        steps.append(time.perf_counter() - began)
        token = int(rng.choice(found))
        if token in tokenizer.eos_ids:
            break
        grammar.take(token)
    assert max(steps) < 1
    assert sum(steps) / len(steps) < 0.25


def test_a_model_without_an_end_follows_no_grammar(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Tokenizer(tokenizer.model_dir)
    monkeypatch.setattr(endless, "eos_ids", frozenset())
    with pytest.raises(ModelUnsupported, match="no end-of-text"):
        opened(endless, WORDS)
    broken = Tokenizer(tokenizer.model_dir)
    (tmp_path / "tokenizer.json").write_text("{}")
    broken.model_dir = tmp_path
    with pytest.raises(ModelUnsupported, match=r"tokenizer\.json"):
        opened(broken, WORDS)


def test_parameters_bound_a_grammar() -> None:
    with pytest.raises(ValueError, match="longer than"):
        SamplingParams(grammar="x" * (MAX_GRAMMAR_BYTES + 1))
    for more in ({"ignore_eos": True}, {"min_new_tokens": 1}):
        with pytest.raises(ValueError, match="where an answer ends"):
            params(WORDS, **more)
