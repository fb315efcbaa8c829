"""How long does an answer pause when a machine of its pipeline dies, and is it the same answer?

Three stages with a replica each, in processes of their own, answer sixteen clients. In every round
one stage of the pipeline gets SIGKILL or SIGSTOP at some moment between the first token and the
last, and the product's client goes on by itself. Orders are matched without a chain.

`python -m benchmarks.engine.failover --rounds N --within S` prints the pauses of N rounds, or of
those that began within S seconds. A round that took too long is told step by step.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

from benchmarks.engine.rig.chain import FIRST_CLIENT_KEY, signer, spec_of
from benchmarks.engine.rig.fleet import Fleet
from benchmarks.engine.rig.market import Market, terms
from benchmarks.table import Row, table
from client.jobs.batch import Policy, Requester, run_batch
from client.orders.matchers import Matchers
from client.orders.orders import Prompt
from client.pipeline.pipeline import Match, PipelinePatience
from client.records.store import ClientStore
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import HeadraceError
from core.runtime import logs
from core.runtime.clock import SystemClock

STREAMS, PROMPT_TOKENS, NEW_TOKENS = 16, 216, 40
LAYERS, HIDDEN, CUTS = 6, 128, (2, 4)
IN_THE_MIDDLE = 4  # streams that have some of their tokens when a stage is hurt
ROUNDS = 100
KILLED, FROZEN = "killed", "frozen"
#: The longest pause between two tokens of a stream, in seconds.
REACH_S = {KILLED: 2.0, FROZEN: 3.0}
ROUND_S = 60.0
WITHIN_S = 1800.0
QUICK = {
    "STREAMS": 2,
    "PROMPT_TOKENS": 8,
    "NEW_TOKENS": 24,
    "LAYERS": 2,
    "HIDDEN": 32,
    "CUTS": (1,),
    "IN_THE_MIDDLE": 1,
    "ROUNDS": 1,
}


@dataclass
class Stream:
    """What one client sees (`client.jobs.batch.BatchWatcher`)."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    losses: list[tuple[float, str]] = field(default_factory=list)
    finish: str = ""
    jobs: int = 0
    story: list[tuple[float, str]] = field(default_factory=list)

    @property
    def longest_gap_s(self) -> float:
        return max(b - a for a, b in pairwise(self.times))

    def order_signed(self, order: t.Order, locked_units: int) -> None:
        self.story.append((time.monotonic(), "order signed"))

    def job_opened(self, match: Match) -> None:
        self.jobs += 1
        self.story.append((time.monotonic(), "matched"))

    def token(self, custom_id: str, step: int, token: int) -> None:
        if step != len(self.tokens):
            self.errors.append(f"token {step} came after {len(self.tokens)}")
        if not self.times or self.story[-1][1] == "matched":
            self.story.append((time.monotonic(), f"token {step}"))
        self.tokens.append(token)
        self.times.append(time.monotonic())

    def request_finished(self, custom_id: str, finish: str) -> None:
        self.finish = finish

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None:
        self.losses.append((time.monotonic(), str(reason)))
        self.story.append((time.monotonic(), f"lost: {reason}"))

    def was_interrupted(self, hurt_at: float) -> bool:
        """Whether it lost a pipeline that had given it tokens, once the stage was hurt."""
        first_at = self.times[0] if self.times else float("inf")
        return any(max(first_at, hurt_at) < lost_at for lost_at, _ in self.losses)

    def acknowledged(self, match: Match, paid_units: int) -> None: ...

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None:
        self.errors.append(f"not acknowledged: {reason}")


@dataclass(frozen=True)
class Round:
    """What one round came to: seconds without a token, and what went wrong."""

    how: str
    stage: int
    gaps_s: tuple[float, ...]
    errors: tuple[str, ...]
    took_s: float
    again: tuple[str, ...] = ()
    """Why streams that had gone on once broke once more."""
    story: tuple[str, ...] = ()
    """What happened to the stream that paused longest, in seconds since the stage was hurt."""

    @property
    def longest_gap_s(self) -> float:
        return max(self.gaps_s, default=float("inf"))


class Loads:
    """Sixteen clients that ask the same every time, each with a wallet and a store of its own."""

    def __init__(self, fleet: Fleet, market: Market, folder: Path) -> None:
        self._fleet, self._market, self._folder = fleet, market, folder
        self._spec = spec_of(fleet.model)
        self.expected: list[list[int]] = []

    async def run(self, victim: tuple[str, int] | None, after_tokens: int) -> Round:
        """Everybody's answers; the victim is hurt after so many tokens, some in mid-answer."""
        streams = [Stream() for _ in range(STREAMS)]
        began = time.monotonic()
        running = [
            asyncio.create_task(self._answer(number, stream))
            for number, stream in enumerate(streams)
        ]
        how, stage = victim or ("", -1)
        hurt_at = began
        try:
            async with asyncio.timeout(ROUND_S):
                if victim is not None:
                    member = self._market.plan()[stage]
                    while not _is_time(streams, after_tokens):
                        await asyncio.sleep(0.002)
                    hurt_at = time.monotonic()
                    if how == KILLED:
                        await member.kill()
                    else:
                        member.freeze()
                await asyncio.gather(*running)
        except TimeoutError:
            for stream in streams:
                if not stream.finish:
                    stream.errors.append(f"no end within {ROUND_S:g} s")
        finally:
            for task in running:
                task.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
        errors = [f"{e!r}" for e in ended if isinstance(e, Exception)]
        errors += self._faults(streams)
        if victim is not None and not any(stream.was_interrupted(hurt_at) for stream in streams):
            errors.append("no answer was interrupted")
        gaps = tuple(stream.longest_gap_s for stream in streams if len(stream.times) > 1)
        again = tuple(why for stream in streams for _, why in stream.losses[1:])
        took_s = time.monotonic() - began
        return Round(how, stage, gaps, tuple(errors), took_s, again, _story(streams, hurt_at))

    def _faults(self, streams: Sequence[Stream]) -> list[str]:
        found = [error for stream in streams for error in stream.errors]
        if not self.expected:
            self.expected = [stream.tokens for stream in streams]
        wrong = sum(s.tokens != e for s, e in zip(streams, self.expected, strict=True))
        if wrong:
            found.append(f"{wrong} answers are not the undisturbed ones")
        paid = sum(ack.tokens_out for ack in self._market.acks.values())
        given = sum(len(stream.tokens) for stream in streams)
        if paid != given:
            found.append(f"{paid} tokens are paid, {given} were given")
        return found

    async def _answer(self, number: int, stream: Stream) -> None:
        store = ClientStore(self._folder / f"client-{number}.sqlite")
        requester = Requester(
            self._market.chain,  # type: ignore[arg-type]
            Matchers([(self._market, None)]),  # type: ignore[list-item]
            signer(FIRST_CLIENT_KEY + number),
            store,
            SystemClock(),
            signing.model_id(self._spec),
            self._spec,
        )
        ids = tuple(
            10 + (7919 * number + 104_729 * j) % (self._spec.vocab - 10)
            for j in range(PROMPT_TOKENS)
        )
        sampling = t.SamplingParams(max_new_tokens=NEW_TOKENS)
        prompt = Prompt(str(number), ids, sampling, number.to_bytes(32, "big"))
        policy = Policy(terms_of=terms, limits=PipelinePatience(connect_s=2.0))
        result = await run_batch(requester, [prompt], policy, stream, f"round-{time.monotonic()}")
        for error in result.unfinished.values():
            raise error


def rows() -> list[Row]:
    """A row for stages that were killed, and one for those that were frozen."""
    measured = asyncio.run(_measure(ROUNDS, WITHIN_S))
    return [_row(how, [r for r in measured if r.how == how]) for how in REACH_S]


async def _measure(rounds: int, within_s: float) -> list[Round]:
    from devnet.models.tiny_models import write_tiny_model

    chance, measured = random.Random(7), []
    with tempfile.TemporaryDirectory(prefix="headrace-failover-") as scratch:
        model = write_tiny_model(Path(scratch) / "model", layers=LAYERS, hidden=HIDDEN)
        async with Fleet(model, CUTS) as fleet:
            market = Market(fleet)
            loads = Loads(fleet, market, Path(scratch))
            for turn in (0, 1, 0):  # every member has learnt its pace
                market.turn = turn
                calm = await loads.run(None, 0)
                market.forget()
                if calm.errors:
                    raise RuntimeError(f"the undisturbed run failed: {calm.errors[0]}")
            _say(f"undisturbed: longest pause {calm.longest_gap_s:.2f} s of {calm.took_s:.1f} s")
            ends_at = time.monotonic() + within_s
            for number in range(rounds):
                if time.monotonic() > ends_at:
                    _say(f"{within_s:g} s are over after {number} rounds")
                    break
                market.turn = number
                # Every stage dies and freezes equally often.
                victim = (
                    list(REACH_S)[number // len(fleet.ranges) % 2],
                    number % len(fleet.ranges),
                )
                after = chance.randrange(STREAMS, STREAMS * (NEW_TOKENS - 8))
                measured.append(await loads.run(victim, after))
                last = measured[-1]
                _say(
                    f"round {number + 1}: stage {last.stage} {last.how} after {after} tokens, "
                    f"longest pause {last.longest_gap_s:.2f} s, "
                    f"{'; '.join(last.errors) or 'no error'}"
                )
                if last.longest_gap_s > REACH_S[last.how] or last.errors:
                    _say("\n".join(f"  {line}" for line in last.story))
                for why, times in Counter(last.again).items():
                    _say(f"  {times} broke once more: {why}")
                market.forget()
                await fleet.heal()
            await market.close()
    return measured


def _is_time(streams: Sequence[Stream], after_tokens: int) -> bool:
    """Guessed tokens come many at once: a few answers may be whole before the others begin."""
    given = [len(stream.tokens) for stream in streams]
    in_the_middle = sum(0 < tokens < NEW_TOKENS for tokens in given)
    all_over = all(stream.finish for stream in streams)
    return all_over or (sum(given) >= after_tokens and in_the_middle >= IN_THE_MIDDLE)


def _story(streams: Sequence[Stream], hurt_at: float) -> tuple[str, ...]:
    """Of the stream that paused longest; of equal ones, that with most jobs."""
    slowest = max(
        (stream for stream in streams if len(stream.times) > 1),
        key=lambda stream: (round(stream.longest_gap_s, 1), stream.jobs),
        default=streams[0],
    )
    gap_s, at = max(
        ((b - a, a) for a, b in pairwise(slowest.times)), default=(float("inf"), hurt_at)
    )
    lines = [(at, f"the pause of {gap_s:.2f} s begins"), *slowest.story]
    return tuple(f"{when - hurt_at:+.2f} s {what}" for when, what in sorted(lines))


def _row(how: str, measured: Sequence[Round]) -> Row:
    reach_s = REACH_S[how]
    longest = [r.longest_gap_s for r in measured]
    errors = [error for r in measured for error in r.errors]
    said = f"; first error: {errors[0]}" if errors else ""
    return Row(
        f"any one of three stages {how} in mid-answer, {STREAMS} streams, "
        f"{len(measured)} times, longest pause",
        f"≤ {reach_s:g} s, tokens identical, 0 errors",
        f"{max(longest, default=0):.2f} s ({spread(longest)} s), {len(errors)} errors{said}",
        "Petals: never goes on",
        "0 s",
        bool(measured) and not errors and max(longest) <= reach_s,
    )


def spread(values: Sequence[float]) -> str:
    """Median and 90th percentile."""
    if len(values) < 2:
        return "one round"
    return f"median {median(values):.2f}, 90 % below {quantiles(values, n=10)[-1]:.2f}"


def by_stage(measured: Sequence[Round]) -> str:
    """The longest pauses of each kind of loss."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in measured:
        found[one.how, one.stage].append(one.longest_gap_s)
    return "\n".join(
        f"{how} stage {stage}: {len(gaps)} rounds, {spread(gaps)}, longest {max(gaps):.2f} s"
        for (how, stage), gaps in sorted(found.items())
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Measure as many rounds as asked; 1 when the reach is missed."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--rounds", type=int, default=ROUNDS)
    asked.add_argument("--within", type=float, default=WITHIN_S, help="begin no round later [s]")
    chosen = asked.parse_args()
    measured = asyncio.run(_measure(chosen.rounds, chosen.within))
    found = [_row(how, [r for r in measured if r.how == how]) for how in REACH_S]
    print(by_stage(measured), table(found), sep="\n")
    return 0 if all(row.reached for row in found) else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    logs.set_up("failover", level="error")
    sys.exit(main())
