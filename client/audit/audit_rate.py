"""What share of an operator's requests does an auditor that watches look at? (`docs/trust.md` §9)"""

from __future__ import annotations

#: Of an operator's first jobs, and after it was found suspicious: so much is looked at, at least.
NEWCOMER_BPS, NEWCOMER_JOBS = 2_000, 100


def rate_for(base_bps: int, jobs: int, *, is_suspected: bool) -> int:
    """The share of an operator's requests that is audited after so many jobs of it were seen."""
    if is_suspected or jobs < NEWCOMER_JOBS:
        return max(base_bps, NEWCOMER_BPS)
    return base_bps
