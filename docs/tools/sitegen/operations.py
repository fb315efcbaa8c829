"""How are the programs run and watched?

From `ops/README.md`, with its links turned towards this site.
"""

from __future__ import annotations

import re

from sitegen.places import ROOT

SOURCE = ROOT / "ops" / "README.md"


def operations_page() -> dict[str, str]:
    """`operations.md`; nothing where there is no `ops/README.md`."""
    if not SOURCE.is_file():
        return {}
    return {"operations.md": turned(SOURCE.read_text(encoding="utf-8"))}


def turned(text: str) -> str:
    """Links to pages of `docs/` stay links; those to other files become the file's path."""

    def target(match: re.Match[str]) -> str:
        label, link = match[1], match[2]
        if "://" in link or link.startswith(("#", "mailto:")):
            return match[0]
        path, _, part = link.partition("#")
        at = (SOURCE.parent / path).resolve()
        docs = ROOT / "docs"
        if at.is_relative_to(docs) and at.is_file():
            return f"[{label}]({at.relative_to(docs)}{'#' + part if part else ''})"
        shown = f"`{at.relative_to(ROOT)}`" if at.is_relative_to(ROOT) else f"`{path}`"
        return shown if label.strip("`") in (path, at.name) else f"{label} ({shown})"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", target, text)
