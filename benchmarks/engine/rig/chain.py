"""Which chain do a benchmark's stages and requesters ask? One where all are rich and registered.

A job is on it once the benchmark says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec

from core.models.publication import publication_of
from core.protocol import signing
from core.protocol import types as t
from core.protocol.types import JobState
from core.runtime.clock import SystemClock
from tests.town.chain import ChainJob, FakeChain
from tests.town.orders import DOMAIN
from tests.town.orders import key as signer
from tests.town.orders import shard_root_of as made_up_root

MATCHER_KEY, FIRST_STAGE_KEY, FIRST_CLIENT_KEY = 1, 10, 1000
RICH = 10**24


class RichChain(FakeChain):
    """Jobs are those that it was told."""

    def __init__(self, shard_root_of: Callable[[int, int], str] = made_up_root) -> None:
        super().__init__(SystemClock(), shard_root_of=shard_root_of)
        self.answers = {"Escrow.balanceOf": RICH, "MinerRegistry.canWork": True}

    def told(self, job_id: str, plan_hash: str) -> None:
        """From now on the job is matched with this plan."""
        self.jobs[job_id] = ChainJob(JobState.MATCHED, plan_hash)


@cache
def spec_of(folder: Path) -> t.ModelSpec:
    """A model as the registry would have it. Hashes its weights the first time."""
    spec = publication_of(folder).spec
    profile = signing.name_hash("benchmark")
    return msgspec.structs.replace(spec, head_units=1, numerics_profile=profile)


__all__ = ["DOMAIN", "RichChain", "signer", "spec_of"]
