"""Which message, from whom, about which job leads to what?

The only place that decides whether a peer may say what it says. What is refused is answered (a
call) or counted and dropped (a push); nothing that an unknown peer sends raises out of here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.errors import (
    CheckFailed,
    ContextTooLong,
    GrammarInvalid,
    HeadraceError,
    ModelUnsupported,
    PeerUnreachable,
)
from core.runtime.network.channel import Answer, Channel
from core.runtime.sharing import SharedLook
from core.runtime.tasks import spawn
from miner.chain import admission
from miner.compute.compute import Compute
from miner.records.store import CLOSED_STATES
from miner.serving import answers, request_state
from miner.serving.job_table import (
    AFTER_DEADLINE_S,
    CAPS,
    NOT_MATCHED,
    ActiveJob,
    JobTable,
    LoadedShard,
    Refused,
)
from miner.serving.neighbours import Neighbours
from miner.serving.outbox import Outbox, Outboxes
from miner.serving.request_run import RequestRun, RunContext, Wires, failed, token_ids
from miner.serving.request_state import RequestPhase
from miner.serving.sharing import Sharing

if TYPE_CHECKING:
    from core.engine.sampling.grammar import Grammar
    from core.engine.sampling.stops import AnswerEnding

SILENT_REQUEST_S = 60.0
#: Others round the same ring do not wait for a request of which nothing came home for so long.
AWAY_S = 1.0
#: What a broken pipeline has done is kept for so long, for another order to go on with and for a
#: Cut.
STRANDED_S = 60.0
CLIENT_GONE_S = 15.0
#: Of a job: one may take a core for seconds.
MAX_BAD_GRAMMARS = 3
#: How long a first stage waits for an acknowledgement before it lets a request go.
UNPAID_S = 15.0
#: What its pipeline has not ended so long after its client left is forgotten.
FORGOTTEN_S = 30.0
#: Nor longer than this where its client has left too: one that lost only its stream is back within
#: a second.
LEFT_S = 3.0
ASK_NEXT_S = 2.0
#: For a client that opens its job again to read what it may lack.
REPEATED_S = 10.0
MAX_RUNS = 1024
MOST_LOOKS = 256
#: A request ends at a later stage when the first one has begun the next.
SLOTS_SLACK = 2

UNAUTHORISED = answers.UNAUTHORISED
BUSY = "E-JOB-BUSY"
WRONG_PLACE = "E-JOB-PLACE"
OPENING = "E-JOB-OPENING"
REQUEST_OVER = "E-JOB-REQUEST-OVER"
UNEXPECTED = "E-PEER-UNEXPECTED"
_WITH_PAYLOAD = (wire.Activations, wire.Submit, wire.ShowNode)


class StageService:
    """One miner's side of every stream it has with clients, matchers, auditors and other stages."""

    def __init__(
        self,
        table: JobTable,
        compute: Compute,
        outboxes: Outboxes,
        monotonic: Callable[[], float],
        *,
        look_for_disputes: Callable[[], Awaitable[None]] | None = None,
        on_shown: Callable[[str, wire.ShowNode, bytes], Awaitable[wire.Differs]] | None = None,
        on_allocated: Callable[[str, wire.Allocate], bool] | None = None,
        sharing: Sharing | None = None,
        neighbours: Neighbours | None = None,
        guesses: bool = True,
    ) -> None:
        """`look_for_disputes` brings the table's knowledge of disputes up to date before an unknown
        peer is turned away; `on_shown` is told what accusers show of their traces, `on_allocated`
        what a matcher wants us to hold: whether that matcher is followed. `sharing` sends files of
        the model to who asks. Without `guesses` no tokens are guessed ahead. `neighbours` watch the
        stages that we send to; without them only a stream that ends is noticed.
        """
        self.table, self.compute, self.outboxes = table, compute, outboxes
        self.counts: Counter[str] = Counter()
        self.tokens_in = self.tokens_out = self.requests_done = 0
        self._book = table.book
        self._monotonic = monotonic
        self._look_for_disputes = look_for_disputes
        self._jurors_of: dict[str, SharedLook[list[str]]] = {}
        self._on_shown, self._on_allocated = on_shown, on_allocated
        self._sharing = sharing
        self._neighbours = neighbours
        self._guesses = guesses
        if neighbours is not None:
            neighbours.on_lost = self._neighbour_lost
        self._context: RunContext | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._handlers: dict[type, Callable[..., Awaitable[Answer]]] = {
            wire.Ping: self._ping,
            wire.Allocate: self._allocate,
            wire.Propose: self._propose,
            wire.Withdraw: self._withdraw,
            wire.OpenJob: self._open_job,
            wire.Submit: self._submit,
            wire.Activations: self._activations,
            wire.Waiting: self._waiting,
            wire.Carry: self._carry,
            wire.Token: self._token,
            wire.Stopped: self._stopped,
            wire.FinishRequest: self._finish_request,
            wire.Cancel: self._cancel,
            wire.Cut: self._cut,
            wire.GoesOn: self._goes_on,
            wire.Acknowledge: self._acknowledge,
            wire.EndJob: self._end_job,
            wire.Progress: self._progress,
            wire.CloseJob: self._close_job,
            wire.FetchOpening: self._fetch,
            wire.FetchRows: self._fetch,
            wire.FetchReceipts: self._fetch,
            wire.ShowNode: self._show_node,
            wire.FetchFile: self._fetch_file,
        }

    def serve(self, serving: LoadedShard | None) -> None:
        """Take up a shard, or none. No request may be running."""
        assert not self.table.active_requests, "requests are running"
        self.table.serving = serving
        self._context = None
        if serving is not None:
            self._context = RunContext(
                compute=self.compute,
                book=self._book,
                hidden=serving.hidden,
                vocab=serving.vocab,
                eos_ids=serving.eos_ids,
                count=self._count,
                monotonic=self._monotonic,
                tokenizer=serving.tokenizer,
                guesses=self._guesses,
                span_layers=serving.span_layers,
            )

    async def handle(self, channel: Channel, frame: wire.Frame) -> Answer:
        """Answer one frame. The handler of every stream that others open to us."""
        handler = self._handlers.get(type(frame.message))
        try:
            if handler is None:
                raise Refused(UNEXPECTED, f"a miner takes no {type(frame.message).__name__}")
            if isinstance(frame.message, _WITH_PAYLOAD):
                return await handler(channel, frame.message, frame.payload)
            return await handler(channel, frame.message)
        except Refused as refusal:
            self._count(refusal.code)
            return wire.Failed(code=refusal.code, reason=refusal.reason[:2000])
        except HeadraceError as error:
            self._count(error.code)
            return wire.Failed(code=error.code, reason=str(error)[:2000])

    async def close(self) -> None:
        """End every request and tell no peer."""
        if self._neighbours is not None:
            await self._neighbours.close()
        runs = [run for job in self.table.jobs.values() for run in list(job.runs.values())]
        for run in runs:
            run.give_up()
        await asyncio.gather(*(run.closed() for run in runs))
        await asyncio.gather(*(outbox.close() for outbox in self._client_outboxes()))
        await asyncio.gather(*self._background, return_exceptions=True)

    async def flush(self, timeout_s: float) -> None:
        """Let receipts and tokens leave before streams close."""
        await asyncio.gather(*(outbox.flush(timeout_s) for outbox in self._client_outboxes()))

    def _client_outboxes(self) -> list[Outbox]:
        return [job.outbox for job in self.table.jobs.values() if job.outbox is not None]

    # --- time ---

    def tick(self) -> None:
        """Once a second: drop what fell silent, cancel what has no client, free slots."""
        now = self._monotonic()
        for order_hash, job in list(self.table.jobs.items()):
            if job.client is not None and not job.client.is_open and job.client_gone_at is None:
                job.client_gone_at = now
            alone_s = 0.0 if job.client_gone_at is None else now - job.client_gone_at
            gone = alone_s > CLIENT_GONE_S
            closed = job.stored.chain_state in CLOSED_STATES
            late_s = self.table.chain.now_s() - job.order.deadline
            is_unpaid = closed or late_s > AFTER_DEADLINE_S or alone_s > FORGOTTEN_S
            for run in list(job.runs.values()):
                silent_s, phase = now - run.seen_at, run.request.phase
                if silent_s > AWAY_S:
                    run.makes_room()
                if gone or late_s > 0:
                    run.cancel()
                if is_unpaid:
                    run.give_up()
                elif phase is RequestPhase.STRANDED:
                    if silent_s > STRANDED_S or alone_s > LEFT_S or run.is_unwanted:
                        run.give_up()
                elif self.compute.is_waiting(run.key):
                    run.wait()
                elif silent_s > UNPAID_S and run.is_held:
                    run.strand(PeerUnreachable("the requester", job.unpaid().reason))
                elif silent_s > SILENT_REQUEST_S and phase is RequestPhase.RUNNING:
                    # Kept, so that what was done is paid though a neighbour fell silent.
                    run.strand(
                        PeerUnreachable("the pipeline", f"no frame for {SILENT_REQUEST_S:g} s")
                    )
            if job.waiting:
                self._begin_waiting(job)
            if self.table.release(job):
                del self.table.jobs[order_hash]
                if job.outbox is not None:
                    self._spawn(job.outbox.close())

        if self._neighbours is not None:
            self._neighbours.keep_only(
                {place for job in self.table.jobs.values() if job.runs for place in _after(job)}
            )

    def _neighbour_lost(self, operator: str, error: HeadraceError) -> None:
        for job in self.table.jobs.values():
            if operator in (place[0] for place in _after(job)):
                for run in list(job.runs.values()):
                    if run.request.phase is RequestPhase.RUNNING:
                        run.strand(error, operator)

    # --- anyone, matcher, client ---

    async def _ping(self, channel: Channel, message: wire.Ping) -> Answer:
        step_s, due_s = self.compute.running_s()
        return wire.Pong(step_ms=_ms(step_s), due_ms=_ms(due_s))

    async def _allocate(self, channel: Channel, message: wire.Allocate) -> Answer:
        if self._on_allocated is None or not self._on_allocated(channel.peer, message):
            raise Refused(admission.MATCHER, "this miner follows another matcher, or its owner")
        return wire.Allocated()

    async def _propose(self, channel: Channel, message: wire.Propose) -> Answer:
        return await self.table.propose(channel.peer, message)

    async def _withdraw(self, channel: Channel, message: wire.Withdraw) -> Answer:
        self.table.withdraw(channel.peer, message.order_hash)
        return wire.ProposalWithdrawn()

    async def _open_job(self, channel: Channel, message: wire.OpenJob) -> Answer:
        order_hash = signing.order_hash(message.signed.order)
        _only(channel, *(await self.table.find(order_hash)).payers)
        job = await self.table.prove(order_hash)
        if (
            signing.plan_hash(message.plan) != job.stored.plan_hash
            or message.stage != job.stored.stage
        ):
            raise Refused(WRONG_PLACE, "this is not the plan that the chain has for the job")
        again = job.client is not None or job.is_signed_for
        job.continues = message.continues or job.continues
        self._attach(job, channel)
        if again or job.finished:
            await self._replay(job, frozenset(message.known))
        return wire.JobOpened(again=again, credit=job.credit)

    def _attach(self, job: ActiveJob, channel: Channel) -> None:
        self.table.jobs[job.stored.order_hash] = job  # it may have left meanwhile
        if job.outbox is not None:
            self._spawn(job.outbox.close())

        async def same_channel() -> Channel:
            return channel

        if job.client is None:
            self.table.opened(job)
        job.client, job.client_gone_at = channel, None
        job.outbox = Outbox(f"client {channel.peer}", same_channel)

    async def _replay(self, job: ActiveJob, known: Collection[int]) -> None:
        """A client that lost its stream gets what it may lack: it knows tokens by position."""
        for run in list(job.runs.values()):
            for step, token in enumerate(run.tokens):
                finish = run.request.finish if step == run.request.produced - 1 else ""
                await self._repeat(job, _token(job, run.index, step, token, finish))
            if run.stranding is not None:
                await self._repeat(job, run.stranding)
        for index, phase in list(job.over.items())[-MAX_RUNS:]:
            over = failed(job.stored, index, REQUEST_OVER, f"it was {phase} here")
            await self._repeat(job, over)
        finished = sorted(job.finished)
        # Of a long session only what can have been under way: the rest was acknowledged.
        for index in finished[-2 * job.at_once :] if job.is_open_order else finished:
            if index not in known:
                await self._replay_finished(job, index)
        if job.outbox is not None:
            await job.outbox.flush(REPEATED_S)

    async def _repeat(self, job: ActiveJob, message: wire.AnyMessage) -> None:
        """Tell a client again, no faster than it reads."""
        if job.outbox is not None and job.outbox.is_half_full:
            await job.outbox.flush(REPEATED_S)
        job.tell_client(message)

    async def _replay_finished(self, job: ActiveJob, index: int) -> None:
        stored, store = job.stored, self._book.store
        if stored.is_last:
            rows = await self._book.disk(
                store.rows, stored.order_hash, stored.plan_hash, index, "out", 0, 2**20
            )
            opened = await self._book.disk(store.opening, stored.order_hash, index)
            if rows and opened:
                tokens = token_ids(rows[0])
                ending = await self._ending(opened[0].sampling, token_ids(opened[1]))
                finishes = [ending.push(token) for token in tokens]
                for step, token in enumerate(tokens):
                    is_last = step == len(tokens) - 1
                    finish = (finishes[-1] or "cancelled") if is_last else ""
                    await self._repeat(job, _token(job, index, step, token, finish))
        receipt = wire.Receipt(signed=await self._book.sign_over(stored, [index]))
        await self._repeat(job, receipt)

    async def _ending(self, sampling: t.SamplingParams, prompt: Sequence[int]) -> AnswerEnding:
        """Reads the tokenizer beside the loop if it must be read."""
        context = self._the_context
        if sampling.stop and context.tokenizer is not None:
            await asyncio.to_thread(context.tokenizer)
        return context.ending(sampling, prompt)

    async def _grammar(
        self, job: ActiveJob, sampling: t.SamplingParams, prompt: list[int]
    ) -> Grammar | None:
        """Reads it beside the loop; of a first stage, which draws nothing, only to refuse it.

        Clients read theirs before, so a job has few that cannot be read. Raises Refused.
        """
        if not sampling.grammar:
            return None
        from core.engine.sampling.grammar import check_grammar, grammar_of

        read = self._the_context.tokenizer
        async with job.reading:
            if job.bad_grammars >= MAX_BAD_GRAMMARS:
                raise Refused(OPENING, f"{job.bad_grammars} grammars could not be read here")
            try:
                tokenizer = await asyncio.to_thread(read) if read is not None else None
                if job.stored.is_last:
                    return await asyncio.to_thread(grammar_of, sampling, prompt, tokenizer)
                await asyncio.to_thread(check_grammar, sampling, tokenizer)
            except (GrammarInvalid, ModelUnsupported) as error:
                job.bad_grammars += 1
                raise Refused(OPENING, f"{error.what}: {error.why}") from None
        return None

    async def _submit(self, channel: Channel, message: wire.Submit, payload: memoryview) -> Answer:
        job = await self.table.prove(message.order_hash)
        _only(channel, *job.payers)
        stored, index = job.stored, message.request
        if not (stored.is_first or stored.is_last):
            raise Refused(WRONG_PLACE, "prompts go to the first and the last stage")
        _in_order(job, index)
        prompt = _prompt_of(payload, message.sampling, self._the_shard.context)
        if job.is_open_order:
            await self._check_opening(job, message, prompt)
        else:
            _check_openings(job.order, message, prompt)
        _check_sampling(message.sampling, prompt, self._the_context.vocab)
        if stored.is_last:
            await self._ending(message.sampling, prompt)  # whatever it must read is read by then
        # Also at a first stage: what the last one refuses must not be computed.
        grammar = await self._grammar(job, message.sampling, prompt)
        if index in job.finished:
            await self._replay_finished(job, index)
            return wire.Submitted()
        if index in job.over:
            raise Refused(REQUEST_OVER, f"request {index} was {job.over[index]} here")
        run = job.runs.get(index)
        if run is None or not run.request.is_submitted:
            run = self._take_on(job, message, prompt, grammar)
        opening = wire.Opening(
            salt=message.salt,
            prompt_proof=message.prompt_proof,
            sampling=message.sampling,
            sampling_proof=message.sampling_proof,
            opening=message.opening,
        )
        await self._book.disk(
            self._book.store.put_opening, message.order_hash, index, opening, bytes(payload)
        )
        # Said again, it may find a request whose first Submit ended with its stream half-way.
        if stored.is_first and run.has_not_begun and index not in job.waiting:
            job.waiting.append(index)
            self._begin_waiting(job)
        return wire.Submitted()

    def _take_on(
        self,
        job: ActiveJob,
        message: wire.Submit,
        prompt: list[int],
        grammar: Grammar | None,
    ) -> RequestRun:
        """A request begins here. Raises Refused, or CheckFailed where its rows are another's."""
        index, most_out = message.request, message.sampling.max_new_tokens
        self._check_caps(job, len(prompt), most_out)
        if job.is_open_order:
            self._admit(job, len(prompt), most_out)
        if any(token >= self._the_context.vocab for token in prompt):
            raise Refused(OPENING, f"token ids of this model are below {self._the_context.vocab}")
        run = job.runs.get(index)
        if run is None:
            request_state.submit(self._fresh(job, index), len(prompt), most_out)
            run = self._new_run(job, index)
        run.named(message.origin)
        try:
            run.submit(prompt, message.sampling, grammar)
        except HeadraceError as error:
            run.fail(error)
            raise
        self._promise(job, index, len(prompt), most_out)
        return run

    def _check_caps(self, job: ActiveJob, prompt_tokens: int, max_new_tokens: int) -> None:
        order = job.order
        if job.tokens_in + prompt_tokens > order.max_tokens_in:
            raise Refused(
                CAPS,
                f"{job.tokens_in} + {prompt_tokens} prompt tokens, the order pays "
                f"{order.max_tokens_in}",
            )
        if job.tokens_out + max_new_tokens > order.max_tokens_out:
            raise Refused(
                CAPS,
                f"{job.tokens_out} + {max_new_tokens} new tokens, the order pays "
                f"{order.max_tokens_out}",
            )

    async def _check_opening(self, job: ActiveJob, message: wire.Submit, prompt: list[int]) -> None:
        """Raise Refused unless the requester signed this prompt under this index only."""
        index, signed = message.request, message.opening
        said = t.RequestOpening(
            order_hash=message.order_hash,
            request_index=index,
            prompt_leaf=commit.to_hex(
                commit.leaf_hash(commit.prompt_leaf(index, commit.unhex(message.salt), prompt))
            ),
            sampling_leaf=commit.to_hex(
                commit.leaf_hash(commit.sampling_leaf(index, message.sampling))
            ),
        )
        if (
            signed is None
            or signed.opening != said
            or message.prompt_proof
            or message.sampling_proof
        ):
            raise Refused(
                OPENING, f"request {index} comes without the signed opening of its prompt"
            )
        signer = signing.recover(self.table.terms.domain, said, signed.signature)
        if signer is None or signer.lower() not in job.payers:
            raise Refused(OPENING, f"the opening of request {index} is not signed by the requester")
        if index not in job.openings:
            kept = await self._book.disk(self._book.store.opening, message.order_hash, index)
            if kept is not None and kept[0].opening is not None:
                job.openings.setdefault(index, kept[0].opening.opening)
        if job.openings.setdefault(index, said) != said:
            raise Refused(OPENING, f"request {index} was opened with another prompt before")

    def _admit(self, job: ActiveJob, prompt_tokens: int, max_new_tokens: int) -> None:
        """Raise Refused where a new request of an open order finds no room or too much unpaid."""
        serving = self._the_shard
        if job.is_ended:
            raise Refused(REQUEST_OVER, "its requester has ended this session")
        if prompt_tokens + max_new_tokens > serving.kv_tokens:
            raise Refused(
                BUSY,
                f"{prompt_tokens + max_new_tokens} positions, this stage's memory holds "
                f"{serving.kv_tokens}",
            )
        self.table.admit(job)

    @staticmethod
    def _promise(job: ActiveJob, index: int, tokens_in: int, tokens_out: int) -> None:
        """Count a request's most tokens against the caps, until it is known how many they are."""
        job.promised[index] = (tokens_in, tokens_out)
        job.tokens_in += tokens_in
        job.tokens_out += tokens_out

    async def _goes_on(self, channel: Channel, message: wire.GoesOn) -> Answer:
        job = await self.table.prove(message.order_hash)
        _only(channel, *job.payers)
        _in_order(job, message.request)
        if not job.is_open_order:
            raise Refused(UNEXPECTED, "a batch says at its beginning what it goes on with")
        job.gone_on.setdefault(message.request, (message.continues, message.continued))
        return wire.Submitted()

    async def _acknowledge(self, channel: Channel, message: wire.Acknowledge) -> Answer:
        job = await self.table.find(message.ack.order_hash)
        _only(channel, *job.payers, job.order.matcher)
        if self.table.acknowledged(job, message.ack, message.signature):
            # Beside the loop: the next request, which it pays for, need not wait for the disk.
            self._spawn(self._book.disk(self._book.store.put_ack, message.ack, message.signature))
            self._go_on(job)
        return None

    def _go_on(self, job: ActiveJob) -> None:
        """A first stage feeds what waited to be paid for."""
        for run in list(job.runs.values()):
            run.go_on()
        self._begin_waiting(job)

    async def _end_job(self, channel: Channel, message: wire.EndJob) -> Answer:
        job = await self.table.find(message.order_hash)
        _only(channel, *job.payers)
        if job.is_open_order:
            job.is_ended = True
        return None

    async def _cancel(self, channel: Channel, message: wire.Cancel) -> Answer:
        job = await self.table.find(message.order_hash)
        run, is_clients = job.runs.get(message.request), channel.peer.lower() in job.payers
        if not is_clients:
            _only(channel, _before(job))
        _in_order(job, message.request)
        if is_clients and run is not None:
            run.cancel()
        if not is_clients or job.stored.is_first:
            self._forget(job, message)
        return None

    def _forget(self, job: ActiveJob, message: wire.Cancel) -> None:
        """A first stage has fed nothing of a request, and never will: the others forget it too."""
        index = message.request
        run = job.runs.get(index)
        if run is not None and run.has_not_begun:
            run.give_up()
        elif run is None and index not in job.finished:
            job.over.setdefault(index, RequestPhase.CANCELLED)
        if job.over.get(index) is not RequestPhase.CANCELLED:
            return
        if job.stored.is_first:
            job.tell_client(failed(job.stored, index, REQUEST_OVER, "it was cancelled here"))
        if not job.stored.is_last:
            self._outbox_to(job, job.stored.stage + 1).put(message)

    async def _cut(self, channel: Channel, message: wire.Cut) -> Answer:
        job = await self.table.find(message.order_hash)
        _only(channel, *job.payers)
        _in_order(job, message.request)
        if not job.is_verified:
            raise Refused(NOT_MATCHED, "the chain was not seen to have the job with this plan")
        run = job.runs.get(message.request)
        if run is not None:
            signed = await run.cut(message.tokens_in, message.tokens_out)
        elif message.request in job.finished:
            signed = await self._book.sign_over(job.stored, [message.request])
            counts = signed.receipt.tokens_in, signed.receipt.tokens_out
            if counts != (message.tokens_in, message.tokens_out):
                # The last token was lost with the stage that sampled it; two receipts over one
                # request would cost the stake.
                raise Refused(REQUEST_OVER, f"it is signed for here with {counts[1]} tokens")
        else:
            raise Refused(REQUEST_OVER, f"nothing is left here of request {message.request}")
        return wire.Receipt(signed=signed)

    # --- other stages ---

    async def _carry(self, channel: Channel, message: wire.Carry) -> Answer:
        job = await self.table.prove(message.order_hash)
        _only(channel, _before(job))
        run = self._run_for(job, message.request)
        if run is None:
            raise Refused(REQUEST_OVER, f"request {message.request} is over here")
        return run.carry(message, self._left_of(job, message.request))

    async def _activations(
        self, channel: Channel, message: wire.Activations, payload: memoryview
    ) -> Answer:
        job = await self.table.prove(message.order_hash)
        _only(channel, _before(job))
        run = self._run_for(job, message.request)
        if run is None or run.request.is_late:
            self._count("rows_late")
            self._stop_sender(job, message.request)
            return None
        try:
            job.take_on(run, message.start + message.rows)
        except Refused as refusal:
            run.fail(CheckFailed("rows are refused", refusal.reason))
            raise
        await self.compute.wait_for_room()
        run.take_rows(message, payload)
        return None

    async def _token(self, channel: Channel, message: wire.Token) -> Answer:
        job = await self.table.prove(message.order_hash)
        if not job.stored.is_first:
            raise Refused(WRONG_PLACE, "tokens go to the first stage")
        _only(channel, job.stored.plan[-1].operator)
        run = job.runs.get(message.request)
        if run is None or run.request.is_late:
            self._count("tokens_late")
            self._stop_sender(job, message.request)
            return None
        run.take_token(message)
        return None

    async def _stopped(self, channel: Channel, message: wire.Stopped) -> Answer:
        job = await self.table.find(message.order_hash)
        _only(channel, *job.payers, *(operator for operator, _ in _after(job)))
        run = job.runs.get(message.request)
        if run is not None:
            run.stop()
        return None

    def _stop_sender(self, job: ActiveJob, index: int) -> None:
        """Tell a sender, which slept meanwhile, that its request is stopped or over here."""
        stages = len(job.stored.plan)
        self._outbox_to(job, (job.stored.stage - 1) % stages).put(
            wire.Stopped(order_hash=job.stored.order_hash, request=index)
        )

    async def _waiting(self, channel: Channel, message: wire.Waiting) -> Answer:
        """Passed on until the whole ring knows."""
        job = await self.table.prove(message.order_hash)
        stored, stages = job.stored, len(job.stored.plan)
        _only(channel, stored.plan[stored.stage - 1].operator)
        run = job.runs.get(message.request)
        if run is not None:
            run.stays()
        after = (stored.stage + 1) % stages
        if message.stage < stages and message.stage not in (after, stored.stage):
            self._outbox_to(job, after).put(message)
        return None

    async def _finish_request(self, channel: Channel, message: wire.FinishRequest) -> Answer:
        job = await self.table.prove(message.order_hash)
        _only(channel, _before(job))
        run = job.runs.get(message.request)
        if run is None:
            self._count("ends_late")
            return None
        is_new = message.request not in job.promised  # what comes again is not counted again
        if is_new and not job.stored.is_last and run.request.phase is RequestPhase.RUNNING:
            try:
                self._check_caps(job, message.tokens_in, message.tokens_out)
            except Refused as refusal:
                run.fail(CheckFailed("the stage before counts too many tokens", refusal.reason))
                raise
            self._promise(job, message.request, message.tokens_in, message.tokens_out)
        run.take_end(message.tokens_in, message.tokens_out, message.word)
        return None

    # --- closing and answering ---

    async def _progress(self, channel: Channel, message: wire.Progress) -> Answer:
        job = await self.table.find(message.order_hash)
        _only(channel, *job.payers, job.order.matcher, *(s.operator for s in job.stored.plan))
        return wire.Finished(requests=sorted(job.finished))

    async def _close_job(self, channel: Channel, message: wire.CloseJob) -> Answer:
        job = await self.table.find(message.order_hash)
        _only(channel, *job.payers, job.order.matcher, *(s.operator for s in job.stored.plan))
        for index in message.requests:
            if index in job.runs:  # a last stage's leaf is on disk before its input is whole
                raise CheckFailed("no receipt is signed", f"request {index} is not over here")
        return wire.Receipt(signed=await self._book.sign_over(job.stored, message.requests))

    async def _fetch(self, channel: Channel, message: answers.Fetch) -> Answer:
        stored = await self._book.disk(self._book.store.job, message.order_hash)
        if stored is None:
            raise Refused(answers.NOT_KEPT, "this miner accepted no such order")

        def allowed(jurors: list[str]) -> bool:
            return answers.may_see(
                channel.peer,
                stored,
                message,
                domain=self.table.terms.domain,
                now_s=self.table.chain.now_s(),
                jurors=jurors,
            )

        if not allowed([]) and not allowed(await self._jurors(stored.job_id).fresh()):
            raise Refused(UNAUTHORISED, f"{channel.peer} has no part in this job")
        return await self._book.disk(answers.answer, self._book.store, stored, message)

    async def _show_node(
        self, channel: Channel, message: wire.ShowNode, payload: memoryview
    ) -> Answer:
        if self._on_shown is None:
            raise Refused(answers.NOT_KEPT, "this machine plays no disputes")
        return await self._on_shown(channel.peer, message, bytes(payload))

    async def _fetch_file(self, channel: Channel, message: wire.FetchFile) -> Answer:
        if self._sharing is None:
            raise Refused(answers.NOT_KEPT, "this machine shares no files")
        return await self._sharing.answer(channel, message)

    def _jurors(self, job_id: str) -> SharedLook[list[str]]:
        """Who was drawn for disputes over a job: however many ask, the chain is asked seldom."""
        if job_id not in self._jurors_of:
            while len(self._jurors_of) >= MOST_LOOKS:
                del self._jurors_of[next(iter(self._jurors_of))]
            look = partial(self._drawn, job_id)
            self._jurors_of[job_id] = SharedLook(look, self._monotonic)
        return self._jurors_of[job_id]

    async def _drawn(self, job_id: str) -> list[str]:
        if self._look_for_disputes is not None:
            await self._look_for_disputes()
        found = await self._book.disk(self._book.store.open_disputes, job_id)
        panels = await asyncio.gather(*(self.table.chain.panel(dispute) for dispute in found))
        return [juror for panel in panels for juror in panel]

    # --- runs ---

    @property
    def _the_context(self) -> RunContext:
        assert self._context is not None, "prove() refuses without a shard"
        return self._context

    @property
    def _the_shard(self) -> LoadedShard:
        assert self.table.serving is not None, "prove() refuses without a shard"
        return self.table.serving

    def _run_for(self, job: ActiveJob, index: int) -> RequestRun | None:
        """The run of a request, made on its first row. None when the request is over here."""
        _in_order(job, index)
        if index in job.finished or index in job.over:
            return None
        run = job.runs.get(index)
        if run is not None:
            return run
        try:
            if job.is_open_order and not (job.stored.is_first or job.stored.is_last):
                self.table.admit(job)  # as `_admit`, without Submit
            most = SLOTS_SLACK * max(job.at_once, job.reserved)
            if job.running >= most:
                raise Refused(BUSY, f"{most} requests of this job run at this stage")
        except Refused as refusal:
            self._give_up(job, index, refusal)
            raise
        return self._new_run(job, index)

    @staticmethod
    def _give_up(job: ActiveJob, index: int, why: Refused) -> None:
        job.tell_client(failed(job.stored, index, why.code, why.reason))
        job.over[index] = RequestPhase.FAILED

    def _new_run(self, job: ActiveJob, index: int) -> RequestRun:
        if self.table.active_requests >= MAX_RUNS:
            refusal = Refused(BUSY, "too many requests run at this stage")
            self._give_up(job, index, refusal)
            raise refusal
        stored = job.stored
        run = RequestRun(
            stored,
            self._fresh(job, index),
            self._the_context,
            Wires(
                to_client=job.tell_client,
                to_next=None if stored.is_last else self._outbox_to(job, stored.stage + 1),
                to_first=None if stored.is_first or not stored.is_last else self._outbox_to(job, 0),
                is_over=lambda ended: self._run_over(job, ended),
                ask_next=None if stored.is_last else lambda ask: self._ask_next(job, ask),
                affords=job.affords if stored.is_first else None,
            ),
        )
        job.runs[index] = run
        self.table.fit_slots(job)
        if self._neighbours is not None:
            for place in _after(job):
                self._neighbours.watch(*place)
        return run

    async def _ask_next(self, job: ActiveJob, message: wire.AnyMessage) -> wire.AnyMessage:
        stage = job.stored.stage + 1
        return await self.outboxes.ask(
            job.stored.plan[stage].operator, job.stored.endpoints[stage], message, ASK_NEXT_S
        )

    def _left_of(self, job: ActiveJob, index: int) -> RequestRun | None:
        """What this stage still has of the request that request `index` of a job goes on with."""
        for earlier, request in self.table.continued(job, index):
            run = earlier.runs.get(request)
            if run is not None and run.has_memory:
                return run
        return None

    def _fresh(self, job: ActiveJob, index: int) -> request_state.Request:
        stored, context = job.stored, self._the_shard.context
        return request_state.Request(index, stored.is_first, stored.is_last, context)

    def _outbox_to(self, job: ActiveJob, stage: int) -> Outbox:
        return self.outboxes.to(job.stored.plan[stage].operator, job.stored.endpoints[stage])

    def _run_over(self, job: ActiveJob, run: RequestRun) -> None:
        request = run.request
        job.runs.pop(run.index, None)
        counts = run.counts if request.phase is RequestPhase.FINISHED else (0, 0)
        before = job.promised.pop(run.index, (0, 0))
        job.rows_seen -= max(0, run.rows_seen - request.rows)  # wrong guesses cost no caps
        job.tokens_in += counts[0] - before[0]
        job.tokens_out += counts[1] - before[1]
        if request.phase is RequestPhase.FINISHED:
            job.done = (job.done[0] + counts[0], job.done[1] + counts[1])
            job.finished.add(run.index)
            self.requests_done += 1
            self.tokens_in += run.counts[0]
            self.tokens_out += run.counts[1]
        else:
            job.over[run.index] = request.phase
        self._spawn(self.compute.drop(run.key))
        self._begin_waiting(job)

    def _begin_waiting(self, job: ActiveJob) -> None:
        """A first stage starts as many of a job's requests as the job has slots."""
        self.table.fit_slots(job)
        running = job.running
        while job.waiting and running < max(1, job.reserved):
            run = job.runs.get(job.waiting[0])
            is_due = run is not None and run.has_not_begun
            if run is not None and is_due and not job.affords(run, len(run.prompt)):
                return
            job.waiting.popleft()
            if run is not None and is_due:
                run.begin(
                    continues=job.goes_on_with(run.index) is not None,
                    old=self._left_of(job, run.index),
                )
                running += 1

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        spawn(work, self._background)

    def _count(self, what: str) -> None:
        self.counts[what] += 1


def _ms(seconds: float) -> int:
    return min(2**32 - 1, int(seconds * 1000))


def _only(channel: Channel, *allowed: str) -> None:
    who = channel.peer.lower()
    if not any(who == one.lower() for one in allowed if one != t.ZERO_ADDRESS):
        raise Refused(UNAUTHORISED, f"{channel.peer} may not say this about the job")


def _before(job: ActiveJob) -> str:
    if job.stored.is_first:
        raise Refused(WRONG_PLACE, "nobody stands before the first stage")
    return job.stored.plan[job.stored.stage - 1].operator


def _after(job: ActiveJob) -> list[tuple[str, str]]:
    """Operator and endpoint that this stage sends to: the next one, or from the last the first."""
    stored = job.stored
    stage = 0 if stored.is_last else stored.stage + 1
    return [(stored.plan[stage].operator, stored.endpoints[stage])] if len(stored.plan) > 1 else []


def _in_order(job: ActiveJob, index: int) -> None:
    if index >= job.order.requests:
        raise Refused(OPENING, f"there is no request {index} of {job.order.requests}")


def _prompt_of(payload: memoryview, sampling: t.SamplingParams, context: int) -> list[int]:
    """The ids. Raises Refused, and ContextTooLong before any work is done for more than fit.

    A frame has room for four million, which would keep the loop busy for seconds.
    """
    if len(payload) // 4 + sampling.max_new_tokens > context:
        raise ContextTooLong(
            prompt_tokens=len(payload) // 4,
            max_new_tokens=sampling.max_new_tokens,
            context_tokens=context,
        )
    try:
        return token_ids(payload)
    except ValueError as error:
        raise Refused(OPENING, str(error)) from None


def _check_openings(order: t.Order, message: wire.Submit, prompt: list[int]) -> None:
    """Raise Refused unless prompt and sampling are the ones that the order commits to."""
    for name, root, leaf, proof in (
        (
            "prompt",
            order.input_root,
            commit.prompt_leaf(message.request, commit.unhex(message.salt), prompt),
            message.prompt_proof,
        ),
        (
            "sampling",
            order.sampling_root,
            commit.sampling_leaf(message.request, message.sampling),
            message.sampling_proof,
        ),
    ):
        siblings = [commit.unhex(sibling) for sibling in proof]
        if not commit.verify_proof(
            commit.unhex(root), order.requests, message.request, commit.leaf_hash(leaf), siblings
        ):
            raise Refused(OPENING, f"the {name} is not the one in the order")


def _check_sampling(sampling: t.SamplingParams, prompt: list[int], vocab: int) -> None:
    """Raise Refused for parameters that mean nothing with this prompt and model."""
    if sampling.first_step >= len(prompt):
        raise Refused(
            OPENING,
            f"{sampling.first_step} of the prompt's {len(prompt)} tokens are said to be produced",
        )
    if any(token >= vocab for token, _ in sampling.logit_bias):
        raise Refused(OPENING, f"biased token ids of this model are below {vocab}")


def _token(job: ActiveJob, index: int, step: int, token: int, finish: str) -> wire.Token:
    return wire.Token(
        order_hash=job.stored.order_hash,
        request=index,
        step=step,
        token=token,
        finish=finish,  # type: ignore[arg-type]
    )
