"""Real miners on loopback, the real client, and between them a matcher and the chain in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from client.jobs.batch import BatchResult, Policy, Requester, run_batch
from client.orders.matcher_api import Goes
from client.orders.matchers import Matchers
from client.orders.orders import OrderTerms, Prompt
from client.pipeline.pipeline import Match, PipelinePatience
from client.records.store import ClientStore
from core.engine.weights.weights import weight_roots
from core.keys.signer import Signer
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.errors import HeadraceError, NoCapacity
from core.runtime.clock import SystemClock
from core.runtime.network.channel import Peers, StreamIdentity
from core.runtime.network.pulse import Beat
from miner.compute.compute import Key
from tests.town.chain import PREPAID, FakeChain
from tests.town.machines import Machine, reference, spec_of
from tests.town.orders import DOMAIN, MATCHER, REQUESTER, key, terms
from tests.town.proposing import propose

FEE_BPS = 200
PRICE_IN, PRICE_OUT = 1_000_000_003, 2_000_000_011  # nano base units: nothing divides evenly
Moment = Callable[[Sequence[Machine]], Awaitable[None]]
"""What happens then to the machines of the plan."""


def offer(chain_now: int) -> OrderTerms:
    prices = {"price_in": PRICE_IN, "price_out": PRICE_OUT, "matcher_fee_bps": FEE_BPS}
    return terms(deadline=chain_now + 600, **prices)


class Town:
    """Machines, matcher, chain, requester."""

    def __init__(self, folder: Path, model_dir: Path) -> None:
        self.folder, self.model_dir = folder, model_dir
        self.spec, weights = spec_of(model_dir), weight_roots(model_dir)
        self.chain = FakeChain(
            models={signing.model_id(self.spec): self.spec},
            shard_root_of=lambda *span: commit.to_hex(weights.shard_root(*span)),
        )
        self.machines: list[Machine] = []
        self.matches: list[Match] = []
        self.goes: list[Goes | None] = []
        self.acks: dict[str, t.Ack] = {}
        #: Keys of matchers, by address: each sends what its own orders need.
        self.clerks = {MATCHER.address: MATCHER}
        self._peers: dict[str, Peers] = {}  # by matcher
        #: Between the stages' acceptances and the transaction, and between that and the client's
        #: first stream.
        self.while_matching: Moment | None = None
        self.when_matched: Moment | None = None
        self._born = self._begun = 0
        self._tending: asyncio.Task[None] | None = None

    async def start(self, *cuts: tuple[int, int], **options: Any) -> list[Machine]:
        prices = {"price_in": PRICE_IN, "price_out": PRICE_OUT}
        new = [
            Machine(key(100 + self._born + i), self.folder, self.model_dir, self.chain)
            for i in range(len(cuts))
        ]
        self._born += len(cuts)
        async with asyncio.TaskGroup() as group:
            for machine, cut in zip(new, cuts, strict=True):
                group.create_task(machine.start(t.LayerRange(*cut), **prices, **options))
        self.machines += new  # once they listen: a plan may be made meanwhile
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

    def next_plan(self) -> list[Machine]:
        """Who will serve what is asked next."""
        return self._route(set(), None)

    async def replace(self, machine: Machine) -> None:
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
        for kept in (self.chain.jobs, self.chain.locked, self.chain.rest):
            kept.clear()
        for paid in (self.chain.earned, self.chain.fees):
            paid.clear()
        self.chain.prepaid[REQUESTER.address] = PREPAID

    async def close(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
        for peers in self._peers.values():
            await peers.close()
        for machine in self.machines:
            for channel in machine._channels():
                if channel._send_lock.locked():
                    channel._send_lock.release()
            await machine.stop()

    @property
    def prepaid(self) -> int:
        """What the requester has left beside what its jobs lock."""
        return self.chain.balance_nano(REQUESTER.address)

    def machine(self, operator: str) -> Machine:
        return next(m for m in self.machines if m.signer.address == operator)

    # --- the matcher ---

    async def open_job(
        self, signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        job_id = signing.job_id(domain, signed.order)
        known = [match for match in self.matches if match.job_id == job_id]
        if known:
            return known[0]
        self.goes.append(goes_on)
        excluded = set(goes_on.lost) if goes_on else set()
        before = self._match_of(goes_on.continues) if goes_on else None
        peers = self.peers_of(self.clerks[signed.order.matcher])
        while True:
            plan = self._route(excluded, before)
            stages = tuple(t.Stage(m.signer.address, m.layers.start, m.layers.end) for m in plan)
            endpoints = [m.endpoint for m in plan]
            _, silent = await propose(peers, signed, stages, endpoints, before)
            if not silent:
                break
            excluded |= silent
        moment, self.while_matching = self.while_matching, None
        if moment is not None:
            await moment(plan)
        await self._send("openMatched", signed.order, signed.signature, stages)
        match = Match(job_id, signed, stages, tuple(endpoints), t.ZERO_HASH)
        self.matches.append(match)
        moment, self.when_matched = self.when_matched, None
        if moment is not None:
            await moment(plan)
        return match

    def peers_of(self, clerk: Signer) -> Peers:
        """Streams of a matcher to machines."""
        return self._peers.setdefault(clerk.address, Peers(StreamIdentity(clerk, DOMAIN)))

    async def acknowledge(self, job_id: str, ack: t.Ack, signature: str) -> dict[str, Any]:
        match = self._match_of(job_id)
        await self._send("settleAck", match.signed.order, ack, signature, match.plan)
        self.acks[job_id] = ack
        return {}

    async def _send(self, function: str, order: t.Order, *args: Any) -> None:
        clerk = self.clerks[order.matcher]
        await self.chain.transact(clerk, "TaskRegistry", function, order, *args)

    def _match_of(self, job_id: str) -> Match:
        return next(m for m in self.matches if m.job_id == job_id)

    def _route(self, excluded: set[str], before: Match | None) -> list[Machine]:
        """One machine for each layer range, those of the plan before if they are left."""
        kept = {s.operator for s in before.plan} if before else set()
        free = [m for m in self.machines if m.signer.address not in excluded]
        free.sort(key=lambda m: m.signer.address not in kept)

        def search(plan: list[Machine]) -> list[Machine] | None:
            at = plan[-1].layers.end if plan else 0
            if at == self.spec.layers:
                return plan
            tried = (search([*plan, m]) for m in free if m.layers.start == at)
            return next((found for found in tried if found is not None), None)

        found = search([])
        if found is None:
            raise NoCapacity("no pipeline", "the machines that are left do not cover the model")
        return found

    # --- the requester ---

    def begin(
        self,
        prompts: Sequence[Prompt],
        watch: Watch,
        *,
        in_flight: int = 16,
        clock: SystemClock | None = None,
        matchers: Matchers | None = None,
        signer: Signer = REQUESTER,
        **policy: Any,
    ) -> asyncio.Task[BatchResult]:
        """The client's whole run of a batch."""
        self._begun += 1
        store = ClientStore(self.folder / f"client-{self._begun}.sqlite")
        requester = Requester(
            self.chain,
            matchers or Matchers([(self, None)]),  # type: ignore[list-item]
            signer,
            store,
            clock or SystemClock(),
            signing.model_id(self.spec),
            self.spec,
        )
        self.store = store
        limits = PipelinePatience(in_flight=in_flight, connect_s=2.0, beat=Beat())
        rules = Policy(**{"terms_of": offer, "limits": limits} | policy)

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
