"""What must a stage answer for: order, plan and receipts on chain, rows that it or others hold?

Rows are believed only under the roots that the stage signed, so a neighbour, whose boundary is the
same bytes, may hand them over as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import msgspec

from client.orders.orders import Prompt, opening_of
from client.pipeline.verify import complete_sets, disjoint
from core.chain.chain import Chain, ChainCall, ChainEvent, history
from core.money.spending import payers
from core.protocol import commit, signing, wire
from core.protocol.errors import CheckFailed, HeadraceError, IdInvalid, RowsWithheld
from core.protocol.receipts import is_inner_root, receipt_by_words, words_in
from core.protocol.types import (
    AuditorDelegation,
    LayerRange,
    Order,
    RequestLeaf,
    SamplingParams,
    SignedOrder,
    SignedReceipt,
    SignedWord,
    Stage,
    StageReceipt,
)
from core.runtime.network.channel import Peers

#: Receipts of the newest delivery, without leaves.
ReadDelivered = Callable[[], Awaitable[list[SignedReceipt]]]
_ROW_BYTES_PER_CALL = 8 * 2**20
T = TypeVar("T")
PATIENCE_S = 30.0  # for all rows of one request at one boundary


@dataclass(frozen=True)
class AuditCase:
    """One job as it stands on chain."""

    job_id: str
    order: Order
    plan: tuple[Stage, ...]
    order_signature: str = ""  # as the chain took it: its signer may open requests, too

    @property
    def order_hash(self) -> str:
        return signing.order_hash(self.order)

    @property
    def plan_hash(self) -> str:
        return signing.plan_hash(self.plan)


@dataclass(frozen=True)
class Delegation:
    """The requester's permission for another account to audit and dispute."""

    delegation: AuditorDelegation
    signature: str


@dataclass(frozen=True)
class PromptOpening:
    """A prompt and its sampling, proven to be what the order committed to."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    shown: wire.Opening | None = None  # the proofs, or the requester's signature


async def case_of_job(chain: Chain, job_id: str, deploy_block: int) -> AuditCase:
    """The order and plan of a job from the transaction that matched it.

    Raises IdInvalid for an unknown job, CheckFailed when the transaction does not show them.
    """
    for event in await events_named(chain, "JobMatched", deploy_block):
        if event.args["job"] == job_id:
            return await case_matched(chain, job_id, event.tx_hash)
    raise IdInvalid(f"no job {job_id}", f"chain {chain.chain_id} has not matched such a job")


async def case_matched(chain: Chain, job_id: str, tx_hash: str) -> AuditCase:
    """The order and plan that this transaction matched. Raises CheckFailed when it shows none."""
    call = await chain.call_of(tx_hash)
    if call is None or call.function not in ("openMatched", "matchJob"):
        raise CheckFailed(
            f"job {job_id} cannot be read from the chain",
            f"transaction {tx_hash} matched it through another contract",
        )
    return case_in(job_id, call)


def case_in(job_id: str, call: ChainCall) -> AuditCase:
    """The case in a call with `order` and `plan`. Raises CheckFailed for one out of bounds."""
    try:
        order = msgspec.convert(call.args["order"], Order)
        plan = msgspec.convert(call.args["plan"], list[Stage])
    except msgspec.ValidationError as error:
        raise CheckFailed(f"the order of job {job_id} is out of bounds", str(error)) from None
    return AuditCase(job_id, order, tuple(plan), str(call.args.get("requesterSig", "")))


async def delivered_receipts(chain: Chain, job_id: str, deploy_block: int) -> list[SignedReceipt]:
    """The receipts of the newest delivery of a job, without leaves. Raises ChainUnreachable."""
    events = await events_of_job(chain, job_id, deploy_block)
    found = [event.tx_hash for event in events if event.name == "JobDelivered"]
    call = await chain.call_of(found[-1]) if found else None
    if call is None or call.function != "deliver":
        return []
    receipts = msgspec.convert(call.args["receipts"], list[StageReceipt])
    pairs = zip(receipts, call.args["sigs"], strict=True)
    return [SignedReceipt(receipt, str(signature), []) for receipt, signature in pairs]


async def _nothing_delivered() -> list[SignedReceipt]:
    return []


async def events_named(chain: Chain, name: str, deploy_block: int) -> list[ChainEvent]:
    """Every event of this name, oldest first. Raises ChainUnreachable."""
    return [event async for event in _events(chain, deploy_block) if event.name == name]


async def events_of_job(chain: Chain, job_id: str, deploy_block: int) -> list[ChainEvent]:
    """Every event about this job, oldest first. Raises ChainUnreachable."""
    return [
        event
        async for event in _events(chain, deploy_block)
        if str(event.args.get("job", "")).lower() == job_id.lower()
    ]


async def _events(chain: Chain, deploy_block: int) -> AsyncIterator[ChainEvent]:
    async for _, events in history(chain, deploy_block):
        for event in events:
            yield event


def leaves_match(
    receipt: StageReceipt, leaves: Sequence[RequestLeaf], answers: Sequence[str]
) -> bool:
    """Whether these leaves are what the receipt's roots and counts commit to.

    A first stage's with the `answers` that its input root is over.
    """
    signed = receipt.input_root, receipt.output_root, receipt.requests_root
    try:
        roots = tuple(
            commit.to_hex(root)
            for root in commit.receipt_roots(leaves, None if receipt.stage else answers)
        )
    except ValueError:
        return False
    return (
        roots == signed
        and receipt.requests == len(leaves)
        and receipt.tokens_in == sum(leaf.tokens_in for leaf in leaves)
        and receipt.tokens_out == sum(leaf.tokens_out for leaf in leaves)
    )


@dataclass(frozen=True)
class Testimony:
    """What a stage shows: receipts that it signed, and words of the stage before it."""

    receipts: list[SignedReceipt]
    words: list[SignedWord]


@dataclass(frozen=True)
class ShownRows:
    """Rows as they are handed over; `beside` is the other root that a last stage signed."""

    data: bytes
    row_bytes: int
    beside: str | None


def is_told_by(domain: signing.Domain, case: AuditCase, stage: int, signed: SignedReceipt) -> bool:
    """Whether a stage of a job signed this receipt over these leaves, whatever else it says."""
    try:
        root = commit.root_of_hashes(commit.request_hashes(signed.leaves))
    except ValueError:
        return False
    receipt = signed.receipt
    return (
        receipt.requests_root == commit.to_hex(root)
        and receipt.requests == len(signed.leaves)
        and _is_signed_by(domain, case, stage, signed)
    )


def _is_signed_by(
    domain: signing.Domain, case: AuditCase, stage: int, signed: SignedReceipt
) -> bool:
    receipt = signed.receipt
    return (
        receipt.order_hash == case.order_hash
        and receipt.plan_hash == case.plan_hash
        and receipt.stage == stage
        and signing.is_signed_by(domain, receipt, signed.signature, case.plan[stage].operator)
    )


class EvidenceCollector:
    """Collects what one job's stages hold."""

    def __init__(
        self,
        case: AuditCase,
        domain: signing.Domain,
        peers: Peers,
        endpoints: Mapping[str, str],
        delegation: Delegation | None = None,
        *,
        delivered: ReadDelivered | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`endpoints` maps operators (lower case) to where they can be reached now, `delivered`
        reads what was delivered on chain.
        """
        self._read_delivered = delivered or _nothing_delivered
        self._delivered: list[SignedReceipt] | None = None
        self._patience_s = patience_s
        self.case, self._domain, self._peers = case, domain, peers
        self._endpoints = dict(endpoints)
        self._delegation = delegation
        #: Of stages and requests: the roots inside that were shown last.
        self._inner = dict[tuple[int, RequestLeaf], list[str]]()

    async def receipts(self, stage: int) -> list[SignedReceipt]:
        """Receipts that the stage signed for this job and plan, with matching leaves.

        Where it shows none, those that its words are worth, over what the next stage signed for, or
        the one that was delivered on chain. Raises HeadraceError when it cannot be asked, or
        refuses, and there is none of these.
        """
        try:
            shown = await self._shown(stage)
        except HeadraceError:
            if found := await self._told_by_others(stage):
                return found
            raise
        return shown or await self._told_by_others(stage)

    async def _shown(self, stage: int) -> list[SignedReceipt]:
        """Of what the stage shows, receipts with matching leaves."""
        told = await self.told(stage)
        return [s for s in told.receipts if leaves_match(s.receipt, s.leaves, s.answers)]

    async def _told_by_others(self, stage: int) -> list[SignedReceipt]:
        return await self._by_words(stage) or await self._delivered_of(stage)

    async def _delivered_of(self, stage: int) -> list[SignedReceipt]:
        """What the newest delivery has of it, with the leaves that its neighbours know."""
        if self._delivered is None:
            self._delivered = await self._read_delivered()
        for signed in self._delivered:
            if signed.receipt.stage != stage:
                continue
            if words := words_in(signed):
                worth = self.by_words(stage, words, [word.word.request_index for word in words])
                return [worth] if worth is not None else []
            leaves = await self._pieced_together(signed.receipt)
            if leaves is not None and self._is_signed_by(stage, signed):
                return [msgspec.structs.replace(signed, leaves=leaves)]
        return []

    async def _by_words(self, stage: int) -> list[SignedReceipt]:
        try:
            told = await self.told((stage + 1) % len(self.case.plan))
        except HeadraceError:
            return []
        sets = {tuple(leaf.request_index for leaf in signed.leaves) for signed in told.receipts}
        found = [self.by_words(stage, told.words, sorted(set(requests))) for requests in sets]
        return [signed for signed in found if signed is not None]

    def by_words(
        self, stage: int, words: Sequence[SignedWord], requests: Sequence[int]
    ) -> SignedReceipt | None:
        """The receipt over these requests that the stage's words are worth, if they are."""
        of = self.case.order, self.case.plan
        return receipt_by_words(*of, stage, words, requests, self._domain)

    async def told(self, stage: int) -> Testimony:
        """What the stage shows, even where it contradicts itself. Raises as `receipts` does."""
        ask = wire.FetchReceipts(self.case.order_hash, *self._permission())
        found, _ = await self._ask(stage, ask, wire.Receipts)
        return Testimony(
            [signed for signed in found.signed if self.is_told_by(stage, signed)], found.words
        )

    def is_told_by(self, stage: int, signed: SignedReceipt) -> bool:
        """Whether the stage signed this receipt over these leaves, whatever else it says."""
        return is_told_by(self._domain, self.case, stage, signed)

    async def pipelines(self) -> list[list[SignedReceipt]]:
        """Receipts of all stages over the requests that all of them signed for, no request twice.

        Raises CheckFailed for no such request, HeadraceError when a stage does not answer.
        """
        stages = range(len(self.case.plan))
        found = await asyncio.gather(*map(self.receipts, stages))
        complete = complete_sets([signed for of in found for signed in of], len(stages))
        if not complete:
            silent = ", ".join(str(stage) for stage in stages if not found[stage])
            why = f"no receipt for this job at stage {silent}" if silent else ""
            why = why or "their receipts are over different requests"
            raise CheckFailed("there is nothing that all stages signed for", why)
        return disjoint(complete)

    async def leaves_of(self, receipt: StageReceipt) -> list[RequestLeaf]:
        """The leaves under a signed receipt, from the stage or pieced together from its neighbours.

        Raises RowsWithheld.
        """
        stage = receipt.stage
        for signed in await self._receipts_or_none(stage):
            if leaves_match(receipt, signed.leaves, signed.answers):
                return signed.leaves
        for signed in await self._by_words(stage):
            if leaves_match(receipt, signed.leaves, signed.answers):
                return signed.leaves
        leaves = await self._pieced_together(receipt)
        if leaves is not None:
            return leaves
        raise RowsWithheld(
            f"stage {stage} does not open its receipt", "no leaves match the root it signed"
        )

    async def _pieced_together(self, receipt: StageReceipt) -> list[RequestLeaf] | None:
        """What the stage must have committed to, by what its neighbours sent and took.

        What a first stage was fed nobody else has; what a last one sent the first one took.
        """
        sides, stages = [], len(self.case.plan)
        for beside in (receipt.stage - 1, (receipt.stage + 1) % stages):
            try:
                found = await self._shown(beside) if receipt.stage else []
            except HeadraceError:
                found = []
            sides.append([signed for signed in found if _is_over(signed, receipt)])
        for sent, taken in product(*sides):
            leaves = _between(sent, taken)
            if leaves_match(receipt, leaves, ()):
                return leaves
        return None

    async def inner(self, stage: int, leaf: RequestLeaf, spans: Sequence[LayerRange]) -> list[str]:
        """The roots inside a stage of these spans that it signed of a request.

        From the stage, or with its words from the next one. Raises RowsWithheld.
        """
        for find in (None, self._receipts_or_none, self._by_words):
            if find is not None:
                for signed in await find(stage):
                    told = zip(signed.leaves, signed.inner, strict=False)
                    self._inner |= {(stage, own): roots for own, roots in told}
            roots = self._inner.get((stage, leaf), [])
            if is_inner_root(roots, leaf.inner_root, spans):
                return roots
        what = f"the roots inside stage {stage} of request {leaf.request_index} are missing"
        raise RowsWithheld(what, f"none that it shows make what it signed, {leaf.inner_root}")

    async def rows(
        self, stage: int, side: wire.Side, leaf: RequestLeaf, row_bytes: int, *, root: str = ""
    ) -> bytes:
        """Rows [positions, row_bytes] of one request at a boundary of a stage, as it signed them.

        Those of a boundary inside have this `root`. Raises RowsWithheld.
        """
        return (await self.shown_rows(stage, side, leaf, row_bytes, root=root)).data

    async def shown_rows(
        self, stage: int, side: wire.Side, leaf: RequestLeaf, row_bytes: int, *, root: str = ""
    ) -> ShownRows:
        """As `rows`, with the other root that a last stage signed."""
        holders: list[tuple[int, wire.Side]] = [(stage, side)]
        neighbour = stage - 1 if side == "in" else stage + 1
        if side in ("in", "out", "states") and 0 <= neighbour < len(self.case.plan):
            holders.append((neighbour, "out" if side == "in" else "in"))
        reasons = []
        for holder, at in holders:
            try:
                async with asyncio.timeout(self._patience_s):
                    found = await self._fetch_rows(holder, at, leaf.request_index, row_bytes)
            except HeadraceError as error:
                reasons.append(f"stage {holder}: {error.what}: {error.why}")
                continue
            except TimeoutError:
                reasons.append(f"stage {holder}: not all rows in {self._patience_s:g} s")
                continue
            if self._is_signed(stage, side, leaf, found, root):
                return found
            reasons.append(f"stage {holder}: rows do not match the signed root")
        raise RowsWithheld(
            f"rows of request {leaf.request_index} at stage {stage} ({side}) are missing",
            "; ".join(reasons),
            stage=stage,
        )

    def _is_signed(
        self, stage: int, side: wire.Side, leaf: RequestLeaf, found: ShownRows, inner: str
    ) -> bool:
        """Whether the stage has signed for these rows as those of this request."""
        root = commit.rows_root(found.data, found.row_bytes)
        if side not in ("in", "out", "states"):
            return commit.to_hex(root) == inner
        if side == "in":
            return commit.to_hex(root) == leaf.in_root
        if stage == len(self.case.plan) - 1:
            if found.beside is None:
                return False
            half = commit.Half.TOKENS if side == "out" else commit.Half.STATES
            root = commit.whole_root(half, root, commit.unhex(found.beside))
        return commit.to_hex(root) == leaf.out_root

    async def opening(self, request: int) -> PromptOpening:
        """The prompt and sampling of a request, proven against the order. Raises RowsWithheld."""
        reasons = []
        for stage in dict.fromkeys((0, len(self.case.plan) - 1)):
            ask = wire.FetchOpening(self.case.order_hash, request, *self._permission())
            try:
                shown, payload = await self._ask(stage, ask, wire.Opening)
            except HeadraceError as error:
                reasons.append(f"stage {stage}: {error.what}: {error.why}")
                continue
            if self._is_opening(request, ids := tokens_in(payload), shown):
                return PromptOpening(ids, shown.sampling, shown)
            reasons.append(f"stage {stage}: the opening does not match the order")
        raise RowsWithheld(f"the prompt of request {request} is missing", "; ".join(reasons))

    def _is_opening(self, request: int, ids: tuple[int, ...], opening: wire.Opening) -> bool:
        order = self.case.order
        if order.is_open:
            return self._is_signed_opening(request, ids, opening)

        def is_proven(root: str, leaf: bytes, proof: Sequence[str]) -> bool:
            place, siblings = (order.requests, request), [commit.unhex(h) for h in proof]
            return commit.verify_proof(commit.unhex(root), *place, commit.leaf_hash(leaf), siblings)

        prompt = commit.prompt_leaf(request, commit.unhex(opening.salt), ids)
        sampling = commit.sampling_leaf(request, opening.sampling)
        return is_proven(order.input_root, prompt, opening.prompt_proof) and is_proven(
            order.sampling_root, sampling, opening.sampling_proof
        )

    def _is_signed_opening(self, request: int, ids: tuple[int, ...], opening: wire.Opening) -> bool:
        """Whether the requester of an open order, or its spender, opened the request with this."""
        if opening.opening is None:
            return False
        prompt = Prompt("", ids, opening.sampling, commit.unhex(opening.salt))
        said = opening_of(self.case.order_hash, request, prompt)
        signed = SignedOrder(self.case.order, self.case.order_signature)
        signer = signing.recover(self._domain, said, opening.opening.signature)
        return (
            opening.opening.opening == said
            and signer is not None
            and signer.lower() in payers(signed, self._domain)
        )

    def _is_signed_by(self, stage: int, signed: SignedReceipt) -> bool:
        return _is_signed_by(self._domain, self.case, stage, signed)

    async def _receipts_or_none(self, stage: int) -> list[SignedReceipt]:
        if not 0 <= stage < len(self.case.plan):
            return []
        try:
            return await self.receipts(stage)
        except HeadraceError:
            return []

    async def _fetch_rows(
        self, stage: int, side: wire.Side, request: int, row_bytes: int
    ) -> ShownRows:
        count = max(1, _ROW_BYTES_PER_CALL // row_bytes)
        parts: list[bytes] = []
        order = self.case.order
        most = order.max_tokens_in + order.max_tokens_out
        start, total, beside = 0, 1, None
        while start < total:
            asked = self.case.order_hash, request, side, start, count
            ask = wire.FetchRows(*asked, *self._permission())
            rows, payload = await self._ask(stage, ask, wire.Rows)
            if (
                rows.row_bytes != row_bytes
                or rows.start != start
                or not 0 < rows.rows <= count
                or not start + rows.rows <= rows.total <= most
                or len(payload) != rows.rows * row_bytes
            ):
                raise CheckFailed(f"stage {stage} sent rows of another shape", str(rows))
            parts.append(payload)
            start, total, beside = start + rows.rows, rows.total, rows.beside
        return ShownRows(b"".join(parts), row_bytes, beside)

    async def _ask(self, stage: int, message: wire.AnyMessage, kind: type[T]) -> tuple[T, bytes]:
        """A stage's answer and its payload. Raises HeadraceError where it is of another kind."""
        operator = self.case.plan[stage].operator
        endpoint = self._endpoints.get(operator.lower())
        if endpoint is None:
            what = f"stage {stage} ({operator}) is not in the swarm"
            raise RowsWithheld(what, "no endpoint known")
        channel = await self._peers.get(operator, endpoint)
        frame = await channel.call(message, timeout_s=30.0)
        if not isinstance(frame.message, kind):
            raise _refused(stage, frame.message)
        return frame.message, bytes(frame.payload)

    def _permission(self) -> tuple[AuditorDelegation | None, str | None]:
        if self._delegation is None:
            return None, None
        return self._delegation.delegation, self._delegation.signature


def _is_over(signed: SignedReceipt, receipt: StageReceipt) -> bool:
    """Whether a neighbour's receipt may be over the same requests."""
    other = signed.receipt
    counts = (receipt.requests, receipt.tokens_in, receipt.tokens_out)
    return (other.requests, other.tokens_in, other.tokens_out) == counts


def _between(before: SignedReceipt, after: SignedReceipt) -> list[RequestLeaf]:
    """What the stage between two neighbours must have committed to, by what they sent and took."""
    taken = [leaf.in_root for leaf in after.leaves] if after.receipt.stage else after.answers
    return [
        RequestLeaf(leaf.request_index, leaf.out_root, root, leaf.tokens_in, leaf.tokens_out)
        for leaf, root in zip(before.leaves, taken, strict=True)
    ]


def tokens_in(rows: bytes) -> tuple[int, ...]:
    """Token ids of u32le rows."""
    return tuple(int.from_bytes(rows[i : i + 4], "little") for i in range(0, len(rows), 4))


def _refused(stage: int, message: wire.AnyMessage) -> CheckFailed:
    why = f"{message.code}: {message.reason}" if isinstance(message, wire.Failed) else str(message)
    return CheckFailed(f"stage {stage} refused to answer", why[:300], stage=stage)
