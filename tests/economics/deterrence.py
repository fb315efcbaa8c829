"""From which stake on does cheating lose money? (`docs/trust.md` §11)

With c saved by a cheat, p the payment it puts at risk, a the share of work that is audited, d the
share of audits that catch it, ρ the share of auditors that look away, S the stake, k the share of a
slash that a cheat gets back through straws: cheating loses iff c < a·d·(1 − ρ)·((1 − k)·S + p).
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
    #: Of a slash, what comes back to a cheat that convicts itself by straws before its accuser is
    #: heard, at most: all that is not burned at once.
    kept: float = 0.5
    #: Of a slash: to the challenger (at most `most_reward` bonds), to the requester (at most what
    #: its job locked); the rest burns.
    to_challenger: float = 0.20
    to_requester: float = 0.30
    most_reward: float = 10.0
    #: Of the accused's stake: what a dispute's bond is, where that is more than the least bond.
    bond_share: float = 0.005
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
    return p.saving * payment - caught * ((1 - p.kept) * stake + payment)


def least_stake(p: Published, payment: float = 1.0) -> float:
    """The stake above which cheating in one job loses; infinite where nothing is ever caught.

    S > (c / (a·d·(1 − ρ)) − p) / (1 − k).
    """
    caught = catch_probability(p)
    lost = p.saving * payment / caught - payment if caught else float("inf")
    return lost / (1 - p.kept)


def gain_over(p: Published, stake: float, jobs: int, payment: float = 1.0) -> float:
    """Of cheating in that many unsettled jobs: all their payments go with the stake.

    (1 − (1 − a·d)^K)·((1 − k)·S + K·p) against K·c.
    """
    caught = 1 - (1 - catch_probability(p)) ** jobs
    return jobs * p.saving * payment - caught * ((1 - p.kept) * stake + jobs * payment)


def auditor_stake(p: Published) -> float:
    """Stake of an auditor for which a blind "clean" does not pay: κ·S > cost of an audit."""
    return p.audit_cost / p.canary_rate if p.canary_rate else float("inf")


def bond_of(p: Published, stake: float, least: float) -> float:
    """What an accuser risks."""
    return max(least, p.bond_share * stake)


def shares(p: Published, stake: float, bond: float, locked: float) -> tuple[float, float]:
    """Of a slash of all stake: to the challenger, and to the requester of a job of this lock."""
    return min(p.to_challenger * stake, p.most_reward * bond), min(p.to_requester * stake, locked)


def self_slash_gain(p: Published, stake: float, bond: float, locked: float, straws: int) -> float:
    """Of convicting oneself in that many jobs of straws, each with its caps: a loss of half."""
    return min(p.kept * stake, straws * sum(shares(p, stake, bond, locked))) - stake


def griefing_gain(bond: float, defence_cost: float) -> tuple[float, float]:
    """Of a false accusation: what the accuser loses, and what is left to the accused."""
    return -bond, bond - defence_cost


def freezing_price(p: Published, stake: float, least: float, frozen_s: float) -> float:
    """What a second of a miner's frozen time costs an accuser that loses: and is paid to it."""
    return bond_of(p, stake, least) / frozen_s
