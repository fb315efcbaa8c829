"""What can be configured?

Every setting with its variable, kind and default, from the classes that read them.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import annotated_types

from core.runtime import settings
from sitegen.text import code, prose, sentence, table

#: Kinds of value as the classes name them → as people write them.
KINDS = {
    "Seconds": "time, such as `30s`",
    "SizeBytes": "size, such as `6GiB`",
    "Words": "list, by comma",
    "Addresses": "addresses, by comma",
    "AnAddress": "address",
    "OptionalPath": "file",
    "Path": "folder",
    "bool": "`true` or `false`",
    "str": "text",
    "float": "number",
    "_layers": "`auto`, or `A:B`",
    "_sampling_of_checks": "`none`, `full`, or `sample=0.05`",
}


def configuration_page() -> dict[str, str]:
    """`reference/configuration.md`."""
    parts = [_HEAD]
    sections = settings.Settings.model_fields
    docs = _field_docs()
    loose = []
    for name, field in sections.items():
        kind = field.annotation
        if not (isinstance(kind, type) and issubclass(kind, settings._Section)):
            loose.append((name, settings.Settings, name))
            continue
        rows = [
            (f"{name}.{inner.alias or attribute}", kind, attribute)
            for attribute, inner in kind.model_fields.items()
        ]
        parts.append(f"## {name} {{#{name}}}\n")
        parts.append(sentence(prose(inspect.cleandoc(kind.__doc__ or ""))) + "\n")
        parts.append(_table(rows, docs))
    parts += ["## Without a section {#top}\n", _table(loose, docs), _TAIL.format(short=_short())]
    return {"reference/configuration.md": "\n".join(parts)}


def variable_of(key: str) -> str:
    """The environment variable of a dotted key."""
    return settings.PREFIX + key.upper().replace(".", "__")


def _table(
    rows: list[tuple[str, type[Any], str]], docs: dict[tuple[str, str], tuple[str, str]]
) -> str:
    return table(
        ("setting", "environment", "kind", "default", "what"),
        (
            (
                code(key),
                code(variable_of(key)),
                _kind(kind, attribute, docs),
                _default(key),
                _what(kind, attribute, docs),
            )
            for key, kind, attribute in rows
        ),
    )


def _default(key: str) -> str:
    value = settings._default_text(key)
    if value in (None, "", (), [], {}):
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, Path):
        home = str(Path.home())
        return code("~" + str(value).removeprefix(home) if str(value).startswith(home) else value)
    return code(value)


def _what(kind: type[Any], attribute: str, docs: dict[tuple[str, str], tuple[str, str]]) -> str:
    return sentence(prose(" ".join(docs[kind.__name__, attribute][1].split())))


def _kind(kind: type[Any], attribute: str, docs: dict[tuple[str, str], tuple[str, str]]) -> str:
    written = docs[kind.__name__, attribute][0]
    if "TokenText" in written:
        return "price, such as `0.60usd/Mtok`" if "price" in attribute else "amount, such as `5usd`"
    if "Literal" in written:
        return " or ".join(code(value) for value in _choices(written))
    if "dict[" in written:
        return "table"
    for name, said in KINDS.items():
        if name in written.replace("BaseModel", ""):
            return said
    limits = {type(m).__name__: m for m in kind.model_fields[attribute].metadata}
    low, high = limits.get("Ge"), limits.get("Le")
    assert low is None or isinstance(low, annotated_types.Ge)
    assert high is None or isinstance(high, annotated_types.Le)
    if low is not None and high is not None:
        return f"{low.ge} to {high.le}"
    return f"whole number from {low.ge}" if low is not None else "whole number"


def _choices(written: str) -> list[str]:
    for node in ast.walk(ast.parse(written, mode="eval")):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            inner = node.slice
            values = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return [str(value.value) for value in values if isinstance(value, ast.Constant)]
    return []


def _field_docs() -> dict[tuple[str, str], tuple[str, str]]:
    """(class, attribute) → (annotation as written, the text under it)."""
    found = {}
    tree = ast.parse(inspect.getsource(settings))
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for line, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                text = ""
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    text = str(after.value.value)
                found[node.name, line.target.id] = (ast.unparse(line.annotation), text)
    return found


def _short() -> str:
    rows = [(code(name), code(key)) for name, key in settings.SHORT_VARIABLES.items()]
    return table(("variable", "the same as"), rows)


_HEAD = """# Configuration

One order of precedence, lowest first: built-in defaults, the network file, `config.toml` in your
configuration folder, a file named with `--config`, the environment, flags. `client config show
--origin` prints every value and who set it; secrets are masked. `client config set KEY VALUE`
changes the file and keeps your comments. `client config path` says where the folders are. The same
three commands exist in all five programs. A setting that nothing reads is an
[error](../errors/E-CONFIG-02.md), not a typo that passes unseen.

In a file the part before the dot is a section:

```toml
network = "devnet"          # short for network.name

[miner]
price_out = "0.40usd/Mtok"
memory_limit = "6GiB"
```

In the environment it is `HEADRACE_`, the setting in capitals, and two underscores for a dot:
`HEADRACE_MINER__PRICE_OUT=0.40usd/Mtok`.
"""

_TAIL = """## Other variables {{#variables}}

{short}

`HEADRACE_CONFIG` names a configuration file. `HEADRACE_HOME` puts configuration, state, cache and
network files into one folder; without it they follow the platform's conventions. Foundry's
`ETH_RPC_URL`, `ETH_KEYSTORE`, `ETH_KEYSTORE_ACCOUNT` and `ETH_PASSWORD` count where ours are not
set.
"""
