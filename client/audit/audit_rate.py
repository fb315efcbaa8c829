"""What share of an operator's requests does a watching auditor look at? (`docs/trust.md` §9)"""

from __future__ import annotations

#: The least share of an operator's first jobs, and of all of its jobs once it is suspected.
NEWCOMER_BPS, NEWCOMER_JOBS = 2_000, 100


def rate_for(base_bps: int, jobs: int, *, is_suspected: bool) -> int:
    """The share, in basis points, of an operator's requests that is audited after so many jobs."""
    if is_suspected or jobs < NEWCOMER_JOBS:
        return max(base_bps, NEWCOMER_BPS)
    return base_bps
