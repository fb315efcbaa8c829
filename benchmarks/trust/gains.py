"""What do attackers gain together, over random parameters, against the real contracts?

Forge plays the attacks (`contracts/test/attacks/Gains.t.sol`): a gain is everything that the
attackers own afterwards, less what they owned before, plus what they were served.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.table import Row

CASES = 200
QUICK = {"CASES": 1}
ROOT = Path(__file__).resolve().parents[2]
ATTACKS = "contracts/test/attacks/Gains.t.sol"


def rows() -> list[Row]:
    """One row an attack. Raises RuntimeError if forge played none."""
    command = ("node_modules/.bin/forge", "test", "--offline", "--json", "-vv")
    done = subprocess.run(
        (*command, "--match-path", ATTACKS, "--gas-snapshot-emit=false"),
        cwd=ROOT,
        env=os.environ | {"CASES": str(CASES)},
        capture_output=True,
        text=True,
    )
    try:
        suites = json.loads(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"forge did not play {ATTACKS}: {done.stderr[-500:]}") from error
    tests = [test for suite in suites.values() for test in suite["test_results"].values()]
    if not tests:
        raise RuntimeError(f"forge found no attack in {ATTACKS}")
    return [_row(test) for test in tests]


def _row(test: dict[str, object]) -> Row:
    logs = test["decoded_logs"]
    assert isinstance(logs, list)
    attack, _, worst = str(logs[-1]).rpartition(": ") if logs else (str(test["reason"]), "", "?")
    return Row(
        f"gain of attackers together: {attack}",
        f"≤ 0 usd in each of {CASES} random cases",
        f"{int(worst) / 1e15:,.6f} usd at most" if logs else "not played to its end",
        "–",
        "–",
        test["status"] == "Success",
    )
