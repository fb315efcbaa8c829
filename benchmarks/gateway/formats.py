"""What does a form cost an answer, and is it ever left?

A real model's decode steps, each token drawn without and with a JSON schema, and answers of a model
that knows nothing to random schemas, judged by another library.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import jsonschema_rs
import msgspec
import numpy as np
import torch

from benchmarks.table import Row
from core.engine.model.config_facts import read_config
from core.engine.sampling.grammar import grammar_of
from core.engine.sampling.sampler import Sampler
from core.engine.sampling.sampling import TokenChoice, sample_batch
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import layer_count
from core.engine.weights.store import resolve_model
from core.engine.weights.tokenizer import Tokenizer
from core.protocol.types import LayerRange, SamplingParams
from tests.core.engine.sampling.schemas import random_schema

MODEL = "smollm2-135m"
SCHEMAS, STEPS, MOST_TOKENS = 1000, 300, 2000
MOST_ADDED = 0.05
QUICK = {"SCHEMAS": 3, "STEPS": 4, "MOST_TOKENS": 50}
_LIST = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["river", "lake", "canal"]},
            "length_km": {"type": "number"},
            "since": {"type": "string", "format": "date"},
        },
        "required": ["name", "kind", "length_km", "since"],
        "additionalProperties": False,
    },
    "minItems": 1000,
}


def rows() -> list[Row]:
    folder = resolve_model(MODEL)
    return [_added(folder), _violations(Tokenizer(folder))]


def _added(folder: Any) -> Row:
    """What drawing by a schema adds to a step of the model alone: one request, no batch to share
    the step with.
    """
    tokenizer, layers = Tokenizer(folder), layer_count(read_config(folder))
    shard = load_shard(folder, LayerRange(0, layers))
    plain = SamplingParams(temperature_micro=700_000, max_new_tokens=STEPS, seed=1)
    formed = msgspec.structs.replace(plain, grammar=json.dumps(_LIST))
    asked = [{"role": "user", "content": "List rivers, lakes and canals as JSON."}]
    prompt = tokenizer.encode_chat(asked)
    samplers = [
        Sampler(plain, 0, prompt, tokenizer.eos_ids),
        Sampler(formed, 0, prompt, tokenizer.eos_ids, grammar_of(formed, (), tokenizer)),
    ]
    cache, fed, spent = shard.new_cache(), prompt, Counter[str]()
    for step in range(STEPS + 1):
        began = time.perf_counter()
        logits = shard.forward(torch.tensor(fed), cache, last_only=True)
        took = {"model": time.perf_counter() - began}
        for name, sampler in zip(("plain", "formed"), samplers, strict=True):
            began = time.perf_counter()
            (choice,) = sample_batch(logits[-1:], [sampler])
            assert isinstance(choice, TokenChoice)
            sampler.take(choice.token)
            took[name] = time.perf_counter() - began
        fed = [choice.token]
        if step:  # the first is the prompt's
            spent.update(took)
    without_s = (spent["model"] + spent["plain"]) / STEPS
    added = (spent["formed"] - spent["plain"]) / STEPS / without_s
    return Row(
        "structured output: added time a token",
        f"<= {MOST_ADDED:.0%}",
        f"{added:.1%} ({added * without_s * 1000:.2f} ms of {without_s * 1000:.1f} ms)",
        f"{spent['plain'] / STEPS * 1000:.2f} ms to draw without a form",
        "0 %",
        added <= MOST_ADDED,
    )


def _violations(tokenizer: Tokenizer) -> Row:
    found, rng = Counter[str](), np.random.default_rng(0)
    for number in range(SCHEMAS):
        schema = random_schema(rng)
        found[_judged(tokenizer, schema, number)] += 1
    ended = SCHEMAS - found["cut"]
    return Row(
        f"structured output: schema violations in {SCHEMAS:,} random schemas",
        "0",
        f"{found['violates']} of {ended} answers that ended, {found['cut']} were cut",
        "judged by jsonschema_rs, formats too",
        "0",
        not found["violates"] and 10 * ended >= 9 * SCHEMAS,
    )


def _judged(tokenizer: Tokenizer, schema: dict[str, Any], seed: int) -> str:
    """What the answer of a model that knows nothing is by its schema: "follows", "violates", or
    "cut" after many tokens.
    """
    wanted = SamplingParams(temperature_micro=10**6, seed=seed, grammar=json.dumps(schema))
    sampler = Sampler(wanted, 0, (), tokenizer.eos_ids, grammar_of(wanted, (), tokenizer))
    rng, tokens = np.random.default_rng(seed), list[int]()
    while len(tokens) < MOST_TOKENS:
        logits = rng.normal(size=tokenizer.vocab_size).astype(np.float32)
        (choice,) = sample_batch(logits[None], [sampler])
        assert isinstance(choice, TokenChoice)
        sampler.take(choice.token)
        if choice.token in tokenizer.eos_ids:
            break
        tokens.append(choice.token)
    else:
        return "cut"
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    try:
        return "follows" if validator.is_valid(json.loads(tokenizer.decode(tokens))) else "violates"
    except ValueError:
        return "violates"
