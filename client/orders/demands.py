"""Which operators may serve an order, and what share of it is audited?"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from core.protocol import ids
from core.protocol.errors import UsageError
from core.protocol.types import Terms

MOST_OPERATORS = 64
SAMPLE_BPS = 500  # of a plain `sample`


def names_ids(typed: Iterable[str]) -> bool:
    """Whether one is an operator's id, which only the matcher's list resolves."""
    return any(name.startswith(f"{ids.Kind.MINER.value}_") for name in typed)


def operators_of(typed: Iterable[str], known: Collection[str] = ()) -> frozenset[str]:
    """Addresses of operators named by address, or by id or its prefix where they are `known`.

    Raises IdInvalid, or UsageError for more than 64.
    """
    names = [name for name in (part.strip() for part in typed) if name]
    if len(names) > MOST_OPERATORS:
        raise UsageError(f"{len(names)} operators are too many", f"at most {MOST_OPERATORS}")
    return frozenset(_operator(name, known) for name in names)


def _operator(name: str, known: Collection[str]) -> str:
    if name.startswith("0x") and len(name) == 42:
        return ids.address(name)
    return ids.address(ids.find(ids.Kind.MINER, name, known, lambda operator: operator))


def audit_bps(level: str, default: str = "none") -> int:
    """The share of requests to be audited, in hundredths of a percent; `sample` is the `default`.

    Raises UsageError for anything but none, full, sample or sample=0.05.
    """
    if level == "sample":
        level = default if default.startswith("sample=") else f"sample={SAMPLE_BPS / 10_000}"
    if level in ("none", "full"):
        return 0 if level == "none" else 10_000
    share = level.removeprefix("sample=")
    try:
        bps = round(float(share) * 10_000)
    except (ValueError, OverflowError):
        bps = -1
    if share == level or not 0 <= bps <= 10_000:
        raise UsageError(f"'{level}' is no share", "it is none, sample, sample=0.05 or full")
    return bps


def demanded(
    in_flight: int, trusted: Iterable[str], avoided: Iterable[str], audited_bps: int
) -> Terms | None:
    """Terms over addresses; None where any operator may serve and nothing is audited."""
    trusted, avoided = frozenset(trusted), frozenset(avoided)
    if not (trusted or avoided or audited_bps):
        return None
    return Terms.of(in_flight, trusted, avoided, audited_bps)
