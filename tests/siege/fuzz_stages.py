"""Does any message make a miner do else than answer, refuse by name or hang up, within a second?

`python -m tests.siege.fuzz_stages --inputs 100000` says what was found. Three machines serve an
honest requester while peers of every standing send them changed messages through real streams, in
rounds: each has two open jobs of a hostile requester, and ends with their settlement. An input
depends on the seed and its number alone, and what it meets on the inputs before it in its round:
`--first` begins with the round of that number.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.orders.orders import Prompt
from core.keys.signer import Signer
from core.protocol import types as t
from core.protocol import wire
from core.protocol.errors import HeadraceError, PeerUnreachable, WireError
from core.protocol.types import JobState
from core.runtime.network.channel import Answer, Channel, StreamIdentity, connect
from devnet.models.tiny_models import write_tiny_model
from miner.chain.admission import ACCEPTANCE_S
from miner.chain.onchain import JobNews
from miner.serving.job_table import HELD_S, MAX_HELD
from tests.miner.test_open_orders import Asker
from tests.siege.alarms import Alarms
from tests.siege.stage_inputs import PROMPTS, SAID_BY, Input, Topic, make_input
from tests.town.chain import PREPAID, FakeChain
from tests.town.machines import Machine, greedy, reference
from tests.town.orders import DOMAIN, MATCHER, key
from tests.town.requester import Requester

HONEST, HOSTILE, STRANGER = key(50), key(51), key(61)
CUTS = ((0, 1), (1, 3), (3, 4))
ROUND = 250
MOST_S, MOST_GROWTH_BYTES, MOST_FINDINGS = 1.0, 64 * 2**20, 20
#: So long an answer may be on its way: strangers who ask for rows have the chain looked at, in
#: turn, once a second.
ANSWER_S, SOON_S = 30.0, 0.02
TICK_S = 0.25
KV_BYTES = 4 * 2**20
#: Rounds after which the memory has grown to what it takes to serve.
WARM_ROUNDS = 2
TYPED = re.compile(r"E-(?!BUG)[A-Z]+(-[A-Z0-9]+)+")
UNREADABLE = ("MalformedMessage", "FrameTruncated", "VersionUnknown")
ANSWERS: dict[str, type[wire.AnyMessage]] = {
    "Ping": wire.Pong,
    "Allocate": wire.Allocated,
    "Propose": wire.Accepted,
    "Withdraw": wire.ProposalWithdrawn,
    "OpenJob": wire.JobOpened,
    "Submit": wire.Submitted,
    "GoesOn": wire.Submitted,
    "Carry": wire.Carried,
    "Cut": wire.Receipt,
    "Progress": wire.Finished,
    "CloseJob": wire.Receipt,
    "FetchOpening": wire.Opening,
    "FetchRows": wire.Rows,
    "FetchReceipts": wire.Receipts,
    "ShowNode": wire.Differs,
    "FetchFile": wire.FileBytes,
}
NEW_TOKENS = 12
HONEST_PROMPTS = [(5 + number, 6, 7) for number in range(5)]


@dataclass
class StageReport:
    """What came of all inputs."""

    inputs: int = 0
    honest: int = 0  # answers of the honest requester that were right
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    growth_bytes: int = 0
    slowest: tuple[float, str] = (0.0, "")

    def lines(self) -> list[str]:
        """For people."""
        most = [f"{count:8} {outcome}" for outcome, count in self.outcomes.most_common()]
        return [
            *most,
            f"{self.inputs} inputs, {self.honest} honest answers, {len(self.findings)} findings",
            f"{self.growth_bytes / 2**20:.1f} MiB more, slowest {self.slowest[0]:.3f} s: "
            f"{self.slowest[1]}",
        ]


class SessionAsker(Asker):
    """A requester whose session is as long as an order may be."""

    told_in = told_out = 0

    def prompt(self, index: int, ids: tuple[int, ...] = (5, 6, 7), new: int = 4) -> None:
        salt = index.to_bytes(32, "big")
        self.prompts[index] = Prompt(str(index), ids, greedy(new), salt)


class StageFuzz:
    """Machines, an honest requester of them, and peers of every standing."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.report = StageReport()
        self._folder, self._seed = folder, seed
        self._alarms = Alarms()
        prepaid = dict.fromkeys((HONEST.address, HOSTILE.address), PREPAID)
        self._chain = FakeChain(prepaid=prepaid)
        self._machines: list[Machine] = []
        self._right: list[tuple[tuple[int, ...], list[int]]] = []
        self._channels: dict[tuple[str, int], Channel] = {}
        #: Calls whose answer a machine has ready, or none at all.
        self._ready: dict[tuple[str, int], Answer] = {}
        self._late: list[tuple[str, Input, asyncio.Future[wire.Frame | None]]] = []
        self._unreadable = 0  # bodies that we sent
        self._at_first_bytes = 0

    async def run(self, inputs: int, first: int = 0) -> None:
        """Rounds of inputs, and what they leave behind."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._alarms.on())
            await self._start(stack)
            begin = first // ROUND * ROUND
            for number in range(begin, begin + inputs, ROUND):
                await self._round(number, min(ROUND, begin + inputs - number))
                if len(self.report.findings) >= MOST_FINDINGS:
                    break
            await self._leave()

    # --- who is there ---

    async def _start(self, stack: AsyncExitStack) -> None:
        model_dir = write_tiny_model(self._folder / "tiny", "llama", layers=4)
        for number, (a, b) in enumerate(CUTS):
            machine = Machine(key(100 + number), self._folder, model_dir, self._chain)
            await machine.start(t.LayerRange(a, b), kv_bytes=KV_BYTES, max_requests=64)
            stack.push_async_callback(machine.stop)
            self._watch(machine)
            self._machines.append(machine)
        self._right = [
            (ids, reference(model_dir, ids, greedy(NEW_TOKENS), 0))  # any index: no noise is drawn
            for ids in HONEST_PROMPTS
        ]
        self._honest = SessionAsker(HONEST, self._chain, self._machines)
        self._honest.open_order(requests=wire.MAX_REQUESTS, tokens_in=10**6, tokens_out=10**6)
        await self._honest.begin()
        stack.push_async_callback(self._honest.close)
        ticking = asyncio.create_task(self._tick())
        stack.callback(ticking.cancel)

    async def _tick(self) -> None:
        """As a daemon does, and more often, since a round is short."""
        while True:
            await asyncio.sleep(TICK_S)
            for machine in self._machines:
                machine.stage.tick()

    def _watch(self, machine: Machine) -> None:
        """As in a daemon strangers are bound; calls that are answered are noted."""
        handle = machine.stage.handle

        async def noted(channel: Channel, frame: wire.Frame) -> Answer:
            answer: Answer = None
            try:
                answer = await handle(channel, frame)
                return answer
            finally:
                self._ready[channel.peer, frame.id] = answer

        def standing() -> frozenset[str]:
            jobs = machine.table.jobs.values()
            parties = {who for job in jobs for who in (*job.payers, job.proposer.lower())}
            return frozenset(
                parties | {stage.operator.lower() for job in jobs for stage in job.stored.plan}
            )

        machine.listener._handler, machine.listener._standing = noted, standing

    def _signer(self, by: str, stage: int) -> Signer:
        machines = self._machines
        keys = {"stranger": STRANGER, "matcher": MATCHER, "requester": HOSTILE}
        keys["before"] = machines[stage - 1].signer
        keys["after"] = machines[(stage + 1) % len(machines)].signer
        return keys[by]

    async def _channel(self, by: str, stage: int) -> Channel:
        channel = self._channels.get((by, stage))
        if channel is None or not channel.is_open:
            machine = self._machines[stage]
            channel = self._channels[by, stage] = await connect(
                machine.endpoint,
                StreamIdentity(self._signer(by, stage), DOMAIN),
                expected=machine.signer.address,
                handler=self._hear,
            )
        return channel

    async def _hear(self, channel: Channel, frame: wire.Frame) -> Answer:
        self.report.outcomes[f"told {type(frame.message).__name__}"] += 1
        return wire.Pong() if isinstance(frame.message, wire.Ping) else None

    # --- a round ---

    async def _round(self, number: int, inputs: int) -> None:
        jobs = [await self._hostile_job(number, kind) for kind in ("session", "batch")]
        topic = Topic(jobs[0], jobs[1], self._machines, 0, 0, STRANGER.address)
        honest = asyncio.create_task(self._ask_honestly())
        for at in range(number, number + inputs):
            made = make_input(jobs, topic, at, self._seed)
            await self._try(f"{self._seed} {at} {made.kind} of {made.by}", made)
        self.report.inputs += inputs
        await self._await_late()
        await honest
        await self._settle(jobs)
        self._look_at_growth(number // ROUND)

    async def _hostile_job(self, number: int, kind: str) -> Requester:
        """Opened as it should be, and three requests of it under way."""
        job: Requester
        if kind == "batch":
            job = Requester(HOSTILE, self._chain, self._machines)
            job.order(PROMPTS, nonce=2 * number + 1)
        else:
            job = SessionAsker(HOSTILE, self._chain, self._machines)
            job.open_order(terms=t.Terms.of(8), requests=64, nonce=2 * number)
            for index, (ids, sampling) in enumerate(PROMPTS):
                job.prompts[index] = Prompt(str(index), ids, sampling, bytes([index]) * 32)
        for accepted in await job.propose(MATCHER):
            assert isinstance(accepted, wire.Accepted), accepted
        job.match()
        for opened in await job.open():
            assert isinstance(opened, wire.JobOpened), opened
        for index in range(3):
            for answer in await job.submit(index):
                assert isinstance(answer, wire.Submitted), answer
        return job

    async def _ask_honestly(self) -> None:
        honest = self._honest
        index = len(honest.prompts)
        ids, right = self._right[index % len(self._right)]
        try:
            for answer in await honest.ask(index, ids=ids, new=len(right)):
                assert isinstance(answer, wire.Submitted), answer
            await honest.finished([index])
            assert honest.tokens[index] == right, (honest.tokens[index], right)
            honest.told_in, honest.told_out = (
                honest.told_in + len(ids),
                honest.told_out + len(right),
            )
            await honest.acknowledge(honest.told_in, honest.told_out)
            self.report.honest += 1
        except (AssertionError, HeadraceError, TimeoutError) as error:
            self._find(f"honest request {index}", f"{type(error).__name__}: {error}")

    async def _settle(self, jobs: Sequence[Requester]) -> None:
        """The hostile peers leave, and the chain closes their jobs."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        for job in jobs:
            await job.close()
            for machine in self._machines:
                await machine.table.hear(JobNews(job.job_id, JobState.SETTLED))
                machine.offset_s += HELD_S
            del self._chain.jobs[job.job_id]
        self._chain.reads.clear()
        gone = {job.order_hash for job in jobs}
        await self._until(
            f"the round of {jobs[0].signed.order.nonce // 2}",
            lambda: [
                f"{len(job.runs)} runs of {order_hash[:10]} at {machine.layers}"
                for machine in self._machines
                for order_hash, job in machine.table.jobs.items()
                if order_hash in gone
            ],
        )

    async def _until(self, what: str, left: Any) -> None:
        """A finding unless nothing is left soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while left():
                    for machine in self._machines:
                        machine.stage.tick()
                    await asyncio.sleep(0.01)
                return
        self._find(what, f"left behind: {left()}")

    # --- an input ---

    async def _try(self, name: str, made: Input) -> None:
        began = time.process_time()
        channel = await self._channel(made.by, made.stage)
        awaited = self._await_answer(channel, made.body)
        is_open = await self._passes(channel, made.body)
        took_s = time.process_time() - began
        if took_s > self.report.slowest[0]:
            self.report.slowest = took_s, name
        if took_s > MOST_S:
            self._find(name, f"{took_s:.1f} s", made.body)
        if isinstance(awaited, str):
            self.report.outcomes[awaited if is_open else "the stream ended"] += 1
        else:
            await self._judge(name, made, channel, *awaited)
        self._look_at_alarms(name, made.body)

    def _await_answer(
        self, channel: Channel, body: bytes
    ) -> tuple[int, asyncio.Future[wire.Frame | None]] | str:
        """Of a call its number, and what will be its answer; else why there will be none."""
        try:
            frame = wire.unbundle(wire.decode(body))[0]
        except WireError:
            self._unreadable += 1
            return "unreadable"
        if frame.re or not frame.id:
            return "a push, taken or passed over"
        self._ready.clear()
        answer: asyncio.Future[wire.Frame | None] = asyncio.get_running_loop().create_future()
        channel._waiting[frame.id] = answer
        return frame.id, answer

    async def _passes(self, channel: Channel, body: bytes) -> bool:
        """Whether the stream goes on after this body, all that it pushed having been handled."""
        try:
            await channel._send_body(body)
            await channel.call(wire.Ping(), timeout_s=ANSWER_S)
            return True
        except PeerUnreachable as error:
            if channel.is_open:
                self._find("a Ping", str(error), body)
                await channel.close()
            return False

    async def _judge(
        self,
        name: str,
        made: Input,
        channel: Channel,
        call: int,
        answer: asyncio.Future[wire.Frame | None],
    ) -> None:
        until = time.monotonic() + SOON_S
        ready = (self._signer(made.by, made.stage).address, call)
        while not answer.done() and ready not in self._ready and time.monotonic() < until:
            await asyncio.sleep(0.001)
        if ready in self._ready and self._ready[ready] is None and not answer.done():
            channel._waiting.pop(call, None)
            self.report.outcomes["a call without an answer"] += 1
        elif answer.done():
            self._judge_answer(name, made, answer.result())
        else:
            self._late.append((name, made, answer))

    def _judge_answer(self, name: str, made: Input, frame: wire.Frame | None) -> None:
        if frame is None:
            self.report.outcomes["the stream ended"] += 1
            return
        message, kind = frame.message, made.kind
        with suppress(WireError):
            kind = type(wire.decode(made.body).message).__name__
        if isinstance(message, wire.Failed):
            self.report.outcomes[message.code] += 1
            if not TYPED.fullmatch(message.code):
                self._find(name, f"{message.code}: {message.reason}", made.body)
            return
        self.report.outcomes[type(message).__name__] += 1
        if type(message) is not ANSWERS.get(kind):
            self._find(name, f"{type(message).__name__} is no answer to {kind}", made.body)

    async def _await_late(self) -> None:
        for name, made, answer in self._late:
            try:
                async with asyncio.timeout(ANSWER_S):
                    self._judge_answer(name, made, await answer)
            except TimeoutError:
                self._find(name, f"no answer within {ANSWER_S:g} s", made.body)
        self._late.clear()

    # --- what was found ---

    def _find(self, name: str, what: str, body: bytes = b"") -> None:
        if len(self.report.findings) < MOST_FINDINGS:
            shown = f"; {body[:160]!r}" if body else ""
            self.report.findings.append(f"{name}: {what[-1_500:]}{shown}")

    def _look_at_alarms(self, name: str, body: bytes = b"") -> None:
        for heard in self._alarms.take():
            self._find(name, heard, body)

    def _look_at_growth(self, rounds: int) -> None:
        if rounds % 10 == 0:
            self._alarms.collect()
        self._look_at_alarms(f"the round of {rounds * ROUND}")
        if not self._at_first_bytes or rounds < WARM_ROUNDS:
            self._at_first_bytes = _resident_bytes()
        self.report.growth_bytes = _resident_bytes() - self._at_first_bytes
        if self.report.growth_bytes > MOST_GROWTH_BYTES:
            self._find(f"the round of {rounds * ROUND}", f"{self.report.growth_bytes} bytes more")
            self._at_first_bytes += self.report.growth_bytes
        heard = sum(
            machine.listener.stats.counts[e] for machine in self._machines for e in UNREADABLE
        )
        if heard > self._unreadable:
            self._find(f"the round of {rounds * ROUND}", "a machine sent what none can read")
            self._unreadable = heard
        for machine in self._machines:
            if (jobs := len(machine.table.jobs)) > MAX_HELD + 1:
                self._find(f"the round of {rounds * ROUND}", f"{jobs} jobs at {machine.layers}")

    async def _leave(self) -> None:
        """Everything is as it was before the hostile peers came, and the honest one is served."""
        await self._chain.clock.advance(ACCEPTANCE_S + 1)
        for machine in self._machines:
            await machine.chain.refresh_time()
        await self._until("the end", lambda: [w for m in self._machines for w in self._left_at(m)])
        await self._ask_honestly()
        for stage in range(len(self._machines)):
            for by in SAID_BY:
                channel = await self._channel(by, stage)
                answer = (await channel.call(wire.Ping())).message
                if not isinstance(answer, wire.Pong):
                    self._find("the end", f"{answer} is no answer to Ping")
                await channel.close()
        self._alarms.collect()
        await asyncio.sleep(0)
        self._look_at_alarms("the end")

    def _left_at(self, machine: Machine) -> list[str]:
        table, stage, honest = machine.table, machine.stage, self._honest.order_hash
        theirs = [peer for peer in table._asked if peer]
        counts = {
            "jobs": len(table.jobs.keys() - {honest}),
            "runs": sum(len(job.runs) for job in table.jobs.values()),
            "requests in compute": machine.compute.requests,
            "positions in compute": machine.compute.kv_tokens,
            "proposers": len(theirs),
            "tasks": len(stage._background),
            "streams of strangers": sum(
                channel.peer in (STRANGER.address, HOSTILE.address)
                for channel in machine.listener.channels
            ),
        }
        return [f"{count} {what} at {machine.layers}" for what, count in counts.items() if count]


def _resident_bytes() -> int:
    gc.collect(1)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def fuzz_stages(folder: Path, *, inputs: int, seed: int, first: int = 0) -> StageReport:
    """What came of so many inputs, from the round of number `first` on."""
    fuzzed = StageFuzz(folder, seed)
    await fuzzed.run(inputs, first)
    return fuzzed.report


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--inputs", type=int, default=100_000)
    arguments.add_argument("--first", type=int, default=0, help="an input of the first round")
    arguments.add_argument("--seed", type=int, default=0)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(
            fuzz_stages(Path(folder), inputs=asked.inputs, seed=asked.seed, first=asked.first)
        )
    print(*report.findings, *report.lines(), sep="\n", file=sys.stdout)
    return bool(report.findings)


if __name__ == "__main__":
    raise SystemExit(main())
