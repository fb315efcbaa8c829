"""Random calls: every actor, amount and time that decides something, and one beside it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from core.keys.signer import Signer
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.receipts import word_of
from core.protocol.units import NANO, covering_units
from tests.attacks.accounts import ACTIVE, EXITED, NONE, By
from tests.attacks.model import Model, Words

MAX = {bits: 2**bits - 1 for bits in (16, 32, 64, 96, 128, 256)}
CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
STATES = t.JobState
_SNAKE = re.compile("[A-Z]")
#: How often a message has one thing wrong, and how often several.
ONE_WRONG, SEVERAL_WRONG = 0.25, 0.04
#: Requests of an order of which stages' words are brought.
MOST_WORDS = 16
#: Of jobs that are kept at hand; the oldest that are over are forgotten first.
KEPT = 60
#: How often each function is called, of the sum.
WEIGHTS = {
    "deposit": 5,
    "approve": 2,
    "request_withdraw": 4,
    "withdraw": 3,
    "collect": 4,
    "collect_fees": 3,
    "set_spender": 5,
    "register": 3,
    "add_stake": 7,
    "request_exit": 4,
    "cancel_exit": 3,
    "withdraw_stake": 6,
    "rotate_operator": 3,
    "unjail": 4,
    "close_dispute": 8,
    "serve": 2,
    "withdraw_credit": 2,
    "open": 8,
    "open_matched": 24,
    "match_job": 8,
    "settle_ack": 22,
    "deliver": 12,
    "finalize": 8,
    "cancel": 3,
    "expire": 8,
    "request_close": 5,
    "revoke_nonce": 2,
    "dispute": 14,
    "resolve": 8,
    "convict": 2,
}


@dataclass
class Call:
    """One call: who makes it when, what the model says to it, and what it may touch."""

    contract: str
    function: str
    sender: str
    args: tuple[Any, ...]
    at: int
    predict: Callable[[], None] = field(repr=False)
    reads: list[tuple[Any, ...]] = field(repr=False)
    approvals: list[str] = field(repr=False)  # digests that the wallet signs before
    done: Callable[[bool], None] = field(repr=False, default=lambda passed: None)


@dataclass
class Known:
    """An order that was sent to the chain, who signed it, and the newest plan for it."""

    order: t.Order
    by: By
    plan: tuple[t.Stage, ...] = ()


class Calls:
    """Makes calls for the state that the model is in. `last`: time of the newest block."""

    def __init__(
        self,
        model: Model,
        keys: dict[str, list[Signer]],
        wallet: str,
        domain: signing.Domain,
        rng: random.Random,
    ) -> None:
        self.model, self.wallet, self.domain, self.rng = model, wallet, domain, rng
        self.keys = {key.address: key for keys_ in keys.values() for key in keys_}
        self.who = {role: [key.address for key in keys_] for role, keys_ in keys.items()}
        self.who["requester"].append(wallet)
        self.everyone = [*self.keys, wallet]
        self.known: list[Known] = []
        #: Who rules: not those that the contracts themselves name.
        self.rulers = set(model.net.arbitrators)
        self.last = self.at = self.nonces = 0
        self.approvals: list[str] = []

    # --- choices ---

    def odds(self, p: float) -> bool:
        return self.rng.random() < p

    def one(self, role: str, *named: str, p: float = 0.85) -> str:
        """One of the likely ones, at times anybody; never nobody, who sends nothing."""
        likely = [who for who in named if who != t.ZERO_ADDRESS]
        if likely and self.odds(p):
            return self.rng.choice(likely)
        return self.rng.choice(self.who[role] if self.odds(0.6) else self.everyone)

    def amount(self, exact: int, bits: int = 256) -> int:
        """What decides, what lies beside it, any part of it, nothing, one and all there is."""
        beside = (exact, exact, exact - 1, exact + 1, 0, 1, MAX[bits])
        some = self.rng.randint(0, max(exact, 1))
        return min(max(self.rng.choice((*beside, *[some] * 5)), 0), MAX[bits])

    def beside(self, *moments: int) -> int:
        """A second before, at or after one of them."""
        return self.rng.choice(moments) + self.rng.choice((-1, 0, 1))

    def wait_for(self, *moments: int, p: float = 0.7) -> None:
        """Often make this call a second before, at or after one of these moments to come."""
        coming = [moment for moment in moments if moment > self.last + 1]
        if coming and self.odds(p):
            self.at = self.beside(*coming)

    def altered(self, message: Any, *ways: dict[str, Any]) -> Any:
        """The message, at times with one or several fields in a way that may be wrong."""
        if self.odds(SEVERAL_WRONG):
            for way in self.rng.sample(ways, min(3, len(ways))):
                message = replace(message, **way)
        elif self.odds(ONE_WRONG):
            message = replace(message, **self.rng.choice(ways))
        return message

    def hash(self) -> str:
        return "0x" + self.rng.randbytes(32).hex()

    def signed(self, who: str, message: t.Value, of: int = 1) -> tuple[By, bytes]:
        """The message's signature, and whose it is; at times another's, or none at all.

        `of`: messages that are signed for one call, of which hardly more than one is wrong.
        """
        is_right = self.odds(1 - 0.03 / of)
        digest = signing.digest(self.domain, message)
        if who in self.keys and is_right:
            return who, self.keys[who].sign_digest(digest)
        if who == self.wallet and is_right:
            self.approvals.append("0x" + digest.hex())
            return who, self.rng.randbytes(self.rng.choice((0, 1, 65)))
        other = self.rng.choice(list(self.keys.values()))
        good = other.sign_digest(digest)
        r, s, v = good[:32], int.from_bytes(good[32:64], "big"), good[64]
        elsewhere = signing.Domain(1, self.domain.verifying_contract)
        fits_nobody = (
            good[:64],
            good[:64] + bytes([v - 27]),
            r + (CURVE_ORDER - s).to_bytes(32, "big") + bytes([55 - v]),
            bytes(65),
            other.sign_digest(signing.digest(elsewhere, message)),
        )
        return (other.address, good) if self.odds(0.4) else (None, self.rng.choice(fits_nobody))

    # --- calls ---

    def next(self) -> Call:
        """A random call, at its time."""
        name = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if len(self._of_state(ACTIVE)) < 3 and self.odds(0.3):
            may = self._of_state(NONE, EXITED)
            name = "register" if may else self.rng.choice(("cancel_exit", "withdraw_stake"))
        self.at, self.approvals = self.last + self.rng.choice((1, 1, 1, 1, 2, 9)), []
        call: Call = getattr(self, "_" + name)()
        self.last = call.at
        return call

    def funding(self, deployer: str, amount: int) -> Iterator[Call]:
        """Tokens for everybody, and allowances to both contracts."""
        for who in self.everyone:
            self.at = self.last + 1
            yield self._call("TestUSD", "mint", deployer, (who, amount), [who])
            self.last = self.at
            for contract in ("Escrow", "MinerRegistry"):
                self.at = self.last + 1
                to = self.model.net.addresses[contract]
                yield self._call("TestUSD", "approve", who, (to, amount), [who])
                self.last = self.at
        for who in self.who["requester"]:
            self.at = self.last + 1
            yield self._call("Escrow", "deposit", who, (10**9,), [who])
            self.last = self.at

    def _call(
        self,
        contract: str,
        function: str,
        sender: str,
        args: tuple[Any, ...],
        accounts: Sequence[str],
        *,
        said: tuple[Any, ...] | None = None,
        jobs: Sequence[Known] = (),
        reads: Sequence[tuple[Any, ...]] = (),
        method: str | None = None,
        done: Callable[[bool], None] = lambda passed: None,
    ) -> Call:
        """`said`: what the model is told in place of the contract's arguments."""
        touched = [read for who in accounts for read in self._of_account(who)]
        touched += [read for job in jobs for read in self._of_job(job)]
        act = getattr(self.model, method or _SNAKE.sub(r"_\g<0>", function).lower())
        told = args if said is None else said
        return Call(
            contract,
            function,
            sender,
            args,
            self.at,
            lambda: act(sender, *told),
            [*touched, *reads],
            self.approvals,
            done,
        )

    def _of_account(self, who: str) -> list[tuple[Any, ...]]:
        reads = [(name, who) for name in ("tokens", "balance", "fees", "nano", "thaw", "credit")]
        miner = self.model.miner[who]
        if who in self.who["owner"] or miner.state != NONE:
            least = self.rng.choice((0, miner.stake, miner.stake + 1))
            reads += [("miner", who), ("named", who), ("works", miner.operator, least)]
        return reads

    def _of_job(self, known: Known) -> list[tuple[Any, ...]]:
        order, id_ = known.order, self.model.net.job_id(known.order)
        accounts = order.requester, order.matcher, self.model.net.fee_account
        operators = [stage.operator for stage in known.plan[:3]]
        owners = {self.model.owner[operator] for operator in operators}
        reads = [read for who in (*accounts, *owners) for read in self._of_account(who)]
        reads += [("earned", operator) for operator in operators]
        reads += [("nano", operator) for operator in operators]
        reads.append(("spender", order.requester, known.by or self.who["spender"][0]))
        reads.append(("used", order.requester, order.nonce))
        reads.append(("signer", id_))
        return reads + [("job", id_, hash_) for hash_ in (t.ZERO_HASH, self._plan_hash(known))]

    def _plan_hash(self, known: Known) -> str:
        """Under which its job is found: zero, as long as it waits for a plan."""
        return self.model.net.plan_hash(known.plan) if known.plan else t.ZERO_HASH

    def everything(self) -> list[tuple[Any, ...]]:
        """Reads of all accounts, keys and jobs."""
        model, addresses = self.model, self.model.net.addresses
        reads = [read for who in self.everyone for read in self._of_account(who)]
        reads += [("owed", addresses[name]) for name in ("Escrow", "MinerRegistry")]
        reads += [read for who in self.who["owner"] for read in self._of_owner(who)]
        reads += [("spender", *pair) for pair in model.spender]
        reads += [("owner", key) for key in self.keys]
        reads += [("nano", key) for key in self.keys]
        reads += [("used", *pair) for pair in model.used]
        reads += [("signer", id_) for id_, _ in model.job]
        return reads + [("job", *pair) for pair in model.job]

    # --- TestUSD ---

    def _approve(self) -> Call:
        who = self.one("requester")
        to = self.model.net.addresses[self.rng.choice(("Escrow", "MinerRegistry"))]
        amount = self.rng.choice((10**6, 10**9, 10**13, 10**13))
        return self._call("TestUSD", "approve", who, (to, amount), [who])

    # --- Escrow ---

    def _deposit(self) -> Call:
        who, escrow = self.one("requester", p=0.9), self.model.net.addresses["Escrow"]
        exact = min(self.model.wallet[who], self.model.allowed[who, escrow])
        exact = exact if self.odds(0.2) else min(exact, 10**9)
        return self._call("Escrow", "deposit", who, (self.amount(exact),), [who])

    def _request_withdraw(self) -> Call:
        who = self.one("requester")
        exact = self.model.balance[who] // NANO // self.rng.choice((1, 4, 4, 100))
        amount = self.amount(exact)
        return self._call("Escrow", "requestWithdraw", who, (amount,), [who])

    def _withdraw(self) -> Call:
        thawing = [who for who, (amount, _) in self.model.thaw.items() if amount]
        who = self.one("requester", *thawing)
        self.wait_for(self.model.thaw[who][1])
        return self._call("Escrow", "withdraw", who, (), [who])

    def _some_of(self, book: dict[str, int], *more: str) -> tuple[str, ...]:
        """Accounts that have something in it, at times others, none, or one of them twice."""
        full = [who for who, nano in book.items() if nano]
        count = self.rng.choice((0, 1, 1, 1, 2, 3))
        return tuple(self.rng.choice([*full, *more]) for _ in range(count))

    def _collect(self) -> Call:
        operators = self._some_of(self.model.earned, *self.who["operator"][:2])
        owners = [self.model.owner[operator] for operator in operators]
        who = self.one("owner", *owners)
        reads = [(name, operator) for operator in operators for name in ("earned", "nano")]
        touched = [read for owner in owners for read in self._of_account(owner)]
        return self._call("Escrow", "collect", who, (operators,), [who], reads=reads + touched)

    def _collect_fees(self) -> Call:
        matchers = self._some_of(self.model.protocol_fees, t.ZERO_ADDRESS, *self.who["matcher"])
        who = self.one("matcher", *matchers)
        accounts = [who, self.model.net.fee_account, *matchers]
        return self._call("Escrow", "collectFees", who, (matchers,), accounts)

    def _set_spender(self) -> Call:
        who = self.one("requester", *self.who["requester"], p=0.95)
        key = self.one("spender", *self.who["spender"])
        if self.odds(0.1):
            key = self.rng.choice((t.ZERO_ADDRESS, who, *self.model.net.contracts))
        used = covering_units(self.model.spender[who, key].used)
        limit = self.rng.choice((0, used, used + 10**5, used + 10**8, 10**10, MAX[96]))
        soon = self.at + self.rng.choice((0, 1, 5, 60, 300, 2000))
        expiry = soon if self.odds(0.6) else self.rng.choice((0, self.at - 1, MAX[64]))
        reads = [("spender", who, key)]
        args = (key, limit, expiry)
        return self._call("Escrow", "setSpender", who, args, [who], reads=reads)

    # --- MinerRegistry ---

    def _stakes(self, function: str, who: str, *args: Any, **more: Any) -> Call:
        return self._call("MinerRegistry", function, who, args, [who], **more)

    def _stake_amount(self, who: str, exact: int) -> int:
        registry = self.model.net.addresses["MinerRegistry"]
        if self.odds(0.1):
            exact = min(self.model.wallet[who], self.model.allowed[who, registry])
        return self.amount(exact)

    def _of_state(self, *states: int) -> list[str]:
        return [who for who in self.who["owner"] if self.model.miner[who].state in states]

    def _proof(self, who: str) -> tuple[str, By, bytes]:
        """An operator's key, mostly one that nobody else has, and its proof."""
        free = (t.ZERO_ADDRESS, who)
        ours = [key for key in self.who["operator"] if self.model.owner[key] in free]
        key = self.one("operator", *ours)
        proof = signing.OperatorProof(who, key)
        if self.odds(0.05):
            proof = signing.OperatorProof(self.one("owner"), key)
        by, signature = self.signed(key, proof)
        return key, by if proof.owner == who else None, signature

    def _register(self) -> Call:
        who = self.one("owner", *self._of_state(NONE, EXITED))
        least = self.model.clocks.min_stake
        amount = self._stake_amount(who, least) if self.odds(0.4) else 3 * least
        key, by, signature = self._proof(who)
        said, reads = (amount, key, by), [("owner", key), ("works", key, amount)]
        return self._stakes("register", who, amount, key, signature, said=said, reads=reads)

    def _add_stake(self) -> Call:
        active = self._of_state(ACTIVE)
        slashed = [who for who in active if self.model.miner[who].stake < 10**8]
        who = self.one("owner", *(slashed or active))
        return self._stakes("addStake", who, self._stake_amount(who, 10**8))

    def _request_exit(self) -> Call:
        who = self.one("owner", *self._of_state(ACTIVE))
        stake = self.model.miner[who].stake
        least = self.model.clocks.min_stake
        rest = self.rng.choice((0, least, least, stake // 2))
        return self._stakes("requestExit", who, self.amount(max(stake - rest, 0)))

    def _leaving(self) -> str:
        leaving = [who for who in self.who["owner"] if self.model.miner[who].leaving]
        leaving.sort(key=lambda who: self.model.miner[who].leave_at)
        return self.one("owner", *leaving[:2])

    def _cancel_exit(self) -> Call:
        return self._stakes("cancelExit", self._leaving())

    def _withdraw_stake(self) -> Call:
        who = self._leaving()
        self.wait_for(self.model.miner[who].leave_at)
        return self._stakes("withdraw", who, method="withdraw_stake")

    def _rotate_operator(self) -> Call:
        who = self.one("owner", *self._of_state(ACTIVE))
        key, by, signature = self._proof(who)
        reads = [("owner", key), ("works", key, 0), ("works", self.model.miner[who].operator, 0)]
        said = (key, by)
        return self._stakes("rotateOperator", who, key, signature, said=said, reads=reads)

    def _unjail(self) -> Call:
        jailed = [who for who in self.who["owner"] if self.model.miner[who].jail_until]
        who = self.one("owner", *jailed)
        self.wait_for(self.model.miner[who].jail_until, p=0.8)
        return self._stakes("unjail", who)

    def _close_dispute(self) -> Call:
        open_ = [
            place for place, said in self.model.dispute_of.items() if said.arbitrator in self.rulers
        ]
        if not open_ or self.odds(0.05):
            owner = self.one("owner")
            number = self.rng.choice((0, self.model.pool[owner].opened, MAX[32]))
        else:
            owner, number = self.rng.choice(open_)
        said = self.model.dispute_of[owner, number]
        who = self.one("stranger", said.arbitrator, p=0.95)
        bps = self.rng.choice((0, 0, 1, 3333, 10_000, 10_000, 10_001, MAX[16]))
        cap = self.amount(said.at_stake * min(bps, 10_000) // 50_000)
        return self._of_guilt("closeDispute", who, owner, (owner, number, bps, cap))

    def _serve(self) -> Call:
        waiting = [who for who, pool in self.model.pool.items() if pool.served < pool.opened]
        owner = self.one("owner", *waiting)
        count = self.rng.choice((0, 1, 2, MAX[256]))
        return self._of_guilt("serve", self.one("stranger"), owner, (owner, count))

    def _withdraw_credit(self) -> Call:
        owed = [who for who in self.everyone if self.model.credit[who]]
        return self._stakes("withdrawCredit", self.one("requester", *owed))

    def _of_guilt(self, function: str, who: str, owner: str, args: tuple[Any, ...]) -> Call:
        return self._stakes(function, who, *args, reads=self._of_owner(owner))

    def _of_owner(self, owner: str) -> list[tuple[Any, ...]]:
        """What a slash of this miner moves."""
        pool, reads = self.model.pool[owner], self._of_account(owner)
        numbers = range(pool.served, pool.opened + 1)
        disputes = [self.model.dispute_of[owner, n] for n in numbers]
        people = {who for said in disputes for who in (said.challenger, said.victim)}
        reads += [("credit", who) for who in (*people, owner, self.model.net.burn)]
        return [*reads, ("pool", owner), *(("dispute", owner, n) for n in numbers)]

    # --- TaskRegistry: messages ---

    def _order(self) -> t.Order:
        model, rng, now = self.model, self.rng, self.at
        clocks = model.clocks
        self.nonces += 1
        session = self.odds(0.4)
        requester = self.one("requester", *self.who["requester"], p=0.97)
        matcher = t.ZERO_ADDRESS if self.odds(0.1) else self.one("matcher", *self.who["matcher"])
        fee = rng.choice((0, 1, 130, 499, 500, rng.randint(0, 500)))
        opening = rng.choice((0, 1, 4_003, rng.randint(0, 10**6)))
        order = t.Order(
            requester=requester,
            model_id=model.net.model_id,
            input_root=t.ZERO_HASH if session else self.hash(),
            sampling_root=t.ZERO_HASH if session else self.hash(),
            requests=rng.randint(1, 9),
            max_tokens_in=rng.randint(0, 3000),
            max_tokens_out=rng.randint(0, 3000),
            price_in=rng.choice((0, 999_999, rng.randint(1, 10**7))),
            price_out=rng.choice((0, 1_000_003, rng.randint(1, 10**7))),
            matcher=matcher,
            matcher_fee_bps=0 if matcher == t.ZERO_ADDRESS and self.odds(0.9) else fee,
            opening_fee=0 if matcher == t.ZERO_ADDRESS and self.odds(0.9) else opening,
            min_stake=rng.choice((0, 0, 0, clocks.min_stake, 3 * clocks.min_stake)),
            deadline=now + rng.choice((1, 60, 200, 600, 900, clocks.max_job_s)),
            window=rng.choice((0, 1, 30, 120, clocks.max_window_s)),
            auditor=rng.choice((t.ZERO_ADDRESS, *self.who["stranger"])),
            arbitrator=rng.choice(model.net.arbitrators),
            numerics_profile=model.net.model.numerics_profile,
            terms_hash=t.ZERO_HASH,
            nonce=self.nonces,
        )
        if self.odds(0.15):  # a lock of about what there is to lock
            key = model.spender[requester, rng.choice(self.who["spender"])]
            exact = rng.choice((model.balance[requester], max(key.limit * NANO - key.used, 0)))
            units = model.net.model.layers + 4
            price = -(-self.amount(min(exact, 10**21), 256) // units)
            order = replace(order, max_tokens_in=1, max_tokens_out=0, price_in=min(price, MAX[64]))
        used = sorted(nonce for who, nonce in model.used if who == requester)
        stakes = [miner.stake for miner in model.miner.values()] or [0]
        strangers = t.ZERO_ADDRESS, requester, model.escrow, model.stakes
        return self.altered(
            order,
            {"requests": rng.choice((0, MAX[32]))},
            {"deadline": self.beside(now)},
            {"deadline": self.beside(now + clocks.max_job_s)},
            {"deadline": rng.choice((0, MAX[64]))},
            {"window": self.beside(clocks.max_window_s)},
            {"window": MAX[32]},
            {"matcher_fee_bps": rng.choice((501, 10_000, MAX[16]))},
            {"opening_fee": rng.choice((1, 10**6, MAX[64]))},
            {"arbitrator": rng.choice(strangers)},
            {"model_id": self.hash()},
            {"numerics_profile": self.hash()},
            {"nonce": rng.choice(used or [self.nonces])},
            {"max_tokens_in": MAX[32], "price_in": MAX[64]},
            {"input_root": t.ZERO_HASH},
            {"sampling_root": t.ZERO_HASH},
            {"requester": t.ZERO_ADDRESS},
            {"min_stake": max(rng.choice(stakes) + rng.choice((0, 1)), 0)},
            {"min_stake": MAX[128]},
            {"price_in": 0, "price_out": 0},
        )

    def _plan(self, order: t.Order) -> tuple[t.Stage, ...]:
        rng, layers = self.rng, self.model.net.model.layers
        able = [key for key in self.keys if self.model.can_work(key, order.min_stake)]
        able = able or self.who["operator"]
        count = rng.choice((1, 1, 2, 2, 3, 4)) if self.odds(0.985) else rng.choice((64, 65))
        cuts = sorted(rng.sample(range(1, layers), count - 1))
        plan = [
            t.Stage(rng.choice(able), start, end)
            for start, end in zip([0, *cuts], [*cuts, layers], strict=True)
        ]
        if self.odds(0.1):
            place = rng.randrange(len(plan))
            ways = {"layer_from": rng.choice((0, 1, plan[place].layer_to)), "layer_to": layers + 1}
            name = rng.choice(["operator", "last", "none", *ways])
            if name == "operator":
                changed = {"operator": rng.choice([t.ZERO_ADDRESS, *self.everyone])}
                plan[place] = replace(plan[place], **changed)
            elif name in ways:
                plan[place] = replace(plan[place], **{name: ways[name]})
            else:
                plan = plan[:-1] if name == "last" else []
        return tuple(plan)

    def _signer(self, order: t.Order) -> str:
        """Who signs an order: its requester, a spender, at times anybody."""
        late = self.at - 1 if self.odds(0.95) else 0
        allowed = [
            key
            for (who, key), spender in self.model.spender.items()
            if who == order.requester and spender.expiry >= late
        ]
        by_spender = 0.9 if order.is_open and order.requester == self.wallet else 0.5
        if allowed and self.odds(by_spender):
            return self.rng.choice(allowed)
        return self.one("requester", order.requester, p=0.96)

    def _some(
        self,
        *states: STATES,
        session: bool | None = None,
        first: int | None = None,
        alive: bool = False,
    ) -> Known | None:
        """An order whose job is in one of these states, at times in any; None if there is none.

        `first`: of those whose time is over first, so many. `alive`: hardly after its deadline.
        """
        late = self.at if alive and self.odds(0.9) else 0
        right = [
            k
            for k in self.known
            if self._job(k).state in states
            and session in (None, k.order.is_open)
            and self._job(k).deadline >= late
        ]
        if right and self.odds(0.92):
            right.sort(key=lambda k: self._ends(self._job(k)))
            return self.rng.choice(right[:first])
        return self.rng.choice(self.known) if self.known and self.odds(0.15) else None

    def _ends(self, job: Any) -> int:
        return int(job.final_at if job.state == STATES.DELIVERED else job.deadline)

    def _job(self, known: Known) -> Any:
        return self.model.job[self.model.net.job_id(known.order), self._plan_hash(known)]

    def _remember(self, known: Known) -> Callable[[bool], None]:
        def done(passed: bool) -> None:
            if passed or self.odds(0.05):
                self.known.append(known)
            if len(self.known) > KEPT:
                over = (STATES.NONE, STATES.SETTLED, STATES.CANCELLED, STATES.EXPIRED)
                old = next((k for k in self.known if self._job(k).state in over), self.known[0])
                self.known.remove(old)

        return done

    def _replan(self, known: Known) -> tuple[t.Stage, ...]:
        """The plan of a job, at times another."""
        return known.plan if self.odds(0.96) else self._plan(known.order)

    def _reorder(self, known: Known) -> t.Order:
        """An order that was sent, at times with another nonce."""
        return known.order if self.odds(0.98) else replace(known.order, nonce=MAX[64] // 2)

    # --- TaskRegistry: calls ---

    def _matcher(self, order: t.Order) -> str:
        return order.requester if order.matcher == t.ZERO_ADDRESS else order.matcher

    def _tasks(self, function: str, who: str, *args: Any, **more: Any) -> Call:
        return self._call("TaskRegistry", function, who, args, [who], **more)

    def _open(self) -> Call:
        order = self._order()
        known = Known(order, None)
        who = self.one("requester", order.requester, p=0.95)
        return self._tasks("open", who, order, jobs=[known], done=self._remember(known))

    def _open_matched(self) -> Call:
        again = self._some() if self.odds(0.03) else None
        order = again.order if again else self._order()
        by, signature = self.signed(self._signer(order), order)
        if by and self.odds(0.2):
            expiry = self.model.spender[order.requester, by].expiry
            if expiry < self.last + 3000:
                self.wait_for(expiry)
        plan = self._plan(order)
        known = Known(order, by, plan)
        who = self.one("matcher", self._matcher(order), p=0.95)
        return self._tasks(
            "openMatched",
            who,
            order,
            signature,
            plan,
            said=(order, by, plan),
            jobs=[known],
            done=self._remember(known),
        )

    def _match_job(self) -> Call:
        known = self._some(STATES.OPEN, alive=True)
        if known is None:
            return self._open()
        order = self._reorder(known)
        self.wait_for(order.deadline, p=0.15)
        plan = self._plan(order)
        who = self.one("matcher", self._matcher(order), p=0.95)

        def done(passed: bool) -> None:
            known.plan = plan if passed else known.plan

        return self._tasks(
            "matchJob",
            who,
            order,
            plan,
            jobs=[known, Known(order, known.by, plan)],
            done=done,
        )

    def _settle_ack(self) -> Call:
        known = self._some(STATES.MATCHED, STATES.MATCHED, STATES.DELIVERED)
        if known is None:
            return self._open_matched()
        order, plan, job = self._reorder(known), self._replan(known), self._job(known)
        if self.odds(0.1):
            self.wait_for(job.deadline, job.deadline + self.model.clocks.close_delay_s)
        counts = [
            self.amount(cap, 32) if self.odds(0.4) else self.rng.randint(min(paid, cap), cap)
            for cap, paid in (
                (order.max_tokens_in, job.tokens_in),
                (order.max_tokens_out, job.tokens_out),
            )
        ]
        if job.state == STATES.DELIVERED and self.odds(0.8):
            counts = [job.tokens_in, job.tokens_out]
        hashes = signing.order_hash(order), self.model.net.plan_hash(plan)
        ack = self.altered(
            t.Ack(*hashes, self.hash(), counts[0], counts[1]),
            {"order_hash": self.hash()},
            {"plan_hash": self.hash()},
            {"tokens_in": job.tokens_in, "tokens_out": job.tokens_out},
            {"tokens_in": max(job.tokens_in - 1, 0)},
            {"tokens_out": 0},
            {"tokens_in": min(order.max_tokens_in + 1, MAX[32])},
            {"tokens_out": min(order.max_tokens_out + 1, MAX[32])},
        )
        id_ = self.model.net.job_id(order)
        signer = self.model.signed_by[id_]
        by, signature = self.signed(self.one("spender", order.requester, signer, p=0.95), ack)
        stages = [stage.operator for stage in plan]
        who = self.one("matcher", order.matcher, order.matcher, order.requester, *stages)
        args = (order, ack, signature, plan)
        said = (order, ack, by, plan)
        jobs = [known, Known(order, known.by, plan)]
        return self._tasks("settleAck", who, *args, said=said, jobs=jobs)

    def _deliver(self) -> Call:
        is_late = self.odds(0.3)
        states = (STATES.MATCHED, STATES.DELIVERED, STATES.DISPUTED)[: 3 if is_late else 1]
        known = self._some(*states, session=False, alive=not is_late)
        if known is None:
            return self._open_matched()
        order, plan = self._reorder(known), self._replan(known)
        deadline, delay_s = self._job(known).deadline, self.model.clocks.close_delay_s
        self.wait_for(deadline, *([deadline + delay_s] * is_late), p=0.5 if is_late else 0.1)
        receipts, signatures = self._receipts(order, plan)
        who = self.one("stranger") if self.odds(0.95) else self.wallet
        return self._tasks(
            "deliver",
            who,
            order,
            plan,
            [receipt for receipt, _ in receipts],
            signatures,
            said=(order, plan, receipts),
            jobs=[known, Known(order, known.by, plan)],
        )

    def _receipts(
        self, order: t.Order, plan: Sequence[t.Stage]
    ) -> tuple[list[tuple[t.StageReceipt, By | Words]], list[bytes]]:
        hashes = signing.order_hash(order), self.model.net.plan_hash(plan)
        requests = order.requests
        if self.at > order.deadline and self.odds(0.5):
            requests = self.rng.randint(0, min(requests, MOST_WORDS))
        may_word = 0 < requests <= MOST_WORDS
        sent = [[self.hash() for _ in range(requests * may_word)] for _ in plan]
        roots = [_boundary_root(of) if may_word else self.hash() for of in sent]
        counts = [
            cap if self.odds(0.3) else self.rng.randint(0, cap)
            for cap in (order.max_tokens_in, order.max_tokens_out)
        ]
        if self.odds(0.06):
            counts[self.rng.randrange(2)] += self.rng.choice((1, 10**6))
            counts = [min(count, MAX[32]) for count in counts]
        alter = self.rng.randrange(2 * len(plan) + 1)  # often none
        receipts, signatures = [], []
        for i, stage in enumerate(plan):
            receipt = t.StageReceipt(
                *hashes,
                i,
                stage.layer_from,
                stage.layer_to,
                self.hash(),
                roots[i - 1],  # the first one's is the last one's
                roots[i],
                self.hash(),
                requests,
                counts[0],
                counts[1],
                self.at - 5,
                self.at,
            )
            is_worded = may_word and self.odds(0.1)
            leaves = self._leaves(sent[i - 1], sent[i], counts) if is_worded else ()
            if is_worded:
                receipt = _by_words(receipt, leaves)
            if i == alter:
                receipt = self.altered(
                    receipt,
                    {"order_hash": self.hash()},
                    {"plan_hash": self.hash()},
                    {"stage": i + 1},
                    {"layer_from": stage.layer_from + 1},
                    {"layer_to": stage.layer_to + 1},
                    {"input_root": self.hash()},
                    {"output_root": self.hash()},
                    {"requests": max(requests - 1, 0)},
                    {"requests": min(requests + 1, MAX[32])},
                    {"tokens_in": max(counts[0] - 1, 0)},
                    {"tokens_out": min(counts[1] + 1, MAX[32])},
                    {"started_at": MAX[64], "signed_at": 0},
                )
            by, signature = (
                self._words(stage.operator, hashes, i, leaves, sent[i - 1], len(plan))
                if is_worded
                else self.signed(stage.operator, receipt, len(plan))
            )
            receipts.append((receipt, by))
            signatures.append(signature)
        if plan and self.odds(0.03):
            receipts, signatures = receipts[:-1], signatures[:-1]
        return receipts, signatures

    def _leaves(
        self, came: Sequence[str], sent: Sequence[str], counts: Sequence[int]
    ) -> tuple[t.RequestLeaf, ...]:
        """A leaf for each request, whose counts add up."""
        last, left, leaves = len(sent) - 1, list(counts), list[t.RequestLeaf]()
        for i in range(len(sent)):
            part = [n if i == last else self.rng.randint(0, n) for n in left]
            left = [n - taken for n, taken in zip(left, part, strict=True)]
            leaves.append(t.RequestLeaf(i, came[i], sent[i], *part))
        return tuple(leaves)

    def _words(
        self,
        operator: str,
        hashes: tuple[str, str],
        stage: int,
        leaves: Sequence[t.RequestLeaf],
        came: Sequence[str],
        of: int = 1,
    ) -> tuple[Words, bytes]:
        """What stands in the place of a signature. A first stage names the answers that came."""
        answers = tuple(came) if stage == 0 else (t.ZERO_HASH,) * len(leaves)
        signed = [
            self.signed(operator, word_of(*hashes, stage, leaf, answer), of * len(leaves))
            for leaf, answer in zip(leaves, answers, strict=True)
        ]
        # Of a contract's signature any bytes are as good: they have the length of a key's here.
        pairs = [(by, one.ljust(65, b"\0")[:65]) for by, one in signed]
        said = b"".join(
            commit.request_leaf_bytes(leaf) + commit.unhex(answer) + one
            for leaf, answer, (_, one) in zip(leaves, answers, pairs, strict=True)
        )
        return Words(tuple(leaves), tuple(by for by, _ in pairs), answers), said

    def _finalize(self) -> Call:
        known = self._some(STATES.DELIVERED, first=3)
        if known is None:
            return self._open_matched()
        self.wait_for(self._job(known).final_at)
        order, plan = self._reorder(known), self._replan(known)
        jobs = [known, Known(order, known.by, plan)]
        return self._tasks("finalize", self.one("stranger"), order, plan, jobs=jobs)

    def _cancel(self) -> Call:
        known = self._some(STATES.OPEN)
        if known is None:
            return self._open()
        order = self._reorder(known)
        self.wait_for(self._job(known).deadline, p=0.1)
        who = self.one("requester", known.order.requester)
        return self._tasks("cancel", who, order, jobs=[known, Known(order, None)])

    def _expire(self) -> Call:
        first = 3 if self.odds(0.3) else None
        known = self._some(STATES.OPEN, STATES.MATCHED, first=first)
        if known is None:
            return self._open()
        order, plan = self._reorder(known), known.plan
        deadline = self._job(known).deadline
        self.wait_for(deadline, deadline + self.model.clocks.close_delay_s)
        if self.odds(0.05):
            plan = self.rng.choice(((), self._plan(order)))
        jobs = [known, Known(order, known.by, plan)]
        return self._tasks("expire", self.one("stranger"), order, plan, jobs=jobs)

    def _request_close(self) -> Call:
        known = self._some(STATES.MATCHED, session=True, alive=True)
        if known is None:
            return self._open_matched()
        order = self._reorder(known)
        self.wait_for(self._job(known).deadline, p=0.3)
        signer = self.model.signed_by[self.model.net.job_id(order)]
        who = self.one("requester", order.requester, signer, order.matcher)
        hash_ = self._plan_hash(known) if self.odds(0.95) else self.hash()
        return self._tasks("requestClose", who, order, hash_, jobs=[known, Known(order, None)])

    def _revoke_nonce(self) -> Call:
        who = self.one("requester", *self.who["requester"])
        nonces = [k.order.nonce for k in self.known if k.order.requester == who]
        ahead = self.nonces + self.rng.randint(1, 30)
        nonce = self.rng.choice([ahead, ahead, MAX[64], *nonces[-2:]])
        return self._tasks("revokeNonce", who, nonce, reads=[("used", who, nonce)])

    # --- TaskRegistry: guilt ---

    def _dispute(self) -> Call:
        open_ = [k for k in self.known if k.plan and self._job(k).final_at >= self.at]
        known = self.rng.choice(open_) if open_ and self.odds(0.9) else self._some(*STATES)
        if known is None or not known.plan:
            return self._deliver()
        order, plan, job = self._reorder(known), self._replan(known), self._job(known)
        self.wait_for(job.final_at, p=0.2)
        receipt, by, signature = self._accused(order, plan)
        id_ = self.model.net.job_id(order)
        who = self.one("stranger", order.requester, order.requester, order.auditor)
        expiry = self.beside(self.at) if self.odds(0.2) else MAX[64]
        delegation = self.altered(
            t.AuditorDelegation(signing.order_hash(order), who, expiry),
            {"order_hash": self.hash()},
            {"auditor": self.one("stranger")},
            {"expiry": 0},
        )
        signer = self.one("spender", order.requester, self.model.signed_by[id_], p=0.95)
        by_whom, word = self.signed(signer, delegation)
        owner = self.model.owner[plan[min(receipt.stage, len(plan) - 1)].operator] if plan else who
        return self._tasks(
            "dispute",
            who,
            order,
            plan,
            receipt,
            signature,
            delegation,
            word,
            said=(order, plan, receipt, by, delegation, by_whom),
            jobs=[known, Known(order, known.by, plan)],
            reads=self._of_owner(owner),
        )

    def _accused(
        self, order: t.Order, plan: Sequence[t.Stage]
    ) -> tuple[t.StageReceipt, By | Words, bytes]:
        """One stage's receipt; often one that was disputed before."""
        place = self.rng.randrange(max(len(plan), 1))
        stage = plan[place] if plan else t.Stage(t.ZERO_ADDRESS, 0, 1)
        roots = ["0x" + bytes([self.rng.randrange(3)]).hex() * 32] * 4
        hashes = signing.order_hash(order), self.model.net.plan_hash(plan)
        receipt = t.StageReceipt(
            *hashes,
            place,
            stage.layer_from,
            stage.layer_to,
            *roots,
            order.requests,
            1,
            1,
            self.last // 1000,
            self.last // 1000,
        )
        is_worded, leaf = self.odds(0.2), t.RequestLeaf(0, *roots[:2], 1, 1)
        if is_worded:
            root = _boundary_root(roots[:1])
            of_one = replace(receipt, requests=1, input_root=root, output_root=root)
            receipt = _by_words(of_one, [leaf])
        receipt = self.altered(
            receipt,
            {"order_hash": self.hash()},
            {"plan_hash": self.hash()},
            {"stage": len(plan)},
            {"stage": MAX[16]},
            {"layer_from": stage.layer_from + 1},
            {"layer_to": stage.layer_to + 1},
            {"tokens_in": MAX[32]},
        )
        if not is_worded:
            return receipt, *self.signed(stage.operator, receipt)
        return receipt, *self._words(stage.operator, hashes, place, [leaf], roots[:1])

    def _resolve(self) -> Call:
        trials = list(self.model.trial)
        open_ = [trial for trial in trials if self.model.trial[trial] is not None]
        if open_ and self.odds(0.93):
            trials = open_
        if not trials:
            return self._dispute()
        id_, stage, hash_, right, arbitrator = self.rng.choice(trials)
        who = self.one("stranger", arbitrator, p=0.95)
        args = [id_, stage, hash_, right, self.odds(0.5)]
        if self.odds(0.1):
            wrong = self.hash(), stage + 1, self.hash(), 1 - right
            place = self.rng.randrange(4)
            args[place] = wrong[place]
        jobs = [known for known in self.known if self.model.net.job_id(known.order) == id_]
        return self._tasks("resolve", who, *args, jobs=jobs)

    def _convict(self) -> Call:
        known = self._some(*STATES)
        if known is None or not known.plan:
            return self._open_matched()
        order, plan = self._reorder(known), self._replan(known)
        if not plan:
            return self._open_matched()
        place, kind = self.rng.randrange(len(plan)), self.rng.randrange(6)
        who = self.one("stranger", self.model.net.evidence, p=0.97)
        owner, jobs = self.model.owner[plan[place].operator], [known, Known(order, known.by, plan)]
        reads = [*self._of_owner(owner), ("credit", order.requester)]
        return self._tasks("convict", who, order, plan, place, kind, jobs=jobs, reads=reads)


def _boundary_root(sent: Sequence[str]) -> str:
    """Of the first requests, in their order, one root of rows each."""
    leaves = [t.RequestLeaf(i, root, root, 0, 0) for i, root in enumerate(sent)]
    return commit.to_hex(commit.root_of_hashes(commit.boundary_hashes(leaves, sent)))


def _by_words(receipt: t.StageReceipt, leaves: Sequence[t.RequestLeaf]) -> t.StageReceipt:
    """The receipt over the same work that a stage's words are worth."""
    return replace(
        receipt,
        shard_root=t.ZERO_HASH,
        requests_root=commit.to_hex(commit.root_of_hashes(commit.request_hashes(leaves))),
        started_at=0,
        signed_at=0,
    )
