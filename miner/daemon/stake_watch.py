"""What is at stake for this miner, what is it owed, and what of that should its owner hear?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.protocol import ids
from core.runtime.alerts import Alerts, Trouble

if TYPE_CHECKING:
    from core.protocol.types import ModelSpec
    from core.runtime.settings import AlertSettings as AlertSettings
    from miner.chain.onchain import MinerChain
    from miner.serving.job_table import ActiveJob

LOW_STAKE, UNSETTLED, DISPUTED = "low_stake", "unsettled_work", "disputed"
#: What a miner watches.
EVENTS = (LOW_STAKE, UNSETTLED, DISPUTED)


@dataclass(frozen=True)
class OwnerSeen:
    """What the registry and the escrow say of the owner, and what the operator has for fees."""

    stake_units: int
    least_units: int
    disputes: int
    jail_until_s: int
    gas_wei: int
    credit_units: int


@dataclass(frozen=True)
class SessionDebt:
    """What one session owes for finished work that its requester has not acknowledged."""

    job_id: str
    units: int


class StakeWatch:
    """Looks at it now and then, and tells the alerts."""

    def __init__(
        self,
        chain: MinerChain,
        owner: str,
        alerts: Alerts,
        limits: AlertSettings,
        show: Callable[[int], str],
    ) -> None:
        """`show` prints base units of the token."""
        self.alerts = alerts
        self._chain, self._owner, self._limits, self._show = chain, owner, limits, show
        self._owed_since: dict[str, int] = {}

    async def look(self, jobs: Iterable[ActiveJob], spec: ModelSpec) -> OwnerSeen:
        """Read the registry, and judge; what is owed also without it. Raises ChainUnreachable."""
        owed = [
            SessionDebt(job.stored.job_id, job.unpaid_units(spec))
            for job in jobs
            if job.is_open_order
        ]
        now_s = self._chain.now_s()
        self._owed_since = owed_since(self._owed_since, owed, now_s)
        waited = [(one, now_s - self._owed_since.get(one.job_id, now_s)) for one in owed]
        late = [self._unsettled(*each) for each in waited if each[1] >= self._limits.unsettled_s]
        self.alerts.tell(UNSETTLED, late)
        seen = await self._seen()
        self.alerts.tell(LOW_STAKE, stake_troubles(seen, self._limits.stake_bps, self._show))
        self.alerts.tell(DISPUTED, dispute_troubles(seen, self._show))
        return seen

    def _unsettled(self, owed: SessionDebt, waited_s: int) -> Trouble:
        return Trouble(
            "finished work is not paid",
            f"{self._show(owed.units)} of one session were not acknowledged for {waited_s} s",
            "nothing more is done for it than miner.max_unpaid allows; `miner earnings` shows the "
            "rest",
            subject=ids.short(ids.Kind.JOB, owed.job_id),
            values={"unpaid_units": str(owed.units), "waited_s": waited_s},
        )

    async def _seen(self) -> OwnerSeen:
        registry = await self._chain.registered(self._owner)
        return OwnerSeen(
            stake_units=int(registry["stake"]),
            least_units=await self._chain.least_stake(),
            disputes=int(registry["openDisputes"]),
            jail_until_s=int(registry["jailUntil"]),
            gas_wei=await self._chain.gas_wei(),
            credit_units=await self._chain.credit(self._owner),
        )


def owed_since(before: dict[str, int], owed: Sequence[SessionDebt], now_s: int) -> dict[str, int]:
    """Since when each session owes anything; one that has paid begins anew."""
    return {one.job_id: before.get(one.job_id, now_s) for one in owed if one.units > 0}


def stake_troubles(seen: OwnerSeen, stake_bps: int, show: Callable[[int], str]) -> list[Trouble]:
    """A stake below a share of the least that may work, or one that may not work for now."""
    have, least = show(seen.stake_units), show(seen.least_units)
    if seen.jail_until_s:
        why = f"it lost a dispute and is jailed until chain time {seen.jail_until_s}"
    elif seen.stake_units * 10_000 < seen.least_units * stake_bps:
        why = f"{have} are staked, {least} is the least that may work"
    else:
        return []
    return [
        Trouble(
            "the stake is nearly too low to work",
            why,
            "`miner stake add AMOUNT` with the owner's wallet",
            values={"stake_units": str(seen.stake_units), "least_units": str(seen.least_units)},
        )
    ]


def dispute_troubles(seen: OwnerSeen, show: Callable[[int], str]) -> list[Trouble]:
    """Open disputes against this miner: its stake is frozen, and time runs."""
    if not seen.disputes:
        return []
    return [
        Trouble(
            "this miner is accused",
            f"{seen.disputes} disputes are open; {show(seen.stake_units)} are at risk",
            "`miner disputes ls` shows them; a running miner defends itself",
            values={"disputes": seen.disputes, "stake_units": str(seen.stake_units)},
        )
    ]
