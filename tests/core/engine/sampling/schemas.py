"""Random JSON schemas of the kinds that programs ask for."""

from __future__ import annotations

from typing import Any

import numpy as np

Json = dict[str, Any]
_WORDS = ("name", "age", "city", "tags", "price", "items", "is_open", "größe", "a b", "id")


def random_schema(rng: np.random.Generator, depth: int = 3) -> Json:
    """A schema whose answers are bounded, nested at most so deep; at the top an object."""
    return _object(rng, depth)


def _any(rng: np.random.Generator, depth: int) -> Json:
    kinds = [_text, _number, _whole, _choice, _flag]
    if depth:
        kinds += [_object, _array, _either]
    return kinds[rng.integers(len(kinds))](rng, depth - 1)


def _object(rng: np.random.Generator, depth: int) -> Json:
    names = [str(name) for name in rng.permutation(_WORDS)[: rng.integers(1, 5)]]
    return {
        "type": "object",
        "properties": {name: _any(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _array(rng: np.random.Generator, depth: int) -> Json:
    least = int(rng.integers(0, 3))
    most = least + int(rng.integers(0, 3))
    return {"type": "array", "items": _any(rng, depth), "minItems": least, "maxItems": most}


def _either(rng: np.random.Generator, depth: int) -> Json:
    return {"anyOf": [_any(rng, depth), _flag(rng, depth), {"type": "null"}]}


def _text(rng: np.random.Generator, depth: int) -> Json:
    forms: list[Json] = [
        {"maxLength": int(rng.integers(1, 20))},
        {"minLength": 2, "maxLength": 6},
        {"pattern": "^[A-Z][a-z]{1,8}$"},
        {"pattern": r"^\d{3}-\d{4}$"},
        {"format": "date"},
        {"format": "date-time"},
        {"format": "uuid"},
        {"format": "ipv4"},
    ]
    return {"type": "string", **forms[rng.integers(len(forms))]}


def _number(rng: np.random.Generator, depth: int) -> Json:
    low = round(float(rng.normal(0, 100)), 2)
    return {"type": "number", "minimum": low, "maximum": low + float(rng.integers(1, 1000))}


def _whole(rng: np.random.Generator, depth: int) -> Json:
    low = int(rng.integers(-1000, 1000))
    return {"type": "integer", "minimum": low, "maximum": low + int(rng.integers(0, 5000))}


def _choice(rng: np.random.Generator, depth: int) -> Json:
    return {"enum": [*map(str, rng.permutation(_WORDS)[:3]), 7, None][: rng.integers(1, 6)]}


def _flag(rng: np.random.Generator, depth: int) -> Json:
    return {"type": "boolean"}
