"""What do machines answer each other when they refuse?

Codes that no class of error has, with the reasons beside them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from sitegen.errors import error_classes
from sitegen.messages import text_of
from sitegen.places import modules
from sitegen.text import code, prose, table

CODE = re.compile(r"E-[A-Z]+(?:-[A-Z0-9]+)+")


def peer_codes() -> dict[str, list[tuple[str, str]]]:
    """Code → (reason, module), for every code in the packages that belongs to no class."""
    known = {kind.code for kind in error_classes()}
    of_module = {name: dict(_constants(tree)) for name, tree in modules()}
    every = sorted({value for named in of_module.values() for value in named.values()})
    found: dict[str, list[tuple[str, str]]] = {code: [] for code in every if code not in known}
    for where, tree in modules():
        named = dict(_reachable(tree, of_module)) | of_module[where]
        named |= dict(_again(tree, named))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            values = [*node.args, *(word.value for word in node.keywords)]
            for given, after in pairwise(values):
                said = _said(given, named)
                if said and said not in known:
                    found.setdefault(said, []).append((text_of(after), where))
    return dict(sorted(found.items()))


def _said(node: ast.expr, named: dict[str, str]) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if CODE.fullmatch(node.value) else ""
    return named.get(ast.unparse(node), "") if isinstance(node, ast.Name | ast.Attribute) else ""


def _reachable(tree: ast.Module, of_module: dict[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    """Constants of other modules as this one writes them: `NAME`, or `module.NAME`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                shown = alias.asname or alias.name
                value = of_module.get(node.module, {}).get(alias.name)
                if value:
                    yield shown, value
                for name, inner in of_module.get(f"{node.module}.{alias.name}", {}).items():
                    yield f"{shown}.{name}", inner


def _again(tree: ast.Module, named: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Constants that a module gives a name of its own: `NAME = module.NAME`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = named.get(ast.unparse(node.value))
            if value:
                yield node.targets[0].id, value


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """`NAME = "E-…"`, also several at once."""
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        pairs = (
            zip(target.elts, value.elts, strict=False)
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            else [(target, value)]
        )
        for name, given in pairs:
            if (
                isinstance(name, ast.Name)
                and isinstance(given, ast.Constant)
                and CODE.fullmatch(str(given.value))
            ):
                yield name.id, str(given.value)


def peer_codes_page() -> dict[str, str]:
    """`errors/peers.md`."""
    rows = []
    for said, reasons in peer_codes().items():
        texts = dict.fromkeys(filter(None, (reason for reason, _ in reasons)))
        places = dict.fromkeys(where for _, where in reasons)
        rows.append(
            (
                f'<span id="{said}"></span>{code(said)}',
                "<br>".join(map(prose, texts)),
                "<br>".join(map(code, places)),
            )
        )
    return {"errors/peers.md": _HEAD + table(("code", "reasons", "said by"), rows)}


_HEAD = """# Codes between machines

A machine that refuses a call of another one answers with a code and a reason. Where it is one of
the [errors](index.md), its code is that of the error. These are the others. A person meets them
inside the line `why:` of another error, and in logs. There is nothing to do about them by hand: the
program that got one leaves that machine out, or asks another one.

"""
