"""What does a miner ask the chain while it works, and what does it do while the chain is silent?

Reads only: the daemon's key sends no transactions. Time is the chain's own, carried on by the
machine's clock between two looks at it, because deadlines are judged by blocks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from core.chain.chain import Chain, ChainEvent
from core.chain.earned import earned_by
from core.chain.follower import ChainPosition, EventFollower
from core.chain.machines import ListedMachine, machines_of
from core.money.spending import may_sign_for
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import ChainUnreachable, ContractRefused
from core.protocol.types import JobState
from core.runtime.clock import Clock
from miner.chain.admission import ChainView

CALL_TIMEOUT_S = 8.0
_OTHER_CHAIN_S = 24 * 3600


@dataclass(frozen=True)
class JobOnChain:
    """A job with one plan as TaskRegistry has it: of any other plan it says NONE.

    `spender` opened it; the zero address if the requester did.
    """

    state: JobState
    spender: str


class MinerChain:
    """The chain as a miner needs it. Every call may raise ChainUnreachable."""

    def __init__(self, chain: Chain, operator: str, clock: Clock) -> None:
        self.chain, self.operator, self._clock = chain, operator, clock
        self.is_reachable = True
        self._limits: tuple[int, int] | None = None
        self._seen_s, self._seen_at = int(clock.now()), clock.monotonic()
        self._has_looked = False

    def now_s(self) -> int:
        """Chain time, as far as it is known."""
        return self._seen_s + int(self._clock.monotonic() - self._seen_at)

    async def refresh_time(self) -> int:
        """Look at the newest block. Time never goes back: an idle development chain mints none."""
        seen_s = await self._ask(self.chain.now())
        if not self._has_looked or seen_s > self.now_s() or self.now_s() - seen_s > _OTHER_CHAIN_S:
            self._seen_s, self._seen_at = seen_s, self._clock.monotonic()
            self._has_looked = True
        return self.now_s()

    async def view(self, order: t.Order, signer: str | None) -> ChainView:
        """What it says of an order that was proposed.

        `signer` signed the order; None: its requester should have registered it on chain.
        """
        read = self.chain.read
        limits = await self._job_limits()
        now_s, balance, listed, can_work, is_used, may_spend = await self._ask(
            asyncio.gather(
                self.refresh_time(),
                read("Escrow", "balanceOf", order.requester),
                read("MinerRegistry", "isArbitrator", order.arbitrator),
                read("MinerRegistry", "canWork", self.operator, order.min_stake),
                self.is_nonce_used(order),
                may_sign_for(self.chain, order.requester, signer),
            )
        )
        return ChainView(
            now_s=now_s,
            requester_balance=int(balance),
            arbitrator_listed=bool(listed),
            can_work=bool(can_work),
            nonce_used=is_used,
            max_job_s=limits[0],
            max_window_s=limits[1],
            signer_may_spend=may_spend,
            is_registered=signer is None and await self._is_registered(order),
        )

    async def _is_registered(self, order: t.Order) -> bool:
        job_id = signing.job_id(self.chain.domain, order)
        return (await self.job(job_id, t.ZERO_HASH)).state is JobState.OPEN

    async def job(self, job_id: str, plan_hash: str) -> JobOnChain:
        """The job with exactly this plan."""
        found, spender = await self._ask(
            asyncio.gather(
                self.chain.read("TaskRegistry", "jobOf", job_id, plan_hash),
                self.chain.read("Escrow", "jobSpenderOf", job_id),
            )
        )
        return JobOnChain(JobState(int(found["state"])), str(spender).lower())

    async def is_nonce_used(self, order: t.Order) -> bool:
        """Whether a job was opened with an order's nonce, this order's or another's, or it was
        revoked.
        """
        read = self.chain.read("TaskRegistry", "isNonceUsed", order.requester, order.nonce)
        return bool(await self._ask(read))

    async def panel(self, dispute_id: str) -> list[str]:
        """Jurors drawn for a dispute."""
        found = await self._ask(self.chain.read("JuryArbitrator", "panelOf", dispute_id))
        return [str(juror) for juror in found]

    async def model(self, model_id: str) -> t.ModelSpec:
        """A registered model's specification. Raises ContractRefused for an unknown one."""
        found = await self._ask(self.chain.read("ModelRegistry", "specOf", model_id))
        return msgspec.convert(found, t.ModelSpec)

    async def owner(self) -> str:
        """The owner that registered this operator; else the zero address."""
        return str(await self._ask(self.chain.read("MinerRegistry", "ownerOf", self.operator)))

    async def registered(self, owner: str) -> Any:
        """The registry's record of an owner: stake, disputes, jail."""
        return await self._ask(self.chain.read("MinerRegistry", "minerOf", owner))

    async def machines(self, owner: str) -> list[ListedMachine]:
        """The machines that the registry lists for an owner."""
        count = (await self.registered(owner))["machines"]
        found: list[ListedMachine] = await self._ask(machines_of(self.chain.read, owner, count))
        return found

    async def least_stake(self) -> int:
        """The least stake that may work at all."""
        return int(await self._ask(self.chain.read("MinerRegistry", "minStake")))

    async def credit(self, owner: str) -> int:
        """What jobs have paid an owner's operators and was not collected yet, in base units."""
        return sum((await self._ask(earned_by(self.chain.read, owner))).values())

    async def gas_wei(self) -> int:
        """What the operator's key has for fees."""
        return int(await self._ask(self.chain.balance_wei(self.operator)))

    async def _job_limits(self) -> tuple[int, int]:
        if self._limits is None:
            found = await self._ask(self.chain.read("TaskRegistry", "params"))
            self._limits = (int(found["maxJobSeconds"]), int(found["maxWindowSeconds"]))
        return self._limits

    async def _ask(self, awaitable: Any) -> Any:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                answer = await awaitable
        except TimeoutError:
            self.is_reachable = False
            raise ChainUnreachable(
                f"no answer from {self.chain.rpc_url}", f"within {CALL_TIMEOUT_S:g} s"
            ) from None
        except ChainUnreachable:
            self.is_reachable = False
            raise
        except ContractRefused:
            self.is_reachable = True
            raise
        self.is_reachable = True
        return answer


@dataclass(frozen=True)
class JobNews:
    """The chain moved a job. `plan_hash` comes with MATCHED: the job has this plan and no other."""

    job_id: str
    state: JobState
    plan_hash: str = ""


@dataclass(frozen=True)
class DisputeNews:
    """A dispute on a job opened, or ended (`is_open` False; then only its id is known)."""

    dispute_id: str
    job_id: str = ""
    stage: int = 0
    is_open: bool = True


@dataclass(frozen=True)
class ClosingNews:
    """A session was closed: no more work for it."""

    job_id: str


_JOB_EVENTS = {
    "JobMatched": JobState.MATCHED,
    "JobDelivered": JobState.DELIVERED,
    "JobDisputed": JobState.DISPUTED,
    "JobSettled": JobState.SETTLED,
    "JobCancelled": JobState.CANCELLED,
    "JobExpired": JobState.EXPIRED,
}


def news_of(event: ChainEvent) -> JobNews | DisputeNews | ClosingNews | None:
    """What an event means to a miner; None for events of no interest."""
    if event.contract == "TaskRegistry" and event.name == "JobClosing":
        return ClosingNews(str(event.args["job"]))
    if event.contract == "TaskRegistry" and event.name in _JOB_EVENTS:
        plan_hash = str(event.args.get("planHash", "")).lower()
        return JobNews(str(event.args["job"]), _JOB_EVENTS[event.name], plan_hash)
    if event.contract == "JuryArbitrator" and event.name == "DisputeOpened":
        return DisputeNews(
            str(event.args["dispute"]), str(event.args["job"]), int(event.args["stage"])
        )
    if event.contract == "JuryArbitrator" and event.name == "DisputeExecuted":
        return DisputeNews(str(event.args["dispute"]), is_open=False)
    return None


class News:
    """Job and dispute events since the last look, through reorganisations and restarted nodes."""

    def __init__(
        self,
        chain: Chain,
        *,
        start_block: int,
        deploy_block: int,
        position: ChainPosition,
        window: int,
    ) -> None:
        """Events from `start_block` on; of a replaced chain, from `deploy_block` on."""
        self._chain, self._deploy_block, self._window = chain, deploy_block, window
        self._follower = EventFollower(
            chain, start_block=start_block, position=position, window=window
        )

    async def poll(self) -> tuple[list[JobNews | DisputeNews | ClosingNews], ChainPosition, bool]:
        """(news, position to store with them, whether jobs may have moved back).

        Raises ChainUnreachable. A rolled-back block takes events with it; the owner then asks the
        chain about its live jobs again.
        """
        batch = await self._follower.poll()
        if batch.chain_replaced:
            self._follower = EventFollower(
                self._chain, start_block=self._deploy_block, window=self._window
            )
            return [], ChainPosition(), True
        news = [found for event in batch.events if (found := news_of(event)) is not None]
        return news, batch.position, batch.rolled_back_to is not None
