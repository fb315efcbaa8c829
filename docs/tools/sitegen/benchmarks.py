"""What is measured, and with which command? From the benchmark packages themselves."""

from __future__ import annotations

import ast
import re

from sitegen.places import ROOT
from sitegen.text import code, prose, table

FOLDER = ROOT / "benchmarks"
#: Package → the page that discusses its table, if it is there.
DISCUSSED = {
    "scheduler": "scheduler.md",
    "engine": "engine.md",
    "siege": "siege.md",
    "trust": "trust.md",
}


def packages() -> dict[str, tuple[str, ...]]:
    """Every benchmark that is run with `python -m`, and its parts in order."""
    found = {}
    for main in sorted(FOLDER.glob("*/__main__.py")):
        parts = next(
            (
                tuple(str(value) for value in ast.literal_eval(node.value))
                for node in ast.parse(main.read_text(encoding="utf-8")).body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARTS"
            ),
            (),
        )
        found[main.parent.name] = parts
    return found


def benchmark_page() -> dict[str, str]:
    """`benchmarks.md`."""
    parts = [_HEAD]
    for package, names in packages().items():
        parts.append(f"## {package} {{#{package}}}\n")
        parts.append(f"{prose(_question(package, '__init__'))}\n")
        parts.append(f"```sh\npython -m benchmarks.{package}\n```\n")
        page = DISCUSSED.get(package)
        if page and (ROOT / "docs" / page).is_file():
            parts.append(f"What came out, and why, is on [its page]({page}).\n")
        parts.append(
            table(
                ("part", "what it asks"),
                ((code(f"--only {name}"), prose(_question(package, name))) for name in names),
            )
        )
    return {"benchmarks.md": "\n".join(parts)}


def _question(package: str, module: str) -> str:
    """The first line of a module's docstring, without the command in it."""
    for path in (FOLDER / package / f"{module}.py", FOLDER / package / module / "__init__.py"):
        if path.is_file():
            doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            first = doc.partition("\n\n")[0].replace("\n", " ")
            return re.sub(r"[:,;]?[^.?!:,;]*`python -m .*$", "", first).strip()
    return ""


_HEAD = """# Benchmarks

A measurement is a command that prints a table, never a test that fails when a machine is busy. Run
them in a checkout after `make setup`, on a machine that does nothing else. Every table has the same
columns: the item, what it must reach, our figure, the peer's, and the limit that nobody can pass.
`--json` prints the rows for programs, `--only PART` runs one part, and the exit code is 1 when a
row is not reached. Figures of peers come from their papers or from their code on the same input, as
each row says.
"""
