"""Real miners on loopback, the real client, and between them a matcher and a chain that are
dictionaries.

Machines can be killed and frozen. Money is counted as the contracts count it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from client.jobs.batch import BatchResult, Policy, Requester, run_batch
from client.orders.matcher_api import Goes
from client.orders.orders import OrderTerms, Prompt
from client.pipeline.pipeline import Match, PipelinePatience
from client.records.store import ClientStore
from core.engine.sampling.sampler import Sampler
from core.engine.weights.weights import model_manifest
from core.money import pricing
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.errors import HeadraceError, NoCapacity
from core.runtime.clock import SystemClock
from core.runtime.network.channel import Channel, Peers, StreamIdentity
from core.runtime.network.pulse import Beat
from miner.chain.onchain import JobOnChain
from miner.compute.compute import Key, RequestSpec
from tests.miner.network import ARBITRATOR, DOMAIN, FakeChain, Machine, key, reference

MATCHER, REQUESTER = key(40), key(50)
FEE_BPS = 200
PRICE_IN, PRICE_OUT = 1_000_000_003, 2_000_000_011  # nano base units: nothing divides evenly
PREPAID = 10**12
Moment = Callable[[Sequence["Mortal"]], Awaitable[None]]
"""What happens then to the machines of the plan."""


class Mortal(Machine):
    """A miner that can be killed and frozen, as other processes see it."""

    is_dead = False
    goes_on: threading.Event | None = None

    def _channels(self) -> list[Channel]:
        assert self.stage._neighbours is not None
        pulses = self.stage._neighbours._peers
        dialled = [*self.peers._channels.values(), *pulses._channels.values()]
        return [*self.listener.channels, *dialled]

    async def kill(self) -> None:
        """As kill −9: every stream breaks at once, nobody listens any more."""
        self.is_dead = True
        self.listener._server.close()
        for channel in self._channels():
            channel._writer.transport.abort()

    def slow_down(self, seconds: float) -> None:
        """Every step takes so much longer."""
        engine = self.compute._engine
        assert engine is not None
        step = engine.step

        def slow(*pieces: Any, **options: Any) -> Any:
            time.sleep(seconds)
            return step(*pieces, **options)

        engine.step = slow  # type: ignore[method-assign]

    async def freeze(self) -> None:
        """As SIGSTOP: streams stay open and nothing is read or written.

        The kernel still takes connections.
        """
        self.is_dead = True
        goes_on = asyncio.Event()
        welcome = self.listener._welcome

        async def hang(*streams: Any) -> Channel | None:
            await goes_on.wait()
            return await welcome(*streams)

        self.listener._welcome = hang  # type: ignore[method-assign]
        neighbours = self.stage._neighbours
        assert neighbours is not None
        lost, neighbours.on_lost = (
            neighbours.on_lost,
            lambda *_: None,
        )  # it sleeps, and hears nobody
        frozen = self._channels()
        for channel in frozen:
            await channel._send_lock.acquire()
            channel._writer.transport.pause_reading()

        def thaw() -> None:
            self.listener._welcome = welcome  # type: ignore[method-assign]
            goes_on.set()
            neighbours.on_lost = lost
            for channel in frozen:
                channel._send_lock.release()
                if channel.is_open:
                    channel._writer.transport.resume_reading()

        self._thaw = thaw

    def thaw(self) -> None:
        """As SIGCONT: what was about to leave leaves now, what came meanwhile is read."""
        self.is_dead = False
        self._thaw()

    def hang(self) -> None:
        """The compute thread stays in its next step, while the network side goes on."""
        engine = self.compute._engine
        assert engine is not None
        step, self.goes_on = engine.step, threading.Event()

        def hanging(*pieces: Any, **options: Any) -> Any:
            self.goes_on.wait()
            return step(*pieces, **options)

        engine.step = hanging  # type: ignore[method-assign]

    @contextmanager
    def held(self, tokens: int, makes_room: Callable[[Key], None]) -> Iterator[None]:
        """Inside, a last stage draws no answer's token from number `tokens` on.

        `makes_room` is told which request waits: others round its ring are not to wait for it.
        """
        compute, ends = self.compute, asyncio.Event()

        def after_it(draw: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def waits(
                request: RequestSpec, x: Any, sampler: Sampler, *more: Any, **how: Any
            ) -> Any:
                if sampler.step >= tokens and not ends.is_set():
                    makes_room(request.key)
                    await ends.wait()
                return await draw(request, x, sampler, *more, **how)

            return waits

        compute.token, compute.tokens = (  # type: ignore[method-assign]
            after_it(compute.token),
            after_it(compute.tokens),
        )
        try:
            yield
        finally:
            del compute.token, compute.tokens
            ends.set()

    async def stop(self) -> None:
        if self.goes_on is not None:
            self.goes_on.set()
        await super().stop()

    def reset(self, peer: str | None = None) -> int:
        """Break the streams that others opened to us, all or those of one peer, as a network may;
        says how many.
        """
        broken = [c for c in self.listener.channels if peer is None or c.peer == peer]
        for channel in broken:
            channel._writer.transport.abort()
        return len(broken)


@dataclass
class Ledger:
    """Base units by account, as Escrow has them."""

    prepaid: int = PREPAID
    locked: dict[str, int] = field(default_factory=dict)
    credit: Counter[str] = field(default_factory=Counter)


class ClientChain:
    """The reads of a requester."""

    chain_id = DOMAIN.chain_id
    domain = DOMAIN
    addresses = {"Escrow": "0x" + "ee" * 20, "JuryArbitrator": ARBITRATOR}

    def __init__(self, chain: FakeChain, ledger: Ledger, model_dir: Path) -> None:
        self._chain, self._ledger = chain, ledger
        self._manifest = model_manifest(model_dir)

    async def now(self) -> int:
        return self._chain.clock_s

    async def read(self, contract: str, function: str, *args: Any) -> Any:
        match f"{contract}.{function}":
            case "TaskRegistry.jobOf":
                found = self._chain.jobs.get(args[0])
                return {"state": int(found.state), "planHash": found.plan_hash} if found else None
            case "ModelRegistry.shardRoot":
                return commit.to_hex(self._manifest.shard_root(args[1], args[2]))
            case "Escrow.balanceOf":
                return self._ledger.prepaid
            case "TestUSD.balanceOf":
                return 0
        raise AssertionError(f"unexpected read {contract}.{function}")


class Town:
    """Machines, matcher, chain, requester."""

    def __init__(self, folder: Path, model_dir: Path) -> None:
        self.folder, self.model_dir = folder, model_dir
        self.ledger = Ledger()
        self.chain = FakeChain(balances={REQUESTER.address: PREPAID})
        self.machines: list[Mortal] = []
        self.matches: list[Match] = []
        self.goes: list[Goes | None] = []
        self.acks: dict[str, t.Ack] = {}
        #: Between the stages' acceptances and the transaction, and between that and the client's
        #: first stream.
        self.while_matching: Moment | None = None
        self.when_matched: Moment | None = None
        self._born = self._begun = 0
        self._tending: asyncio.Task[None] | None = None
        self._peers = Peers(StreamIdentity(MATCHER, DOMAIN))

    async def start(self, *cuts: tuple[int, int], **options: Any) -> list[Mortal]:
        prices = {"price_in": PRICE_IN, "price_out": PRICE_OUT}
        new = [
            Mortal(key(100 + self._born + i), self.folder, self.model_dir, self.chain)
            for i in range(len(cuts))
        ]
        self._born += len(cuts)
        self.machines += new
        async with asyncio.TaskGroup() as group:
            for machine, cut in zip(new, cuts, strict=True):
                group.create_task(machine.start(t.LayerRange(*cut), **prices, **options))
        return self.machines

    def tend(self) -> None:
        """From now on every machine that is awake looks at its clock, as the daemons do."""

        async def tick() -> None:
            while True:
                for machine in self.machines:
                    if not machine.is_dead:
                        machine.stage.tick()
                await asyncio.sleep(1.0)

        self._tending = asyncio.create_task(tick())

    def next_plan(self) -> list[Mortal]:
        """Who will serve what is asked next."""
        return self._route(set(), None)

    async def replace(self, machine: Mortal) -> None:
        """The owner of a dead machine takes it away and puts up a new one, with a key of its
        own.
        """
        self.machines.remove(machine)
        await machine.stop()
        await self.start((machine.layers.start, machine.layers.end))

    def forget(self) -> None:
        """Of all jobs and their money, between one scene and the next.

        The machines stay as they are.
        """
        self.matches.clear()
        self.goes.clear()
        self.acks.clear()
        self.ledger = Ledger()
        self.chain.balances[REQUESTER.address] = PREPAID

    async def close(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
        await self._peers.close()
        for machine in self.machines:
            for channel in machine._channels():
                if channel._send_lock.locked():
                    channel._send_lock.release()
            await machine.stop()

    @property
    def spec(self) -> t.ModelSpec:
        return self.machines[0].terms.spec

    def machine(self, operator: str) -> Mortal:
        return next(m for m in self.machines if m.signer.address == operator)

    # --- the matcher ---

    async def open_job(
        self, signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        self.goes.append(goes_on)
        excluded = set(goes_on.lost) if goes_on else set()
        before = self._match_of(goes_on.continues) if goes_on else None
        while True:
            plan = self._route(excluded, before)
            refused = await self._propose(signed, plan, before)
            if not refused:
                break
            excluded |= refused
        moment, self.while_matching = self.while_matching, None
        if moment is not None:
            await moment(plan)
        job_id = signing.job_id(domain, signed.order)
        stages = self._plan(plan)
        locked = pricing.max_amount(signed.order, self.spec)
        assert locked <= self.ledger.prepaid
        self.ledger.prepaid -= locked
        self.ledger.locked[job_id] = locked
        self.chain.balances[REQUESTER.address] = self.ledger.prepaid
        self.chain.jobs[job_id] = JobOnChain(t.JobState.MATCHED, signing.plan_hash(stages))
        match = Match(job_id, signed, stages, tuple(m.endpoint for m in plan), "0x" + "00" * 32)
        self.matches.append(match)
        moment, self.when_matched = self.when_matched, None
        if moment is not None:
            await moment(plan)
        return match

    async def acknowledge(self, job_id: str, ack: t.Ack, signature: str) -> dict[str, Any]:
        match = self._match_of(job_id)
        order = match.signed.order
        assert signing.is_signed_by(DOMAIN, ack, signature, REQUESTER.address)
        assert ack.tokens_in <= order.max_tokens_in
        assert ack.tokens_out <= order.max_tokens_out
        self.acks[job_id] = ack
        split = pricing.split(order, match.plan, self.spec, ack.tokens_in, ack.tokens_out)
        assert self.ledger.locked.pop(job_id) == split.locked
        self.ledger.prepaid += split.refund
        self.ledger.credit["matcher"] += split.matcher_fee
        for stage, pay in zip(match.plan, split.pays, strict=True):
            self.ledger.credit[stage.operator] += pay
        return {}

    def _match_of(self, job_id: str) -> Match:
        return next(m for m in self.matches if m.job_id == job_id)

    def _route(self, excluded: set[str], before: Match | None) -> list[Mortal]:
        """One machine for each layer range, those of the plan before if they are left."""
        kept = {s.operator for s in before.plan} if before else set()
        free = [m for m in self.machines if m.signer.address not in excluded]
        free.sort(key=lambda m: m.signer.address not in kept)

        def search(plan: list[Mortal]) -> list[Mortal] | None:
            at = plan[-1].layers.end if plan else 0
            if at == self.spec.layers:
                return plan
            tried = (search([*plan, m]) for m in free if m.layers.start == at)
            return next((found for found in tried if found is not None), None)

        found = search([])
        if found is None:
            raise NoCapacity("no pipeline", "the machines that are left do not cover the model")
        return found

    def _plan(self, machines: Sequence[Machine]) -> tuple[t.Stage, ...]:
        return tuple(t.Stage(m.signer.address, m.layers.start, m.layers.end) for m in machines)

    async def _propose(
        self, signed: t.SignedOrder, plan: Sequence[Mortal], before: Match | None
    ) -> set[str]:
        async def ask(stage: int) -> str | None:
            operator = plan[stage].signer.address
            message = wire.Propose(
                signed=signed,
                plan=list(self._plan(plan)),
                endpoints=[m.endpoint for m in plan],
                stage=stage,
                continues=before.order_hash if before else None,
            )
            try:
                stream = await self._peers.get(operator, plan[stage].endpoint, timeout_s=2.0)
                answer = (await stream.call(message, timeout_s=5.0)).message
            except HeadraceError:
                return operator
            assert isinstance(answer, wire.Accepted), answer
            return None

        found = await asyncio.gather(*(ask(i) for i in range(len(plan))))
        return {operator for operator in found if operator is not None}

    # --- the requester ---

    def begin(
        self,
        prompts: Sequence[Prompt],
        watch: Watch,
        *,
        in_flight: int = 16,
        clock: SystemClock | None = None,
        **policy: Any,
    ) -> asyncio.Task[BatchResult]:
        """The client's whole run of a batch."""
        self._begun += 1
        store = ClientStore(self.folder / f"client-{self._begun}.sqlite")
        requester = Requester(
            ClientChain(self.chain, self.ledger, self.model_dir),  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            REQUESTER,
            store,
            clock or SystemClock(),
            signing.model_id(self.spec),
            self.spec,
        )
        self.store = store
        limits = PipelinePatience(in_flight=in_flight, connect_s=2.0, beat=Beat())
        rules = Policy(terms_of=_terms, limits=limits, **policy)

        async def run() -> BatchResult:
            async with asyncio.timeout(120):
                return await run_batch(requester, prompts, rules, watch, "sub")

        return asyncio.create_task(run())

    @contextmanager
    def held(self, tokens: int) -> Iterator[None]:
        """Inside, no answer passes its token number `tokens`: none ends early on a busy machine."""

        def makes_room(key: Key) -> None:
            for machine in self.machines:
                machine.compute.heard(key, None, is_last=True)

        with ExitStack() as all_held:
            for machine in self.machines:
                all_held.enter_context(machine.held(tokens, makes_room))
            yield

    async def under_way(
        self, prompts: Sequence[Prompt], watch: Watch, done: int = 6, **options: Any
    ) -> asyncio.Task[BatchResult]:
        """Begin a batch: each answer has `done` tokens by now, and lacks half of its tokens."""
        with self.held(min(prompt.sampling.max_new_tokens for prompt in prompts) // 2):
            running = self.begin(prompts, watch, **options)
            await watch.until(lambda: all(watch.count(p.custom_id) >= done for p in prompts))
        return running

    def expected(self, prompt: Prompt, index: int) -> list[int]:
        """The undisturbed answer."""
        return reference(self.model_dir, prompt.ids, prompt.sampling, index)


def _terms(chain_now: int) -> OrderTerms:
    return OrderTerms(
        price_in=PRICE_IN,
        price_out=PRICE_OUT,
        matcher=MATCHER.address,
        matcher_fee_bps=FEE_BPS,
        min_stake=0,
        deadline=chain_now + 600,
        window=60,
        auditor=t.ZERO_ADDRESS,
        arbitrator=ARBITRATOR,
    )


class Watch:
    """What a person sees: tokens in order, each once.

    And the longest time in which none came for an answer.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.times: dict[str, list[float]] = {}
        self.ended: dict[str, str] = {}
        self.lost: list[HeadraceError] = []
        self.opened: list[Match] = []
        self.unpaid: list[HeadraceError] = []
        self.moved = asyncio.Event()

    def order_signed(self, order: t.Order, locked_units: int) -> None: ...

    def job_opened(self, match: Match) -> None:
        self.opened.append(match)
        self.moved.set()

    def token(self, custom_id: str, step: int, token: int) -> None:
        known = self.tokens.setdefault(custom_id, [])
        assert step == len(known), f"{custom_id}: token {step} after {len(known)}"
        known.append(token)
        self.times.setdefault(custom_id, []).append(time.monotonic())
        self.moved.set()

    def request_finished(self, custom_id: str, finish: str) -> None:
        assert custom_id not in self.ended
        self.ended[custom_id] = finish

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None:
        self.lost.append(reason)

    def acknowledged(self, match: Match, paid_units: int) -> None: ...

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None:
        self.unpaid.append(reason)

    def count(self, custom_id: str = "p0") -> int:
        return len(self.tokens.get(custom_id, ()))

    @property
    def longest_gap_s(self) -> float:
        return max(b - a for times in self.times.values() for a, b in pairwise(times))

    async def until(self, check: Callable[[], bool], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while not check():
                self.moved.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self.moved.wait()
                except TimeoutError:
                    continue


def prompts(
    count: int, *, tokens: int = 24, prompt_tokens: int = 7, sampled: bool = False
) -> list[Prompt]:
    """Requests with different prompts; every other one sampled if asked."""
    made = []
    for i in range(count):
        ids = tuple(30 + (11 * i + 7 * j) % 200 for j in range(prompt_tokens + i % 3))
        params = t.SamplingParams(max_new_tokens=tokens)
        if sampled:
            params = t.SamplingParams(
                temperature_micro=900_000, top_k=60, max_new_tokens=tokens, seed=77 + i
            )
        made.append(Prompt(f"p{i}", ids, params, bytes([i]) * 32))
    return made
