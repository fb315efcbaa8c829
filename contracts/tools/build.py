"""Which bytecode and ABI do the programs deploy and call? contracts/src → core/protocol/abi.

Where each contract keeps what is written beside it, in contracts/storage.json.

    python contracts/tools/build.py            compile and write, one JSON a contract
    python contracts/tools/build.py --check    compile and compare; exit 1 naming what differs
    python contracts/tools/build.py --native   let py-solc-x install the native compiler first
    python contracts/tools/build.py --standard-json FILE   write what explorers compile, no more

Compiler settings are those of foundry.toml and the version is that of package-lock.json, so forge
and this program produce the same bytes. py-solc-x drives a native compiler of that version where it
has one, and contracts/tools/solc.mjs otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import posixpath
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import solcx
from packaging.version import Version
from solcx.exceptions import SolcError, SolcInstallationError
from solcx.wrapper import get_solc_version

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "core" / "protocol" / "abi"
STORAGE = ROOT / "contracts" / "storage.json"
NETWORKS = ROOT / "tests" / "core" / "networks"
#: Deployed by tests alone: file → the contract of it, and where its artifact lies.
FIXTURES = {
    "contracts/test/fixtures/RefereeLens.sol": ("RefereeLens", ROOT / "tests" / "twins"),
    "contracts/test/fixtures/Tokens.sol": ("CutToken", NETWORKS),
    "contracts/test/fixtures/Wallets.sol": ("ContractWallet", NETWORKS),
    "node_modules/@openzeppelin/contracts/governance/TimelockController.sol": (
        "TimelockController",
        NETWORKS,
    ),
}
WRAPPER = ROOT / "contracts" / "tools" / "solc.mjs"

MAX_RUNTIME_BYTES = 24_576  # EIP-170: a longer contract cannot be deployed
IMPORT = re.compile(r"""^\s*import\s+(?:[^"';]*?\sfrom\s+)?["']([^"']+)["']""", re.MULTILINE)

Artifacts = dict[str, dict[str, Any]]
#: Contract → its variables as "slot:offset type name", in order.
Layouts = dict[str, list[str]]


class BuildError(Exception):
    """The artifacts cannot be built; the text says why."""


def compiler_version() -> Version:
    """The one version we compile with, as npm has locked it."""
    lock = json.loads((ROOT / "package-lock.json").read_text())
    return Version(lock["packages"]["node_modules/solc"]["version"])


def find_compiler(version: Version, *, native: bool) -> Path:
    """A native compiler of this version if py-solc-x has or may install one, else ours."""
    if native and version not in solcx.get_installed_solc_versions():
        try:
            solcx.install_solc(version)
        except (SolcInstallationError, OSError) as error:
            print(f"no native solc {version} ({error}); using the npm one", file=sys.stderr)
    if version in solcx.get_installed_solc_versions():
        return Path(solcx.install.get_executable(version))
    if not (ROOT / "node_modules" / "solc").is_dir():
        raise BuildError("node_modules/solc is missing: run `npm ci` first")
    return WRAPPER


def load_profile() -> dict[str, Any]:
    toml = tomllib.loads((ROOT / "foundry.toml").read_text())
    profile: dict[str, Any] = toml["profile"]["default"]
    return profile


def settings_of(profile: dict[str, Any]) -> dict[str, Any]:
    """The part of foundry.toml that decides the bytecode, in the compiler's own words."""
    return {
        "optimizer": {"enabled": profile["optimizer"], "runs": profile["optimizer_runs"]},
        "evmVersion": profile["evm_version"],
        "viaIR": profile["via_ir"],
        "remappings": profile["remappings"],
        "metadata": {
            "bytecodeHash": profile["bytecode_hash"],
            "appendCBOR": profile["cbor_metadata"],
        },
    }


def imports_of(path: str, text: str, remappings: list[str]) -> list[str]:
    """Repository-relative paths that the file `path` imports."""
    found = []
    for target in IMPORT.findall(text):
        if target.startswith("."):
            # Not `resolve`: node_modules may be a link out of the repository.
            found.append(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
            continue
        for remapping in remappings:
            prefix, _, real = remapping.partition("=")
            if target.startswith(prefix):
                target = real + target.removeprefix(prefix)
                break
        found.append(target)
    return found


def read_sources(profile: dict[str, Any]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """contracts/src, the fixtures and all they import: path → text, path → what it imports."""
    sources: dict[str, str] = {}
    edges: dict[str, list[str]] = {}
    todo = [p.relative_to(ROOT).as_posix() for p in sorted((ROOT / profile["src"]).rglob("*.sol"))]
    todo.extend(FIXTURES)
    while todo:
        path = todo.pop()
        if path in sources:
            continue
        try:
            sources[path] = (ROOT / path).read_text()
        except OSError as error:
            raise BuildError(f"cannot read {path}: {error.strerror}") from error
        edges[path] = imports_of(path, sources[path], profile["remappings"])
        todo.extend(edges[path])
    return sources, edges


def reached(path: str, edges: dict[str, list[str]]) -> list[str]:
    """The file and all it imports."""
    found: set[str] = set()
    todo = [path]
    while todo:
        here = todo.pop()
        if here not in found:
            found.add(here)
            todo.extend(edges[here])
    return sorted(found)


def source_hash(path: str, sources: dict[str, str], edges: dict[str, list[str]]) -> str:
    """SHA-256 over the file and all it imports: it changes when a source of the contract does."""
    digest = hashlib.sha256()
    for name in reached(path, edges):
        digest.update(f"{name}\0{hashlib.sha256(sources[name].encode()).hexdigest()}\n".encode())
    return digest.hexdigest()


def standard_input(profile: dict[str, Any], sources: dict[str, str]) -> dict[str, Any]:
    """What the compiler reads: its standard JSON, which explorers take too."""
    wanted = [
        "abi",
        "evm.bytecode.object",
        "evm.bytecode.linkReferences",
        "evm.deployedBytecode.object",
        "evm.deployedBytecode.immutableReferences",
        "storageLayout",
    ]
    return {
        "language": "Solidity",
        "sources": {path: {"content": text} for path, text in sorted(sources.items())},
        "settings": {**settings_of(profile), "outputSelection": {"*": {"*": wanted, "": ["ast"]}}},
    }


def compile_artifacts(solc_binary: Path) -> tuple[Artifacts, Layouts]:
    """Artifacts of the fixtures and of every deployable contract under contracts/src, by name; and
    where those of contracts/src keep what they store.
    """
    profile = load_profile()
    settings = settings_of(profile)
    sources, edges = read_sources(profile)
    output = solcx.compile_standard(standard_input(profile, sources), solc_binary=solc_binary)
    version = str(get_solc_version(solc_binary, with_commit_hash=True))
    named = variable_names([source["ast"] for source in output["sources"].values()])

    artifacts: Artifacts = {}
    layouts: Layouts = {}
    for path in sorted(output["contracts"]):
        if not path.startswith(f"{profile['src']}/") and path not in FIXTURES:
            continue
        for name, contract in output["contracts"][path].items():
            creation = contract["evm"]["bytecode"]
            if not creation["object"] or not contract["abi"]:
                continue  # interface, abstract contract, or a library whose functions are inlined
            if path in FIXTURES and name != FIXTURES[path][0]:
                continue
            runtime = contract["evm"]["deployedBytecode"]
            if creation["linkReferences"]:
                raise BuildError(
                    f"{name} needs a deployed library; give it internal functions only"
                )
            if name in artifacts:
                raise BuildError(
                    f"two contracts are called {name}; artifacts are named by contract"
                )
            artifacts[name] = {
                "contractName": name,
                "sourceName": path,
                "sourceHash": source_hash(path, sources, edges),
                "compiler": version,
                "settings": settings,
                "abi": contract["abi"],
                "bytecode": "0x" + creation["object"],
                "deployedBytecode": "0x" + runtime["object"],
                "immutables": immutables_of(runtime["immutableReferences"], named),
                "runtimeBytes": len(runtime["object"]) // 2,
            }
            if path not in FIXTURES and contract["storageLayout"]["storage"]:
                layouts[name] = _variables(contract["storageLayout"])
    return artifacts, layouts


def variable_names(trees: list[Any]) -> dict[str, str]:
    """Id → name of every variable that syntax trees declare."""
    found: dict[str, str] = {}
    todo = list(trees)
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif isinstance(node, dict):
            if node.get("nodeType") == "VariableDeclaration":
                found[str(node["id"])] = node["name"]
            todo.extend(node.values())
    return found


def immutables_of(
    references: dict[str, list[dict[str, int]]], named: dict[str, str]
) -> dict[str, list[int]]:
    """Immutable → where its words of 32 bytes begin in the code at run time."""
    return {
        named[node]: [place["start"] for place in sorted(places, key=lambda one: one["start"])]
        for node, places in references.items()
    }


def _variables(layout: dict[str, Any]) -> list[str]:
    kinds = layout["types"]
    return [
        f"{one['slot']}:{one['offset']} {kinds[one['type']]['label']} {one['label']}"
        for one in layout["storage"]
    ]


def oversized(artifacts: Artifacts) -> list[str]:
    """One line per contract that no chain would accept."""
    return [
        f"{name}: {artifact['runtimeBytes']} bytes at run time, at most {MAX_RUNTIME_BYTES}"
        for name, artifact in sorted(artifacts.items())
        if artifact["runtimeBytes"] > MAX_RUNTIME_BYTES
    ]


def path_of(artifact: dict[str, Any]) -> Path:
    """Where the artifact is committed."""
    _, out = FIXTURES.get(artifact["sourceName"], ("", OUT))
    return out / f"{artifact['contractName']}.json"


def left_over(artifacts: Artifacts) -> list[Path]:
    """Committed artifacts of contracts that are no more."""
    return sorted(set(OUT.glob("*.json")) - {path_of(artifact) for artifact in artifacts.values()})


def render(artifact: dict[str, Any]) -> str:
    return json.dumps(artifact, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def differences(artifacts: Artifacts) -> list[str]:
    """One line per contract whose committed artifact is missing, different or left over."""
    lines = []
    for name, artifact in sorted(artifacts.items()):
        path = path_of(artifact)
        if not path.is_file():
            lines.append(f"{name}: no artifact")
        elif path.read_text() != render(artifact):
            lines.append(f"{name}: {', '.join(differing_keys(path, artifact))} differ")
    lines += [f"{path.stem}: no such contract any more" for path in left_over(artifacts)]
    return lines


def differing_keys(path: Path, artifact: dict[str, Any]) -> list[str]:
    try:
        committed = json.loads(path.read_text())
    except ValueError:
        return ["text"]
    keys = sorted(committed.keys() | artifact.keys())
    return [key for key in keys if committed.get(key) != artifact.get(key)] or ["text"]


def write(artifacts: Artifacts) -> None:
    for path in left_over(artifacts):
        path.unlink()
    for name, artifact in sorted(artifacts.items()):
        path_of(artifact).parent.mkdir(parents=True, exist_ok=True)
        path_of(artifact).write_text(render(artifact))
        print(f"{name}: {artifact['runtimeBytes']} bytes at run time")


def fail(headline: str, lines: list[str]) -> int:
    print(headline, *lines, sep="\n  ", file=sys.stderr)
    return 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile contracts/src into core/protocol/abi.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    parser.add_argument("--native", action="store_true", help="let py-solc-x install native solc")
    parser.add_argument("--standard-json", type=Path, metavar="FILE", help="for block explorers")
    options = parser.parse_args(argv)
    if options.standard_json:
        profile = load_profile()
        found = standard_input(profile, read_sources(profile)[0])
        options.standard_json.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    try:
        solc_binary = find_compiler(compiler_version(), native=options.native)
        artifacts, layouts = compile_artifacts(solc_binary)
    except (BuildError, SolcError) as error:
        return fail("the contracts do not build:", str(error).splitlines())
    told = json.dumps(layouts, indent=1, sort_keys=True) + "\n"
    if options.check and (lines := differences(artifacts)):
        lines.append("run: python contracts/tools/build.py")
        return fail("artifacts do not match contracts/src:", lines)
    if options.check and (not STORAGE.is_file() or STORAGE.read_text() != told):
        return fail("contracts/storage.json differs:", ["run: python contracts/tools/build.py"])
    if not options.check:
        write(artifacts)
        STORAGE.write_text(told)
    if lines := oversized(artifacts):
        return fail("too long to deploy (EIP-170):", lines)
    if options.check:
        print(f"{len(artifacts)} artifacts match contracts/src")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
