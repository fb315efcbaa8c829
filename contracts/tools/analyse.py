"""What does slither find in the contracts, and why is none of it a fault?

    make analyse        install slither beside the build, compile, look, and compare with REASONS

Exits with 1 where a finding has no reason here, or a reason has no finding any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / ".build"
SLITHER = BUILD / "slither" / "bin"
OUT, CACHE, FOUND = BUILD / "slither-out", BUILD / "slither-cache", BUILD / "slither.json"
#: What is only said about style, or gas.
PASSED_OVER = ("Informational", "Optimization")
ANYWHERE = "*"

#: Check → contract or function (or ANYWHERE) → why it is no fault.
REASONS: dict[str, dict[str, str]] = {
    "arbitrary-send-erc20": {
        "Escrow._pull": "from the caller, or the requester who called TaskRegistry.open",
        "ToleranceGame.open": "from the challenger, who called TaskRegistry.dispute",
    },
    "incorrect-exp": {"ShaTree.climb": "xor is meant: it chooses one of two words"},
    "incorrect-shift": {"Decode.pack": "one bit is shifted by a count, as meant"},
    "uninitialized-state": {
        "JuryArbitrator._excluded": "a mapping, written through a reference",
        "JuryArbitrator._seats": "a mapping, written through a reference",
    },
    "divide-before-multiply": {
        "Openings.row": "the part that a byte lies in, and the place inside it",
        "Openings.run": "the chunk that a value lies in, and the place inside it",
        "Derive._norms": "the row of a table that a position has",
        "Derive._attention": "heads share keys in groups of whole heads",
        "Exp.expFixed": "the remainder of a division",
        "Words._read": "whole words, whose number the length was found to be a multiple of",
        "Log.lnFixed": "fixed point; the error is bounded in the file",
        "Decode.term": "bytes of an element",
        "MinerRegistry.closeDispute": "rounded down twice, as docs/protocol.md §6 says",
        "Escrow.pull": "whole units that cover the lock; the rest is credited",
        "Split.feesOf": "both fees are floored together, then split (docs/protocol.md §4)",
        "JuryArbitrator._settleJurors": "what does not divide is burned",
    },
    "incorrect-equality": {
        "TaskRegistry.deliver": "a count of disputes, which only dispute and resolve move",
        "JuryArbitrator._rule": "a level, counted from zero",
    },
    "uninitialized-local": {ANYWHERE: "zero is what it begins with"},
    "unused-return": {
        "Roll.enter": "of a checkpoint, its value before",
        "Roll.strike": "of a checkpoint, its value before",
        "TraceJudge._scene": "another field is used",
        "RowJudge._checkWindow": "other fields are used",
        "Referee._isHidden": "called for its check alone",
        "TaskRegistry._openDispute": "the arbitrator's own id of the dispute",
        "Evidence._requireTold": "called for its check alone",
    },
    "shadowing-local": {ANYWHERE: "an argument of an interface, which has no body"},
    "missing-zero-check": {
        "setGuardian.guardian_": "zero means none",
        ANYWHERE: "set once at deployment; with zero, no call of it moves anything",
    },
    "calls-loop": {
        "JuryArbitrator._exclude": "our own registry, at most 64 operators",
        "Escrow.collect": "our own registry, a list that its caller chose",
    },
    "timestamp": {ANYWHERE: "clocks are minutes and more; a proposer moves seconds"},
}


def judge(
    findings: Iterable[tuple[str, str]], reasons: dict[str, dict[str, str]]
) -> tuple[list[str], list[str]]:
    """Findings (check, place) that have no reason, and reasons that no finding needs."""
    unexplained, used = [], set[tuple[str, str]]()
    for check, place in findings:
        why = reasons.get(check, {})
        name = place if place in why else ANYWHERE
        if name in why:
            used.add((check, name))
        else:
            unexplained.append(f"{check}: {place}")
    every = {(check, place) for check, places in reasons.items() for place in places}
    return sorted(set(unexplained)), [f"{check}: {place}" for check, place in sorted(every - used)]


def findings_of(report: dict[str, object]) -> list[tuple[str, str]]:
    """Of slither's JSON: check and `Contract.function`, or `function.variable`."""
    results = report["results"]
    assert isinstance(results, dict)
    found = []
    for one in results.get("detectors", []):
        if one["impact"] in PASSED_OVER:
            continue
        element = one["elements"][0]
        parent = element.get("type_specific_fields", {}).get("parent", {}).get("name", "")
        found.append((one["check"], f"{parent}.{element['name']}"))
    return found


def environment() -> dict[str, str]:
    """In which slither finds forge."""
    return os.environ | {
        "PATH": f"{ROOT / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    }


def _look() -> dict[str, object]:
    env = environment()
    build = ["forge", "build", "--force", "--build-info", "--skip", "test", "contracts/src"]
    build += ["--out", str(OUT), "--cache-path", str(CACHE)]
    subprocess.run(build, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    FOUND.unlink(missing_ok=True)
    look = [str(SLITHER / "slither"), ".", "--ignore-compile", "--foundry-out-directory", str(OUT)]
    look += ["--filter-paths", "node_modules|contracts/test", "--json", str(FOUND)]
    done = subprocess.run(look, cwd=ROOT, env=env, capture_output=True, text=True)
    if not FOUND.exists():  # it exits with more than 0 for findings too
        raise SystemExit(f"slither found nothing out: {done.stderr[-2000:]}")
    report: dict[str, object] = json.loads(FOUND.read_text())
    return report


def main() -> None:
    findings = findings_of(_look())
    unexplained, unused = judge(findings, REASONS)
    for line in unexplained:
        print(f"no reason why this is no fault: {line}")
    for line in unused:
        print(f"a reason without a finding: {line}")
    if unexplained or unused:
        sys.exit(1)
    print(f"{len(findings)} findings, each with a reason; none is a fault")


if __name__ == "__main__":
    main()
