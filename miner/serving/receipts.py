"""What does this miner sign over its work, and how is it kept from signing two different things?

Leaf to disk, then signature, then receipt to disk, then out. One set of requests of a job has one
receipt for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import CheckFailed
from core.protocol.receipts import receipt_over, word_of
from miner.records.store import BoundaryRows, MinerStore, Rooted, StoredJob

T = TypeVar("T")
#: Different sets of one job's requests that are signed for; an honest job needs one or two.
MAX_SETS = 32


class ReceiptBook:
    """Signs receipts and words; the only holder of the operator's key in a stage.

    Database work runs in its own thread, so that a disk that takes its time delays no token.
    """

    def __init__(
        self,
        store: MinerStore,
        signer: signing.DigestSigner,
        domain: signing.Domain,
        now_s: Callable[[], int],
    ) -> None:
        """`now_s` is chain time."""
        self.store, self.signer, self.domain = store, signer, domain
        self._now_s = now_s
        self._pool = ThreadPoolExecutor(1, "store")
        self._one_at_a_time = asyncio.Lock()

    async def disk(self, work: Callable[..., T], *args: object) -> T:
        """Run a call on the store in its thread, in order."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def accept(
        self, order_hash: str, plan_hash: str, stage: int, expiry: int
    ) -> t.SignedAcceptance:
        """A signed consent; the caller writes it down before it leaves."""
        acceptance = t.Acceptance(
            order_hash=order_hash, plan_hash=plan_hash, stage=stage, expiry=expiry
        )
        signature = signing.sign(self.signer, self.domain, acceptance)
        return t.SignedAcceptance(acceptance=acceptance, signature=signature)

    def word(
        self, job: StoredJob, leaf: t.RequestLeaf, answer_root: str, inner: Sequence[str] = ()
    ) -> t.SignedWord:
        """Our word of a request that is written down with this leaf, answer and roots inside.

        Raises CheckFailed unless the chain had the job with this plan.
        """
        _require_match(job)
        word = word_of(job.order_hash, job.plan_hash, job.stage, leaf, answer_root)
        return t.SignedWord(word, signing.sign(self.signer, self.domain, word), list(inner))

    async def finish(
        self,
        job: StoredJob,
        leaf: t.RequestLeaf,
        rows_in: BoundaryRows,
        rows_out: BoundaryRows,
        states: Rooted | None = None,
        answer_root: str = t.ZERO_HASH,
        inner: Sequence[Rooted] = (),
    ) -> None:
        """Write down a finished request, at a last stage with its `states`, at a first stage with
        the last one's word, with what is inside the stage, before anything is signed over it.

        Raises CheckFailed if a different result of it was written down before.
        """
        place = job.order_hash, job.plan_hash
        beside = states, answer_root, inner
        await self.disk(self.store.put_leaf, *place, leaf, rows_in, rows_out, *beside)

    async def sign_over(self, job: StoredJob, requests: Sequence[int]) -> t.SignedReceipt:
        """One receipt over these requests.

        Raises CheckFailed unless all are finished here, for a plan that the chain had for the job.
        """
        _require_match(job)
        async with self._one_at_a_time:
            return await self.disk(self._sign_over, job, requests)

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _sign_over(self, job: StoredJob, requests: Sequence[int]) -> t.SignedReceipt:
        wanted = sorted(set(requests))
        if len(wanted) == 1:  # the last of a long session costs no more than the first
            known = self.store.leaves(job.order_hash, job.plan_hash, wanted[0])
        else:
            known = self.store.leaves(job.order_hash, job.plan_hash)
        missing = [index for index in wanted if index not in known]
        if missing:
            raise CheckFailed(
                "no receipt is signed",
                f"{len(missing)} of {len(wanted)} requests are not finished here, such as "
                f"{missing[0]}",
            )
        leaves = [known[index].leaf for index in wanted]
        answers = [known[index].answer_root for index in wanted] if job.is_first else []
        now_s = self._now_s()
        receipt = receipt_over(
            job.order_hash,
            job.plan_hash,
            job.stage,
            job.place,
            leaves,
            answers,
            shard_root=job.shard_root,
            started_at=min(job.started_at, now_s) or now_s,
            signed_at=now_s,
        )
        place = job.order_hash, job.plan_hash
        signed = self.store.receipt(*place, receipt.requests_root)
        if signed is not None:
            return signed
        if len(leaves) > 1 and self.store.sets_signed(*place) >= MAX_SETS:
            raise CheckFailed(
                "no receipt is signed",
                f"{MAX_SETS} different sets of this job's requests have one already",
            )
        signed = t.SignedReceipt(
            receipt=receipt,
            signature=signing.sign(self.signer, self.domain, receipt),
            leaves=leaves,
            states=[known[index].states_root for index in wanted] if job.is_last else [],
            answers=answers,
            inner=[known[index].inner for index in wanted] if known[wanted[0]].inner else [],
        )
        self.store.put_receipt(signed)
        return signed


def _require_match(job: StoredJob) -> None:
    """Raise CheckFailed for a plan that this miner did not find on chain.

    An accepted plan that was never matched pays nobody, and what is signed for it could be held
    against us if it were matched later.
    """
    if not job.is_verified:
        raise CheckFailed(
            "nothing is signed for this job", "the chain was not seen to have it with this plan"
        )
