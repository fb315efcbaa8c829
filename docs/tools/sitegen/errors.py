"""What does each error code mean?

A page for each, from the classes and from the places that raise them.
"""

from __future__ import annotations

import ast
import importlib
import inspect

from core.protocol.errors import HeadraceError, every_error
from sitegen.messages import Message, messages_of
from sitegen.places import modules
from sitegen.text import code, prose, sentence, table

#: What errors of one exit code have in common, for whoever reads a single page.
FAMILIES = {
    1: "A bug on our side. The command's journal is valid; what it did before the error may have "
    "taken effect.",
    2: "Wrong use, a setting that cannot be used, or a model that cannot be run. Correct it and "
    "try again.",
    3: "Somebody does not answer, or answers what cannot be understood.",
    4: "A wallet cannot be used.",
    5: "Not enough money. The second line always says what is there, what is needed, by how much "
    "it is short, and where; "
    "the fourth is the command that mends it.",
    6: "The contract said no. Its own name for the reason is in the second line; see [contract "
    "errors](contracts.md).",
    7: "No machines serve this at this price now.",
    8: "A deadline passed. What was done is kept, and the last line is the command that goes on.",
    9: "Something signed does not match what it should be.",
    130: "Somebody stopped it.",
}


def error_classes() -> list[type[HeadraceError]]:
    """Every class of the tree that has a code of its own, parents before children, wherever it is
    defined.
    """
    for name, tree in modules():
        if any(isinstance(node, ast.ClassDef) and _own_code(node) for node in tree.body):
            importlib.import_module(name)
    return [kind for kind in every_error() if "code" in vars(kind)]


def _own_code(node: ast.ClassDef) -> bool:
    return any(
        isinstance(line, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "code" for target in line.targets)
        and isinstance(line.value, ast.Constant)
        and str(line.value.value).startswith("E-")
        for line in node.body
    )


def error_pages() -> dict[str, str]:
    """`errors/index.md`, and a page per code."""
    kinds = error_classes()
    pages = {f"errors/{kind.code}.md": _page(kind) for kind in kinds}
    if len(pages) != len(kinds):
        raise ValueError("two error classes have the same code")
    return {"errors/index.md": _index(kinds), **pages}


def _index(kinds: list[type[HeadraceError]]) -> str:
    parts = [
        "# Error codes\n",
        "Every failure says four things: what failed, why (with the numbers), what state things "
        "are in now, and what to do "
        "next. The four lines appear on stderr, with `--json` as a document, and in the API's "
        "answers. The code never changes, so "
        "scripts can rely on it. The exit code says the family. Reasons of the contracts are "
        "[listed by name](contracts.md); what "
        "machines say to each other is [here](peers.md).\n",
        "```\n"
        "error E-FUNDS-03: the prepaid balance is too small\n"
        "why:   have 1usd, need 5usd, short by 4usd at 0x70997970C51812dc3A010C7d01b50e0d17dc79C8 "
        "on chain 31337\n"
        "state: nothing was signed, sent or paid\n"
        "next:  client wallet deposit 4usd\n"
        "```\n",
    ]
    for exit_code in sorted({kind.exit_code for kind in kinds}):
        parts.append(f"## Exit code {exit_code} {{#exit-{exit_code}}}\n")
        parts.append(FAMILIES.get(exit_code, "") + "\n")
        parts.append(
            table(
                ("code", "what happened", "HTTP"),
                (
                    (
                        f"[{kind.code}]({kind.code}.md)",
                        prose(_first_paragraph(kind)),
                        kind.http_status,
                    )
                    for kind in sorted(kinds, key=lambda kind: kind.code)
                    if kind.exit_code == exit_code
                ),
            )
        )
    return "\n".join(parts)


def _page(kind: type[HeadraceError]) -> str:
    doc = inspect.cleandoc(kind.__doc__ or "")
    parameters = inspect.signature(kind.__init__).parameters
    parts = [f"# {kind.code}: {_lower(_first_paragraph(kind))}\n"]
    parts.append(f"**What happened.** {prose(doc)}\n")
    parts.append(
        f"**Why.** {FAMILIES.get(kind.exit_code, '')} The line `why:` has the reason and the "
        f"numbers of your case.\n"
    )
    parts.append(
        f"**What state things are in.** {sentence(prose(kind.default_state))} "
        "Where that is not all, the line `state:` says so.\n"
    )
    parts.append(f"**What to do next.** {_next(kind, set(parameters))}\n")
    again = (
        "The same call may succeed later without a change, so programs may try again."
        if kind.retryable
        else "The same call fails again until something is changed."
    )
    parts.append(f"**Trying again.** {again}\n")
    parts.append(
        table(
            ("exit code", "HTTP status", "`error.type`", "`error.code` in the API", "class"),
            [
                (
                    f"[{kind.exit_code}](index.md#exit-{kind.exit_code})",
                    kind.http_status,
                    code(kind.api_type),
                    code(kind.api_code),
                    code(f"{kind.__module__}.{kind.__name__}"),
                )
            ],
        )
    )
    parts.append(_relatives(kind))
    parts.append(_cases(messages_of(kind)))
    return "\n".join(part for part in parts if part)


def _next(kind: type[HeadraceError], parameters: set[str]) -> str:
    if "fix" in parameters:
        return "The line `next:` is the command that mends it, with the amount that is short."
    if "resume" in parameters:
        return "The line `next:` is the command that goes on where this one stopped."
    return (
        f"{sentence(prose(kind.default_next))} Where a message knows better, its line `next:` "
        f"says so."
    )


def _relatives(kind: type[HeadraceError]) -> str:
    above = [
        base
        for base in kind.__mro__[1:]
        if issubclass(base, HeadraceError) and "code" in vars(base)
    ]
    lines = []
    if above and above[0] is not HeadraceError:
        lines.append(f"It is a kind of [{above[0].code}]({above[0].code}.md).")
    below = [child for child in kind.__subclasses__() if "code" in vars(child)]
    if below and kind is not HeadraceError:
        names = ", ".join(f"[{child.code}]({child.code}.md)" for child in below)
        lines.append(f"Its kinds are {names}.")
    return " ".join(lines) + ("\n" if lines else "")


def _cases(messages: list[Message]) -> str:
    if not messages:
        return ""
    head = (
        "## Messages with this code\n\n"
        "As they stand in the code; what is in ‹brackets› is filled in. An empty cell means the "
        "texts above.\n\n"
    )
    rows = ((prose(m.what), prose(m.why), prose(m.next_step), code(m.where)) for m in messages)
    return head + table(("what failed", "why", "next", "said by"), rows)


def _first_paragraph(kind: type[HeadraceError]) -> str:
    text = inspect.cleandoc(kind.__doc__ or kind.__name__).partition("\n\n")[0]
    return " ".join(text.split()).rstrip(".")


def _lower(text: str) -> str:
    first, _, rest = text.partition(" ")
    return f"{first.lower() if first.istitle() else first} {rest}".strip()
