"""What do auditors tell a matcher, and what follows? (`matcher/fleet/exclusions.py` is the rule)

Only auditors that this matcher's owner has named are heard. Reports are kept, so that a restart
forgives nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from core.money.audit_report import SignedReport, is_its_authors
from core.protocol.errors import CheckFailed, UsageError
from core.protocol.ids import address
from core.protocol.types import ZERO_ADDRESS
from core.runtime.logs import get_logger
from matcher.fleet.exclusions import Marks, marks_of, named

if TYPE_CHECKING:
    from core.chain.chain import Chain
    from core.runtime.clock import Clock
    from matcher.records.store import Store
    from matcher.world import MatcherWorld

#: How often the chain is asked again for the owner of a reported operator that it did not know.
ASK_AGAIN_S = 30.0
log = get_logger(__name__)


class Reports:
    """Takes reports in and keeps the world's marks."""

    def __init__(
        self,
        chain: Chain,
        store: Store,
        world: MatcherWorld,
        clock: Clock,
        *,
        auditors: Collection[str],
        memory_s: int,
    ) -> None:
        """`auditors` are believed; what they found counts for `memory_s`."""
        self._chain, self._store, self._world, self._clock = chain, store, world, clock
        self._auditors = frozenset(auditor.lower() for auditor in auditors)
        self._memory_s = memory_s
        self._owners: dict[str, str] = {}
        self._asked_at = float("-inf")

    async def prepare(self) -> None:
        """What was said before this start, by those who are still believed."""
        known = await self._store.off_loop(self._store.reports)
        self._world.reports = {who: r for who, r in known.items() if who in self._auditors}

    async def take(self, signed: SignedReport) -> None:
        """Believe a report from now on.

        Raises UsageError for an auditor that is not heard here or whose later report is known,
        CheckFailed for a forgery.
        """
        author = signed.report.auditor.lower()
        if author not in self._auditors:
            raise UsageError(
                f"this matcher does not go by what {signed.report.auditor} finds",
                why=f"its owner has named {len(self._auditors)} auditors, and not this one",
                next_step="ask the matcher's owner to add it to matcher.auditors",
            )
        if not is_its_authors(signed, self._chain.domain):
            why = f"the signature is not that of {signed.report.auditor} for this network"
            raise CheckFailed("the report is not signed by its auditor", why=why)
        if not await self._store.off_loop(self._store.save_report, signed, int(self._clock.now())):
            why = f"sequence {signed.report.sequence} is not above the last one"
            raise UsageError("a later report is known already", why=why)
        self._world.reports = {**self._world.reports, author: signed}
        self._asked_at = float("-inf")
        log.info("auditor heard", auditor=author, operators=len(signed.report.operators))

    async def weigh(self) -> None:
        """Bring the marks up to date. Raises ChainUnreachable when it asks for an owner."""
        reports = [signed.report for signed in self._world.reports.values()]
        strangers = [operator for operator in named(reports) if operator not in self._owners]
        now = self._clock.monotonic()
        if strangers and now - self._asked_at >= ASK_AGAIN_S:
            self._asked_at = now
            found = await asyncio.gather(*(self._owner(operator) for operator in strangers))
            known = zip(strangers, found, strict=True)
            self._owners |= {op: owner.lower() for op, owner in known if owner != ZERO_ADDRESS}
        before, now_s = self._world.marks, int(self._clock.now())
        after = marks_of(self._world.standings, reports, self._owners, now_s, self._memory_s)
        if after != before:
            self._world.marks = after
            _tell(before, after)

    async def _owner(self, operator: str) -> str:
        return str(await self._chain.read("MinerRegistry", "ownerOf", address(operator)))


def _tell(before: Marks, after: Marks) -> None:
    for operator in sorted({*before.left_out, *before.last, *after.left_out, *after.last}):
        place, why = after.of(operator)
        if (place, why) != before.of(operator):
            log.info("standing changed", operator=operator, standing=place, why=why)
