"""Which parameters do the contracts take, and what do people start from?"""

from __future__ import annotations

from typing import Final

import msgspec

from core.protocol.network_file import USD, Parameters

BPS: Final = 10_000
MAX_APPEALS, MAX_PANEL, MAX_DRAW_DELAY_BLOCKS, SLOWEST_BLOCK_S = 2, 31, 200, 15
MAX_TURNS: Final = 29
MAX_PROTOCOL_FEE_BPS: Final = 100
#: Amounts; everything else is time, a share or a count.
AMOUNTS: Final = ("min_stake", "min_juror_stake", "bond", "seat_fee")
_NEVER_ZERO: Final = (
    *("close_delay_s", "min_juror_stake", "maturity_s", "juror_unbond_s", "draw_delay_blocks"),
    *("panel", "slash_bps", "commit_s", "reveal_s", "appeal_s", "bond_s", "turn_s"),
)

#: For a chain with real money; why turns are that long: `docs/trust.md` §3. Twelve days of
#: unbonding outlast job, window and dispute.
PRODUCTION: Final = Parameters(
    min_stake=500 * USD,
    unbond_s=12 * 86_400,
    jail_s=86_400,
    max_job_s=3 * 86_400,
    max_window_s=3 * 86_400,
    max_dispute_s=5 * 86_400,
    withdraw_delay_s=86_400,
    close_delay_s=3600,
    commit_s=12 * 3600,
    reveal_s=12 * 3600,
    appeal_s=20 * 3600,
    payout_delay_s=3600,
    maturity_s=7 * 86_400,
    panel=7,
    juror_unbond_s=12 * 86_400,
    turn_s=4 * 3600,
)
#: Between strangers on a chain without money: a dispute is over within a working day.
TESTNET: Final = Parameters(
    unbond_s=2 * 86_400,
    jail_s=3600,
    arbitrator_delay_s=7 * 86_400,
    max_job_s=6 * 3600,
    max_window_s=6 * 3600,
    max_dispute_s=10 * 3600,
    withdraw_delay_s=600,
    close_delay_s=600,
    commit_s=3600,
    reveal_s=3600,
    appeal_s=3600,
    payout_delay_s=600,
    maturity_s=3600,
    juror_unbond_s=2 * 86_400,
    turn_s=1200,
)
PRESETS: Final = {"devnet": Parameters(), "testnet": TESTNET, "production": PRODUCTION}


def preset(name: str, decimals: int) -> Parameters:
    """A preset for a token with so many decimals. Raises KeyError for a name that is none."""
    found = PRESETS[name]
    amounts = {field: getattr(found, field) * 10**decimals // USD for field in AMOUNTS}
    return msgspec.structs.replace(found, **amounts)


def longest_jury_s(p: Parameters) -> int:
    """How long a jury's dispute may take, with every appeal."""
    round_s = p.draw_delay_blocks * SLOWEST_BLOCK_S + p.commit_s + p.reveal_s
    return (MAX_APPEALS + 1) * round_s + MAX_APPEALS * p.appeal_s + p.payout_delay_s


def longest_game_s(p: Parameters) -> int:
    """How long a tolerance game may take."""
    return MAX_TURNS * p.turn_s + p.payout_delay_s


def last_panel(p: Parameters) -> int:
    """Seats of the panel after the last appeal."""
    return ((p.panel + 1) << MAX_APPEALS) - 1


def faults(p: Parameters) -> list[str]:
    """Every reason why a constructor would refuse these parameters, with both numbers.

    Empty exactly where all constructors take them (tests/core/networks/test_parameters.py).
    """
    held_s = p.max_job_s + p.close_delay_s + p.max_window_s + p.max_dispute_s
    least = [
        ("unbond_s", "max_job_s + close_delay_s + max_window_s + max_dispute_s", held_s),
        ("arbitrator_delay_s", "unbond_s + max_job_s", p.unbond_s + p.max_job_s),
        ("max_dispute_s", "the longest jury", longest_jury_s(p)),
        ("max_dispute_s", "29 times turn_s + payout_delay_s", longest_game_s(p)),
        ("juror_unbond_s", "the longest jury", longest_jury_s(p)),
        *((name, "the least that works", 1) for name in _NEVER_ZERO),
    ]
    most = [
        ("protocol_fee_bps", p.protocol_fee_bps, MAX_PROTOCOL_FEE_BPS),
        ("bond_bps", p.bond_bps, BPS),
        ("slash_bps", p.slash_bps, BPS),
        ("draw_delay_blocks", p.draw_delay_blocks, MAX_DRAW_DELAY_BLOCKS),
        (f"panel is {p.panel}, and its last one", last_panel(p), MAX_PANEL),
    ]
    return [
        *(
            f"{name} is {getattr(p, name)}, less than {limit}: {what}"
            for name, what, limit in least
            if getattr(p, name) < limit
        ),
        *(f"{name} is {is_}, more than {limit}" for name, is_, limit in most if is_ > limit),
    ]
