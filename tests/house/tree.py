"""What is the product made of? Its files, rooms, classes and lines, as git tracks them."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("client", "core", "devnet", "matcher", "miner", "scheduler")
MAX_FILES = 20
COLUMNS = 100
#: Written by programs, or by others: their lines are as long as they are.
_NOT_OURS = ("core/protocol/abi/",)


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that git tracks or would track, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(Path(line) for line in found.stdout.splitlines() if (ROOT / line).is_file())


@cache
def product() -> tuple[Path, ...]:
    """The Python files of the five programs and what they share."""
    return tuple(p for p in tracked() if p.parts[0] in PACKAGES and p.suffix == ".py")


def sources(*suffixes: str) -> tuple[Path, ...]:
    """Files of the product with these endings, contracts included."""
    folders = (*PACKAGES, "contracts/src")
    return tuple(
        p
        for p in tracked()
        if p.suffix in suffixes
        and p.as_posix().startswith(folders)
        and not p.as_posix().startswith(_NOT_OURS)
    )


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), str(path))


def module_of(path: Path) -> str:
    """`client/jobs/batch.py` → `client.jobs.batch`; of an `__init__.py`, the package."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> frozenset[str]:
    return frozenset(module_of(path) for path in product())


def rooms() -> dict[Path, list[Path]]:
    """Folder → the files that lie in it, its map left out; of every folder with code of ours."""
    found: dict[Path, list[Path]] = defaultdict(list)
    for path in tracked():
        if path.name != "__init__.py" and not path.as_posix().startswith(_NOT_OURS):
            found[path.parent].append(path)
    with_code = {p.parent for p in tracked() if p.suffix in (".py", ".sol", ".c")}
    return {room: files for room, files in found.items() if room in with_code}


def class_homes() -> dict[str, list[str]]:
    """Name of a class → the modules of the product that define one at their top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in product():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module_of(path))
    return found


def shared_class_names() -> dict[str, list[str]]:
    return {name: homes for name, homes in class_homes().items() if len(homes) > 1}


def long_lines(paths: Iterator[Path] | tuple[Path, ...]) -> dict[Path, int]:
    """File → how many of its lines are too long; files without one are left out."""
    counts = Counter(
        path
        for path in paths
        for line in (ROOT / path).read_text().splitlines()
        if len(line) > COLUMNS
    )
    return dict(counts)


def line_count(paths: tuple[Path, ...]) -> int:
    return sum(len((ROOT / path).read_text().splitlines()) for path in paths)


def imports_of(path: Path) -> Iterator[str]:
    """The product's modules that a file imports, also inside functions and for types alone."""
    known = modules()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module


def circles() -> list[list[str]]:
    """Groups of modules, or of sibling rooms, that import each other."""
    edges: dict[str, set[str]] = defaultdict(set)
    for path in product():
        here = module_of(path)
        for there in imports_of(path):
            if there != here:
                edges[here].add(there)
                for pair in _siblings(here, there):
                    edges[pair[0]].add(pair[1])
    return [sorted(group) for group in _components(edges) if len(group) > 1]


def _siblings(here: str, there: str) -> Iterator[tuple[str, str]]:
    """The rooms beside each other that an import crosses, with a slash: they are no modules."""
    a, b = here.split("."), there.split(".")
    same = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if same is not None and len(a) > same + 1 and len(b) > same + 1:
        yield "/".join(a[: same + 1]) + "/", "/".join(b[: same + 1]) + "/"


def _components(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in list(edges):
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, children = work[-1]
            for child in children:
                if child not in index:
                    index[child] = low[child] = len(index)
                    stack.append(child)
                    work.append((child, iter(sorted(edges.get(child, ())))))
                    break
                if child in stack:
                    low[node] = min(low[node], index[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(stack[at:])
                    del stack[at:]
    return found
