"""Which jobs did this miner take on, are they on chain, and which slots do they hold?"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from core.money import pricing
from core.money.spending import payers
from core.protocol import signing, wire
from core.protocol import types as t
from core.protocol.types import JobState
from core.runtime.logs import get_logger
from core.runtime.network.channel import Channel
from miner.chain import admission
from miner.chain.admission import ChainView, MinerState, ReceivedProposal, Refusal
from miner.chain.onchain import ClosingNews, DisputeNews, JobNews, MinerChain
from miner.records.store import CLOSED_STATES, StoredJob, keep_until
from miner.serving.outbox import Outbox
from miner.serving.receipts import ReceiptBook
from miner.serving.request_run import RequestRun
from miner.serving.request_state import RequestPhase

if TYPE_CHECKING:
    from core.engine.weights.tokenizer import Tokenizer

VERIFY_AGAIN_S = 1.0
#: Plans of one order, the newest, that are looked for on chain: a matcher asks anew when a stage of
#: a plan is lost or refuses.
MAX_PLANS = 16
AFTER_DEADLINE_S = 30
CLIENT_LOST_S = 5.0
#: For a job that the chain does not show slots are set aside for so long.
HELD_S = 30.0
#: And for one that the chain shows, until its client is there.
OPENED_WITHIN_S = 5.0
#: Slots beyond the most that a job on the chain used at once for so long are others' until it asks.
LENT_S = 20.0
#: Proposals of one peer that are looked up on the chain at once, and that wait for it.
LOOKED_UP, MAX_ASKED = 2, 32
#: Accepted jobs in memory that the chain does not show yet.
MAX_HELD = 256

UNKNOWN_JOB = "E-JOB-UNKNOWN"
NOT_MATCHED = "E-JOB-NOT-MATCHED"
JOB_OVER = "E-JOB-OVER"
CAPS = "E-JOB-CAPS"
UNPAID = "E-JOB-UNPAID"
NOT_PAID = "E-JOB-ACK"
log = get_logger(__name__)


class Refused(Exception):
    """A peer asked for what it may not have or what cannot be now: a code and a reason."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} [{code}]")
        self.code, self.reason = code, reason


@dataclass(frozen=True)
class MinerTerms:
    """What this miner offers, whatever layers it holds."""

    operator: str
    domain: signing.Domain
    model_id: str
    spec: t.ModelSpec
    price_in: int  # nano base units per token per layer unit
    price_out: int
    max_requests: int
    matchers: frozenset[str] = frozenset()  # in lower case, whose proposals are taken; empty: any
    keep_s: int = 86400  # how long rows are kept past the last possible dispute
    #: Most that a job may owe all its stages while they work for it, in base units.
    max_unpaid: int = pricing.CREDIT_UNITS


@dataclass(frozen=True)
class LoadedShard:
    """The shard in memory, as far as messages need to know it."""

    layers: t.LayerRange
    shard_root: str
    hidden: int
    vocab: int
    context: int
    eos_ids: frozenset[int]
    kv_tokens: int  # positions of all requests that fit beside the weights
    tokenizer: Callable[[], Tokenizer] | None = None  # slow at the first call; stop strings need it
    root_of: Callable[[t.LayerRange], str] | None = None  # of a part; None: it serves no parts
    span_layers: int = 0  # between two boundaries that a stage signs; 0: all of its layers

    def can_run(self, layers: t.LayerRange) -> bool:
        """Whether requests may run these layers here, all or a part of the shard's."""
        if self.root_of is None:
            return layers == self.layers
        return self.layers.start <= layers.start and layers.end <= self.layers.end

    def root(self, layers: t.LayerRange) -> str:
        """The shard root that receipts over these layers carry."""
        if layers == self.layers or self.root_of is None:
            return self.shard_root
        return self.root_of(layers)


@dataclass
class ActiveJob:
    """A job in memory: unfinished requests in `runs`, ended without receipt in `over`."""

    stored: StoredJob
    reserved: int
    payers: frozenset[str] = frozenset()  # lower-case: the requester, and the spender who signed
    finished: set[int] = field(default_factory=set)
    over: dict[int, RequestPhase] = field(default_factory=dict)
    runs: dict[int, RequestRun] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    tokens_in: int = 0  # promised to submitted or finished requests, against the order's caps
    tokens_out: int = 0
    rows_seen: int = 0  # of all requests, against the same caps and the credit
    credit: int = pricing.UNBOUNDED_ROWS  # rows that are done before they are acknowledged
    promised: dict[int, tuple[int, int]] = field(default_factory=dict)  # of these, by request
    done: tuple[int, int] = (0, 0)  # tokens in and out of finished requests
    acked: tuple[int, int] = (0, 0)  # of these, what the newest acknowledgement covers
    openings: dict[int, t.RequestOpening] = field(default_factory=dict)
    gone_on: dict[int, tuple[str, int]] = field(default_factory=dict)  # by request of an open order
    is_ended: bool = False  # an open order's requester begins no more
    is_restored: bool = False  # of before this machine's records were put back from a backup
    continues: wire.Continues | None = None
    client: Channel | None = None
    outbox: Outbox | None = None
    client_gone_at: float | None = None
    refused_at: float = float("-inf")
    proposer: str = ""
    held_until: float = float("inf")  # its slots, until the chain shows it
    counted_from: float = 0.0  # when the present look at how many slots it uses began
    most_asked: int = 0  # of its requests at once, since then
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    bad_grammars: int = 0  # that requests named and that could not be read
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)  # one grammar after the other

    @property
    def order(self) -> t.Order:
        return self.stored.order

    @property
    def is_verified(self) -> bool:
        """Whether the chain was seen to have the job with this plan."""
        return self.stored.is_verified

    @property
    def is_open_order(self) -> bool:
        return self.order.is_open

    @property
    def at_once(self) -> int:
        """How many of its requests run at once at most."""
        return admission.at_once(self.order, self.stored.signed.terms)

    @property
    def running(self) -> int:
        """How many of its requests run here now."""
        return sum(run.request.phase is RequestPhase.RUNNING for run in self.runs.values())

    @property
    def asked(self) -> int:
        """How many of its requests run here now, or wait to."""
        return sum(run.request.phase is not RequestPhase.STRANDED for run in self.runs.values())

    @property
    def is_complete(self) -> bool:
        ended = self.is_ended or self.is_restored
        return ended or len(self.finished) >= self.order.requests

    @property
    def is_signed_for(self) -> bool:
        """Whether every request of a fixed order has a receipt: then the disk knows everything."""
        return not self.is_open_order and len(self.finished) >= self.order.requests

    @property
    def is_over(self) -> bool:
        """Whether every request has ended here, with a receipt or without: none can start again."""
        ended = len(self.finished) + len(self.over)
        return not self.runs and (self.is_ended or ended >= self.order.requests)

    def goes_on_with(self, index: int) -> tuple[str, int] | None:
        """Which order, and which request of it, a request goes on with."""
        if index in self.gone_on:
            return self.gone_on[index]
        before = self.continues.requests if self.continues is not None else []
        request = before[index] if index < len(before) else None
        if request is None or self.continues is None:
            return None
        return self.continues.order_hash, request

    def unpaid_units(self, spec: t.ModelSpec) -> int:
        """What this stage finished of an open order without acknowledgement, in base units."""
        due = [max(0, done - acked) for done, acked in zip(self.done, self.acked, strict=True)]
        return self.cost(spec, due[0], due[1])

    def cost(self, spec: t.ModelSpec, tokens_in: int, tokens_out: int) -> int:
        """What this stage is due for these tokens."""
        order, units = self.order, pricing.stage_units(self.stored.place, spec)
        return pricing.cost(units, tokens_in, tokens_out, order.price_in, order.price_out)

    @property
    def unacknowledged(self) -> int:
        """Rows that were taken on, also of requests that ended badly, beyond the newest Ack."""
        return self.rows_seen - sum(self.acked)

    def affords(self, run: RequestRun, rows: int) -> bool:
        """Whether a first stage may feed a request's first `rows` rows now; counts them if so.

        INVARIANT: no more than the credit is done for a requester that acknowledges nothing.
        """
        more = max(0, rows - run.rows_seen)
        if more and self.unacknowledged + more > self.credit:
            return False
        self.rows_seen += more
        run.rows_seen += more
        return True

    def take_on(self, run: RequestRun, rows: int) -> None:
        """Count a request's first `rows` rows at a later stage.

        Raises Refused beyond the caps, or twice the credit: an Ack may come after the rows.

        INVARIANT: no stage computes more rows than the order pays tokens, whoever sends them.
        """
        more, paid = rows - run.rows_seen, self.order.max_tokens_in + self.order.max_tokens_out
        if more <= 0:
            return
        if self.rows_seen + more > paid:
            raise Refused(CAPS, f"{self.rows_seen} + {more} rows, the order pays {paid} tokens")
        if self.unacknowledged + more > 2 * self.credit:
            raise self.unpaid(2)
        self.rows_seen += more
        run.rows_seen = rows

    def unpaid(self, slack: int = 1) -> Refused:
        """Why nothing more is done for it."""
        return Refused(
            UNPAID,
            f"{self.unacknowledged} rows are not acknowledged, the limit is {self.credit * slack}",
        )

    def end_runs(self) -> None:
        """Cancel what runs: another plan took this one's place."""
        for run in list(self.runs.values()):
            run.give_up()

    def tell_client(self, message: wire.AnyMessage) -> None:
        """Push to the client's stream, if it has one open."""
        if self.outbox is not None:
            self.outbox.put(message)


@dataclass
class _Asked:
    """Proposals of one peer that are looked at."""

    waiting: int = 0
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKED_UP))


def _restored() -> Refused:
    why = "this machine's records were put back from a backup: it signs nothing more for the order"
    return Refused(JOB_OVER, why)


class JobTable:
    """The jobs, their reservations, and what makes them real."""

    def __init__(
        self,
        terms: MinerTerms,
        book: ReceiptBook,
        chain: MinerChain,
        monotonic: Callable[[], float],
    ) -> None:
        self.terms, self.book, self.chain = terms, book, chain
        self.serving: LoadedShard | None = None
        self.is_draining = False
        self.is_changing = False  # about to hold other layers: work goes on, proposals do not
        self.is_stuck = False  # its step does not end: proposals are refused until it does
        self.jobs: dict[str, ActiveJob] = {}
        self._monotonic = monotonic
        self._accepting = asyncio.Lock()
        self._asked: dict[str, _Asked] = {}  # by peer whose proposals are looked at

    @property
    def free_requests(self) -> int:
        """Slots that no job on the chain has."""
        taken = sum(job.reserved for job in self.jobs.values() if job.is_verified)
        return max(0, self.terms.max_requests - taken)

    def opened(self, job: ActiveJob) -> None:
        """Its client is there for the first time: it has a slot, and more once it asks."""
        job.counted_from = self._monotonic()
        if not job.reserved and not job.is_complete:
            job.reserved = 1

    def fit_slots(self, job: ActiveJob) -> None:
        """It has slots for what it asks for, as far as there are free ones, and one at least."""
        asked = job.asked
        job.most_asked = max(job.most_asked, asked)
        wanted = min(job.at_once, asked)
        if wanted > job.reserved:
            job.reserved = max(1, min(wanted, job.reserved + self.free_requests))

    def _free_for(self, requester: str) -> int:
        """Slots for another job of a requester: what others order and do not open takes none."""
        held = sum(
            job.reserved
            for job in self.jobs.values()
            if not job.is_verified and job.order.requester == requester
        )
        return self.free_requests - held

    @property
    def active_requests(self) -> int:
        return sum(job.asked for job in self.jobs.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing accepted is left to do; of open orders only what has begun was."""
        return not self.active_requests and all(
            not job.reserved or job.is_open_order for job in self.jobs.values()
        )

    # --- proposals ---

    async def propose(self, peer: str, message: wire.Propose) -> wire.Accepted:
        """Judge a proposal and sign it. Raises Refused, or ChainUnreachable if it cannot."""
        order = message.signed.order
        if self.terms.matchers and peer.lower() not in self.terms.matchers:
            raise Refused(admission.MATCHER, f"this miner takes no work from matcher {peer}")
        signer = signing.recover(self.terms.domain, order, message.signed.signature)
        offer = ReceivedProposal(
            order=order,
            order_signed=signer is not None or message.signed.is_registered,
            proposer=peer,
            plan=message.plan,
            stage=message.stage,
            endpoints=len(message.endpoints),
            terms=message.signed.terms,
            terms_bound=signing.binds_its_terms(message.signed),
        )
        self._objections(admission.decide(offer, self._standing(message)))
        async with self._turn_of(peer):
            seen = await self.chain.view(order, signer)
        async with self._accepting:
            return await self._accept(peer, message, offer, seen)

    @asynccontextmanager
    async def _turn_of(self, peer: str) -> AsyncIterator[None]:
        """A peer's own turn at the chain: it waits for its earlier proposals, nobody else does.

        Raises Refused where too many wait.
        """
        asked = self._asked.setdefault(peer, _Asked())
        if asked.waiting >= MAX_ASKED:
            raise Refused(admission.SLOTS, f"{MAX_ASKED} proposals of this peer are looked at")
        asked.waiting += 1
        try:
            async with asked.turns:
                yield
        finally:
            asked.waiting -= 1
            if not asked.waiting:
                del self._asked[peer]

    async def _accept(
        self, peer: str, message: wire.Propose, offer: ReceivedProposal, seen: ChainView
    ) -> wire.Accepted:
        order = message.signed.order
        order_hash, plan_hash = signing.order_hash(order), signing.plan_hash(message.plan)
        # Known here, whatever a node that lags behind says of the order's nonce.
        known = await self.book.disk(self.book.store.job, order_hash)
        if known is not None and known.is_verified:
            raise Refused(admission.USED, "this order is being worked on")
        if known is not None and await self.book.disk(self.book.store.is_restored, order_hash):
            raise _restored()
        standing = self._standing(message)
        self._objections(admission.decide(offer, standing))
        balance = seen.requester_balance - self._pending_units(order)
        seen = replace(seen, requester_balance=balance)
        self._objections(admission.decide_on_chain(order, self.terms.spec, seen))
        assert self.serving is not None, "decide() refuses without layers"
        expiry = admission.acceptance_expiry(order, seen.now_s)
        accepted = self.book.accept(order_hash, plan_hash, message.stage, expiry)
        shard_root = self.serving.root(message.plan[message.stage].layers)
        await self.book.disk(
            lambda: self.book.store.put_job(
                message.signed,
                message.plan,
                message.endpoints,
                accepted,
                job_id=signing.job_id(self.terms.domain, order),
                shard_root=shard_root,
                keep_until=keep_until(order, self.terms.keep_s),
            )
        )
        stored = await self.book.disk(self.book.store.job, order_hash, plan_hash)
        assert stored is not None, "it was just written"
        job = await self._take_up(stored)
        if job.is_verified:  # found on chain meanwhile
            raise Refused(admission.USED, "this order is being worked on")
        job.stored, job.reserved = stored, 1  # more once they are asked for
        job.proposer, job.held_until = peer, self._monotonic() + HELD_S
        if (freed := self._passed_on(message)) is not None:
            freed.reserved = 0
        self._forget_held()
        log.info("accepted", order=order_hash[:10], stage=message.stage, requests=order.requests)
        return wire.Accepted(signed=accepted)

    def _pending_units(self, order: t.Order) -> int:
        """What the requester's other accepted orders lock once they are opened, base units."""
        mine = signing.order_hash(order)
        return sum(
            pricing.max_amount(job.order, self.terms.spec)
            for job in self.jobs.values()
            if not job.is_verified
            and job.reserved
            and job.order.requester == order.requester
            and job.stored.order_hash != mine
            and not job.stored.signed.is_registered  # its money is locked already
        )

    def withdraw(self, peer: str, order_hash: str) -> None:
        """Its proposer opens no job with us: what was set aside for it is free."""
        job = self.jobs.get(order_hash)
        if job is not None and job.proposer == peer and not job.is_verified:
            job.reserved = 0

    def _forget_held(self) -> None:
        """Of accepted jobs that the chain does not show the newest stay in memory."""
        held = [one for one, job in self.jobs.items() if not job.is_verified and not job.runs]
        for order_hash in held[:-MAX_HELD]:
            del self.jobs[order_hash]

    def _passed_on(self, message: wire.Propose) -> ActiveJob | None:
        """The requester's own job whose slots pass to a proposal that continues it."""
        job = self.jobs.get(message.continues or "")
        if job is None or job.order.requester != message.signed.order.requester:
            return None
        return job

    def continued(self, job: ActiveJob, index: int) -> Iterator[tuple[ActiveJob, int]]:
        """Jobs that a request went through before on these layers, newest first, with its index."""
        seen = {job.stored.order_hash}
        while (before := job.goes_on_with(index)) is not None:
            order_hash, index = before
            earlier = self.jobs.get(order_hash)
            if (
                earlier is None
                or earlier.stored.order_hash in seen
                or earlier.order.requester != job.order.requester
                or earlier.order.model_id != job.order.model_id
                or earlier.stored.place.layers != job.stored.place.layers
            ):
                return
            seen.add(earlier.stored.order_hash)
            job = earlier
            yield job, index

    def _standing(self, message: wire.Propose) -> MinerState:
        order = message.signed.order
        # What the order itself holds, and the job that it continues, is given back.
        own = {signing.order_hash(order): self.jobs.get(signing.order_hash(order))}
        if (freed := self._passed_on(message)) is not None:
            own[freed.stored.order_hash] = freed
        return MinerState(
            operator=self.terms.operator,
            model_id=self.terms.model_id,
            spec=self.terms.spec,
            layers=self.serving.layers
            if self.serving and not (self.is_changing or self.is_stuck)
            else None,
            takes_parts=self.serving is not None and self.serving.root_of is not None,
            price_in=self.terms.price_in,
            price_out=self.terms.price_out,
            free_requests=self._free_for(order.requester)
            + sum(job.reserved for job in own.values() if job is not None),
            draining=self.is_draining,
        )

    @staticmethod
    def _objections(refusal: Refusal | None) -> None:
        if refusal is not None:
            raise Refused(refusal.code, refusal.reason)

    # --- finding jobs and proving them ---

    async def find(self, order_hash: str) -> ActiveJob:
        """A job this miner accepted, from memory or, after a restart, from disk. Raises Refused."""
        job = self.jobs.get(order_hash)
        if job is not None:
            return job
        stored = await self.book.disk(self.book.store.job, order_hash)
        if stored is None:
            raise Refused(UNKNOWN_JOB, "this miner accepted no such order")
        return await self._take_up(stored)

    async def _take_up(self, stored: StoredJob) -> ActiveJob:
        """Have a job in memory, in place of an order's other plan unless that is on chain."""
        leaves = await self.book.disk(self.book.store.leaves, stored.order_hash, stored.plan_hash)
        ack = await self.book.disk(self.book.store.ack, stored.order_hash, stored.plan_hash)
        known = self.jobs.get(stored.order_hash)
        if known is not None and (known.is_verified or known.stored.plan_hash == stored.plan_hash):
            return known
        is_restored = await self.book.disk(self.book.store.is_restored, stored.order_hash)
        left = 0 if is_restored else stored.order.requests - len(leaves)
        reserved = known.reserved if known is not None else min(left, 1)
        done = (
            sum(kept.leaf.tokens_in for kept in leaves.values()),
            sum(kept.leaf.tokens_out for kept in leaves.values()),
        )
        job = ActiveJob(
            stored,
            reserved,
            payers=payers(stored.signed, self.terms.domain),
            finished=set(leaves),
            tokens_in=done[0],
            tokens_out=done[1],
            rows_seen=sum(done) - len(leaves),
            credit=pricing.credit_rows(stored.order, self.terms.spec, self.terms.max_unpaid),
            done=done,
            acked=(ack[0].tokens_in, ack[0].tokens_out) if ack is not None else (0, 0),
            counted_from=self._monotonic(),
            is_restored=is_restored,
        )
        if known is not None:
            known.end_runs()
            job.client, job.outbox = known.client, known.outbox
            job.client_gone_at = known.client_gone_at
        self.jobs[stored.order_hash] = job
        return job

    async def prove(self, order_hash: str) -> ActiveJob:
        """The job, once the chain shows it matched with a plan this miner accepted and it may still
        be worked on. Raises Refused, or ChainUnreachable when a new job cannot be looked up; proven
        jobs need no chain.
        """
        job = await self.find(order_hash)
        if job.is_restored:
            raise _restored()
        async with job.lock:
            if not job.is_verified:
                job = await self._look_up(job)
        state = job.stored.chain_state
        if state and state != JobState.MATCHED.name:
            raise Refused(JOB_OVER, f"on chain the job is {state.lower()}")
        if self.serving is None or not self.serving.can_run(job.stored.place.layers):
            raise Refused(
                admission.NOT_SERVING,
                f"this miner no longer holds layers {job.stored.place.layers}",
            )
        return job

    async def _look_up(self, job: ActiveJob) -> ActiveJob:
        """The job with the plan that the chain has for it, proven."""
        now = self._monotonic()
        if now - job.refused_at < VERIFY_AGAIN_S:
            raise Refused(NOT_MATCHED, "the job is not matched on chain (looked up a moment ago)")
        try:
            stored = await self._matched(job.stored)
        except Refused:
            job.refused_at = now
            raise
        store, now_s = self.book.store, self.chain.now_s()
        await self.book.disk(
            lambda: store.mark_verified(stored.order_hash, stored.plan_hash, now_s=now_s)
        )
        await self.book.disk(store.set_chain_state, stored.job_id, JobState.MATCHED.name)
        await self.book.disk(store.unmatch, stored.job_id, stored.plan_hash)
        proven = await self._take_up(stored)
        if not proven.is_verified:
            proven.stored = replace(
                stored,
                is_verified=True,
                started_at=stored.started_at or now_s,
                chain_state=JobState.MATCHED.name,
            )
        return proven

    async def _matched(self, known: StoredJob) -> StoredJob:
        """Of the plans that were accepted for an order the one that the chain has for it.

        Raises Refused, or ChainUnreachable.
        """
        kept = await self.book.disk(self.book.store.plans, known.order_hash, MAX_PLANS)
        plans = [known, *(plan for plan in kept if plan.plan_hash != known.plan_hash)]
        seen = await asyncio.gather(*(self.chain.job(p.job_id, p.plan_hash) for p in plans))
        there = [
            (plan, found)
            for plan, found in zip(plans, seen, strict=True)
            if found.state is not JobState.NONE
        ]
        if not there:
            is_used = await self.chain.is_nonce_used(known.order)
            raise Refused(
                NOT_MATCHED,
                "on chain the order's nonce is used, but not for a plan that was accepted here"
                if is_used
                else "on chain the order was not opened",
            )
        stored, found = there[0]
        if found.state is not JobState.MATCHED:
            raise Refused(JOB_OVER, f"on chain the job is {found.state.name.lower()}, not matched")
        # Acks of a key that neither is the requester nor opened the job are worth nothing.
        known_as = payers(stored.signed, self.terms.domain)
        if not known_as <= {stored.order.requester.lower(), found.spender}:
            raise Refused(NOT_MATCHED, "on chain another key opened the job than signed it here")
        return stored

    def is_running(self, order_hash: str) -> bool:
        """Whether a request of this order is not over here: nothing is signed for all of them."""
        job = self.jobs.get(order_hash)
        return job is not None and bool(job.runs)

    # --- open orders ---

    def admit(self, job: ActiveJob) -> None:
        """Take an open order's request. Raises Refused."""
        if self.is_draining:
            raise Refused(
                admission.DRAINING, "this miner finishes its work and takes no new requests"
            )
        slack = 1 if job.stored.is_first else 2
        if job.unacknowledged > job.credit * slack:
            raise job.unpaid(slack)

    def acknowledged(self, job: ActiveJob, ack: t.Ack, signature: str) -> bool:
        """Whether an acknowledgement says more than is known. Raises Refused."""
        order = job.order
        if ack.plan_hash != job.stored.plan_hash:
            raise Refused(NOT_PAID, "it is about another order or another plan")
        if ack.tokens_in > order.max_tokens_in or ack.tokens_out > order.max_tokens_out:
            raise Refused(NOT_PAID, "it exceeds the order's caps")
        if ack.tokens_in < job.acked[0] or ack.tokens_out < job.acked[1]:
            return False
        signer = signing.recover(self.terms.domain, ack, signature)
        if signer is None or signer.lower() not in job.payers:
            raise Refused(NOT_PAID, "it is not signed by the requester")
        is_more = (ack.tokens_in, ack.tokens_out) != job.acked
        job.acked = (ack.tokens_in, ack.tokens_out)
        return is_more

    # --- what the chain says ---

    async def hear(self, news: JobNews | DisputeNews | ClosingNews) -> None:
        """Take note of an event about any job; those of other miners are passed over."""
        store, now_s = self.book.store, self.chain.now_s()
        if isinstance(news, ClosingNews):
            for job in self.jobs.values():
                job.is_ended |= job.stored.job_id == news.job_id
            return
        if isinstance(news, DisputeNews):
            if news.is_open:
                await self.book.disk(store.put_dispute, news.dispute_id, news.job_id, news.stage)
            else:
                await self.book.disk(store.close_dispute, news.dispute_id)
            return
        await self.book.disk(
            lambda: store.set_chain_state(
                news.job_id, news.state.name, now_s=now_s, keep_s=self.terms.keep_s
            )
        )
        if news.plan_hash:
            await self._unmatch(news.job_id, but=news.plan_hash)
        for job in self.jobs.values():
            if job.stored.job_id == news.job_id and news.plan_hash in ("", job.stored.plan_hash):
                if news.state is JobState.MATCHED:
                    job.held_until = min(job.held_until, self._monotonic() + OPENED_WITHIN_S)
                job.stored = replace(job.stored, chain_state=news.state.name)

    async def ask_again(self) -> None:
        """After a reorganisation: look up every live job anew. Raises ChainUnreachable.

        One that is not there with its plan any more is looked for again before anything is done
        for it.
        """
        for stored in await self.book.disk(self.book.store.live_jobs):
            found = await self.chain.job(stored.job_id, stored.plan_hash)
            if found.state is JobState.NONE:
                await self._unmatch(stored.job_id)
            else:
                await self.hear(JobNews(stored.job_id, found.state))

    async def _unmatch(self, job_id: str, but: str = "") -> None:
        """The chain has this job with no plan, or with the plan `but` only."""
        await self.book.disk(self.book.store.unmatch, job_id, but)
        for job in self.jobs.values():
            if job.stored.job_id == job_id and job.stored.plan_hash != but:
                job.stored = replace(job.stored, is_verified=False, chain_state="")
                if but:
                    job.end_runs()

    # --- time ---

    def release(self, job: ActiveJob) -> bool:
        """Give back slots that no request will use, and lend those that none used for a while.

        True when the job can leave memory; a later question finds it on disk. Days can go by before
        a job is settled, and much of what a stage does looks at every job that it has in memory.
        """
        now, now_s = self._monotonic(), self.chain.now_s()
        lost = job.client_gone_at is not None and now - job.client_gone_at > CLIENT_LOST_S
        unused = job.client is None and now_s > job.stored.acceptance.acceptance.expiry
        if not job.is_verified and now > job.held_until:
            job.reserved = 0
        closed = job.stored.chain_state in CLOSED_STATES
        late = now_s > job.order.deadline + AFTER_DEADLINE_S
        alone = job.client is None or job.client_gone_at is not None
        if job.is_over or ((lost or unused) and not job.runs) or closed or late:
            job.reserved = 0
        if job.is_verified and now - job.counted_from > LENT_S:
            job.reserved = min(job.reserved, job.most_asked)
            job.most_asked, job.counted_from = job.asked, now
        left = (unused and not job.is_verified) or (alone and job.is_signed_for)
        return (closed or late or left) and not job.runs
