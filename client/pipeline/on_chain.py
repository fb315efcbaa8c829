"""Where does one of our jobs stand on chain, and under which plan?

The chain finds a job by its id and its plan's hash, so a job of another plan looks like none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from client.pipeline.pipeline import Match
from core.chain.chain import Chain, history
from core.money import pricing
from core.protocol.types import ZERO_HASH, JobState, Order, Stage


@dataclass(frozen=True)
class FoundJob:
    """What `jobOf` says of a job, and the plan that found it: empty while it has none."""

    order: Order
    plan: tuple[Stage, ...]
    said: dict[str, Any]

    @property
    def state(self) -> JobState:
        return JobState(self.said["state"])

    @property
    def locked_nano(self) -> int:
        """What the job still locks, in nano units."""
        return pricing.locked_nano(self.order, self.said)


async def job_with_plan(chain: Chain, match: Match) -> FoundJob:
    """The job with the plan that its matcher told us; state NONE for another plan or none.

    Raises ChainUnreachable.
    """
    said = await chain.read("TaskRegistry", "jobOf", match.job_id, match.plan_hash)
    return FoundJob(match.signed.order, match.plan, said)


async def find_job(chain: Chain, match: Match, deploy_block: int) -> FoundJob:
    """The job under whatever plan it has on chain, or without one; state NONE: never opened.

    Events are looked through only where an order was opened otherwise than its matcher told us.
    Raises ChainUnreachable.
    """
    told, order = await job_with_plan(chain, match), match.signed.order
    if told.state is not JobState.NONE or not await is_nonce_used(chain, order):
        return told
    plan_hash, plan = await _plan_of(chain, match.job_id, deploy_block)
    said = await chain.read("TaskRegistry", "jobOf", match.job_id, plan_hash)
    return FoundJob(order, plan, said)


async def _plan_of(chain: Chain, job_id: str, deploy_block: int) -> tuple[str, tuple[Stage, ...]]:
    async for _, events in history(chain, deploy_block):
        for event in events:
            if event.name == "JobMatched" and event.args["job"].lower() == job_id.lower():
                plan = msgspec.convert(event.args["plan"], tuple[Stage, ...])
                return str(event.args["planHash"]), plan
    return ZERO_HASH, ()


async def is_nonce_used(chain: Chain, order: Order) -> bool:
    """Whether an order's nonce is used up: by a job of this order or another one, or revoked."""
    return bool(await chain.read("TaskRegistry", "isNonceUsed", order.requester, order.nonce))
