"""What is left of each answer when a pipeline breaks, and what does it go on from?

The next order's prompt is the first one's and the tokens so far; it draws on with the noise of the
first order from the step reached (`docs/protocol.md` §8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from client.orders.orders import Prompt
from client.pipeline.pipeline import Logprobs, PipelineOutcome, RequestState
from core.protocol import wire


@dataclass
class Ongoing:
    """One answer on its way through as many jobs as it takes."""

    prompt: Prompt
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs | None] = field(default_factory=list)
    key_index: int | None = None
    place: tuple[str, int] | None = None  # the newest order that it was part of, its index there
    shown: int = 0  # tokens that the reader has

    @property
    def left_tokens(self) -> int:
        """The most that may still come."""
        return self.prompt.sampling.max_new_tokens - len(self.tokens)

    def next_prompt(self, random_bytes: Callable[[int], bytes]) -> Prompt:
        """What the next order asks for."""
        if self.key_index is None:
            return self.prompt
        sampling = msgspec.structs.replace(
            self.prompt.sampling,
            max_new_tokens=self.left_tokens,
            key_index=self.key_index,
            first_step=len(self.tokens),
        )
        ids = (*self.prompt.ids, *self.tokens)
        return Prompt(self.prompt.custom_id, ids, sampling, random_bytes(32))

    def whole(self, last: RequestState) -> RequestState:
        """The answer as if one job had given it, once its last part is here."""
        return replace(
            last,
            failure=None,
            prompt_ids=self.prompt.ids,
            max_new_tokens=self.prompt.sampling.max_new_tokens,
            tokens=[*self.tokens, *last.tokens],
            logprobs=[*self.logprobs, *last.logprobs],
        )


def continues(answers: Sequence[Ongoing]) -> wire.Continues | None:
    """What a new order of these answers goes on with, None where it goes on with nothing.

    Stages know the orders before that one, so the newest is enough; answers of other orders begin
    again from their tokens.
    """
    places = [answer.place for answer in answers if answer.place is not None]
    if not places:
        return None
    newest = places[-1][0]
    return wire.Continues(
        order_hash=newest,
        requests=[
            answer.place[1] if answer.place is not None and answer.place[0] == newest else None
            for answer in answers
        ],
    )


def go_on(
    answers: Sequence[Ongoing], outcome: PipelineOutcome, order_hash: str
) -> tuple[list[Ongoing], dict[int, RequestState]]:
    """Of a job's answers those to order anew, and by index those that are whole, signed or not."""
    left, whole = [], dict(outcome.finished)
    for index, answer in enumerate(answers):
        part = outcome.begun.get(index)
        if index in outcome.finished:
            continue
        if part is not None and _is_whole(part):
            whole[index] = part
            continue
        left.append(answer)
        if not outcome.was_opened:
            continue
        if answer.key_index is None:
            given = answer.prompt.sampling.key_index
            answer.key_index = index if given is None else given
        if part is not None:
            answer.tokens += part.tokens
            answer.logprobs += part.logprobs
        answer.place = (order_hash, index)
    return left, whole


def _is_whole(part: RequestState) -> bool:
    """Whether an answer has all its tokens: it is shown, receipts or not."""
    return part.finish == "stop" or len(part.tokens) >= part.max_new_tokens
