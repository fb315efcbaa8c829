"""What do the programs say with an error code? Read from the calls that make the errors."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from core.protocol.errors import HeadraceError
from sitegen.places import modules

#: Parameters of an error that are the command to type next.
NEXT = ("next_step", "fix", "resume")


@dataclass(frozen=True)
class Message:
    """The texts of one place, placeholders in ‹brackets›; empty where the place says nothing of its
    own.
    """

    what: str
    why: str
    next_step: str
    where: str


def messages_of(kind: type[HeadraceError]) -> list[Message]:
    """Each distinct message of a class and of its children that have no code of their own, in order
    of place.
    """
    found: dict[tuple[str, str, str], Message] = {}
    for one in [kind, *_without_code(kind)]:
        for message in [*_own_texts(one), *_of_calls(one)]:
            if message.what:
                found.setdefault((message.what, message.why, message.next_step), message)
    return list(found.values())


def _without_code(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    for child in kind.__subclasses__():
        if "code" not in vars(child):
            yield child
            yield from _without_code(child)


def _of_calls(kind: type[HeadraceError]) -> Iterator[Message]:
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    if "what" not in names:
        return  # its texts are made in its own `__init__`
    for where, call in _calls().get(kind.__name__, ()):
        yield _message(names, call, where)


def _own_texts(kind: type[HeadraceError]) -> Iterator[Message]:
    """What a class with an `__init__` of its own hands to `super().__init__`."""
    if "__init__" not in vars(kind) or kind is HeadraceError:
        return
    names = [n for n in inspect.signature(kind.__mro__[1].__init__).parameters if n != "self"]
    for name, tree in modules():
        if name != kind.__module__:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__":
                        yield _message(names, call, name)


def _message(names: list[str], call: ast.Call, where: str) -> Message:
    given = {
        **dict(zip(names, map(text_of, call.args), strict=False)),
        **{word.arg: text_of(word.value) for word in call.keywords if word.arg},
    }
    following = next((given[name] for name in NEXT if given.get(name)), "")
    return Message(given.get("what", ""), given.get("why", ""), following, where)


@cache
def _calls() -> dict[str, list[tuple[str, ast.Call]]]:
    """Calls by the name of what is called, with the module."""
    found: dict[str, list[tuple[str, ast.Call]]] = {}
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func
                last = (
                    called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                )
                found.setdefault(last, []).append((name, node))
    return found


def text_of(node: ast.expr) -> str:
    """A literal text with its placeholders in brackets; "" for what is not written there."""
    text = _text(node)
    return text if any(c.isalpha() for c in _outside(text)) else ""


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"‹{_name(part.value)}›" if isinstance(part, ast.FormattedValue) else _text(part)
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return "".join(_text(side) or f"‹{_name(side)}›" for side in (node.left, node.right))
    if isinstance(node, ast.IfExp):
        return " / ".join(filter(None, (_text(node.body), _text(node.orelse))))
    if isinstance(node, ast.BoolOp):
        return " / ".join(filter(None, map(_text, node.values)))
    return ""


def _name(node: ast.expr) -> str:
    """What a placeholder stands for, as the code calls it."""
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_").replace("_", " ")
    if isinstance(node, ast.Name):
        return node.id.strip("_").replace("_", " ")
    if isinstance(node, ast.Call):
        inner = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        return next((name for name in map(_name, inner) if name != "…"), "…")
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.BinOp | ast.BoolOp):
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else node.values
        return next((name for name in map(_name, sides) if name != "…"), "…")
    return "…"


def _outside(text: str) -> str:
    kept, depth = [], 0
    for c in text:
        depth += (c == "‹") - (c == "›")
        if not depth and c != "›":
            kept.append(c)
    return "".join(kept)
