"""What is bid for a transaction's gas, and when is more bid for one that waits?"""

from __future__ import annotations

from typing import NamedTuple

#: A transaction with more gas is taken into no block (EIP-7825).
MOST_GAS = 2**24
#: Others' transactions may land before ours and make it write more slots; unused gas is free.
_GAS_MARGIN_PERCENT = 60
_FIRST_TIP_WEI = 10**9
#: Nodes take a transaction in another one's place for a tenth more; an eighth is more than that.
_RAISE_PARTS = 8
#: Of the first bid: beyond it a transaction waits until gas is cheaper.
MOST_RAISE = 32


class Bid(NamedTuple):
    """Wei for each unit of gas: at most so much in all, of which the block's maker gets a tip."""

    fee: int
    tip: int

    @property
    def fields(self) -> dict[str, int]:
        return {"maxFeePerGas": self.fee, "maxPriorityFeePerGas": self.tip}


def gas_limit(estimate: int, *, is_plain: bool) -> int:
    """How much gas a transaction of this estimate may use; a plain transfer uses what it does."""
    margin = 0 if is_plain else estimate * _GAS_MARGIN_PERCENT // 100
    return min(estimate + margin, max(estimate, MOST_GAS))


def first_bid(base_fee: int) -> Bid:
    """Enough for six full blocks after one of this base fee, each of which raises it an eighth."""
    return Bid(2 * base_fee + _FIRST_TIP_WEI, _FIRST_TIP_WEI)


def higher_bid(bid: Bid, first: Bid, base_fee: int) -> Bid | None:
    """What to bid for a transaction that waits since `bid`, when the newest base fee is this.

    None where `bid` is enough, or more than `MOST_RAISE` of the first bid would be needed.
    """
    if bid.fee >= base_fee + bid.tip:
        return None
    tip = bid.tip + bid.tip // _RAISE_PARTS + 1
    fee = max(bid.fee + bid.fee // _RAISE_PARTS + 1, 2 * base_fee + tip)
    fee = min(fee, MOST_RAISE * first.fee)
    enough = fee >= base_fee + tip and fee > bid.fee + bid.fee // _RAISE_PARTS
    return Bid(fee, tip) if enough else None
