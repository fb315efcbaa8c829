"""What does the product assign after construction? An attribute belongs to what its class declares.

A class declares an attribute in its body, in `__slots__`, or in `__init__`, `__new__` or
`__post_init__`. Two things are looked for: an attribute of `self` (or of `cls`) that another method
sets first, and an attribute of another object that no class of the product declares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.house.tree import module_of, parsed, product

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def late() -> list[tuple[str, str]]:
    """(where, attribute) of what is assigned too late, in order; `where` is module or class."""
    readers = [Reader(module_of(path)).read(parsed(path)) for path in product()]
    classes = {c.name: c for reader in readers for c in reader.classes}
    known = set[str]().union(*(c.declared for reader in readers for c in reader.classes))
    found = set()
    for reader in readers:
        for one in reader.classes:
            own = set[str]().union(*(c.declared for c in _line_of(one, classes)))
            found |= {(f"{reader.module}:{one.name}", name) for name in one.set_later - own}
        found |= {(reader.module, name) for name in reader.set_on_others - known}
    return sorted(found)


@dataclass
class _Class:
    name: str
    bases: list[str]
    #: In its body, also methods; and by its constructors.
    declared: set[str] = field(default_factory=set)
    set_later: set[str] = field(default_factory=set)


class Reader:
    """One module: its classes, and what it assigns to attributes."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.classes: list[_Class] = []
        self.set_on_others: set[str] = set()

    def read(self, tree: ast.Module) -> Reader:
        self._walk(tree, None, "", is_constructor=False)
        return self

    def _walk(self, node: ast.AST, of: _Class | None, me: str, *, is_constructor: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                inner = _Class(child.name, [_simple(base) for base in child.bases])
                inner.declared |= set(_in_body(child))
                self.classes.append(inner)
                for part in child.body:
                    if isinstance(part, _Function):
                        first = next(iter([*part.args.posonlyargs, *part.args.args]), None)
                        makes = part.name in _CONSTRUCTORS
                        name = first.arg if first is not None else ""
                        self._walk(part, inner, name, is_constructor=makes)
                    else:
                        self._walk(part, None, "", is_constructor=False)
                continue
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
                mine = isinstance(child.value, ast.Name) and child.value.id == me != ""
                self._note(child.attr, of if mine else None, is_constructor)
            elif isinstance(child, ast.Call) and is_constructor and of is not None:
                of.declared |= set(_set_by_name(child))
            self._walk(child, of, me, is_constructor=is_constructor)

    def _note(self, name: str, of: _Class | None, is_constructor: bool) -> None:
        if of is None:
            self.set_on_others.add(name)
        elif is_constructor:
            of.declared.add(name)
        else:
            of.set_later.add(name)


def _line_of(one: _Class, classes: dict[str, _Class]) -> Iterator[_Class]:
    """A class and those classes of the product that it is made of."""
    todo, seen = [one], {one.name}
    while todo:
        this = todo.pop()
        yield this
        todo += [classes[base] for base in this.bases if base in classes and base not in seen]
        seen.update(this.bases)


def _simple(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")


def _in_body(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, _Function):
            yield part.name
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            yield from names
            if "__slots__" in names and part.value is not None:
                constants = (c for c in ast.walk(part.value) if isinstance(c, ast.Constant))
                yield from (str(c.value) for c in constants)


def _set_by_name(call: ast.Call) -> Iterator[str]:
    """`object.__setattr__(self, "name", …)` of a frozen class."""
    is_setattr = isinstance(call.func, ast.Attribute) and call.func.attr == "__setattr__"
    if is_setattr and len(call.args) == 3 and isinstance(call.args[1], ast.Constant):
        yield str(call.args[1].value)
