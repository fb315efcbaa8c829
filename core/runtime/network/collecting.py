"""What have the stages of a job finished, and what do they sign for it?

All are asked at once with one deadline. Progress first: only requests that *every* stage is bound
for can be receipted together. A stage is bound for what it says that it finished, and by its words,
which the next stage has. One that signs nothing, or for other rows than it sent, is bound by these
alone; a request on which stages do not agree is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.protocol import signing, wire
from core.protocol.errors import HeadraceError
from core.protocol.receipts import (
    agreed_by_all,
    check_chain,
    check_receipt,
    receipt_by_words,
)
from core.protocol.types import Order, SignedReceipt, SignedWord, Stage

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
    """Receipts of every stage over `requests`, in order of stage; none where `problem` says why.

    `taken_back`: what stages signed beside their words, for other rows than they had sent.
    """

    requests: tuple[int, ...] = ()
    receipts: tuple[SignedReceipt, ...] = ()
    problem: str = ""
    taken_back: tuple[SignedReceipt, ...] = ()


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
    """Receipts, or words worth them, over what all stages are bound for; or `all_requests` only.

    Never raises.
    """
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

    async def words_of(stage: int) -> dict[int, SignedWord]:
        """Its words by request, from the next stage."""
        if stage not in words and len(plan) > 1:
            answer = await ask_one(_after(stage, plan), wire.FetchReceipts(order_hash))
            told = answer.words if isinstance(answer, wire.Receipts) else ()
            words[stage] = {
                word.word.request_index: word
                for word in told
                if receipt_by_words(order, plan, stage, [word], [word.word.request_index], domain)
            }
        return words.get(stage, {})

    async def by_words(stage: int, requests: Sequence[int]) -> SignedReceipt | None:
        told = list((await words_of(stage)).values())
        return receipt_by_words(order, plan, stage, told, requests, domain)

    async def shown_by(stage: int, requests: Sequence[int]) -> SignedReceipt | str:
        found = refused.get(stage) or await receipt_of(stage, requests)
        return (
            found if isinstance(found, SignedReceipt) else await by_words(stage, requests) or found
        )

    words = dict[int, dict[int, SignedWord]]()
    stages = range(len(plan))
    progress = await asyncio.gather(
        *(ask_one(stage, wire.Progress(order_hash=order_hash)) for stage in stages)
    )
    said = [
        frozenset(answer.requests) if isinstance(answer, wire.Finished) else frozenset[int]()
        for answer in progress
    ]
    refused = {
        stage: _said(stage, answer)
        for stage, answer in enumerate(progress)
        if not isinstance(answer, wire.Finished)
    }
    allowed = ordered = frozenset(range(order.requests))
    short = {stage for stage in stages if not ordered <= said[stage]}
    # While a batch goes on, most stages are short of it: no words are asked for then.
    ahead = {stage for stage in short if _after(stage, plan) not in short}
    await asyncio.gather(*map(words_of, ahead if all_requests else stages))
    while True:
        bound = [
            (frozenset() if stage in refused else said[stage]) | words.get(stage, {}).keys()
            for stage in stages
        ]
        requests = tuple(sorted(allowed.intersection(*bound)))
        if not requests or (all_requests and len(requests) < order.requests):
            problem = next(iter(refused.values()), "" if requests else NOTHING)
            return Collected(requests, problem=problem)
        shown = await asyncio.gather(*(shown_by(stage, requests) for stage in stages))
        silent = {stage: one for stage, one in enumerate(shown) if isinstance(one, str)}
        if silent:
            refused |= silent
            continue
        receipts = [one for one in shown if isinstance(one, SignedReceipt)]
        taken_back = list[SignedReceipt]()
        for stage in stages:
            signed, after = receipts[stage], receipts[_after(stage, plan)]
            if after.receipt.input_root == signed.receipt.output_root:
                continue
            # It signed for other rows than it sent: its words are of what the next one has.
            if (sent := await by_words(stage, requests)) is not None:
                receipts[stage] = sent
                taken_back.append(signed)
        wrong = check_chain(receipts)
        if wrong is None:
            return Collected(requests, tuple(receipts), taken_back=tuple(taken_back))
        agreed = allowed & agreed_by_all(receipts)
        if all_requests or agreed == allowed:
            return Collected(requests, problem=wrong)
        allowed = agreed


def _after(stage: int, plan: Sequence[Stage]) -> int:
    return (stage + 1) % len(plan)


def _said(stage: int, answer: wire.AnyMessage | str) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, wire.Failed):
        return f"stage {stage}: {answer.reason}"
    if isinstance(answer, wire.Finished):
        return f"stage {stage}: {len(answer.requests)} requests are finished"
    return f"stage {stage}: answered with {type(answer).__name__}"
