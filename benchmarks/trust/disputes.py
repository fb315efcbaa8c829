"""What does a whole dispute cost on chain, by the committed gas snapshot? (`python -m tests.twins.dispute_gas` writes it)"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.table import Row

SNAPSHOT = Path(__file__).resolve().parents[2] / "contracts" / "snapshots" / "ToleranceGame.json"
MAX_GAS, MAX_TRANSACTIONS, MAX_MOVE_GAS, MAX_CALLDATA = 1_500_000, 20, 500_000, 16 * 1024
#: In which the accuser opens the trace on chain because it hands nothing over: it pays for that itself.
_DESCENTS = ("descent",)


def rows() -> list[Row]:
    """Every model's dispute, by every way that it can go."""
    kept = {name: int(value) for name, value in json.loads(SNAPSHOT.read_text("utf-8")).items()}
    games = sorted({name.rpartition(": ")[0] for name in kept if name.endswith(": total")})
    return [_row(game, kept) for game in games]


def _row(game: str, kept: dict[str, int]) -> Row:
    total, moves = kept[f"{game}: total"], kept[f"{game}: transactions"]
    largest, calldata = kept[f"{game}: largest gas"], kept[f"{game}: largest calldata"]
    within = (total <= MAX_GAS, moves <= MAX_TRANSACTIONS, largest <= MAX_MOVE_GAS, calldata <= MAX_CALLDATA)  # fmt: skip
    said = f"{total:,} gas, {moves} transactions, largest {largest:,} gas and {calldata:,} bytes"
    if not all(within):
        said += f"; {total - MAX_GAS:,} gas too many: the accuser shows nothing off chain and opens every level itself" if any(d in game for d in _DESCENTS) else "; too much"  # fmt: skip
    return Row(
        f"dispute, {game}",
        "≤ 1.5 M gas, ≤ 20 transactions, each ≤ 500 k gas and ≤ 16 KiB",
        said,
        "–",
        "–",
        all(within),
    )
