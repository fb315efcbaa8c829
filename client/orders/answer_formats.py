"""Which grammar must an answer follow, as OpenAI's `response_format` or vLLM's
`structured_outputs` ask for it?

The grammar is what is signed: a JSON schema as it was sent, else Lark's notation
(`core/engine/sampling/grammar.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ANY_OBJECT = '{"type":"object"}'
FIELDS = ("response_format", "structured_outputs")
_FORMS = ("json", "regex", "choice", "grammar")


def grammar_asked(said: Mapping[str, Any]) -> str:
    """The grammar that these fields ask for, "" for none.

    Raises ValueError(field, what it must be).
    """
    found = [
        grammar
        for name, read in (("response_format", _of_format), ("structured_outputs", _of_outputs))
        if said.get(name) is not None and (grammar := read(said[name]))
    ]
    if len(found) > 1:
        raise ValueError("structured_outputs", "must be left out beside a response_format")
    return found[0] if found else ""


def _of_format(value: Any) -> str:
    name = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return ""
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise ValueError(name, "must have the type text, json_object or json_schema")
    stated = value.get("json_schema")
    if not isinstance(stated, dict) or not isinstance(stated.get("schema"), dict):
        raise ValueError(f"{name}.json_schema", "must be an object with a schema")
    return _json(stated["schema"])


def _of_outputs(value: Any) -> str:
    name = "structured_outputs"
    given = value if isinstance(value, dict) else {}
    said = {form: given[form] for form in _FORMS if given.get(form) is not None}
    if len(said) != 1:
        raise ValueError(name, f"must have one of {', '.join(_FORMS)}")
    ((form, asked),) = said.items()
    if form == "json":
        return _json(_schema(f"{name}.json", asked))
    if form == "choice":
        return _choice(asked)
    if not isinstance(asked, str) or not asked:
        raise ValueError(f"{name}.{form}", "must be a text")
    return asked if form == "grammar" else _regex(asked)


def _schema(name: str, asked: Any) -> dict[str, Any]:
    try:
        schema = json.loads(asked) if isinstance(asked, str) else asked
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise ValueError(name, "must be a JSON schema, as an object or a text")
    return schema


def _choice(asked: Any) -> str:
    is_list = isinstance(asked, Sequence) and not isinstance(asked, str)
    if not is_list or not asked or not all(isinstance(one, str) and one for one in asked):
        raise ValueError("structured_outputs.choice", "must be a list of texts, none of them empty")
    return "start: " + " | ".join(map(_json, asked))


def _regex(pattern: str) -> str:
    from llguidance import regex_to_lark

    return f"start: ANSWER\nANSWER: /{regex_to_lark(pattern)}/"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
