"""An auditor's report is its own word, whole, for one network."""

from __future__ import annotations

import msgspec
import pytest

from core.keys.signer import Signer
from core.money.audit_report import (
    MOST_OPERATORS,
    AuditReport,
    OperatorAudits,
    SignedReport,
    is_its_authors,
    report_of,
    sign_report,
)
from core.protocol import signing

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
AUDITOR = Signer((7).to_bytes(32, "big"), chain_id=31337)


def audits(number: int, *, faults: int = 0, withheld: int = 0, jobs: int = 1) -> OperatorAudits:
    return OperatorAudits(f"0x{number:040x}", jobs, jobs, faults, withheld, 0, 0, 0)


def test_report_is_its_authors_and_nothing_in_it_can_be_changed() -> None:
    signed = sign_report(report_of(AUDITOR.address, 5, [audits(1, faults=1)]), AUDITOR, DOMAIN)
    assert is_its_authors(signed, DOMAIN)
    again = msgspec.json.decode(msgspec.json.encode(signed), type=SignedReport)
    assert again == signed and is_its_authors(again, DOMAIN)
    for forged in (
        msgspec.structs.replace(signed.report, sequence=6),
        msgspec.structs.replace(signed.report, operators=(audits(1),)),
        msgspec.structs.replace(signed.report, auditor="0x" + "22" * 20),
    ):
        assert not is_its_authors(SignedReport(forged, signed.signature), DOMAIN)
    assert not is_its_authors(signed, signing.Domain(1, DOMAIN.verifying_contract))
    assert not is_its_authors(SignedReport(signed.report, "0x" + "00" * 65), DOMAIN)


def test_report_keeps_those_whom_most_speaks_against() -> None:
    many = [audits(n) for n in range(2 * MOST_OPERATORS)]
    said = [*many, audits(9000, withheld=1), audits(9001, faults=1)]
    report = report_of(AUDITOR.address, 1, said)
    assert len(report.operators) == MOST_OPERATORS
    assert [o.operator for o in report.operators[:2]] == [f"0x{n:040x}" for n in (9001, 9000)]


def test_report_of_too_many_operators_is_no_report() -> None:
    report = AuditReport(AUDITOR.address, 1, tuple(audits(n) for n in range(MOST_OPERATORS + 1)))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(report), type=AuditReport)
