"""What have the stages of a job finished, and what do they sign for it?

All are asked at once with one deadline. Progress first: only requests that *every* stage finished
can be receipted together. Over all requests, a stage that signs nothing, or for other rows than it
sent, is bound by its words, which the next stage has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.protocol import signing, wire
from core.protocol.errors import HeadraceError
from core.protocol.receipts import check_chain, check_receipt, receipt_by_words
from core.protocol.types import Order, SignedReceipt, Stage

#: Asks a stage, by its number. Raises HeadraceError.
Ask = Callable[[int, wire.AnyMessage], Awaitable[wire.AnyMessage]]
TIMEOUT_S = 10.0
NOTHING = "no request is finished everywhere"


class Stream(Protocol):
    """The part of `Channel` that asks."""

    async def call(
        self, message: wire.AnyMessage, payload: bytes = b"", *, timeout_s: float = 15.0
    ) -> wire.Frame: ...


class Dialer(Protocol):
    """The part of `Peers` that asks."""

    async def get(self, operator: str, endpoint: str, *, timeout_s: float = 5.0) -> Stream: ...


@dataclass(frozen=True)
class Collected:
    """Receipts of every stage over `requests`, in order of stage; none where `problem` says why."""

    requests: tuple[int, ...] = ()
    receipts: tuple[SignedReceipt, ...] = ()
    problem: str = ""


def dialled(peers: Dialer, plan: Sequence[Stage], endpoints: Sequence[str]) -> Ask:
    """Asks stages where they listen."""

    async def ask(stage: int, message: wire.AnyMessage) -> wire.AnyMessage:
        stream = await peers.get(plan[stage].operator, endpoints[stage])
        return (await stream.call(message)).message

    return ask


async def collect(
    ask: Ask,
    order: Order,
    plan: Sequence[Stage],
    domain: signing.Domain,
    *,
    all_requests: bool,
    timeout_s: float = TIMEOUT_S,
) -> Collected:
    """Receipts over what all stages finished, or only over `all_requests`. Never raises."""
    order_hash = signing.order_hash(order)

    async def ask_one(stage: int, message: wire.AnyMessage) -> wire.AnyMessage | str:
        operator = plan[stage].operator
        try:
            async with asyncio.timeout(timeout_s):
                return await ask(stage, message)
        except HeadraceError as error:
            return f"stage {stage} ({operator}): {error.why}"
        except TimeoutError:
            return f"stage {stage} ({operator}): no answer in {timeout_s:g} s"

    async def receipt_of(stage: int, requests: Sequence[int]) -> SignedReceipt | str:
        close = wire.CloseJob(order_hash=order_hash, requests=list(requests))
        answer = await ask_one(stage, close)
        if not isinstance(answer, wire.Receipt):
            return _said(stage, answer)
        wrong = check_receipt(order, plan, stage, answer.signed, requests, domain)
        return answer.signed if wrong is None else f"stage {stage}: {wrong}"

    async def words_of(stage: int, requests: Sequence[int]) -> SignedReceipt | None:
        """What the next stage holds of it; only that one has to be asked for it."""
        answer = await ask_one((stage + 1) % len(plan), wire.FetchReceipts(order_hash))
        words = answer.words if isinstance(answer, wire.Receipts) else ()
        return receipt_by_words(order, plan, stage, words, requests, domain)

    stages = range(len(plan))
    progress = await asyncio.gather(
        *(ask_one(stage, wire.Progress(order_hash=order_hash)) for stage in stages)
    )
    finished = [
        frozenset(answer.requests) if isinstance(answer, wire.Finished) else None
        for answer in progress
    ]
    ordered = frozenset(range(order.requests))
    common = ordered.intersection(*(found for found in finished if found is not None))
    short = by_words = set[int]()
    if all_requests:
        short = {stage for stage in stages if not ordered <= (finished[stage] or frozenset())}
        # Of a stage that says nothing, or not all, the next one may have the words of all.
        by_words = {stage for stage in short if (stage + 1) % len(plan) not in short}
    for stage, answer in enumerate(progress):
        if finished[stage] is None and stage not in by_words:
            return Collected(problem=_said(stage, answer))
    requests = tuple(sorted(ordered if all_requests else common))
    if not requests or short != by_words:
        return Collected(tuple(sorted(common)), problem="" if common else NOTHING)

    async def shown_by(stage: int) -> SignedReceipt | str:
        found = _said(stage, progress[stage])
        if stage not in by_words:
            found = await receipt_of(stage, requests)
        if isinstance(found, SignedReceipt) or not all_requests or len(plan) == 1:
            return found
        return await words_of(stage, requests) or found

    receipts = list[SignedReceipt]()
    for shown in await asyncio.gather(*map(shown_by, stages)):
        if isinstance(shown, str):
            return Collected(tuple(sorted(common)), problem=shown)
        receipts.append(shown)
    for stage in stages if all_requests else ():
        after = receipts[(stage + 1) % len(plan)].receipt
        if after.input_root != receipts[stage].receipt.output_root:
            # It signed for other rows than it sent: by its words these are the next one's input.
            receipts[stage] = await words_of(stage, requests) or receipts[stage]
    wrong = check_chain(receipts)
    return Collected(requests, () if wrong else tuple(receipts), wrong or "")


def _said(stage: int, answer: wire.AnyMessage | str) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, wire.Failed):
        return f"stage {stage}: {answer.reason}"
    if isinstance(answer, wire.Finished):
        return f"stage {stage}: {len(answer.requests)} requests are finished"
    return f"stage {stage}: answered with {type(answer).__name__}"
