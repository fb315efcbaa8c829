"""A job of three miners on a local chain, with real stages in process and delivered receipts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from client.audit.evidence import AuditCase as Job
from client.orders.orders import OrderTerms, Prompt, PromptBatch, make_order
from core.chain.rpc import RpcChain
from core.dispute.trace import families
from core.keys.signer import Signer
from core.models.publication import program_to_publish, publication_of
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.network_file import USD, Parameters
from core.protocol.receipts import receipt_over
from devnet.deploy import deploy, register_model
from miner.records.store import BoundaryRows, MinerStore, Rooted
from tests.conftest import CHAIN_ID

if TYPE_CHECKING:
    from core.engine.model.blocks import ModelShard

STAKE, FUNDS = 500 * USD, 10_000 * USD
TURN_S = 300  # longer than any pause of the machine; who is to be silent is skipped over
#: Clocks that leave room for turns of that length.
PATIENT = Parameters(turn_s=TURN_S, max_dispute_s=40 * TURN_S, unbond_s=60 * TURN_S)
Spoil = Callable[[int, "ModelShard"], None]
#: (stage, request, first row, activations) → what the stage sends on instead.
Bend = Callable[[int, int, int, Any], Any]
#: (request, step, token) → what the last stage says instead. Rows that it signs, its state rows,
#: are `sign`'s as any stage's are.
Swap = Callable[[int, int, int], int]


def spec_of(folder: Path) -> t.ModelSpec:
    """What the chain calls a folder that is published with its calibrated program."""
    return publication_of(folder, program=program_to_publish(folder)).spec


@dataclass
class World:
    """The chain with its parties.

    Owners are accounts 1–3, their operators 4–6, the requester 7, an outsider 8.
    """

    chain: RpcChain
    signers: Sequence[Signer]
    model_dir: Path
    model_id: str
    nonces: int = 0

    @classmethod
    async def make(cls, rpc_url: str, signers: Sequence[Signer], model_dir: Path) -> World:
        chain = RpcChain(rpc_url, CHAIN_ID, {})
        await deploy(chain, signers[0], signers[9].address, PATIENT)
        model_id = await register_model(chain, signers[0], model_dir)
        world = cls(chain, signers, model_dir, model_id)
        for owner, operator in zip(world.owners, world.operators, strict=True):
            await chain.transact(signers[0], "TestUSD", "mint", owner.address, FUNDS)
            await chain.transact(
                owner, "TestUSD", "approve", chain.addresses["MinerRegistry"], FUNDS
            )
            said = signing.OperatorProof(owner=owner.address, operator=operator.address)
            proof = signing.sign(operator, chain.domain, said)
            await chain.transact(owner, "MinerRegistry", "register", STAKE, operator.address, proof)
        requester = world.requester
        await chain.transact(signers[0], "TestUSD", "mint", requester.address, 10 * FUNDS)
        await chain.transact(requester, "TestUSD", "approve", chain.addresses["Escrow"], FUNDS)
        await chain.transact(requester, "Escrow", "deposit", FUNDS)
        return world

    @property
    def owners(self) -> Sequence[Signer]:
        return self.signers[1:4]

    @property
    def operators(self) -> Sequence[Signer]:
        return self.signers[4:7]

    @property
    def requester(self) -> Signer:
        return self.signers[7]

    async def skip(self, seconds: int) -> None:
        """Let so much time pass on chain."""
        async with httpx2.AsyncClient() as client:
            for method, params in (("evm_increaseTime", [seconds]), ("evm_mine", [])):
                call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                (await client.post(self.chain.rpc_url, json=call)).raise_for_status()

    async def stake(self, stage: int) -> int:
        found = await self.chain.read("MinerRegistry", "minerOf", self.owners[stage].address)
        return int(found["stake"])

    async def work(
        self,
        spans: Sequence[tuple[int, int]],
        prompts: Sequence[Prompt],
        *,
        spoil: Spoil = lambda stage, shard: None,
        bend: Bend = lambda stage, request, row, x: x,
        swap: Swap = lambda request, step, token: token,
        sign: Bend = lambda stage, request, row, x: x,
        inside: Bend = lambda stage, request, row, x: x,
        served: Sequence[Prompt] = (),
    ) -> Work:
        """A job matched on chain, done by three stages and delivered.

        `sign` makes what a stage signs of what it sends, `inside` of what is at the boundaries
        inside it; `served` prompts are computed instead of those ordered.
        """
        self.nonces += 1
        chain, batch = self.chain, PromptBatch.of(list(prompts))
        spec = spec_of(self.model_dir)
        now = await chain.now()
        terms = OrderTerms(
            price_in=10**6,
            price_out=10**6,
            matcher=t.ZERO_ADDRESS,
            matcher_fee_bps=0,
            opening_fee=0,
            min_stake=0,
            deadline=now + 600,
            window=600,
            auditor=t.ZERO_ADDRESS,
            arbitrator=chain.addresses["ToleranceGame"],
        )
        order = make_order(batch, self.model_id, spec, terms, self.requester.address, self.nonces)
        plan = tuple(
            t.Stage(operator.address, *span)
            for operator, span in zip(self.operators, spans, strict=True)
        )
        job = Job(signing.job_id(chain.domain, order), order, plan)
        await chain.transact(
            self.requester,
            "TaskRegistry",
            "openMatched",
            order,
            signing.sign(self.requester, chain.domain, order),
            list(plan),
        )
        work = Work(self, job, batch, served or batch.prompts)
        work.run(spoil, bend, swap, sign, inside)
        await work.deliver(now)
        return work


@dataclass
class Work:
    """What the stages did and signed."""

    world: World
    job: Job
    batch: PromptBatch
    served: Sequence[Prompt]
    rows: dict[tuple[int, str, int], bytes] = field(default_factory=dict)
    receipts: list[t.SignedReceipt] = field(default_factory=list)

    def inside(self, stage: int) -> list[t.LayerRange]:
        """The spans of a stage before each of which it signs a boundary inside it."""
        return self.job.plan[stage].layers.spans(families.SPAN_LAYERS)[1:]

    def inner_roots(self, stage: int, request: int) -> list[bytes]:
        names = [wire.inner_side(number) for number in range(len(self.inside(stage)))]
        hidden = 4 * spec_of(self.world.model_dir).hidden
        return [commit.rows_root(self.rows[stage, name, request], hidden) for name in names]

    def sides(self, stage: int) -> tuple[str, ...]:
        """Which rows a stage keeps."""
        is_last = stage == len(self.job.plan) - 1
        return ("in", "out", "states") if is_last else ("in", "out")

    def width(self, stage: int, side: str) -> int:
        last, hidden = len(self.job.plan) - 1, spec_of(self.world.model_dir).hidden
        ends = (stage == 0 and side == "in") or (stage == last and side == "out")
        return 4 if ends else 4 * hidden

    def leaf(self, stage: int, request: int) -> t.RequestLeaf:
        roots = [
            commit.rows_root(self.rows[stage, side, request], self.width(stage, side))
            for side in self.sides(stage)
        ]
        out_root = roots[1] if len(roots) == 2 else commit.answer_root(*roots[1:])
        last = len(self.job.plan) - 1
        counts = len(self.served[request].ids), len(self.rows[last, "out", request]) // 4
        inner = commit.to_hex(commit.inner_root(self.inner_roots(stage, request)))
        ends = commit.to_hex(roots[0]), commit.to_hex(out_root)
        return t.RequestLeaf(request, *ends, *counts, inner)

    def states_root(self, stage: int, request: int) -> bytes:
        return commit.rows_root(self.rows[stage, "states", request], self.width(stage, "states"))

    def run(self, spoil: Spoil, bend: Bend, swap: Swap, sign: Bend, inside: Bend) -> None:
        from core.engine.weights.load_shard import load_shard

        shards = [load_shard(self.world.model_dir, stage.layers) for stage in self.job.plan]
        for stage, shard in enumerate(shards):
            spoil(stage, shard)
        for request, prompt in enumerate(self.served):
            self._run_request(shards, request, prompt, bend, swap, sign, inside)

    def _run_request(
        self,
        shards: list[ModelShard],
        request: int,
        prompt: Prompt,
        bend: Bend,
        swap: Swap,
        sign: Bend,
        inside: Bend,
    ) -> None:
        import torch

        from core.engine.model.blocks import output_of
        from core.engine.sampling.sampling import Sampler, sample_batch
        from miner.compute.stepper import as_rows

        sampler = Sampler(prompt.sampling, request, prompt.ids, frozenset())
        caches = [shard.new_cache() for shard in shards]
        rows = [b""] * (len(shards) + 1)
        fed, tokens, first, states = list(prompt.ids), [], 0, b""
        for step in range(prompt.sampling.max_new_tokens):
            rows[0] += commit.token_bytes(fed)
            x = torch.tensor(fed)
            for stage, shard in enumerate(shards):
                starts = [span.start - shard.layers.start for span in self.inside(stage)]
                with ExitStack() as stack:
                    inner = [
                        stack.enter_context(output_of(shard.decoder_layers[start - 1]))
                        for start in starts
                    ]
                    left = stack.enter_context(output_of(shard.decoder_layers[-1]))
                    x = shard.forward(x, caches[stage])
                for number, (rows_inside,) in enumerate(inner):
                    place = stage, wire.inner_side(number), request
                    made = as_rows(inside(stage, request, first, rows_inside.reshape(len(fed), -1)))
                    self.rows[place] = self.rows.get(place, b"") + made
                if shard.is_last:
                    state = left[0].reshape(len(fed), -1)[-1:]
                    states += as_rows(sign(stage, request, first + len(fed) - 1, state))
                else:
                    x = bend(stage, request, first, x)
                    rows[stage + 1] += as_rows(sign(stage, request, first, x))
            (choice,) = sample_batch(x[-1:], [sampler])
            token = swap(request, step, choice.token)
            first += len(fed)
            tokens.append(token)
            sampler.take(token)
            fed = [token]
        rows[-1] = commit.token_bytes(tokens)
        for stage in range(len(shards)):
            self.rows[stage, "in", request] = rows[stage]
            self.rows[stage, "out", request] = rows[stage + 1]
        self.rows[len(shards) - 1, "states", request] = states

    async def deliver(self, now: int) -> None:
        chain, spans = self.world.chain, self.job.plan
        for stage, place in enumerate(spans):
            leaves = [self.leaf(stage, request) for request in range(len(self.batch.prompts))]
            last = len(spans) - 1
            answers = [self.leaf(last, leaf.request_index).out_root for leaf in leaves]
            answers = answers if stage == 0 else []
            shard_root = await chain.read(
                "ModelRegistry", "shardRoot", self.world.model_id, place.layer_from, place.layer_to
            )
            receipt = receipt_over(
                self.job.order_hash,
                self.job.plan_hash,
                stage,
                place,
                leaves,
                answers,
                shard_root=shard_root,
                started_at=now,
                signed_at=now + 1,
            )
            signature = signing.sign(self.world.operators[stage], chain.domain, receipt)
            requests = range(len(leaves)) if len(self.sides(stage)) == 3 else ()
            states = [commit.to_hex(self.states_root(stage, request)) for request in requests]
            inner = [
                list(map(commit.to_hex, self.inner_roots(stage, leaf.request_index)))
                for leaf in leaves
            ]
            inner = inner if self.inside(stage) else []
            made = t.SignedReceipt(receipt, signature, leaves, states, answers, inner)
            self.receipts.append(made)
        await chain.transact(
            self.world.requester,
            "TaskRegistry",
            "deliver",
            self.job.order,
            list(self.job.plan),
            [signed.receipt for signed in self.receipts],
            [signed.signature for signed in self.receipts],
        )

    def keep(self, stage: int, store: MinerStore) -> MinerStore:
        """Put into a miner's store what it would hold of this job."""
        for request in range(len(self.batch.prompts)):
            sides = [
                BoundaryRows(self.width(stage, side), self.rows[stage, side, request])
                for side in self.sides(stage)
            ]
            states = Rooted(self.states_root(stage, request), sides[2]) if sides[2:] else None
            leaf = self.leaf(stage, request)
            place = self.job.order_hash, self.job.plan_hash
            inner = [
                Rooted(root, BoundaryRows(4 * spec_of(self.world.model_dir).hidden, rows))
                for number, root in enumerate(self.inner_roots(stage, request))
                for rows in (self.rows[stage, wire.inner_side(number), request],)
            ]
            store.put_leaf(*place, leaf, sides[0], sides[1], states, inner=inner)
        return store
