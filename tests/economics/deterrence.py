"""From which stake on does cheating lose money? (`docs/trust.md` §11)

With c saved by a cheat, p the payment it puts at risk, a the share of work that is audited, d the
share of audits that catch it, ρ the share of auditors that look away, S the stake: cheating loses
iff c < a·d·(1 − ρ)·(S + p).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """What orders and contracts fix. Shares are fractions; money is in a stage's pay for a job."""

    audit_rate: float = 0.03
    newcomer_rate: float = 0.20
    detection: float = 0.99
    saving: float = 0.6  # of the payment, by computing nothing at all
    colluding: float = 0.0
    #: Of a slash: to the challenger (at most `most_reward` bonds), the requester; the rest burns.
    to_challenger: float = 0.20
    to_requester: float = 0.30
    most_reward: float = 10.0
    #: An auditor's fee for a job's audit, and what the audit costs it.
    audit_fee: float = 0.30
    audit_cost: float = 0.20
    #: Share of an auditor's jobs whose answer is known beforehand.
    canary_rate: float = 0.05


def catch_probability(p: Published) -> float:
    """That one cheated job is found."""
    return p.audit_rate * p.detection * (1 - p.colluding)


def expected_gain(p: Published, stake: float, payment: float = 1.0) -> float:
    """Of cheating in one job, against working."""
    caught = catch_probability(p)
    return p.saving * payment - caught * (stake + payment)


def least_stake(p: Published, payment: float = 1.0) -> float:
    """The stake above which cheating in one job loses: S > c / (a·d·(1 − ρ)) − p; else infinite."""
    caught = catch_probability(p)
    return p.saving * payment / caught - payment if caught else float("inf")


def gain_over(p: Published, stake: float, jobs: int, payment: float = 1.0) -> float:
    """Of cheating in that many unsettled jobs: all their payments go with the stake.

    (1 − (1 − a·d)^K)·(S + K·p) against K·c.
    """
    caught = 1 - (1 - catch_probability(p)) ** jobs
    return jobs * p.saving * payment - caught * (stake + jobs * payment)


def auditor_stake(p: Published) -> float:
    """Stake of an auditor for which a blind "clean" does not pay: κ·S > cost of an audit."""
    return p.audit_cost / p.canary_rate if p.canary_rate else float("inf")


def self_slash_gain(p: Published, stake: float, bond: float) -> float:
    """Of slashing oneself through a straw challenger: never positive, because part is burned."""
    reward = min(p.to_challenger * stake, p.most_reward * bond)
    return reward + p.to_requester * stake - stake


def griefing_gain(bond: float, defence_cost: float) -> tuple[float, float]:
    """Of a false accusation: what the accuser loses, and what is left to the accused."""
    return -bond, bond - defence_cost
