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
    check_receipt,
    disagreements,
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
    stages = _Stages(ask, order, plan, domain, timeout_s)
    said = await stages.progress()
    allowed = ordered = frozenset(range(order.requests))
    # While a batch goes on most stages are short of it: no words are asked for then.
    short = {stage for stage in stages.all if not ordered <= said[stage]}
    ahead = [stage for stage in short if stages.after(stage) not in short]
    await asyncio.gather(*map(stages.words_of, ahead if all_requests else stages.all))
    while True:
        requests = tuple(sorted(allowed.intersection(*map(stages.bound_for, stages.all))))
        if not requests or (all_requests and len(requests) < order.requests):
            return Collected(requests, problem=stages.first_refusal("" if requests else NOTHING))
        receipts = await stages.receipts_over(requests)
        if receipts is None:
            continue  # one more is bound by its words alone, or by nothing
        taken_back = await stages.take_at_their_word(receipts)
        wrong = disagreements(receipts)
        if not wrong:
            return Collected(requests, tuple(receipts), taken_back=tuple(taken_back))
        if all_requests:
            return Collected(requests, problem=next(iter(wrong.values())))
        allowed -= wrong.keys()


class _Stages:
    """What the stages of one job said so far."""

    def __init__(
        self,
        ask: Ask,
        order: Order,
        plan: Sequence[Stage],
        domain: signing.Domain,
        timeout_s: float,
    ) -> None:
        self._ask, self._order, self._plan, self._domain = ask, order, plan, domain
        self._timeout_s = timeout_s
        self._order_hash = signing.order_hash(order)
        self._said = list[frozenset[int]]()  # which requests each finished
        self._refused = dict[int, str]()  # by stages that sign nothing
        self._words = dict[int, dict[int, SignedWord]]()  # by stage and request

    @property
    def all(self) -> range:
        return range(len(self._plan))

    def after(self, stage: int) -> int:
        """Of the last one, the first: stages are a ring."""
        return (stage + 1) % len(self._plan)

    def bound_for(self, stage: int) -> frozenset[int]:
        """What it says that it finished, unless it refused, and what it gave its word of."""
        said = frozenset[int]() if stage in self._refused else self._said[stage]
        return said | self._words.get(stage, {}).keys()

    def first_refusal(self, otherwise: str) -> str:
        return next(iter(self._refused.values()), otherwise)

    async def progress(self) -> list[frozenset[int]]:
        """Which requests each stage says it finished."""
        question = wire.Progress(order_hash=self._order_hash)
        answers = await asyncio.gather(*(self._ask_one(stage, question) for stage in self.all))
        for stage, answer in enumerate(answers):
            is_told = isinstance(answer, wire.Finished)
            self._said.append(frozenset(answer.requests) if is_told else frozenset())
            if not is_told:
                self._refused[stage] = _said(stage, answer)
        return self._said

    async def words_of(self, stage: int) -> dict[int, SignedWord]:
        """Its words by request, from the next stage."""
        if stage not in self._words and len(self._plan) > 1:
            question = wire.FetchReceipts(self._order_hash)
            answer = await self._ask_one(self.after(stage), question)
            told = answer.words if isinstance(answer, wire.Receipts) else ()
            by_request = {word.word.request_index: word for word in told}
            self._words[stage] = {
                request: word
                for request, word in by_request.items()
                if self._by_words(stage, [word], [request]) is not None
            }
        return self._words.get(stage, {})

    async def receipts_over(self, requests: Sequence[int]) -> list[SignedReceipt] | None:
        """By each stage's signature or words; None where another one turned out to refuse."""
        shown = await asyncio.gather(*(self._shown_by(stage, requests) for stage in self.all))
        refusals = {stage: one for stage, one in enumerate(shown) if isinstance(one, str)}
        for stage in refusals.keys() & self._refused.keys():
            self._words[stage] = {}  # each was worth something, and all together are not
        self._refused |= refusals
        return None if refusals else [one for one in shown if isinstance(one, SignedReceipt)]

    async def take_at_their_word(self, receipts: list[SignedReceipt]) -> list[SignedReceipt]:
        """Replace receipts of other rows than the next stage had, by words; return those."""
        taken_back = []
        for stage in self.all:
            signed, after = receipts[stage], receipts[self.after(stage)]
            if after.receipt.input_root == signed.receipt.output_root:
                continue
            words = list((await self.words_of(stage)).values())
            requests = [leaf.request_index for leaf in signed.leaves]
            sent = self._by_words(stage, words, requests)
            if sent is not None:
                receipts[stage] = sent
                taken_back.append(signed)
        return taken_back

    async def _shown_by(self, stage: int, requests: Sequence[int]) -> SignedReceipt | str:
        found: SignedReceipt | str = self._refused.get(stage, "")
        if not found:
            found = await self._signed_by(stage, requests)
        if isinstance(found, SignedReceipt):
            return found
        words = list((await self.words_of(stage)).values())
        return self._by_words(stage, words, requests) or found

    async def _signed_by(self, stage: int, requests: Sequence[int]) -> SignedReceipt | str:
        question = wire.CloseJob(order_hash=self._order_hash, requests=list(requests))
        answer = await self._ask_one(stage, question)
        if not isinstance(answer, wire.Receipt):
            return _said(stage, answer)
        of = self._order, self._plan, stage
        wrong = check_receipt(*of, answer.signed, requests, self._domain)
        return answer.signed if wrong is None else f"stage {stage}: {wrong}"

    def _by_words(
        self, stage: int, words: Sequence[SignedWord], requests: Sequence[int]
    ) -> SignedReceipt | None:
        of = self._order, self._plan, stage
        return receipt_by_words(*of, words, requests, self._domain)

    async def _ask_one(self, stage: int, message: wire.AnyMessage) -> wire.AnyMessage | str:
        operator = self._plan[stage].operator
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(stage, message)
        except HeadraceError as error:
            return f"stage {stage} ({operator}): {error.why}"
        except TimeoutError:
            return f"stage {stage} ({operator}): no answer in {self._timeout_s:g} s"


def _said(stage: int, answer: wire.AnyMessage | str) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, wire.Failed):
        return f"stage {stage}: {answer.reason}"
    if isinstance(answer, wire.Finished):
        return f"stage {stage}: {len(answer.requests)} requests are finished"
    return f"stage {stage}: answered with {type(answer).__name__}"
