"""What must each account have gained or lost by these jobs, by `core.money.pricing`?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from core.money import pricing
from core.protocol.types import JobState, ModelSpec
from tests.swarm.world import JobSeen, World


async def split_of(
    world: World, job: JobSeen, *, at_fault: frozenset[int] = frozenset()
) -> pricing.Split:
    """What becomes of the money that a settled job locked."""
    spec = await world.chain.read("ModelRegistry", "specOf", job.order.model_id)
    return pricing.split(
        job.order,
        job.plan,
        msgspec.convert(spec, ModelSpec),
        job.tokens_in,
        job.tokens_out,
        protocol_fee_bps=world.net.parameters.protocol_fee_bps,
        at_fault=at_fault,
    )


async def expected_changes(
    world: World, jobs: Iterable[JobSeen], *, at_fault: frozenset[int] = frozenset()
) -> dict[str, int]:
    """Nano units by party, of jobs that ended; unchanged accounts are left out."""
    found: Counter[str] = Counter()
    for job in jobs:
        if job.state not in (JobState.SETTLED, JobState.EXPIRED):
            continue
        split = await split_of(world, job, at_fault=at_fault)
        found["requester-1"] -= split.paid
        found["matcher-1"] += split.matcher_fee + split.opening
        found["deployer"] += split.protocol_fee
        for stage, pay in zip(job.plan, split.pays, strict=True):
            found[await world.party_of(stage.operator)] += pay
    return {party: change for party, change in found.items() if change}
