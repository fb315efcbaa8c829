"""How does a signed order become a job on chain?

Check it, choose a pipeline (in line, where every machine is taken), ask every stage at once, store
what they signed, open the job in one transaction. A stage that refuses or does not answer is
excluded and the pipeline chosen again, up to three rounds. Asking again with the same order gives
the same job.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from core.money import pricing
from core.protocol import signing
from core.protocol.errors import (
    ChainUnreachable,
    ContractRefused,
    DepositShort,
    GasShort,
    HeadraceError,
    ModelUnknown,
    ModelUnsupported,
    NoCapacity,
)
from core.protocol.ids import Kind, short
from core.protocol.types import ModelSpec, SignedOrder
from core.runtime.logs import get_logger
from core.runtime.tasks import spawn
from matcher.matching.orders import (
    MatcherTerms,
    check_order,
    check_signer,
    read_facts,
    used_already,
)
from matcher.matching.proposing import (
    GO_ON_TIMEOUT_S,
    PROPOSE_TIMEOUT_S,
    Dialer,
    ProposalRefusal,
    answers,
    propose,
    withdraw,
)
from matcher.records.jobs import FAILED, MATCHED, OPENING, Job, OnChain
from matcher.records.store import JobChange, Store
from matcher.routes.routes import Chosen, slots_of

if TYPE_CHECKING:
    from core.chain.chain import Chain
    from core.protocol.signing import DigestSigner
    from core.runtime.clock import Clock
    from matcher.world import MatcherWorld

ROUNDS = 3
MAX_UNDER_WAY, MAX_OF_ONE = 256, 32
log = get_logger(__name__)


@dataclass(frozen=True)
class Continuation:
    """The job whose chain broke and that an order goes on with, and the operators that it lost."""

    continues: str
    lost: frozenset[str]


@dataclass(frozen=True)
class _Broken:
    job: Job
    lost: frozenset[str]


class Matchmaker:
    """Opens jobs. Holds the orders under way, so that two requests for one order are one."""

    def __init__(
        self,
        chain: Chain,
        signer: DigestSigner,
        peers: Dialer,
        store: Store,
        world: MatcherWorld,
        terms: MatcherTerms,
        clock: Clock,
        *,
        queue_s: float = 0.0,
    ) -> None:
        """`queue_s` is how long an order that finds every machine taken may wait for room."""
        self._chain, self._signer, self._peers = chain, signer, peers
        self._store, self._world, self._terms, self._clock = store, world, terms, clock
        self._queue_s = queue_s
        self._under_way: dict[str, asyncio.Task[Job]] = {}
        self._asked_by: dict[str, str] = {}  # requesters of these, by job
        self._background: set[asyncio.Task[None]] = set()
        self._locking: dict[str, tuple[str, int]] = {}  # job: requester, units not yet on chain
        #: By requester: one balance is judged at a time.
        self._deposit_locks: dict[str, asyncio.Lock] = {}

    async def open(self, signed: SignedOrder, goes_on: Continuation | None = None) -> Job:
        """The job of this order, matched on chain; idempotent.

        One that goes on with a broken chain keeps what is left of it. Goes on when the caller hangs
        up. Raises what `check_order` finds, NoCapacity, what `send` raises, or ChainUnreachable
        (the job is then stored and opened when the chain is back, as long as its acceptances hold).
        """
        job_id = signing.job_id(self._chain.domain, signed.order)
        is_known = await self._store.off_loop(self._store.job, job_id) is not None
        # One that was registered waits on chain no more once it is matched.
        if not (signed.is_registered and is_known):
            problem = await check_signer(self._chain, signed)
            if problem is not None:
                raise problem
        task = self._under_way.get(job_id)
        if task is None:
            self._check_room(signed.order.requester)
            opening = self._open(job_id, signed, goes_on)
            task = asyncio.create_task(opening, name=f"open {job_id[:10]}")
            self._under_way[job_id] = task
            self._asked_by[job_id] = signed.order.requester
            task.add_done_callback(lambda done: self._forget(job_id, done))
        return await asyncio.shield(task)

    def _check_room(self, requester: str) -> None:
        """Raise NoCapacity where too many orders are being matched, of all or of this requester."""
        ours = sum(asked_by == requester for asked_by in self._asked_by.values())
        for many, most, whose in (
            (len(self._under_way), MAX_UNDER_WAY, ""),
            (ours, MAX_OF_ONE, "of this requester "),
        ):
            if many >= most:
                raise NoCapacity(
                    "this matcher is busy",
                    why=f"{most} orders {whose}are being matched",
                    next_step="try again in a moment",
                    busy=True,
                )

    def under_way(self, job_id: str) -> bool:
        """Whether an order is being matched at this moment, so that its job must wait."""
        return job_id in self._under_way

    async def close(self) -> None:
        """Let what is under way end; the caller bounds the wait."""
        await asyncio.gather(*self._under_way.values(), *self._background, return_exceptions=True)

    def _forget(self, job_id: str, done: asyncio.Task[Job]) -> None:
        self._under_way.pop(job_id, None)
        self._asked_by.pop(job_id, None)
        self._locking.pop(job_id, None)
        if not done.cancelled():
            done.exception()  # seen here even when the caller has hung up

    async def _open(self, job_id: str, signed: SignedOrder, goes_on: Continuation | None) -> Job:
        known = await self._store.off_loop(self._store.job, job_id)
        if known is not None and known.state == OPENING:
            return await self.send(known)
        if known is not None and known.state == FAILED and await self._is_open(known):
            known = await self._opened(known)  # mined after we gave it up
        if known is not None and known.state != FAILED:
            return self._world.reachable(known, self._now_ms())
        async with self._deposit_locks.setdefault(signed.order.requester, asyncio.Lock()):
            spec = await self._check(signed)
            need = 0 if signed.is_registered else pricing.max_amount(signed.order, spec)
            self._locking[job_id] = (signed.order.requester, need)
        try:
            broken = await self._broken(signed, goes_on)
            # Of another matcher's job we know only what its requester lost: this order avoids it.
            lost = broken.lost if broken else goes_on.lost if goes_on else frozenset()
            job = await self._find_pipeline(job_id, signed, spec, broken, lost)
            await self._store.off_loop(self._store.begin, job, int(self._clock.now()))
        except BaseException:
            self._world.release(job_id, self._now_ms())
            raise
        return await self.send(job)

    async def _check(self, signed: SignedOrder) -> ModelSpec:
        order = signed.order
        spec = self._world.models.get(order.model_id)
        if spec is None:
            raise ModelUnknown(f"no model {order.model_id}", why="it is not in the ModelRegistry")
        if order.model_id not in self._world.shapes:
            raise ModelUnsupported("this matcher cannot plan the model", why=f"dtype {spec.dtype}")
        while True:
            others = self._locking_for(order.requester)
            pending = sum(self._locking[other][1] for other in others)
            now_s = await self.chain_time()
            facts = await read_facts(self._chain, order, now_s, pending_units=pending)
            if signed.is_registered:  # so its nonce is used and its money locked
                locked = pricing.max_amount(order, spec)
                facts = replace(facts, nonce_used=False, balance_units=locked)
            problem = check_order(order, spec, facts, self._terms, chain_id=self._chain.chain_id)
            if problem is None:
                return spec
            if not (isinstance(problem, DepositShort) and others):
                raise problem
            # What the others are about to lock may be in the balance we read, or may come back.
            await asyncio.wait([self._under_way[other] for other in others])

    def _locking_for(self, requester: str) -> list[str]:
        return [job_id for job_id, (who, _) in self._locking.items() if who == requester]

    async def _broken(self, signed: SignedOrder, goes_on: Continuation | None) -> _Broken | None:
        """The requester's own job that this order goes on with, and whose slots it takes over."""
        if goes_on is None:
            return None
        job = await self._store.off_loop(self._store.job, goes_on.continues)
        if job is None or job.signed.order.requester != signed.order.requester:
            return None
        lost = goes_on.lost & {stage.operator for stage in job.plan}
        self._world.release(job.job_id, self._now_ms())
        for stage, endpoint in zip(job.plan, job.endpoints, strict=True):
            if stage.operator in lost:
                spawn(self._confirm(stage.operator, endpoint), self._background)
        return _Broken(job, lost)

    async def _confirm(self, operator: str, endpoint: str) -> None:
        """Other orders avoid a lost machine only if it does not answer us either."""
        if not await answers(self._peers, operator, endpoint):
            log.info("machine is silent", operator=operator)
            self._world.avoid(operator, self._now_ms())

    async def _find_pipeline(
        self,
        job_id: str,
        signed: SignedOrder,
        spec: ModelSpec,
        broken: _Broken | None,
        lost: frozenset[str],
    ) -> Job:
        order, refusals, accepted = signed.order, list[ProposalRefusal](), dict[str, str]()
        for _ in range(ROUNDS):
            excluded = lost | {refusal.operator for refusal in refusals}
            chosen = await self._choose(job_id, signed, excluded, broken)
            if isinstance(chosen, HeadraceError):
                break
            consents = await propose(
                self._peers,
                signed,
                chosen.plan,
                chosen.endpoints,
                self._chain.domain,
                await self.chain_time(),
                PROPOSE_TIMEOUT_S if broken is None else GO_ON_TIMEOUT_S,
                None if broken is None else broken.job.order_hash,
            )
            if not consents.refusals:
                for stage in chosen.plan:
                    accepted.pop(stage.operator, None)
                await withdraw(self._peers, signing.order_hash(order), accepted)
                return Job(
                    job_id=job_id,
                    signed=signed,
                    plan=chosen.plan,
                    endpoints=chosen.endpoints,
                    acceptances=consents.acceptances,
                    locked_units=pricing.max_amount(order, spec),
                )
            accepted |= {chosen.plan[i].operator: chosen.endpoints[i] for i in consents.accepted}
            self._world.release(job_id, self._now_ms())
            for refusal in consents.refusals:
                log.info("stage refused", job=short(Kind.JOB, job_id), **vars(refusal))
                if refusal.unreachable:
                    self._world.avoid(refusal.operator, self._now_ms())
            refusals.extend(consents.refusals)
        else:
            why = f"stages refused in {ROUNDS} rounds"
            chosen = NoCapacity("no pipeline serves this order", why=why)
        await withdraw(self._peers, signing.order_hash(order), accepted)
        chosen.details["refusals"] = [vars(refusal) for refusal in refusals]
        raise chosen

    async def _choose(
        self, job_id: str, signed: SignedOrder, excluded: frozenset[str], broken: _Broken | None
    ) -> Chosen | HeadraceError:
        """What is left of a broken chain with stand-ins, where that can be; else any chain."""
        if broken is not None:
            order = signed.order
            routes, now_ms = self._world.routes[order.model_id], self._now_ms()
            gone = excluded | self._world.avoided(now_ms) | self._world.barred(signed.terms)
            slots, plan = slots_of(signed), broken.job.plan
            # Machines that compute already go on, slashed or not; blameless ones stand in first.
            last = self._world.marks.last.keys() - {stage.operator for stage in plan}
            for passed_over in (gone | last, gone) if last else (gone,):
                mended = routes.mend(job_id, order, plan, now_ms, passed_over, slots=slots)
                if isinstance(mended, Chosen):
                    return mended
        return await self._take_place(job_id, signed, excluded)

    async def _take_place(
        self, job_id: str, signed: SignedOrder, excluded: frozenset[str]
    ) -> Chosen | HeadraceError:
        """A chain promised to this job; waits in line where all that would do are taken."""
        order = signed.order
        line = self._world.lines[order.model_id]
        patience_s = min(self._queue_s, (order.deadline - await self.chain_time()) / 2)
        until_s = self._clock.now() + patience_s
        try:
            while True:
                chosen = self._try_place(job_id, signed, excluded)
                if isinstance(chosen, Chosen) or patience_s <= 0:
                    return chosen
                barred = excluded | self._world.barred(signed.terms)
                among = self._world.routes[order.model_id].would_do(order, barred)
                line.failed(job_id)
                asked = job_id, among, until_s, self._clock, order.requester
                if not among or not await line.turn(*asked):
                    return chosen
        finally:
            line.leave(job_id, self._now_ms())

    def _try_place(
        self, job_id: str, signed: SignedOrder, excluded: frozenset[str]
    ) -> Chosen | HeadraceError:
        order, slots = signed.order, slots_of(signed)
        routes, now_ms = self._world.routes[order.model_id], self._now_ms()
        excluded |= self._world.barred(signed.terms)
        careful = excluded | self._world.avoided(now_ms) | frozenset(self._world.marks.last)
        chosen = routes.take(job_id, order, now_ms, careful, slots=slots)
        if isinstance(chosen, HeadraceError) and careful != excluded:
            return routes.take(job_id, order, now_ms, excluded, slots=slots)
        return chosen

    async def send(self, job: Job) -> Job:
        """Open a stored job on chain, unless it is open already; also after a restart.

        Raises ChainUnreachable, or, when the job has failed and nothing is locked for it,
        NoCapacity where its acceptances have lapsed, UsageError where the order's nonce is used,
        ContractRefused, GasShort.
        """
        refusal: HeadraceError
        if await self.chain_time() > job.acceptances_expire_at:
            refusal = NoCapacity(
                "the stages' acceptances have lapsed",
                why=f"they held until {job.acceptances_expire_at}",
                next_step="hand in the order again: its stages are then chosen anew",
            )
            return await self._unless_open(job, refusal)
        order, plan = job.signed.order, list(job.plan)
        call: tuple[Any, ...] = ("openMatched", order, job.signed.signature, plan)
        if job.signed.is_registered:
            call = ("matchJob", order, plan)
        try:
            sent = await self._chain.transact(self._signer, "TaskRegistry", *call)
        except ContractRefused as error:
            is_used = error.error == "NonceUsedAlready"
            refusal = used_already(job.signed.order) if is_used else error
            return await self._unless_open(job, refusal)
        except GasShort as error:
            await self._fail(job, str(error))
            raise
        except ChainUnreachable:
            self._world.chain = type(self._world.chain)(error="lost while opening a job")
            raise
        return await self._opened(job, open_tx=sent.tx_hash, state_block=sent.block_number)

    async def _unless_open(self, job: Job, refusal: HeadraceError) -> Job:
        """The job, if it was opened with this plan before; else it has failed and this is why."""
        if await self._is_open(job):
            return await self._opened(job)
        await self._fail(job, str(refusal))
        raise refusal

    async def _is_open(self, job: Job) -> bool:
        """Whether the chain has opened this order with this plan, whatever became of it."""
        found = await self._chain.read("TaskRegistry", "jobOf", job.job_id, job.plan_hash)
        return OnChain.of(found).state != "None"

    async def _opened(self, job: Job, **values: object) -> Job:
        await self._note(job, state=MATCHED, stale=False, failure="", **values)
        log.info("job opened", job=job.name, stages=len(job.plan), tx=values.get("open_tx", ""))
        return await self._reread(job.job_id)

    async def _fail(self, job: Job, why: str) -> None:
        self._world.release(job.job_id, self._now_ms())
        await self._note(job, state=FAILED, stale=False, failure=why)
        log.warning("job not opened", job=job.name, why=why)
        places = zip(job.plan, job.endpoints, strict=True)
        endpoints = {stage.operator: endpoint for stage, endpoint in places if endpoint}
        await withdraw(self._peers, job.order_hash, endpoints)

    async def _note(self, job: Job, **values: object) -> None:
        change = JobChange(job.job_id, values, job.plan_hash)
        await self._store.off_loop(self._store.change, change, int(self._clock.now()))

    async def _reread(self, job_id: str) -> Job:
        job = await self._store.off_loop(self._store.job, job_id)
        assert job is not None, "a stored job is never deleted while it lives"
        return job

    async def chain_time(self) -> int:
        """The time by which contracts will judge the next transaction."""
        return max(await self._chain.now(), int(self._clock.now()))

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)
