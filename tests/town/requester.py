"""A requester that speaks to every stage of a job itself, frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from client.orders.orders import Prompt, PromptBatch, make_order
from client.pipeline.pipeline import Match
from core.keys.signer import Signer
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.types import JobState
from core.runtime.network.channel import Channel, Peers, StreamIdentity, connect
from tests.town.chain import ChainJob, FakeChain
from tests.town.machines import Machine
from tests.town.orders import DOMAIN, sign_order, terms


class ToStages:
    """What a requester says to every stage of a job that it has an order for, and what it hears."""

    batch: PromptBatch
    signed: t.SignedOrder
    plan: list[t.Stage]
    endpoints: list[str]
    order_hash: str

    def __init__(self, identity: StreamIdentity) -> None:
        self.identity = identity
        self.tokens: dict[int, list[int]] = {}
        self.told: list[wire.Token] = []  # each token once, in order
        self.finish: dict[int, str] = {}
        self.receipts: dict[int, dict[int, t.SignedReceipt]] = {}
        self.failures: list[wire.RequestFailed] = []
        self.channels: list[Channel] = []
        self.changed = asyncio.Event()

    @staticmethod
    def of(identity: StreamIdentity, match: Match, batch: PromptBatch) -> ToStages:
        """Of a job that a matcher opened."""
        found = ToStages(identity)
        found.batch, found.signed, found.order_hash = batch, match.signed, match.order_hash
        found.plan, found.endpoints = [*match.plan], [*match.endpoints]
        return found

    async def connect(self) -> None:
        self.channels = [
            await connect(
                endpoint,
                self.identity,
                expected=place.operator,
                handler=self._handler_of(stage),
            )
            for stage, (place, endpoint) in enumerate(zip(self.plan, self.endpoints, strict=True))
        ]

    def opening(self, stage: int) -> wire.OpenJob:
        return wire.OpenJob(
            signed=self.signed, plan=self.plan, endpoints=self.endpoints, stage=stage
        )

    async def open(self) -> list[wire.AnyMessage]:
        await self.connect()
        return [
            (await channel.call(self.opening(stage))).message
            for stage, channel in enumerate(self.channels)
        ]

    def submission(self, index: int) -> tuple[wire.Submit, bytes]:
        prompt, opening = self.batch.prompts[index], self.batch.opening(index)
        message = wire.Submit(
            order_hash=self.order_hash,
            request=index,
            salt=commit.to_hex(prompt.salt),
            prompt_proof=opening.prompt_proof,
            sampling=prompt.sampling,
            sampling_proof=opening.sampling_proof,
        )
        return message, commit.token_bytes(prompt.ids)

    async def submit(self, index: int) -> list[wire.AnyMessage]:
        message, payload = self.submission(index)
        ends = dict.fromkeys((len(self.channels) - 1, 0))
        return [(await self.channels[s].call(message, payload)).message for s in ends]

    async def until(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until something is true that only messages can change."""
        async with asyncio.timeout(timeout_s):
            while not done():
                self.changed.clear()
                try:
                    async with asyncio.timeout(0.2):
                        await self.changed.wait()
                except TimeoutError:
                    continue

    async def finished(self, indices: Iterable[int]) -> None:
        wanted = set(indices)

        def failed() -> list[wire.RequestFailed]:
            return [failure for failure in self.failures if failure.request in wanted]

        await self.until(
            lambda: (
                bool(failed())
                or all(len(self.receipts.get(i, {})) == len(self.plan) for i in wanted)
            )
        )
        assert not failed(), self.failures

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self.channels))

    def _handler_of(self, stage: int) -> Any:
        async def handle(channel: Channel, frame: wire.Frame) -> None:
            message = frame.message
            if isinstance(message, wire.Token):
                known = self.tokens.setdefault(message.request, [])
                if message.step == len(known):
                    known.append(message.token)
                    self.told.append(message)
                    self.finish[message.request] = message.finish
            elif isinstance(message, wire.Receipt):
                leaf = message.signed.leaves[0]
                self.receipts.setdefault(leaf.request_index, {})[stage] = message.signed
            elif isinstance(message, wire.RequestFailed):
                self.failures.append(message)
            self.changed.set()

        return handle


class Requester(ToStages):
    """A client that talks to every stage of a job."""

    def __init__(self, signer: Signer, chain: FakeChain, machines: Sequence[Machine]) -> None:
        super().__init__(StreamIdentity(signer, DOMAIN))
        self.signer, self.chain, self.machines = signer, chain, machines

    def order(
        self,
        prompts: Sequence[tuple[Sequence[int], t.SamplingParams]],
        *,
        matcher: str = t.ZERO_ADDRESS,
        nonce: int = 1,
        **changes: Any,
    ) -> None:
        """Prepare and sign an order; `changes` replace its fields before signing."""
        self.batch = PromptBatch.of(
            [
                Prompt(str(i), tuple(ids), sampling, bytes([i]) * 32)
                for i, (ids, sampling) in enumerate(prompts)
            ]
        )
        spec = self.machines[0].terms.spec
        prices = {"price_in": 100, "price_out": 200, "matcher": matcher}
        deadline = int(self.chain.clock.now()) + 600
        offer = terms(deadline=deadline, **prices)
        order = make_order(
            self.batch, signing.model_id(spec), spec, offer, self.signer.address, nonce
        )
        order = msgspec.structs.replace(order, **changes)
        self.signed = sign_order(order, self.signer)
        self.order_hash = signing.order_hash(order)
        self.job_id = signing.job_id(DOMAIN, order)
        self.plan = [
            t.Stage(operator=m.signer.address, layer_from=m.layers.start, layer_to=m.layers.end)
            for m in self.machines
        ]
        self.plan_hash = signing.plan_hash(self.plan)
        self.endpoints = [m.endpoint for m in self.machines]

    def proposal(self, stage: int) -> wire.Propose:
        return wire.Propose(
            signed=self.signed, plan=self.plan, endpoints=self.endpoints, stage=stage
        )

    async def propose(self, proposer: Signer) -> list[wire.AnyMessage]:
        """Ask every stage, as a matcher would."""
        peers = Peers(StreamIdentity(proposer, DOMAIN))
        answers = []
        for stage, machine in enumerate(self.machines):
            channel = await peers.get(machine.signer.address, machine.endpoint)
            answers.append((await channel.call(self.proposal(stage))).message)
        await peers.close()
        return answers

    def match(self, state: JobState = JobState.MATCHED) -> None:
        """Put the job on the chain."""
        order = self.signed.order
        self.chain.used_nonces.add((order.requester, order.nonce))
        self.chain.jobs[self.job_id] = ChainJob(
            state, self.plan_hash, order, tuple(self.plan), opener=self.signer.address
        )

    async def run_all(self, proposer: Signer) -> None:
        """Everything from the proposal to the last receipt."""
        for answer in await self.propose(proposer):
            assert isinstance(answer, wire.Accepted), answer
        self.match()
        for answer in await self.open():
            assert isinstance(answer, wire.JobOpened), answer
        indices = range(len(self.batch.prompts))
        for answers in await asyncio.gather(*(self.submit(i) for i in indices)):
            assert all(isinstance(answer, wire.Submitted) for answer in answers), answers
        await self.finished(indices)
