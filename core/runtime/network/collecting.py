"""What have the stages of a job finished, and what do they sign for it?

All are asked at once with one deadline. Progress first: only requests that *every* stage finished
can be receipted together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.protocol import signing, wire
from core.protocol.errors import HeadraceError
from core.protocol.receipts import check_chain, check_receipt
from core.protocol.types import Order, SignedReceipt, Stage

#: Asks a stage, by its number. Raises HeadraceError.
Ask = Callable[[int, wire.AnyMessage], Awaitable[wire.AnyMessage]]
TIMEOUT_S = 10.0


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

    async def ask_all(message: wire.AnyMessage) -> list[wire.AnyMessage | str]:
        return await asyncio.gather(*(ask_one(i, message) for i in range(len(plan))))

    finished: list[set[int]] = []
    for stage, answer in enumerate(await ask_all(wire.Progress(order_hash=order_hash))):
        if not isinstance(answer, wire.Finished):
            return Collected(problem=_said(stage, answer))
        finished.append(set(answer.requests))
    common = set.intersection(*finished)
    requests = tuple(sorted(i for i in common if i < order.requests))
    if not requests or (all_requests and len(requests) < order.requests):
        return Collected(requests, problem="" if requests else "no request is finished everywhere")
    receipts = []
    close = wire.CloseJob(order_hash=order_hash, requests=list(requests))
    for stage, answer in enumerate(await ask_all(close)):
        if not isinstance(answer, wire.Receipt):
            return Collected(requests, problem=_said(stage, answer))
        wrong = check_receipt(order, plan, stage, answer.signed, requests, domain)
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
