"""Stages that keep rows, receipts and openings of a job and hand them over on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from client.audit.evidence import AuditCase, EvidenceCollector
from client.orders.orders import PromptBatch, make_order
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.runtime.network.channel import Channel, Peers, StreamIdentity
from tests.town.orders import DOMAIN, MODEL_ID, REQUESTER, SPEC, sign_receipt, terms
from tests.town.stages import Operators

Answer = Any
Rows = tuple[bytes, int]  # the rows in one buffer, bytes per row


class Keepers(Operators):
    """`rows[stage, side, request]` are kept, `answers[stage]` replaces what a stage says."""

    def __init__(
        self,
        batch: PromptBatch,
        spans: Sequence[tuple[int, int]],
        *,
        shard_roots: Sequence[str] = (),
        spec: t.ModelSpec = SPEC,
        model_id: str = MODEL_ID,
    ) -> None:
        super().__init__(spans)
        self.batch = batch
        order = make_order(batch, model_id, spec, terms(), REQUESTER.address, 1)
        self.order = order
        self.case = AuditCase(signing.job_id(DOMAIN, order), order, self.plan)
        self.shard_roots = list(shard_roots)
        self.rows: dict[tuple[int, str, int], Rows] = {}
        self.receipts: dict[int, list[t.SignedReceipt]] = {}
        self.words: dict[int, list[t.SignedWord]] = {}  # by the stage that keeps them
        self.answers: dict[int, Callable[[wire.AnyMessage], Answer]] = {}
        self.stalling: set[int] = set()
        self.most_rows = 10**6
        self.asked: list[tuple[int, wire.AnyMessage]] = []
        self.peers = Peers(StreamIdentity(REQUESTER, DOMAIN))

    async def close(self) -> None:
        await self.peers.close()
        await super().close()

    def evidence(self, **more: Any) -> EvidenceCollector:
        addresses = (operator.address.lower() for operator in self.operators)
        endpoints = dict(zip(addresses, self.endpoints, strict=True))
        return EvidenceCollector(self.case, DOMAIN, self.peers, endpoints, **more)

    def leaf(self, stage: int, index: int, **changes: Any) -> t.RequestLeaf:
        """What a stage signs for a request, by the rows it keeps."""
        last = len(self.plan) - 1
        tokens_in = len(self.batch.prompts[index].ids)
        out_root = self.root(stage, "out", index)
        if stage == last:
            out_root = commit.answer_root(out_root, self.root(stage, "states", index))
        leaf = t.RequestLeaf(
            index,
            commit.to_hex(self.root(stage, "in", index)),
            commit.to_hex(out_root),
            tokens_in,
            len(self.rows[last, "out", index][0]) // 4,
        )
        return msgspec.structs.replace(leaf, **changes)

    def root(self, stage: int, side: str, index: int) -> bytes:
        return commit.rows_root(*self.rows[stage, side, index])

    def sign(self, stage: int, leaves: list[t.RequestLeaf], /, **changes: Any) -> t.SignedReceipt:
        if self.shard_roots:
            changes = {"shard_root": self.shard_roots[stage]} | changes
        states = [
            commit.to_hex(self.root(stage, "states", leaf.request_index))
            for leaf in (leaves if stage == len(self.plan) - 1 else ())
        ]
        last = len(self.plan) - 1
        answers = [self.leaf(last, leaf.request_index).out_root for leaf in leaves]
        signer = self.operators[stage]
        return sign_receipt(
            signer, self.order, self.plan, stage, leaves, states, answers, **changes
        )

    def sign_all(self) -> None:
        """One receipt a stage over all requests."""
        for stage in range(len(self.plan)):
            leaves = [self.leaf(stage, i) for i in range(len(self.batch.prompts))]
            self.receipts[stage] = [self.sign(stage, leaves)]

    def refuse(self, *stages: int) -> None:
        for stage in stages:
            self.answers[stage] = lambda _: wire.Failed("E-JOB-NOT-KEPT", "it is gone")

    def _handler_of(self, stage: int) -> Any:
        async def handle(channel: Channel, frame: wire.Frame) -> Answer:
            self.asked.append((stage, frame.message))
            if stage in self.stalling:
                await asyncio.sleep(60)
            special = self.answers.get(stage)
            answer = special(frame.message) if special else None
            return answer if answer is not None else self._honest(stage, frame.message)

        return handle

    def _honest(self, stage: int, message: wire.AnyMessage) -> Answer:
        match message:
            case wire.FetchReceipts():
                return wire.Receipts(self.receipts.get(stage, []), self.words.get(stage, []))
            case wire.FetchRows():
                found = self.rows.get((stage, message.side, message.request))
                if found is None:
                    return wire.Failed("E-JOB-NOT-KEPT", "no such rows")
                data, width = found
                count = min(message.count, self.most_rows)
                part = data[message.start * width : (message.start + count) * width]
                other = {"out": "states", "states": "out"}.get(message.side, "")
                is_end = (stage, other, message.request) in self.rows and (
                    stage == len(self.plan) - 1
                )
                beside = commit.to_hex(self.root(stage, other, message.request)) if is_end else None
                numbers = len(part) // width, width, len(data) // width
                return wire.Rows(message.start, *numbers, beside), part
            case wire.FetchOpening():
                return self.opening(message.request)
        return wire.Failed("E-PEER-03", "not asked here")

    def opening(self, index: int) -> Answer:
        prompt, opened = self.batch.prompts[index], self.batch.opening(index)
        message = wire.Opening(
            commit.to_hex(prompt.salt), opened.prompt_proof, prompt.sampling, opened.sampling_proof
        )
        return message, commit.token_bytes(prompt.ids)
