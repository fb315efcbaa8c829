"""How do values become Markdown that shows them as they are?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def cell(text: object) -> str:
    """Text inside a table: on one line, and no column ends by chance.

    In code a bar ends none, and a backslash would show.
    """
    line = " ".join(str(text).split())
    parts = re.split(r"(``.*?``|`[^`]*`)", line)
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in parts)


def prose(text: str) -> str:
    """A sentence of the code as Markdown: double backticks of docstrings become single ones, `<`
    stays `<`.
    """
    single = text.replace("``", "`")
    parts = re.split(r"(`[^`]*`)", single)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*")
        for part in parts
    )


def code(text: object) -> str:
    """Text in code font, or nothing for nothing."""
    shown = " ".join(str(text).split())
    if not shown:
        return ""
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; its cells are Markdown already. No rows give no table."""
    lines = [" | ".join(cell(value) or " " for value in row) for row in rows]
    if not lines:
        return ""
    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join([*head, *(f"| {line} |" for line in lines)]) + "\n"


def sentence(text: str) -> str:
    """With a capital letter and a full stop, unless it begins with code or ends with a sign."""
    text = text.strip()
    if not text:
        return ""
    begun = text if text[0] in "`" else text[0].upper() + text[1:]
    return begun if begun[-1] in ".:!?" else begun + "."
