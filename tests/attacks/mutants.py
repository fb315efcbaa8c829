"""Do our proofs notice a fault that is put into a contract that moves money?

    make analyse                                         once: slither, and the contracts for it
    python -m tests.attacks.mutants --sample 200 --seed 1

slither-mutate's own changes, drawn at random among all that it makes of these contracts. A mutant
that does not compile is none. One is killed by the model in lock step, else by forge. The rest are
printed: each is to be explained, or to get a test.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import solcx
from solcx.exceptions import SolcError

from core.chain import rpc
from tests.attacks.lockstep import OPTIONS, prepared
from tests.conftest import start_anvil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "contracts" / "tools"))
import analyse  # noqa: E402  (programs, not a package)
import build  # noqa: E402

#: Of each mutated contract or library, what is deployed with it in it.
DEPLOYED = {
    "Escrow": ("Escrow",),
    "MinerRegistry": ("MinerRegistry",),
    "TaskRegistry": ("TaskRegistry",),
    "CreditBook": ("MinerRegistry",),
    "Jobs": ("TaskRegistry",),
    "Plans": ("TaskRegistry",),
    "Receipts": ("TaskRegistry",),
    "Split": ("TaskRegistry", "Escrow"),
    "Words": ("TaskRegistry",),
}
#: Runs inside slither's own environment, and prints every change as JSON.
LIST = """
import inspect, json, sys
from pathlib import Path
from slither import Slither
from slither.tools.mutator.mutators import all_mutators
from slither.tools.mutator.mutators.abstract_mutator import AbstractMutator

found, of = [], set(sys.argv[1:])
mutators = [c for _, c in inspect.getmembers(all_mutators, inspect.isclass)
            if issubclass(c, AbstractMutator) and c is not AbstractMutator]
looked = Slither(".", ignore_compile=True, foundry_out_directory=".build/slither-out")
for unit in looked.compilation_units:
    for contract in unit.contracts:
        path = contract.source_mapping.filename.absolute
        if contract.name not in of or "/contracts/src/" not in path:
            continue
        for mutator in mutators:
            made = mutator(unit, 0, "", "", contract, None, False, Path("."), [], 100, 1)
            for file, patches in made._mutate().get("patches", {}).items():
                found += [[mutator.NAME, contract.name, file, p["start"], p["end"],
                           p["new_string"]] for p in patches]
print(json.dumps(found))
"""
#: Of a mutant, in lock step: chains, and calls on each.
CHAINS, CALLS = 3, 800
FORGE_S = 600


@dataclass(frozen=True)
class Mutant:
    """One change: `new` in place of the bytes from `start` to `end`."""

    kind: str  # slither's name of the mutator
    contract: str
    path: str
    start: int
    end: int
    new: str

    def applied(self, text: str) -> str:
        raw = text.encode()
        return (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()

    def told(self) -> str:
        raw = (ROOT / self.path).read_bytes()
        line = raw[: self.start].count(b"\n") + 1
        old, new = (
            textwrap.shorten(one, 120, placeholder=" …")
            for one in (raw[self.start : self.end].decode(), self.new)
        )
        return f"{self.path}:{line} {self.kind}: {old!r} → {new!r}"


def mutants() -> list[Mutant]:
    """All of them. Raises CalledProcessError where slither is not there: `make analyse` first."""
    command = [str(analyse.SLITHER / "python"), "-c", LIST, *DEPLOYED]
    done = subprocess.run(
        command, cwd=ROOT, env=analyse.environment(), check=True, capture_output=True, text=True
    )
    found = {
        Mutant(kind, contract, Path(file).relative_to(ROOT).as_posix(), start, end, new)
        for kind, contract, file, start, end, new in json.loads(done.stdout.splitlines()[-1])
    }
    return sorted(found, key=lambda m: (m.path, m.start, m.end, m.new, m.kind))


def compiled(mutant: Mutant) -> dict[str, dict[str, Any]] | None:
    """Artifacts of what the mutant is deployed in; None where it does not compile, or differ."""
    profile, solc = (
        build.load_profile(),
        build.find_compiler(build.compiler_version(), native=False),
    )
    sources, edges = build.read_sources(profile)
    sources[mutant.path] = mutant.applied(sources[mutant.path])
    made = {}
    for name in DEPLOYED[mutant.contract]:
        path = f"contracts/src/{name}.sol"
        wanted = {path: {name: ["abi", "evm.bytecode.object"]}}
        settings = {**build.settings_of(profile), "outputSelection": wanted}
        given = {one: {"content": sources[one]} for one in build.reached(path, edges)}
        try:
            said = solcx.compile_standard(
                {"language": "Solidity", "sources": given, "settings": settings},
                solc_binary=solc,
            )
        except SolcError:
            return None
        contract = said["contracts"][path][name]
        code = "0x" + contract["evm"]["bytecode"]["object"]
        made[name] = {**rpc.artifact(name), "bytecode": code}
    same = all(one["bytecode"] == rpc.artifact(name)["bytecode"] for name, one in made.items())
    return None if same else made


def killed_in_lock_step(made: dict[str, dict[str, Any]]) -> bool:
    """Whether the contracts cannot be deployed any more, or differ from the model."""
    known = rpc.artifact

    def artifact(name: str) -> dict[str, Any]:
        return made.get(name) or known(name)

    rpc.artifact = artifact  # type: ignore[assignment]
    try:
        for seed in range(CHAINS):
            anvil = start_anvil(*OPTIONS)
            try:
                run = prepared(anvil.rpc_url, seed)
                run.run(CALLS)
                run.node.close()
            except Exception:  # a Difference, or contracts that cannot be deployed or funded
                return True
            finally:
                anvil.stop()
    finally:
        rpc.artifact = known
    return False


def killed_by_forge(mutant: Mutant) -> bool:
    """Whether a test of forge fails on a tree with this change."""
    tree = ROOT / ".build" / "mutant"
    for name in ("contracts", "tests/twins"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tree / name, dirs_exist_ok=True, ignore=ignored)
    shutil.copy(ROOT / "foundry.toml", tree)
    if not (tree / "node_modules").exists():
        (tree / "node_modules").symlink_to(ROOT / "node_modules")
    changed = tree / mutant.path
    changed.write_text(mutant.applied((ROOT / mutant.path).read_text()))
    command = [str(ROOT / "node_modules" / ".bin" / "forge"), "test", "--offline", "--fail-fast"]
    command.append("--gas-snapshot-emit=false")
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, timeout=FORGE_S)
        # With --fail-fast, forge 1.7.1 ends with 0 after a test that failed.
        return done.returncode != 0 or b"[FAIL" in done.stdout
    except subprocess.TimeoutExpired:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if killed_in_lock_step({}):
        raise SystemExit("the contracts themselves differ from the model: mend that first")
    every = mutants()
    drawn = random.Random(asked.seed).sample(every, len(every))
    ends, survivors, began = Counter[str](), list[Mutant](), time.monotonic()
    for mutant in drawn:
        if ends.total() - ends["none"] == asked.sample:
            break
        made = compiled(mutant)
        if made is None:
            end = "none"
        elif killed_in_lock_step(made):
            end = "lock step"
        else:
            end = "forge" if killed_by_forge(mutant) else "alive"
        ends[end] += 1
        if end == "alive":
            survivors.append(mutant)
        print(f"{time.monotonic() - began:6.0f} s  {end:9}  {mutant.told()}", flush=True)
    judged = ends.total() - ends["none"]
    killed = judged - ends["alive"]
    print(
        f"\n{len(every)} changes; of {judged} drawn that compile, {killed} are killed: "
        f"{ends['lock step']} in lock step, {ends['forge']} by forge"
    )
    for mutant in survivors:
        print(f"alive: {mutant.told()}")


if __name__ == "__main__":
    main()
