"""A chain in memory: the contracts as dictionaries, and the blocks that their events stand in."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from core.chain.artifacts import artifact
from core.chain.chain import Chain, ChainCall, ChainEvent, Mined, Sent
from core.chain.machines import class_of
from core.money import pricing
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import ChainUnreachable, ContractRefused
from core.protocol.receipts import receipt_by_words, words_in
from core.protocol.signing import DigestSigner
from core.protocol.types import JobState
from core.protocol.units import NANO, whole_units
from core.runtime.clock import Clock
from tests.clocks import ManualClock
from tests.town.orders import ARBITRATOR, DOMAIN, MODEL_ID, NOW_S, REQUESTER, SPEC, key
from tests.town.orders import shard_root_of as made_up_root

PREPAID = 10**12
#: What `spenderOf` says of a key that was never allowed.
NO_SPENDER = {"limit": 0, "usedNano": 0, "expiry": 0}
OWNER = key(200).address
GAS = 50_000
CLOSE_DELAY_S = 60
MAX_MATCHER_FEE_BPS = 500
#: Transactions that change nothing that is kept here.
WITHOUT_STATE = frozenset(
    {"approve", "requestWithdraw", "withdraw", "dispute", "draw", "advance", "equivocation"}
)
#: One transaction's event, by name and arguments.
Event = tuple[str, dict[str, Any]]


def tx_of(block_hash: str) -> str:
    """The hash of a block's transaction."""
    return f"0x{int(block_hash, 16) + 2**40:064x}"


@dataclass
class ChainJob:
    """A job as TaskRegistry keeps it."""

    state: JobState = JobState.NONE
    plan_hash: str = t.ZERO_HASH
    order: t.Order | None = None
    plan: Sequence[t.Stage] = ()
    final_at: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    open_disputes: int = 0
    opener: str | None = None  # who signed the order
    closed_at: int = 0

    @property
    def deadline(self) -> int:
        """The order's, or when the session was closed."""
        return self.closed_at or _order(self).deadline


class FakeChain(Chain):
    """Keeps the contracts' rules for what matchers and requesters send. One transaction a block.

    `answers` replaces what a view function says, by "Contract.function": a value, a function of the
    arguments, or an error to raise. `refusals` are raised at the next transaction of that function.
    `before_answer` runs before anything is answered.
    """

    rpc_url = "http://test"
    chain_id = DOMAIN.chain_id
    domain = DOMAIN

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        blocks: int = 1,
        prepaid: Mapping[str, int] | None = None,
        models: Mapping[str, t.ModelSpec] | None = None,
        shard_root_of: Callable[[int, int], str] = made_up_root,
        longest_s: tuple[int, int] = (86_400, 7 * 86_400),
    ) -> None:
        """`longest_s` is how long a job may run, and its window."""
        self.clock: Any = clock or ManualClock(NOW_S)
        self.addresses = {
            "TaskRegistry": DOMAIN.verifying_contract,
            "Escrow": "0x" + "ee" * 20,
            "Evidence": "0x" + "ed" * 20,
            "JuryArbitrator": ARBITRATOR,
        }
        self.usd = Counter[str]()
        self.credits = Counter[str]()  # of the jury
        self.earned, self.fees = Counter[str](), Counter[str]()  # of operators and matchers, nano
        self.prepaid = Counter({REQUESTER.address: PREPAID} if prepaid is None else dict(prepaid))
        self.rest = Counter[str]()  # of a balance, in nano units, beyond the whole ones
        self.thaw = {"amount": 0, "readyAt": 0}
        self.locked: dict[str, int] = {}
        self.jobs: dict[str, ChainJob] = {}
        self.models = dict(models or {MODEL_ID: SPEC})
        self.shard_root_of, self.longest_s = shard_root_of, longest_s
        self.spenders: dict[tuple[str, str], dict[str, int]] = {}
        self.used_nonces: set[tuple[str, int]] = set()
        self.stakes: dict[str, int] = {}
        self.owners: dict[str, str] = {}
        self.strikes = 0
        self.panels: dict[str, list[str]] = {}
        self.answers: dict[str, Any] = {}
        self.refusals: dict[str, Exception] = {}
        self.before_answer: Callable[[], None] = lambda: None
        self.is_down, self.down = False, 0  # for good, and for how many calls
        self.lose_answers = 0  # of so many transactions, which are mined all the same
        self.reads: list[str] = []
        self.spans: list[tuple[int, int]] = []  # of blocks whose events were asked for
        self.sent: list[tuple[Any, ...]] = []
        self.simulated: list[str] = []
        self.log: list[ChainEvent] = []
        self.calls: dict[str, ChainCall] = {}
        self.hashes: list[str] = []
        self._serial = itertools.count()
        #: By the head that a change came on top of: jobs and money as they were.
        self._before: dict[int, tuple[Any, ...]] = {}
        self.grow(blocks)

    @property
    def called(self) -> list[str]:
        """The functions of all transactions."""
        return [function for _, function, *_ in self.sent]

    def _look(self) -> None:
        self.before_answer()
        if self.is_down or self.down:
            self.down = max(0, self.down - 1)
            raise ChainUnreachable("no answer from the test chain", "it is down")

    # --- blocks ---

    @property
    def head(self) -> int:
        return len(self.hashes) - 1

    def grow(self, blocks: int = 1) -> None:
        self.hashes += [f"0x{next(self._serial):064x}" for _ in range(blocks)]

    def note(self, contract: str, name: str, args: dict[str, Any]) -> None:
        """One more event in the newest block, by the block's one transaction."""
        index = sum(event.block_number == self.head for event in self.log)
        block = self.hashes[-1]
        self.log.append(ChainEvent(contract, name, args, self.head, block, tx_of(block), index))

    def emit(self, contract: str, name: str, *, call: ChainCall | None = None, **args: Any) -> Sent:
        """One more block, with one event."""
        self.grow()
        self.note(contract, name, args)
        tx_hash = self.log[-1].tx_hash
        if call is not None:
            self.calls[tx_hash] = call
        return Sent(tx_hash, self.head, GAS)

    def list_machine(self, kind: str, memory_mib: int, owner: str = OWNER) -> None:
        """An owner announces a machine, in one more block."""
        said = {"class": class_of(kind), "vramMiB": memory_mib, "bandwidthMBps": 0}
        place = {"owner": owner, "index": 0, "endpointHash": t.ZERO_HASH}
        self.emit("MinerRegistry", "MachineRegistered", **place, **said)

    def reorganise(self, above: int) -> None:
        """Every block above that number is another one, with the same events."""
        count = self.head - above
        del self.hashes[above + 1 :]
        self.grow(count)
        self.log = [
            msgspec.structs.replace(event, block_hash=self.hashes[event.block_number])
            for event in self.log
        ]

    def cut(self, blocks: int) -> None:
        """Forget the newest blocks, all but the first; the next ones have other hashes."""
        del self.hashes[max(1, len(self.hashes) - blocks) :]
        self.log = [event for event in self.log if event.block_number <= self.head]

    def roll_back(self, blocks: int) -> None:
        """Forget the newest blocks, and what became of jobs and money in them."""
        self.cut(blocks)
        undone = sorted(head for head in self._before if head >= self.head)
        if undone:
            kept = self._before[undone[0]]
            self.jobs, self.locked, self.used_nonces = kept[:3]
            self.usd, self.earned, self.fees, self.prepaid = kept[3:]
        for head in undone:
            del self._before[head]

    def _remember(self) -> None:
        """Jobs and money before the next block."""
        jobs = {job_id: replace(job) for job_id, job in self.jobs.items()}
        money = (Counter(known) for known in (self.usd, self.earned, self.fees, self.prepaid))
        kept = jobs, dict(self.locked), set(self.used_nonces)
        self._before.setdefault(self.head, (*kept, *money))

    async def block_number(self) -> int:
        self._look()
        return self.head

    async def block_hash(self, number: int) -> str | None:
        self._look()
        return self.hashes[number] if 0 <= number <= self.head else None

    async def events(
        self, first_block: int, last_block: int, *, contract: str | None = None
    ) -> list[ChainEvent]:
        self._look()
        self.spans.append((first_block, last_block))
        found = [e for e in self.log if first_block <= e.block_number <= last_block]
        return [e for e in found if contract in (None, e.contract)]

    async def call_of(self, tx_hash: str) -> ChainCall | None:
        self._look()
        return self.calls.get(tx_hash)

    async def mined(self, number: int) -> list[Mined]:
        found = {e.tx_hash: self.calls.get(e.tx_hash) for e in await self.events(number, number)}
        return [Mined(tx, number, c.sender if c else "", c, GAS, 0) for tx, c in found.items()]

    # --- reading ---

    async def now(self) -> int:
        self._look()
        return int(self.clock.now())

    async def balance_wei(self, address: str) -> int:
        self._look()
        return 10**18

    async def read(self, contract: str, function: str, *args: Any, block: int | None = None) -> Any:
        self._look()
        name = f"{contract}.{function}"
        self.reads.append(name)
        if name in self.answers:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer
        match name:
            case "TaskRegistry.jobOf":
                return self.job_of(*args)
            case "TaskRegistry.params":
                names = ("maxJobSeconds", "maxWindowSeconds", "closeDelaySeconds")
                return dict(zip(names, (*self.longest_s, CLOSE_DELAY_S), strict=True))
            case "TaskRegistry.isNonceUsed":
                return args in self.used_nonces
            case "TaskRegistry.split":
                split = pricing.split(args[0], args[1], self.models[args[0].model_id], *args[2:])
                return {"gross": list(split.gross), "pay": list(split.pays)}
            case "Escrow.balanceOf":
                return self.prepaid[args[0]]
            case "Escrow.earnedOf":
                return whole_units(self.earned[args[0]])
            case "Escrow.feesOf":
                return {"ofMatcher": whole_units(self.fees[args[0]]), "ofProtocol": 0}
            case "Escrow.thawOf":
                return self.thaw
            case "Escrow.withdrawDelaySeconds":
                return 60
            case "Escrow.jobSpenderOf":
                job = self.jobs.get(args[0])
                if job is None or job.order is None or job.opener == job.order.requester:
                    return t.ZERO_ADDRESS
                return job.opener or t.ZERO_ADDRESS
            case "Escrow.isSpender":
                return self._may_spend(*args)
            case "Escrow.spenderOf":
                return self.spenders.get(args, NO_SPENDER)
            case "TestUSD.balanceOf":
                return self.usd[args[0]]
            case "MinerRegistry.isArbitrator":
                return args[0] == ARBITRATOR
            case "MinerRegistry.ownerOf":
                owner = OWNER if args[0] in self.stakes else t.ZERO_ADDRESS
                return self.owners.get(args[0], owner)
            case "MinerRegistry.operatorsOf":
                return [one for one, owner in self.owners.items() if owner == args[0]]
            case "MinerRegistry.minerOf":
                stake = max(self.stakes.values(), default=0)
                kept = {"stake": stake, "leaving": 0, "strikes": self.strikes}
                return {"operator": t.ZERO_ADDRESS, **kept}
            case "MinerRegistry.canWork":
                return self.stakes.get(args[0], 0) >= max(1, args[1])
            case "ModelRegistry.exists":
                return args[0] in self.models
            case "ModelRegistry.specOf":
                return msgspec.to_builtins(self.models[args[0]])
            case "ModelRegistry.shapeOf":
                spec = msgspec.to_builtins(self.models[args[0]])
                return {name: spec[name] for name in ("layers", "embedUnits", "headUnits")}
            case "ModelRegistry.shardRoot":
                return self.shard_root_of(*args[1:])
            case "JuryArbitrator.panelOf":
                return self.panels.get(args[0], [])
            case "JuryArbitrator.creditOf":
                return self.credits[args[0]]
        return self.unknown(contract, function)

    def balance_nano(self, account: str) -> int:
        """A prepaid balance exactly."""
        return self.prepaid[account] * NANO + self.rest[account]

    def add_nano(self, account: str, nano: int) -> None:
        """A prepaid balance grows or falls."""
        total = self.balance_nano(account) + nano
        self.prepaid[account], self.rest[account] = divmod(total, NANO)

    def unknown(self, contract: str, function: str) -> Any:
        """What a view function says that is not kept here."""
        raise AssertionError(f"unexpected read {contract}.{function}")

    def job_of(self, job_id: str, plan_hash: str) -> dict[str, Any]:
        """A job as `TaskRegistry.jobOf` says it: of another plan's hash, that there is none."""
        job = self.jobs.get(job_id, ChainJob())
        if job.plan_hash != plan_hash:
            job = ChainJob()
        spec = self.models.get(job.order.model_id) if job.order else None
        return {
            "deadline": job.deadline if job.order else 0,
            "finalAt": job.final_at,
            "tokensIn": job.tokens_in,
            "tokensOut": job.tokens_out,
            "faultMask": 0,
            "openDisputes": job.open_disputes,
            "layers": spec.layers if spec else 0,
            "embedUnits": spec.embed_units if spec else 0,
            "headUnits": spec.head_units if spec else 0,
            "state": int(job.state),
            "isSpenders": bool(job.order and job.opener and job.opener != job.order.requester),
        }

    # --- what others have done ---

    def match(
        self,
        order: t.Order,
        plan: Iterable[t.Stage],
        job_id: str = "",
        *,
        function: str = "openMatched",
        opener: str = "",
        **more: Any,
    ) -> Sent:
        """A job that a matcher has matched, for no money: its state, its call and its event.

        `opener` signed the order, else the requester did; `more` are further arguments of the call.
        """
        job_id, stages = job_id or signing.job_id(DOMAIN, order), tuple(plan)
        plan_hash = signing.plan_hash(stages)
        self._remember()
        signed = opener or order.requester
        self.used_nonces.add((order.requester, order.nonce))
        self.jobs[job_id] = ChainJob(JobState.MATCHED, plan_hash, order, stages, opener=signed)
        values = msgspec.to_builtins({"order": order, "plan": stages, **more})
        call = ChainCall("TaskRegistry", function, values, t.ZERO_ADDRESS)
        said = {"job": job_id, "matcher": order.matcher, "planHash": plan_hash}
        return self.emit("TaskRegistry", "JobMatched", call=call, **said, plan=values["plan"])

    # --- transactions ---

    async def simulate(self, sender: str, contract: str, function: str, *args: Any) -> int:
        self._look()
        self.simulated.append(function)
        return GAS

    async def transact(
        self, signer: DigestSigner, contract: str, function: str, *args: Any
    ) -> Sent:
        self._look()
        if function in self.refusals:
            raise self.refusals.pop(function)
        self._remember()
        name, said = self._apply(signer.address, function, args)
        self.sent.append((contract, function, *args))
        call = ChainCall(contract, function, _named(contract, function, args), signer.address)
        sent = self.emit(contract, name, call=call, **said)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ChainUnreachable("the answer was lost", "mined, but we did not hear of it")
        return sent

    def _apply(self, sender: str, function: str, args: tuple[Any, ...]) -> Event:
        match function:
            case "openMatched":
                return self._open(sender, *args)
            case "open":
                return self._register(sender, *args)
            case "matchJob":
                return self._match_registered(sender, *args)
            case "settleAck":
                return self._settle_ack(sender, *args)
            case "deliver":
                return self._deliver(*args)
            case "finalize":
                return self._finalize(*args)
            case "cancel":
                return self._given_back(args[0], t.ZERO_HASH, JobState.OPEN, JobState.CANCELLED)
            case "expire":
                return self._expire(*args)
            case "requestClose":
                return self._request_close(sender, *args)
            case "revokeNonce":
                if (sender, args[0]) in self.used_nonces:
                    raise _refusal("NonceUsedAlready")
                self.used_nonces.add((sender, args[0]))
                return "NonceRevoked", {"requester": sender, "nonce": args[0]}
            case "deposit":
                self.usd[sender] -= args[0]
                self.prepaid[sender] += args[0]
            case "setSpender":
                self.spenders[sender, args[0]] = {
                    "limit": args[1],
                    "usedNano": 0,
                    "expiry": args[2],
                }
            case _ if function not in WITHOUT_STATE:
                raise AssertionError(f"unexpected transaction {function}")
        return function, {}

    def _open(
        self,
        sender: str,
        order: t.Order,
        signature: str,
        plan: Sequence[t.Stage],
    ) -> Event:
        job_id = signing.job_id(DOMAIN, order)
        self._check_order(sender, order)
        opener = signing.recover(DOMAIN, order, signature)
        if opener != order.requester and not self._may_spend(order.requester, opener or ""):
            raise _refusal("BadSignature")
        if any(self.stakes.get(s.operator, 0) < max(1, order.min_stake) for s in plan):
            raise _refusal("MinerCannotWork")
        plan_hash = signing.plan_hash(tuple(plan))
        need = pricing.max_nano(order, self.models[order.model_id])
        if self.balance_nano(order.requester) < need:
            raise _refusal("InsufficientBalance")
        self.add_nano(order.requester, -need)
        self.used_nonces.add((order.requester, order.nonce))
        self.locked[job_id] = need
        job = ChainJob(JobState.MATCHED, plan_hash, order, tuple(plan), opener=opener)
        self.jobs[job_id] = job
        said = {"job": job_id, "matcher": sender, "planHash": plan_hash}
        return "JobMatched", {**said, "plan": msgspec.to_builtins(list(plan))}

    def _register(self, sender: str, order: t.Order) -> Event:
        self._check_order(order.matcher, order)
        if sender != order.requester:
            raise _refusal("NotParty")
        need = pricing.max_nano(order, self.models[order.model_id])
        pulled = -(-need // NANO)
        if self.usd[sender] < pulled:
            raise _refusal("InsufficientBalance")
        self.usd[sender] -= pulled
        self.add_nano(sender, pulled * NANO - need)
        job_id = signing.job_id(DOMAIN, order)
        self.used_nonces.add((order.requester, order.nonce))
        self.locked[job_id] = need
        self.jobs[job_id] = ChainJob(JobState.OPEN, t.ZERO_HASH, order, opener=order.requester)
        said = {"job": job_id, "requester": sender, "modelId": order.model_id}
        return "JobOpened", {**said, "maxNano": need}

    def _match_registered(self, sender: str, order: t.Order, plan: Sequence[t.Stage]) -> Event:
        job_id, job = self._found(order, t.ZERO_HASH, JobState.OPEN)
        if sender != order.matcher:
            raise _refusal("NotMatcher")
        if self.clock.now() > order.deadline:
            raise _refusal("DeadlinePassed")
        if any(self.stakes.get(s.operator, 0) < max(1, order.min_stake) for s in plan):
            raise _refusal("MinerCannotWork")
        job.state, job.plan, job.plan_hash = JobState.MATCHED, plan, signing.plan_hash(plan)
        said = {"job": job_id, "matcher": sender, "planHash": job.plan_hash}
        return "JobMatched", {**said, "plan": msgspec.to_builtins(list(plan))}

    def _check_order(self, sender: str, order: t.Order) -> None:
        now, (longest_s, window_s) = self.clock.now(), self.longest_s
        matcher = order.matcher
        profile = self.models[order.model_id].numerics_profile
        for is_wrong, error in (
            ((order.requester, order.nonce) in self.used_nonces, "NonceUsedAlready"),
            (now > order.deadline, "DeadlinePassed"),
            (order.deadline > now + longest_s, "DeadlineOutOfRange"),
            (order.window > window_s, "WindowOutOfRange"),
            (order.requests == 0, "RequestsZero"),
            (order.matcher_fee_bps > MAX_MATCHER_FEE_BPS, "FeeTooHigh"),
            (matcher == t.ZERO_ADDRESS and order.opening_fee > 0, "FeeTooHigh"),
            (order.arbitrator != ARBITRATOR, "ArbitratorUnknown"),
            (order.numerics_profile != profile, "NumericsProfileMismatch"),
            (sender != (matcher if matcher != t.ZERO_ADDRESS else order.requester), "NotMatcher"),
        ):
            if is_wrong:
                raise _refusal(error)

    def _settle_ack(
        self, sender: str, order: t.Order, ack: t.Ack, signature: str, plan: Sequence[t.Stage]
    ) -> Event:
        job_id, job = self._bound(order, plan, JobState.MATCHED, JobState.DELIVERED)
        if (ack.order_hash, ack.plan_hash) != (signing.order_hash(order), job.plan_hash):
            raise _refusal("AckMismatch")
        if signing.recover(DOMAIN, ack, signature) not in (order.requester, job.opener):
            raise _refusal("BadSignature")
        totals, had = (ack.tokens_in, ack.tokens_out), (job.tokens_in, job.tokens_out)
        if job.state is JobState.DELIVERED and job.final_at <= job.deadline + order.window:
            if totals != had:
                raise _refusal("TokenCountMismatch")
            return self._settled(job_id, job)
        assert ack.tokens_in <= order.max_tokens_in and ack.tokens_out <= order.max_tokens_out
        totals = max(had[0], ack.tokens_in), max(had[1], ack.tokens_out)
        ends = sender == order.matcher and not order.is_open
        if totals == had and not ends:
            raise _refusal("AckStale")
        job.tokens_in, job.tokens_out = totals
        if job.state is JobState.MATCHED:
            job.final_at = min(int(self.clock.now()), job.deadline) + order.window
        if ends:
            return self._settled(job_id, job)
        said = {"job": job_id, "tokensIn": totals[0], "tokensOut": totals[1]}
        return "JobAcknowledged", said

    def _deliver(
        self,
        order: t.Order,
        plan: Sequence[t.Stage],
        receipts: Sequence[t.StageReceipt],
        sigs: Sequence[str],
    ) -> Event:
        is_late = self.clock.now() > order.deadline
        again = (JobState.DELIVERED, JobState.DISPUTED) if is_late else ()
        job_id, job = self._bound(order, plan, JobState.MATCHED, *again)
        if order.is_open:
            raise _refusal("NotBatch")
        until = order.deadline + CLOSE_DELAY_S * is_late
        if self.clock.now() > until:
            raise _refusal("DeadlinePassed")
        requests = receipts[0].requests if is_late else order.requests
        bound, counts = (signing.order_hash(order), job.plan_hash), _counts(receipts[0])
        if counts[0] > order.max_tokens_in or counts[1] > order.max_tokens_out:
            raise _refusal("OverCap")
        for index, (stage, receipt, sig) in enumerate(zip(plan, receipts, sigs, strict=True)):
            said = (receipt.order_hash, receipt.plan_hash, receipt.stage)
            layers = (receipt.layer_from, receipt.layer_to)
            if said != (*bound, index) or layers != (stage.layer_from, stage.layer_to):
                raise _refusal("ReceiptMismatch")
            if len(sig) == 132:
                assert signing.is_signed_by(DOMAIN, receipt, sig, stage.operator)
            else:
                words = words_in(t.SignedReceipt(receipt, sig, []))
                of = [word.word.request_index for word in words]
                said = receipt_by_words(order, plan, index, words, of, DOMAIN)
                assert said is not None
                assert (said.receipt, said.signature) == (receipt, sig)
            if receipt.requests != requests:
                raise _refusal("RequestCountMismatch")
            if _counts(receipt) != counts:
                raise _refusal("TokenCountMismatch")
        for before, after in itertools.pairwise([receipts[-1], *receipts]):
            if after.input_root != before.output_root:
                raise _refusal("ReceiptChainBroken")
        last = receipts[-1]
        if is_late and last.tokens_in <= job.tokens_in and last.tokens_out <= job.tokens_out:
            raise _refusal("AckStale")
        job.state = JobState.DELIVERED
        job.tokens_in = max(job.tokens_in, last.tokens_in)
        job.tokens_out = max(job.tokens_out, last.tokens_out)
        job.final_at = (until if is_late else int(self.clock.now())) + order.window
        return "JobDelivered", {
            "job": job_id,
            "resultRoot": last.output_root,
            "tokensIn": job.tokens_in,
            "tokensOut": job.tokens_out,
            "finalAt": job.final_at,
        }

    def _finalize(self, order: t.Order, plan: Sequence[t.Stage]) -> Event:
        job_id, job = self._bound(order, plan, JobState.DELIVERED)
        if self.clock.now() <= job.final_at:
            raise _refusal("WindowOpen", until=job.final_at)
        return self._settled(job_id, job)

    def _request_close(self, sender: str, order: t.Order, plan_hash: str) -> Event:
        job_id, job = self._found(order, plan_hash, JobState.MATCHED)
        now = int(self.clock.now())
        if not order.is_open:
            raise _refusal("NotSession")
        if sender not in (order.requester, order.matcher, job.opener):
            raise _refusal("NotParty")
        if now >= job.deadline:
            raise _refusal("DeadlinePassed")
        job.closed_at = now
        return "JobClosing", {"job": job_id, "until": now + CLOSE_DELAY_S}

    def _expire(self, order: t.Order, plan: Sequence[t.Stage]) -> Event:
        plan_hash = signing.plan_hash(tuple(plan)) if plan else t.ZERO_HASH
        state = JobState.MATCHED if plan else JobState.OPEN
        job_id, job = self._found(order, plan_hash, state)
        if self.clock.now() <= job.deadline + (CLOSE_DELAY_S if plan else 0):
            raise _refusal("DeadlineNotPassed")
        if not job.tokens_in and not job.tokens_out:
            return self._given_back(order, plan_hash, state, JobState.EXPIRED)
        return self._settled(job_id, job)

    def _given_back(self, order: t.Order, plan_hash: str, needs: JobState, end: JobState) -> Event:
        job_id, job = self._found(order, plan_hash, needs)
        paid = pricing.opening_nano(order) if needs is JobState.MATCHED else 0
        job.state, refund = end, self.locked.pop(job_id, paid) - paid
        self.fees[order.matcher] += paid
        self.add_nano(order.requester, refund)
        said = {"job": job_id, "requester": order.requester, "refundedNano": refund}
        said |= {"paidNano": paid} if end is JobState.EXPIRED else {}
        return f"Job{end.name.capitalize()}", said

    def end(self, job_id: str) -> None:
        """As if the job's deadline and delay had passed: what was counted is paid."""
        self._settled(job_id, self.jobs[job_id])

    def _settled(self, job_id: str, job: ChainJob) -> Event:
        """Pay stages and matcher by the job's counts, and the requester the rest."""
        order = _order(job)
        model, counts = self.models[order.model_id], (job.tokens_in, job.tokens_out)
        due = pricing.split(order, job.plan, model, *counts)
        for stage, pay in zip(job.plan, due.pays, strict=True):
            self.earned[stage.operator] += pay
        self.fees[order.matcher] += due.matcher_fee + due.opening
        self.add_nano(order.requester, due.refund)
        del self.locked[job_id]
        job.state = JobState.SETTLED
        said = {"job": job_id, "paidNano": due.paid, "refundedNano": due.refund}
        return "JobSettled", {**said, "withheldNano": 0}

    def _bound(
        self, order: t.Order, plan: Sequence[t.Stage], *states: JobState
    ) -> tuple[str, ChainJob]:
        return self._found(order, signing.plan_hash(tuple(plan)), *states)

    def _found(self, order: t.Order, plan_hash: str, *states: JobState) -> tuple[str, ChainJob]:
        """The job of this plan, in one of these states."""
        job_id = signing.job_id(DOMAIN, order)
        job = self.jobs.get(job_id, ChainJob())
        state = job.state if job.plan_hash == plan_hash else JobState.NONE
        if state not in states:
            raise _refusal("WrongState", have=state.name)
        return job_id, job

    def _may_spend(self, requester: str, who: str) -> bool:
        key = self.spenders.get((requester, who), NO_SPENDER)
        return bool(key["limit"] > 0 and self.clock.now() <= key["expiry"])


def _order(job: ChainJob) -> t.Order:
    assert job.order is not None
    return job.order


def _counts(receipt: t.StageReceipt) -> tuple[int, int]:
    return receipt.tokens_in, receipt.tokens_out


def _refusal(error: str, **args: Any) -> ContractRefused:
    return ContractRefused("TaskRegistry was refused", error=error, args=args)


def _named(contract: str, function: str, args: Sequence[Any]) -> dict[str, Any]:
    """Arguments by the names that the contract's interface gives them."""
    entries = (e for e in artifact(contract)["abi"] if e.get("name") == function)
    inputs = next(e["inputs"] for e in entries if len(e["inputs"]) == len(args))
    names = [entry["name"] for entry in inputs]
    return dict(msgspec.to_builtins(dict(zip(names, args, strict=True))))
