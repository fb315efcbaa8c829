"""What do gateway and matcher answer over HTTP?

From the descriptions that the programs themselves serve at `/openapi.json`.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from sitegen.text import code, prose, sentence, table

Json = dict[str, Any]
METHODS = ("get", "post", "put", "patch", "delete")


class _Unstarted:
    """In place of what a running program hands to its application; describing it touches none of
    this.
    """

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> None:
        return None


def gateway_description() -> Json:
    """The gateway's OpenAPI document."""
    from client.gateway.app import make_app
    from client.gateway.metrics import GatewayMetrics
    from core.runtime.settings import GatewaySettings, Settings

    settings = Settings(gateway=GatewaySettings(dashboard=False))
    return _described(make_app, gateway=_Unstarted(metrics=GatewayMetrics(), settings=settings))


def matcher_description() -> Json:
    """The matcher's OpenAPI document."""
    from core.runtime.clock import SystemClock
    from core.runtime.metrics import Metrics
    from matcher.api.api import make_app

    return _described(make_app, metrics=Metrics(), clock=SystemClock(), identity={})


def _described(make_app: Any, **given: Any) -> Json:
    names = inspect.signature(make_app).parameters
    app = make_app(**{name: given.get(name, _Unstarted()) for name in names})
    found: Json = app.openapi()
    return found


def api_pages() -> dict[str, str]:
    """`reference/gateway-api.md`, `reference/matcher-api.md`, and the two descriptions as JSON."""
    pages = {}
    for name, description, intro in (
        ("gateway-api", gateway_description(), _GATEWAY),
        ("matcher-api", matcher_description(), _MATCHER),
    ):
        pages[f"reference/{name}.md"] = api_page(description, f"{name}.json", intro)
        pages[f"reference/{name}.json"] = json.dumps(description, indent=1, ensure_ascii=False)
    return pages


def operations(description: Json) -> list[tuple[str, str, Json]]:
    """(method, path, operation) in the order of the document."""
    return [
        (method.upper(), path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]


def api_page(description: Json, file: str, intro: str) -> str:
    """A page over one description."""
    found = operations(description)
    parts = [
        f"# {description['info']['title']}: API\n",
        sentence(prose(description["info"].get("description", ""))) + "\n",
        intro,
        f"The same for programs: [{file}]({file}) (OpenAPI {description['openapi']}). "
        "A running program serves it at `/openapi.json`.\n",
        table(
            ("call", "what it does"),
            (
                (f"[`{method} {path}`](#{_anchor(method, path)})", prose(_said(operation)))
                for method, path, operation in found
            ),
        ),
    ]
    for method, path, operation in found:
        parts += [
            f"## {method} {path} {{#{_anchor(method, path)}}}\n",
            sentence(prose(_said(operation)))
            + (" Needs a key." if operation.get("security") else "")
            + "\n",
            _parameters(operation),
            _body(operation, description),
            _answers(operation, description),
        ]
    parts += _schemas("\n".join(parts), description)
    return "\n".join(part for part in parts if part)


def _schemas(page: str, description: Json) -> list[str]:
    """A section for every schema that the page, or one of these sections, links to."""
    parts: list[str] = []
    for name, schema in description.get("components", {}).get("schemas", {}).items():
        fields = schema.get("properties", {})
        if (fields or "enum" in schema) and f"(#schema-{name})" in page + "".join(
            parts
        ) + json.dumps(
            [
                _kind(s)
                for other in description["components"]["schemas"].values()
                for s in other.get("properties", {}).values()
            ]
        ):
            needed = set(schema.get("required", ()))
            rows = (
                (code(f), "" if f in needed else "optional", _kind(s)) for f, s in fields.items()
            )
            parts += [
                f"## {name} {{#schema-{name}}}\n",
                prose(inspect.cleandoc(schema.get("description", ""))) + "\n",
                table(("field", "", "kind"), rows) if fields else _kind(schema) + "\n",
            ]
    return parts


def _said(operation: Json) -> str:
    return str(operation.get("description") or operation.get("summary") or "")


def _anchor(method: str, path: str) -> str:
    kept = "".join(c if c.isalnum() else "-" for c in path).strip("-")
    return f"{method.lower()}-{kept}"


def _parameters(operation: Json) -> str:
    return table(
        ("parameter", "in", "", "kind"),
        (
            (code(p["name"]), p["in"], "" if p.get("required") else "optional", _kind(p["schema"]))
            for p in operation.get("parameters", [])
        ),
    )


def _body(operation: Json, description: Json) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    parts = []
    for kind, holder in content.items():
        schema = _resolved(holder["schema"], description)
        needed = set(schema.get("required", ()))
        names = sorted(schema.get("properties", {}), key=lambda name: name not in needed)
        rows = (
            (code(name), "" if name in needed else "optional", _kind(schema["properties"][name]))
            for name in names
        )
        parts.append(f"Body: `{kind}`\n\n" + table(("field", "", "kind"), rows))
    return "\n".join(parts)


def _answers(operation: Json, description: Json) -> str:
    rows = []
    for status, answer in operation["responses"].items():
        kinds = ", ".join(code(kind) for kind in answer.get("content", {}))
        schemas = [
            _resolved(holder.get("schema", {}), description)
            for holder in answer.get("content", {}).values()
        ]
        fields = dict.fromkeys(name for schema in schemas for name in schema.get("required", ()))
        shown = ", ".join(code(name) for name in fields) if status < "400" else ""
        rows.append(
            (status if status.isdigit() else "other", prose(answer["description"]), kinds, shown)
        )
    return table(("status", "when", "content", "fields there are always"), rows)


def _resolved(schema: Json, description: Json) -> Json:
    reference = schema.get("$ref")
    if not reference:
        return schema
    found: Json = description
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def _kind(schema: Json) -> str:
    """One line that says which values are taken."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#schema-{name})"
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(filter(None, map(_kind, choices))))
    named = schema.get("type", "any")
    names = [name for name in (named if isinstance(named, list) else [named]) if name != "null"]
    if names == ["array"]:
        return f"list of {_kind(schema.get('items', {}))}"
    if names == ["object"] and schema.get("properties"):
        return "object of " + ", ".join(code(name) for name in schema["properties"])
    return " or ".join(names) + _limits(schema)


def _limits(schema: Json) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum")
    above = "above " if "exclusiveMinimum" in schema else "from "
    said = [f"{above}{low:g}"] if low is not None and abs(low) < 1e15 else []
    said += [f"to {_number(high)}"] if high is not None and abs(high) < 1e15 else []
    return f", {' '.join(said)}" if said else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


_GATEWAY = """Every call below `/v1` needs a key: `Authorization: Bearer KEY`, made with [`client
keys new`](cli/client.md#client-keys-new). Any OpenAI client works with `OPENAI_BASE_URL` and
`OPENAI_API_KEY`; [the page for teams](../roles/team.md) shows it, and lists the headers that are
ours. Errors have OpenAI's shape; [each code](../errors/index.md) has a page.
"""

_MATCHER = """Reading needs no key. An order and an acknowledgement carry their own signatures
([protocol](../protocol.md)). Every failure is `{"error": …}` with the [error's](../errors/index.md)
four texts and its HTTP status.
"""
