"""What may still begin in a session, when is the next one opened, and when is it over?

    OPEN ── retire ──▶ RETIRED ──┐
      └─────── break_off ───────▶ BROKEN ── end ──▶ ENDED
              RETIRED ── break_off ──▲   RETIRED ── end ──▲

A session is an open order with a pipeline. OPEN takes requests; RETIRED takes none and lets those
that run come to their end; BROKEN has lost a stage. A move gives the next value, or raises
ValueError where it cannot be made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Life(StrEnum):
    """Where a session stands; the last is final."""

    OPEN = "open"
    RETIRED = "retired"
    BROKEN = "broken"
    ENDED = "ended"


#: The next session is opened when less than this share of tokens, requests or time is left.
LOW_SHARE = 0.25
#: In its last part, at most this long, a session takes nothing new: the rest must still be paid.
LAST_SHARE, LAST_S = 0.2, 60


@dataclass(frozen=True)
class SessionBudget:
    """What an open order allows in all, and the chain times between which it lives."""

    requests: int
    tokens_in: int
    tokens_out: int
    in_flight: int
    opened_s: int
    deadline_s: int

    @property
    def last_call_s(self) -> int:
        """From when on nothing new begins."""
        length_s = self.deadline_s - self.opened_s
        return self.deadline_s - min(LAST_S, int(length_s * LAST_SHARE))


@dataclass(frozen=True)
class Use:
    """How much of a budget is used; a running request counts for the most that it may take."""

    life: Life = Life.OPEN
    begun: int = 0
    running: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    idle_since_s: float = 0.0


def has_room(use: Use, budget: SessionBudget, tokens_in: int, most_out: int, now_s: float) -> bool:
    """Whether a request of this size may begin once there is a free slot."""
    return (
        use.life is Life.OPEN
        and use.begun < budget.requests
        and use.tokens_in + tokens_in <= budget.tokens_in
        and use.tokens_out + most_out <= budget.tokens_out
        and now_s < budget.last_call_s
    )


def has_slot(use: Use, budget: SessionBudget) -> bool:
    """Whether one more request may run at once."""
    return use.running < budget.in_flight


def begin(use: Use, budget: SessionBudget, tokens_in: int, most_out: int, now_s: float) -> Use:
    """A request begins. Its index is `use.begun`."""
    if not (has_room(use, budget, tokens_in, most_out, now_s) and has_slot(use, budget)):
        raise ValueError(f"a request of {tokens_in} and {most_out} tokens cannot begin in {use}")
    return replace(
        use,
        begun=use.begun + 1,
        running=use.running + 1,
        tokens_in=use.tokens_in + tokens_in,
        tokens_out=use.tokens_out + most_out,
    )


def end_request(use: Use, promised: tuple[int, int], took: tuple[int, int], now_s: float) -> Use:
    """A request that was promised so many tokens in and out has taken fewer, and runs no more."""
    if use.running < 1 or took[0] > promised[0] or took[1] > promised[1]:
        raise ValueError(f"no running request can have taken {took} of {promised} in {use}")
    return replace(
        use,
        running=use.running - 1,
        tokens_in=use.tokens_in - promised[0] + took[0],
        tokens_out=use.tokens_out - promised[1] + took[1],
        idle_since_s=now_s,
    )


def is_low(use: Use, budget: SessionBudget, now_s: float) -> bool:
    """Whether the next session should be opened, so that no request waits for it."""
    left = (
        1 - use.begun / budget.requests,
        1 - use.tokens_in / budget.tokens_in,
        1 - use.tokens_out / budget.tokens_out,
        (budget.last_call_s - now_s) / max(1, budget.last_call_s - budget.opened_s),
    )
    return use.life is not Life.OPEN or min(left) < LOW_SHARE


def is_spent(use: Use, budget: SessionBudget, now_s: float) -> bool:
    """Whether not even the smallest request may begin any more."""
    return not has_room(use, budget, 1, 1, now_s)


def is_idle(use: Use, now_s: float, idle_s: float) -> bool:
    """Whether no request has run for so long."""
    return not use.running and now_s - use.idle_since_s >= idle_s


def retire(use: Use) -> Use:
    """Take nothing new. Repeating it changes nothing."""
    if use.life is Life.ENDED:
        raise ValueError("an ended session cannot be retired")
    return replace(use, life=Life.RETIRED) if use.life is Life.OPEN else use


def break_off(use: Use) -> Use:
    """A stage is lost: nothing runs here any more."""
    return use if use.life is Life.ENDED else replace(use, life=Life.BROKEN)


def end(use: Use) -> Use:
    """It is paid for and closed."""
    if use.life is Life.OPEN or use.running:
        raise ValueError(f"a session that may still work cannot be ended: {use}")
    return replace(use, life=Life.ENDED)
