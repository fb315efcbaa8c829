"""What does an auditor say of operators, and who knows that it is that auditor's word?

A report is JSON, signed as a `Record` over its SHA-256. A later one replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from core.protocol import signing
from core.protocol import types as t

MOST_OPERATORS = 256


class OperatorAudits(t.Value, frozen=True):
    """What audits of one operator came to. Times in seconds, 0: never."""

    operator: t.Address
    jobs: t.U32
    clean: t.U32
    faults: t.U32
    withheld: t.U32
    suspicious: t.U32
    last_fault_at: t.U63  # of a fault, or of something suspicious
    last_withheld_at: t.U63

    @property
    def is_suspected(self) -> bool:
        """Whether anything speaks against it."""
        return self.faults + self.withheld + self.suspicious > 0


class AuditReport(t.Value, frozen=True):
    """All that an auditor says, the worst operator first. `sequence` grows with every report."""

    auditor: t.Address
    sequence: t.U63
    operators: Annotated[tuple[OperatorAudits, ...], msgspec.Meta(max_length=MOST_OPERATORS)]


class SignedReport(t.Value, frozen=True):
    """A report as it travels."""

    report: AuditReport
    signature: t.Signature


def report_of(auditor: str, sequence: int, operators: Iterable[OperatorAudits]) -> AuditReport:
    """The report; of more operators than fit, those against whom least speaks are left out."""

    def badness(o: OperatorAudits) -> tuple[int, int, int, int, str]:
        return -o.faults, -o.suspicious, -o.withheld, -o.jobs, o.operator

    worst_first = sorted(operators, key=badness)
    return AuditReport(auditor, sequence, tuple(worst_first[:MOST_OPERATORS]))


def sign_report(
    report: AuditReport, signer: signing.DigestSigner, domain: signing.Domain
) -> SignedReport:
    """With its author's signature."""
    return SignedReport(report, signing.sign(signer, domain, _record(report)))


def is_its_authors(signed: SignedReport, domain: signing.Domain) -> bool:
    """Whether the auditor that a report names signed it, for this deployment. Never raises."""
    record = _record(signed.report)
    return signing.is_signed_by(domain, record, signed.signature, signed.report.auditor)


def _record(report: AuditReport) -> signing.Record:
    return signing.record_of(report, report.sequence)
