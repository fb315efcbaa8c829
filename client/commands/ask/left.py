"""What did a submission leave whose program is gone, and how is it brought to its end?

A program that was killed leaves orders that were handed in, and jobs that nobody acknowledges.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from client.commands.ask.job_list import keeper_pid
from client.context import Context
from client.jobs.batch import Policy, Requester, Unwatched, nothing_new, take_up
from client.jobs.earlier import UNSETTLED
from client.jobs.wishes import limits_of
from client.records.keeper import Keeper, keepers_of
from client.records.store import ClientStore, JobRow, match_of
from core.protocol.errors import UsageError
from core.runtime.clock import SystemClock

if TYPE_CHECKING:
    from core.protocol.signing import DigestSigner
    from core.runtime.settings import Settings


def is_left(settings: Settings, store: ClientStore, row: JobRow) -> bool:
    """Whether a job is unpaid and the program of its submission is gone."""
    known = store.submission(row.submission)
    unpaid = any(job.state in UNSETTLED for job in store.jobs_of(row.submission))
    return known is not None and unpaid and keeper_pid(settings, known) is None


async def settle_left(
    context: Context, signer: DigestSigner, store: ClientStore, row: JobRow
) -> None:
    """Have the submission's jobs end where they are, and pay for what came.

    What came is in the records then. Raises UsageError where another program does so already,
    ChainUnreachable, MatcherUnreachable.
    """
    model = await context.model(match_of(row).signed.order.model_id)
    async with _kept(context.settings, store, row.submission):
        matcher = context.matcher()
        try:
            requester = Requester(
                context.chain,
                matcher,
                signer,
                store,
                SystemClock(),
                model.model_id,
                model.spec,
            )
            policy = Policy(terms_of=nothing_new, limits=limits_of(context.settings))
            await take_up(requester, policy, Unwatched(), row.submission, goes_on=False)
        finally:
            await matcher.close()


@asynccontextmanager
async def _kept(settings: Settings, store: ClientStore, submission: str) -> AsyncIterator[None]:
    """The submission is this program's. Raises UsageError where it became another's meanwhile."""
    known, keeper = store.submission(submission), Keeper(keepers_of(settings))
    try:
        if known is None or not store.adopt_submission(submission, known.keeper, keeper.name):
            raise UsageError(
                "another program takes this job up",
                "it began a moment ago",
                next_step="client jobs ls",
            )
        yield
    finally:
        keeper.close()
