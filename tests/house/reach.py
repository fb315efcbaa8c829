"""Which definitions of the product do the five programs reach?

A walk over the source: from the programs' entry points along every name that reached code
mentions. It errs on the side of reached: a method counts once its class is reached and anything
reached mentions its name, also as a string.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.house.tree import ROOT, module_of, modules, parsed, product

#: Decorators of these modules change a function; every other one hands it to somebody who calls it.
_CHANGERS = {"functools", "contextlib", "dataclasses", "typing", "enum"}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Name = tuple[
    str, str
]  # module, definition; of a method `Class.method`; "" is what a module does when it is imported


@dataclass
class _Module:
    path: Path
    body: list[ast.stmt] = field(default_factory=list)
    defs: dict[str, list[ast.stmt]] = field(default_factory=dict)
    #: Local name → every (module, name) that an import anywhere in it gives that name. A module
    #: itself has no name.
    bound: dict[str, set[Name]] = field(default_factory=dict)


def unreached() -> list[str]:
    """`module:name` of what no program reaches, in order."""
    walk = _Walk()
    walk.run()
    return sorted(f"{module}:{name}" for module, name in walk.defined - walk.reached if name)


class _Walk:
    def __init__(self) -> None:
        self.modules = {module_of(p): _read(p) for p in product()}
        self.defined: set[Name] = set()
        for name, module in self.modules.items():
            if ".migrations" in name:
                continue
            for top, nodes in module.defs.items():
                self.defined.add((name, top))
                for node in nodes:
                    self.defined |= {(name, f"{top}.{m.name}") for m in _methods(node)}
        self.reached: set[Name] = set()
        self.mentioned: set[str] = set()
        self._todo: list[Name] = []
        #: Methods of reached classes that nothing mentioned so far.
        self._waiting: dict[str, list[Name]] = {}

    def run(self) -> None:
        for name, module in self.modules.items():
            if ".migrations" in name or _is_program(module):
                self._import(name)
        for entry in _entries():
            module, _, function = entry.partition(":")
            self._import(module)
            self._reach((module, function))
        while self._todo:
            self._visit(*self._todo.pop())

    def _import(self, module: str) -> None:
        parts = module.split(".")
        for n in range(1, len(parts) + 1):
            package = ".".join(parts[:n])
            if package in self.modules:
                self._reach((package, ""))

    def _reach(self, name: Name) -> None:
        if name not in self.reached:
            self.reached.add(name)
            self._todo.append(name)

    def _follow(self, module: str, name: str) -> None:
        """`name` as `module` knows it: its own, or what it imported."""
        known = self.modules.get(module)
        if known is None:
            return
        if name in known.defs:
            self._import(module)
            self._reach((module, name))
        for there, what in known.bound.get(name, ()):
            if there in self.modules:
                self._import(there)
                if what and (there, what) != (module, name):
                    self._follow(there, what)
        if f"{module}.{name}" in self.modules:
            self._import(f"{module}.{name}")

    def _visit(self, module: str, name: str) -> None:
        known = self.modules[module]
        if not name:
            for node in known.body:
                self._mention(module, node)
            for top, nodes in known.defs.items():
                if any(_is_handed_over(node, known) for node in nodes):
                    self._reach((module, top))
            return
        top, _, method = name.partition(".")
        for node in known.defs[top]:
            if method:
                for one in _methods(node):
                    if one.name == method:
                        self._mention(module, one)
            elif isinstance(node, ast.ClassDef):
                self._visit_class(module, node)
            else:
                self._mention(module, node)

    def _visit_class(self, module: str, node: ast.ClassDef) -> None:
        methods = list(_methods(node))
        for part in (*node.bases, *node.keywords, *node.decorator_list):
            self._mention(module, part)
        for part in node.body:
            if part not in methods:
                self._mention(module, part)
        is_foreign = any(not self._is_ours(module, base) for base in node.bases)
        for one in methods:
            name = (module, f"{node.name}.{one.name}")
            if (
                is_foreign
                or one.name.startswith("__")
                or one.name in self.mentioned
                or (_is_handed_over(one, self.modules[module]))
            ):
                self._reach(name)
            else:
                self._waiting.setdefault(one.name, []).append(name)

    def _is_ours(self, module: str, base: ast.expr) -> bool:
        """Of a base class: nobody but our own code calls what a subclass defines."""
        root = base
        while isinstance(root, ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name):
            if root.id in ("Protocol", "Generic", "Exception", "object", "NamedTuple", "Enum"):
                return True
            there = self.modules[module].bound.get(root.id, ())
            return root.id in self.modules[module].defs or any(m in self.modules for m, _ in there)
        return False

    def _mention(self, module: str, node: ast.AST) -> None:
        known = self.modules[module]
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                self._follow(module, part.id)
                self._say(part.id)
            elif isinstance(part, ast.Attribute):
                self._say(part.attr)
                owner = _dotted(part.value)
                for there in known.bound.get(owner.partition(".")[0], ()):
                    full = ".".join(filter(None, (*there, *owner.split(".")[1:])))
                    if full in self.modules:
                        self._follow(full, part.attr)
            elif isinstance(part, ast.keyword) and part.arg:
                self._say(part.arg)
            elif isinstance(part, ast.Import | ast.ImportFrom):
                for there in _imported(part):
                    self._import(there)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                self._mention_text(part.value)

    def _mention_text(self, text: str) -> None:
        if _IDENTIFIER.fullmatch(text):
            self._say(text)
        elif len(text) < 200 and "." in text:
            module, _, name = text.replace(":", ".").rpartition(".")
            if text in self.modules:
                self._import(text)
                for public in self.modules[text].defs:
                    if not public.startswith("_"):
                        self._reach((text, public))
            elif module in self.modules:
                self._follow(module, name)

    def _say(self, name: str) -> None:
        self.mentioned.add(name)
        for waiting in self._waiting.pop(name, ()):
            self._reach(waiting)


def _entries() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(project["project"]["scripts"].values())


def _read(path: Path) -> _Module:
    found = _Module(path)
    tree = parsed(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full in modules()
                bound = (full, "") if is_module else (node.module, alias.name)
                found.bound.setdefault(alias.asname or alias.name, set()).add(bound)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    found.bound.setdefault(alias.asname, set()).add((alias.name, ""))
                else:
                    root = alias.name.partition(".")[0]
                    found.bound.setdefault(root, set()).add((root, ""))
    for node in _top(tree.body):
        for name in _names(node):
            found.defs.setdefault(name, []).append(node)
        if not _names(node):
            found.body.append(node)
    return found


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those under an `if` or `try` too, without what is for types alone."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _top(node.body)
            yield from _top(node.orelse)
        elif isinstance(node, ast.Try):
            for part in (node.body, *(h.body for h in node.handlers), node.orelse, node.finalbody):
                yield from _top(part)
        elif not isinstance(node, ast.If):
            yield node


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, _Def):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return [name for name in names if not name.startswith("__")]


def _is_program(module: _Module) -> bool:
    """Of a module that `python -m` runs."""
    return any("__main__" in ast.unparse(node) for node in parsed(module.path).body[-1:])


def _methods(node: ast.stmt) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.ClassDef):
        return []
    return [m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]


def _is_handed_over(node: ast.stmt, module: _Module) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        root = _dotted(called).partition(".")[0]
        if root in ("property", "staticmethod", "classmethod", "cached_property"):
            continue
        homes = {home.partition(".")[0] for home, _ in module.bound.get(root, ())}
        ours = module.defs.get(root, ())
        if not homes & _CHANGERS and not any(isinstance(known, _Def) for known in ours):
            return True
    return False


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
