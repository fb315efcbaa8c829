"""What can still be spent, how long does it last, and who is told before it runs out?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.wallet import Balances, balances
from core.protocol.errors import HeadraceError
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.gateway.gateway import Gateway

log = get_logger(__name__)
LOOK_EVERY_S = 5.0
WEBHOOK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Seen:
    """The payer's holdings as they were last read."""

    balances: Balances
    at: float

    @property
    def spendable_units(self) -> int:
        return self.balances.wallet + self.balances.deposited + self.balances.credit


class Funds:
    """Looks at the chain now and then. `gateway` is set right after both are made."""

    gateway: Gateway

    def __init__(self, low_units: int = 0, webhook: str = "") -> None:
        self._low_units, self._webhook = low_units, webhook
        self.seen: Seen | None = None
        self.problem = ""
        self._was_low = False

    async def watch(self) -> None:
        """Look forever."""
        while True:
            await self.look()
            await self.gateway.clock.sleep(LOOK_EVERY_S)

    async def look(self) -> Seen | None:
        """Read the balances now; the last known when the chain does not answer."""
        gateway = self.gateway
        if gateway.context is None:
            return None
        try:
            found = await balances(gateway.context.chain, gateway.payer)
        except HeadraceError as error:
            self.problem = f"{error.what}: {error.why}"
            return self.seen
        self.problem, self.seen = "", Seen(found, gateway.clock.now())
        numbers = gateway.numbers
        for account, units in (
            ("wallet", found.wallet),
            ("prepaid", found.deposited),
            ("credit", found.credit),
        ):
            numbers.balance.labels(account).set(units)
        totals = await gateway.ledger.totals()
        numbers.locked.set(totals["reserved_units"])
        await self._warn(self.seen)
        return self.seen

    async def _warn(self, seen: Seen) -> None:
        is_low = seen.spendable_units < self._low_units
        if is_low and not self._was_low:
            show = self.gateway.show
            log.warning(
                "money runs out",
                left=show(seen.spendable_units),
                below=show(self._low_units),
                address=self.gateway.payer,
            )
            if self._webhook:
                asyncio.create_task(self._tell(seen))  # noqa: RUF006 - ends by its own timeout
        self._was_low = is_low

    async def _tell(self, seen: Seen) -> None:
        import httpx2

        body = {
            "event": "low_balance",
            "address": self.gateway.payer,
            "left_units": str(seen.spendable_units),
            "left": self.gateway.show(seen.spendable_units),
            "fix": f"send tokens to {self.gateway.payer}, or `client wallet deposit`",
        }
        try:
            async with httpx2.AsyncClient(timeout=WEBHOOK_TIMEOUT_S) as client:
                await client.post(self._webhook, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            log.warning("the low-balance webhook did not take it", reason=str(error))
