"""What does a whole dispute cost on chain?

Played here, on a local chain, with the moves that the programs send.
"""

from __future__ import annotations

from benchmarks.table import Row
from tests.twins.dispute_gas import Way, measure

#: Of a dispute in which the accuser shows nothing off chain it opens every level itself, and pays
#: for that.
MAX_GAS = {
    Way.POINTED: 900_000,
    Way.DESCENT: 1_300_000,
    Way.PLEADED: 1_600_000,
    Way.PLEADED_DESCENT: 1_600_000,
}
MAX_TRANSACTIONS, MAX_MOVE_GAS, MAX_CALLDATA = 20, 500_000, 16 * 1024


def rows() -> list[Row]:
    """Every model's dispute, by every way that it can go."""
    found = measure()
    games = [name.removesuffix(": total") for name in found if name.endswith(": total")]
    return [_row(game, found) for game in games]


def _row(game: str, found: dict[str, int]) -> Row:
    most = MAX_GAS[Way(game.partition(", ")[2])]
    total, moves = found[f"{game}: total"], found[f"{game}: transactions"]
    largest, calldata = found[f"{game}: largest gas"], found[f"{game}: largest calldata"]
    within = (
        total <= most,
        moves <= MAX_TRANSACTIONS,
        largest <= MAX_MOVE_GAS,
        calldata <= MAX_CALLDATA,
    )
    return Row(
        f"dispute, {game}",
        f"≤ {most / 1e6:.1f} M gas, ≤ 20 transactions, each ≤ 500 k gas and ≤ 16 KiB",
        f"{total:,} gas, {moves} transactions, largest {largest:,} gas and {calldata:,} bytes",
        "–",
        "–",
        all(within),
    )
