"""What does each error of a contract mean?

From the compiled contracts, and from the lines that answer with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache

from sitegen.places import ROOT
from sitegen.text import code, table

ABI = ROOT / "core" / "protocol" / "abi"
SOURCES = ROOT / "contracts" / "src"
#: The contracts that people's transactions reach; the others are libraries of these.
CONTRACTS = (
    "MinerRegistry",
    "ModelRegistry",
    "Escrow",
    "TaskRegistry",
    "JuryArbitrator",
    "ToleranceGame",
)


def contract_errors_page() -> dict[str, str]:
    """`errors/contracts.md`."""
    parts = [
        "# Contract errors\n",
        "When a contract says no, the program prints [E-CONTRACT-01](E-CONTRACT-01.md) with the "
        "contract's own name for the reason "
        "and its arguments: `the contract answered InsufficientBalance(account=…, have=…, "
        "need=…)`. Nothing has changed on chain; "
        "the fee of a transaction that was mined and failed is spent.\n\n"
        "The last column is the condition in the source that gives the error, where it stands in "
        "one line.\n",
    ]
    for contract in CONTRACTS:
        rows = [
            (
                code(_signature(entry)),
                "<br>".join(code(line) for line in _conditions(contract, entry["name"])),
            )
            for entry in sorted(_errors(contract), key=lambda entry: str(entry["name"]))
        ]
        parts.append(f"## {contract}\n")
        parts.append(table(("error", "when"), rows))
    return {"errors/contracts.md": "\n".join(parts)}


def contract_error_names() -> set[str]:
    """Every error that one of the contracts may answer with."""
    return {str(entry["name"]) for contract in CONTRACTS for entry in _errors(contract)}


def _errors(contract: str) -> list[dict[str, object]]:
    abi = json.loads((ABI / f"{contract}.json").read_text())["abi"]
    return [entry for entry in abi if entry["type"] == "error"]


def _signature(entry: dict[str, object]) -> str:
    inputs = entry["inputs"]
    assert isinstance(inputs, list)
    return f"{entry['name']}({', '.join(i['name'] or i['type'] for i in inputs)})"


def _conditions(contract: str, name: object) -> list[str]:
    """Up to four distinct conditions in the contract's own file or a library, shortest first."""
    others = {other for other in CONTRACTS if other != contract}
    found = dict.fromkeys(
        condition for stem, called, condition in _reverts() if called == name and stem not in others
    )
    return sorted(found, key=len)[:4]


@cache
def _reverts() -> tuple[tuple[str, str, str], ...]:
    return tuple(_read_reverts())


def _read_reverts() -> Iterator[tuple[str, str, str]]:
    one_line = re.compile(r"if \((.+)\) revert (?:\w+\.)?(\w+)\(")
    required = re.compile(r"require\((.+), (?:\w+\.)?([A-Z]\w+)\(")
    for path in sorted(SOURCES.rglob("*.sol")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := one_line.search(line):
                yield path.stem, match[2], match[1]
            elif match := required.search(line):
                yield path.stem, match[2], f"not: {match[1]}"
