"""A market of jobs, audits and disputes in money alone: what does each behaviour earn?"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.economics.deterrence import Published

#: For withholding: the payment waits, the auditor asks on chain, and silence loses.
ASKING_COST = 0.05
#: Of working honestly on one job; what is left of the payment is a miner's profit.
COST = 0.7


@dataclass
class Account:
    """One miner, auditor or challenger: what it has earned, and what it may lose."""

    stake: float
    earned: float = 0.0
    open_payments: float = 0.0
    is_slashed: bool = False
    jobs: int = 0


@dataclass(frozen=True)
class Miner:
    """How a stage behaves: its share of cheated jobs, what it saves, and whether audits find it."""

    name: str
    cheats: float = 0.0
    saving: float = 0.0
    gains: float = 0.0  # from outside, by what a bent answer is worth to it
    detection: float = 0.99
    withholds: bool = False


@dataclass
class Market:
    """Seeded; `p` are the published parameters, money is in payments of a stage for a job."""

    p: Published
    seed: int
    window_jobs: int = 50  # settled only so many jobs later
    burned: float = 0.0
    rewards: float = 0.0
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def run(self, miner: Miner, stake: float, jobs: int, *, bribed: float = 0.0) -> Account:
        """One miner over that many jobs; `bribed` is the share of auditors that look away."""
        account = Account(stake)
        unsettled: list[float] = []
        for number in range(jobs):
            rate = self.p.newcomer_rate if number < 100 else self.p.audit_rate
            cheats = self.rng.random() < miner.cheats
            account.jobs += 1
            unsettled.append(1.0)
            account.earned -= COST - (miner.saving if cheats else 0.0)
            account.earned += miner.gains if cheats else 0.0
            if self.rng.random() < rate and self.rng.random() >= bribed:
                if miner.withholds:
                    account.earned -= ASKING_COST
                if cheats and (miner.withholds or self.rng.random() < miner.detection):
                    self._slash(account, unsettled)
                    return account
            if len(unsettled) > self.window_jobs:
                account.earned += unsettled.pop(0)
        account.earned += sum(unsettled)
        return account

    def _slash(self, account: Account, unsettled: list[float]) -> None:
        """The stake is gone and so is every payment that still waits.

        What is not burned comes back to a cheat that convicts itself by straws.
        """
        account.is_slashed = True
        reward = self.p.to_challenger * account.stake
        self.rewards += reward
        self.burned += account.stake - reward - self.p.to_requester * account.stake
        account.earned -= (1 - self.p.kept) * account.stake
        unsettled.clear()
