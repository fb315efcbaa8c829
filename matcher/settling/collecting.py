"""What have the stages of a job finished, and what do they sign for it?

All are asked at once with one deadline. Progress first: only requests that *every* stage finished
can be receipted together.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from core.protocol import signing, wire
from core.protocol.errors import HeadraceError
from core.protocol.types import SignedReceipt
from matcher.matching.proposing import Dialer
from matcher.records.jobs import Job
from matcher.settling.next_step import check_chain, check_receipt


@dataclass(frozen=True)
class Collected:
    """Receipts of every stage over `requests`, in order of stage; none where `problem` says why."""

    requests: tuple[int, ...] = ()
    receipts: tuple[SignedReceipt, ...] = ()
    problem: str = ""


async def collect(
    peers: Dialer, job: Job, domain: signing.Domain, *, all_requests: bool, timeout_s: float = 10.0
) -> Collected:
    """Receipts over what all stages finished, or only over `all_requests`. Never raises."""
    order_hash = job.order_hash

    async def ask(stage: int, message: wire.AnyMessage) -> wire.AnyMessage | str:
        operator = job.plan[stage].operator
        try:
            async with asyncio.timeout(timeout_s):
                stream = await peers.get(operator, job.endpoints[stage])
                return (await stream.call(message, timeout_s=timeout_s)).message
        except HeadraceError as error:
            return f"stage {stage} ({operator}): {error.why}"
        except TimeoutError:
            return f"stage {stage} ({operator}): no answer in {timeout_s:g} s"

    async def ask_all(message: wire.AnyMessage) -> list[wire.AnyMessage | str]:
        return await asyncio.gather(*(ask(i, message) for i in range(len(job.plan))))

    finished: list[set[int]] = []
    for stage, answer in enumerate(await ask_all(wire.Progress(order_hash=order_hash))):
        if not isinstance(answer, wire.Finished):
            return Collected(problem=_said(stage, answer))
        finished.append(set(answer.requests))
    common = set.intersection(*finished)
    requests = tuple(sorted(i for i in common if i < job.signed.order.requests))
    if not requests or (all_requests and len(requests) < job.signed.order.requests):
        return Collected(requests, problem="" if requests else "no request is finished everywhere")
    receipts = []
    close = wire.CloseJob(order_hash=order_hash, requests=list(requests))
    for stage, answer in enumerate(await ask_all(close)):
        if not isinstance(answer, wire.Receipt):
            return Collected(requests, problem=_said(stage, answer))
        wrong = check_receipt(job.signed.order, job.plan, stage, answer.signed, requests, domain)
        if wrong is not None:
            return Collected(requests, problem=f"stage {stage}: {wrong}")
        receipts.append(answer.signed)
    wrong = check_chain(receipts)
    return Collected(requests, () if wrong else tuple(receipts), wrong or "")


def _said(stage: int, answer: wire.AnyMessage | str) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, wire.Failed):
        return f"stage {stage}: {answer.reason}"
    return f"stage {stage}: answered with {type(answer).__name__}"
