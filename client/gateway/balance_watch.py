"""How much can still be spent, how long does it last, and is its owner told before it runs out?"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from client.wallet import Balances, balances
from core.protocol.errors import HeadraceError
from core.runtime.alerts import Trouble
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.gateway.batches.batches import Batches
    from client.gateway.metrics import GatewayMetrics
    from client.gateway.money.keyring import ApiKey, Keyring
    from client.gateway.money.ledger import Ledger
    from core.chain.chain import Chain
    from core.runtime.alerts import Alerts
    from core.runtime.clock import Clock
    from core.runtime.settings import Settings

log = get_logger(__name__)
LOOK_EVERY_S = 5.0
#: The present rate is that of the last hour; of less than this nothing is concluded.
RATE_OVER_S, RATE_LEAST_S = 3600.0, 60.0
LOW_FUNDS, KEY_BUDGET = "low_funds", "key_budget"
#: What a gateway watches.
EVENTS = (LOW_FUNDS, KEY_BUDGET)


@dataclass(frozen=True)
class SeenBalances:
    """The payer's balances as they were last read."""

    balances: Balances
    at: float

    @property
    def spendable_units(self) -> int:
        return self.balances.wallet + self.balances.deposited + self.balances.credit


@dataclass
class BalanceWatch:
    """Reads the payer's balances every few seconds and tells the owner before they run out."""

    settings: Settings
    clock: Clock
    #: None only where a test has no chain.
    chain: Chain | None
    payer: str
    ledger: Ledger
    keys: Keyring
    batches: Batches
    alerts: Alerts
    metrics: GatewayMetrics
    #: Below this the owner is told.
    low_units: int = 0
    seen: SeenBalances | None = None
    problem: str = ""
    lasts_s: float | None = None
    _spent: deque[tuple[float, int]] = field(default_factory=deque)

    async def watch(self) -> None:
        """Look forever."""
        while True:
            try:
                await self.look()
                await self._look_at_keys()
            except Exception:  # such as a database that is away: looked at again in a moment
                log.exception("the money was not looked at")
            await self.clock.sleep(LOOK_EVERY_S)

    async def look(self) -> SeenBalances | None:
        """Read the balances now; the last known when the chain does not answer."""
        if self.chain is None:
            return None
        try:
            found = await balances(self.chain, self.payer)
        except HeadraceError as error:
            self.problem = f"{error.what}: {error.why}"
            return self.seen
        self.problem, self.seen = "", SeenBalances(found, self.clock.now())
        metrics = self.metrics
        metrics.balance.labels("wallet").set(found.wallet)
        metrics.balance.labels("prepaid").set(found.deposited)
        metrics.balance.labels("credit").set(found.credit)
        totals = await self.ledger.totals()
        metrics.locked.set(totals["reserved_units"])
        self._look_at_rate(self.seen, totals["spent_units"])
        return self.seen

    def _look_at_rate(self, seen: SeenBalances, spent_units: int) -> None:
        show = self.settings.show_token
        self._spent.append((seen.at, spent_units))
        while seen.at - self._spent[0][0] > RATE_OVER_S:
            self._spent.popleft()
        self.lasts_s = lasts_s(self._spent, seen.spendable_units)
        self.metrics.lasts.set(float("inf") if self.lasts_s is None else self.lasts_s)
        left, why = show(seen.spendable_units), []
        if seen.spendable_units < self.low_units:
            why.append(f"{left} are left, less than gateway.low_balance, {show(self.low_units)}")
        least_s = self.settings.alerts.lasts_s
        if self.lasts_s is not None and self.lasts_s < least_s:
            hours = self.lasts_s / 3600
            why.append(f"at the rate of the last hour {left} last {hours:.1f} hours")
        trouble = Trouble(
            "money runs out",
            "; ".join(why),
            f"send tokens to {self.payer}, or `client wallet deposit`",
            values={
                "left_units": str(seen.spendable_units),
                "lasts_s": -1 if self.lasts_s is None else int(self.lasts_s),
            },
        )
        self.alerts.tell(LOW_FUNDS, [trouble] if why else [])

    async def _look_at_keys(self) -> None:
        keys, now, show = await self.keys.ls(), self.clock.now(), self.settings.show_token
        self.alerts.tell(
            KEY_BUDGET,
            [
                Trouble(
                    f"the budget of key '{key.name}' runs out",
                    f"{show(left)} of {show(budget)} are left",
                    "`client keys new` makes one with a higher budget",
                    subject=key.key_id,
                    values={"left_units": str(left), "budget_units": str(budget)},
                )
                for key, left, budget in short_keys(keys, self.settings.alerts.budget_bps, now)
            ],
        )
        for status, count in (await self.batches.counts()).items():
            self.metrics.batches.labels(status).set(count)


def lasts_s(spent: Sequence[tuple[float, int]], left_units: int) -> float | None:
    """How long money lasts at the rate of `(time, spent so far)`; None where that is not known."""
    if not spent or spent[-1][0] - spent[0][0] < RATE_LEAST_S:
        return None
    gone = spent[-1][1] - spent[0][1]
    return left_units * (spent[-1][0] - spent[0][0]) / gone if gone > 0 else None


def short_keys(keys: Iterable[ApiKey], used_bps: int, now: float) -> list[tuple[ApiKey, int, int]]:
    """Keys in use of whose budget this much is gone, with what is left and the whole of it."""
    found = []
    for key in keys:
        budget, left = key.limits.budget_units, key.left_units
        if budget is None or left is None or key.state(now) != "active":
            continue
        if (budget - left) * 10_000 >= budget * used_bps:
            found.append((key, left, budget))
    return found
