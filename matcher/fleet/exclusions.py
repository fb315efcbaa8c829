"""Which machines does a matcher leave out, and which does it take last? (`docs/trust.md` §9)

Two voices count: the chain, where each slash is a strike of the owner for good, and auditors that
this matcher's owner has named. What they say is held against the owner: another operator key does
not make it another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from core.money.audit_report import AuditReport
from matcher.fleet.fleet_view import Standings


@dataclass(frozen=True)
class Marks:
    """What speaks against operators (checksummed): those left out, and those that come last."""

    left_out: Mapping[str, str] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)

    def of(self, operator: str) -> tuple[str, str]:
        """(`good`, `last` or `left out`; why)."""
        if operator in self.left_out:
            return "left out", self.left_out[operator]
        if operator in self.last:
            return "last", self.last[operator]
        return "good", ""


def named(reports: Iterable[AuditReport]) -> frozenset[str]:
    """Operators (lower case) of whom something bad is said: whose owners must be known."""
    every = (audits for report in reports for audits in report.operators)
    return frozenset(audits.operator.lower() for audits in every if audits.is_suspected)


def marks_of(
    standings: Standings,
    reports: Iterable[AuditReport],
    owners: Mapping[str, str],
    now_s: int,
    memory_s: int,
) -> Marks:
    """What reports and strikes mean now.

    `owners` of reported operators, both in lower case; a report's findings count for `memory_s`. A
    fault, or work that stands out of honest noise, leaves an owner's machines out; rows withheld,
    which may have been an accident, and strikes put them last.
    """
    faults: dict[str, str] = {}
    lapses: dict[str, str] = {}
    for report in reports:
        for audits in report.operators:
            operator = audits.operator.lower()
            owner = owners.get(operator, operator)
            who = f"auditor {report.auditor}"
            bad = audits.faults + audits.suspicious
            if bad and now_s - audits.last_fault_at <= memory_s:
                suspicious = f"{audits.suspicious} suspicious"
                faults[owner] = f"{who} found {audits.faults} of its stages at fault, {suspicious}"
            if audits.withheld and now_s - audits.last_withheld_at <= memory_s:
                lapses[owner] = f"{who} got no rows of {audits.withheld} of its stages"
    left_out: dict[str, str] = {}
    last: dict[str, str] = {}
    for operator, standing in standings.items():
        owner = standing.owner.lower()
        # As long as the chain has not named the owner of an operator, it speaks for itself alone.
        fault = faults.get(owner) or faults.get(operator.lower())
        lapse = lapses.get(owner) or lapses.get(operator.lower())
        if fault:
            left_out[operator] = fault
        elif standing.strikes:
            last[operator] = f"its owner was slashed before, strikes: {standing.strikes}"
        elif lapse:
            last[operator] = lapse
    return Marks(left_out, last)
