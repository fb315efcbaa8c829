"""What do stages of a benchmark ask the chain, and who answers when there is none?

Everything else of a stage is the product's own. A job is on this chain once the benchmark says so.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from core.keys.signer import Signer
from core.protocol import signing
from core.protocol import types as t
from core.protocol.types import JobState
from devnet.models.model_spec import spec_of_folder
from miner.chain.admission import ChainView
from miner.chain.onchain import JobOnChain

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
ARBITRATOR = "0x" + "aa" * 20
MATCHER_KEY, FIRST_STAGE_KEY, FIRST_CLIENT_KEY = 1, 10, 1000
RICH = 10**24


def signer(number: int) -> Signer:
    """One of the benchmark's parties."""
    return Signer(number.to_bytes(32, "big"), chain_id=DOMAIN.chain_id)


class KnownJobs:
    """`ChainReads` for a stage: all accounts are rich and registered, jobs are told to it."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobOnChain] = {}

    def match(self, job_id: str, plan_hash: str) -> None:
        """From now on the job is matched with this plan."""
        self.jobs[job_id] = JobOnChain(JobState.MATCHED, plan_hash)

    def now_s(self) -> int:
        return int(time.time())

    async def view(self, order: t.Order, job_id: str, signer: str | None) -> ChainView:
        return ChainView(
            now_s=self.now_s(),
            requester_balance=RICH,
            arbitrator_listed=order.arbitrator == ARBITRATOR,
            can_work=True,
            job_exists=job_id in self.jobs,
            nonce_revoked=False,
            max_job_s=86400,
            max_window_s=7 * 86400,
        )

    async def job(self, job_id: str) -> JobOnChain:
        return self.jobs.get(job_id, JobOnChain(JobState.NONE, t.ZERO_HASH))

    async def panel(self, dispute_id: str) -> list[str]:
        return []


@cache
def spec_of(folder: Path) -> t.ModelSpec:
    """A model as the registry would have it. Hashes its weights the first time."""
    return spec_of_folder(folder, head_units=1, numerics_profile=signing.name_hash("benchmark"))
